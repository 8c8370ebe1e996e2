"""Names of environments outside of JAX, and the pools that they stand for."""

import difflib
import importlib.util
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from rlkit.envs import registry
from rlkit.hosts import built
from rlkit.hosts.pool import Pool
from rlkit.hosts.vector import VectorPool
from rlkit.hosts.worker.making import Recipe
from rlkit.types import ConfigError

PREFIXES = ("gymnasium", "atari", "ale", "envpool")
_OWN = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_ID = re.compile(r"[\w./-]+")  # no colon: what stands before one, gymnasium would import


def is_own(name: str) -> bool:
    """Whether a name is `module:attribute`, code of the user's own; it is run only where the user gives the name."""
    prefix = name.partition(":")[0]
    return bool(_OWN.fullmatch(name)) and prefix not in (*PREFIXES, *getattr(registry, "SUITES", ()))


def is_host(name: str) -> bool:
    """Whether a name is that of an environment outside of JAX."""
    prefix, colon, _ = name.partition(":")
    return bool(colon and prefix in PREFIXES) or is_own(name)


def checked_name(env: str) -> str:
    """A name of which `is_host` is true. Raises ConfigError where it names no single environment; imports nothing."""
    prefix, _, task = env.partition(":")
    if prefix in PREFIXES and not _ID.fullmatch(task):
        example = {"atari": "Breakout", "ale": "Breakout"}.get(prefix, "CartPole-v1")
        raise ConfigError(f"env={env!r} must name one environment after the colon; try {prefix}:{example}")
    return env


def recipe(env: str | Callable[..., Any], kwargs: dict[str, Any]) -> Recipe:
    """How to make an environment of this name.

    Raises:
      ConfigError: it is none, or a package is missing that it needs.
    """
    if not isinstance(env, str):
        _needs("cloudpickle", "host", f"env={env!r}")
        import cloudpickle

        return Recipe("pickled", getattr(env, "__name__", "env"), {}, cloudpickle.dumps(lambda: env(**kwargs)))
    prefix, _, task = env.partition(":")
    if is_own(env):
        return Recipe("module", env, kwargs)
    if not is_host(env):
        near = difflib.get_close_matches(prefix, PREFIXES, 1, 0.5)
        hint = f"{near[0]}:{task or prefix}" if near else "gymnasium:CartPole-v1 or module:Class"
        raise ConfigError(f"env={env!r} is no environment of a host; try {hint}")
    checked_name(env)
    _needs("gymnasium", "host", f"env={env!r}")
    if prefix in ("atari", "ale") or task.startswith("ALE/"):
        _needs("ale_py", "atari", f"env={env!r}")
    if prefix == "envpool":
        _needs("envpool", "envpool", f"env={env!r}")
    return Recipe(prefix, task, kwargs)


def pool(
    env: str | Callable[..., Any],
    kwargs: dict[str, Any],
    *,
    num_envs: int,
    seed: int = 0,
    num_workers: int | None = None,
    **others: Any,
) -> Pool | VectorPool:
    """What `make` does, with the environment's arguments apart; `others` are those of a `Pool`."""
    name, found = env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__), recipe(env, kwargs)
    if found.kind in built.MAKERS:
        return VectorPool(partial(built.make, found, num_envs, num_workers or 0), name=name, seed=seed)
    return Pool(found, name=name, num_envs=num_envs, seed=seed, num_workers=num_workers, **others)


def make(
    env: str | Callable[..., Any],
    *,
    num_envs: int,
    backend: str = "process",
    seed: int = 0,
    num_workers: int | None = None,
    timeout: float = 5.0,
    restarts: int = 10,
    **kwargs: Any,
) -> Pool | VectorPool:
    """A pool of environments that speak Gymnasium's interface.

        with hosts.make("gymnasium:CartPole-v1", num_envs=16) as pool:
            obs = pool.reset()
            step = pool.step(actions)

    Args:
      env: "gymnasium:ID", "atari:Breakout" (with the usual preprocessing), "ale:Breakout" or "envpool:ID" (in their
        own threads), or "module:Class", or a function or class that makes one environment.
      num_envs: N.
      backend: "process": worker processes; "thread": threads of this process, for environments that wait or let go of
        Python's lock; "serial": one after the other. The transitions are the same.
      seed: of all environments; each has a seed of its own derived from it.
      num_workers: processes or threads; None for one a core. Each steps its share of the environments in turn.
      timeout: seconds that a call of an environment's code may take before its worker is given up; not in "serial".
        A process has 60 s to start and to import the environment's module, which may be much.
      restarts: how many workers may be started anew in the pool's life. A restart cuts the episodes of its worker.
      kwargs: arguments of the environment.

    Raises:
      ConfigError: the environment cannot be made, or breaks its contract when it is.
      HostError: it fails when it is made.
    """
    return pool(
        env,
        kwargs,
        num_envs=num_envs,
        backend=backend,
        seed=seed,
        num_workers=num_workers,
        timeout=timeout,
        restarts=restarts,
    )


def from_vector(envs: Callable[[], Any], *, seed: int = 0) -> VectorPool:
    """A pool around a vector environment of Gymnasium's interface, in whichever autoreset mode.

        pool = hosts.from_vector(lambda: gymnasium.make_vec("CartPole-v1", num_envs=8))

    Args:
      envs: makes it; called again where the pool is reset.
      seed: of its first reset.
    """
    return VectorPool(lambda seed: envs(), name=getattr(envs, "__name__", "vector"), seed=seed)


def _needs(package: str, extra: str, what: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ConfigError(f"{what} needs the package {package}; install it: pip install 'rlkit-jax[{extra}]'")
