"""Failures of environments outside of JAX."""

from typing import NamedTuple

from rlkit.hosts.worker.group import Fault


class HostError(RuntimeError):
    """An environment outside of JAX failed. One line: the environment, the worker, the seed, and what happened."""


class Failure(NamedTuple):
    """A failure of one environment of a pool; as text one line."""

    env: str  # its name
    environment: int  # its index in the pool
    worker: int
    seed: int  # of the environment's last seeded reset
    stage: str  # in words, such as: in step
    kind: str  # raised, contract, timeout or died
    text: str  # what happened

    def __str__(self) -> str:
        place = locate(self.environment, self.worker, self.seed)
        return f"env={self.env!r}: {place}: failed {self.stage}: {self.text}"


def locate(environment: int, worker: int, seed: int) -> str:
    """Name an environment of a pool, its worker and its seed, in words."""
    return f"environment {environment} of worker {worker}, seed {seed}"


def remedy(fault: Fault) -> str:
    """Return the install command, where an extra of rlkit contains the missing package; else nothing."""
    text = fault.text.lower()
    extra = next((name for name in ("mujoco", "box2d") if name in text), "atari" if "ALE" in fault.text else "")
    known = extra and (fault.kind == "missing" or "NamespaceNotFound" in fault.text)
    return f"; install it: pip install 'rlkit-jax[{extra}]'" if known else ""
