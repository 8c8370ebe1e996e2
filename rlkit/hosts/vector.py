"""Gymnasium's vector environments, and what has their interface, as a pool of real transitions.

They reset in one of three ways. SAME_STEP: in the step that ends an episode; the last observation is in the infos.
NEXT_STEP: in the step after it, which ignores the action and pays nothing: no transition, so it is marked as not real.
DISABLED: when told; here at once.
"""

from collections.abc import Callable
from typing import Any, NoReturn

import jax
import numpy as np

from rlkit.hosts.closing import Closing
from rlkit.hosts.pool import Episodes, HostError, Step
from rlkit.hosts.spaces import space
from rlkit.hosts.worker import contract
from rlkit.hosts.worker.contract import Leaf, Tree, Violation
from rlkit.types import ConfigError, PyTree


class VectorPool(Closing):
    """A vector environment with the interface of `Pool`; no supervisor stands around it.

    Args:
      make: seed -> a vector environment. It is called again by each `reset` with another seed.
      name: how errors call it.
      seed: of the first.

    Raises:
      ConfigError: a space is none that rlkit has.
    """

    def __init__(self, make: Callable[[int], Any], *, name: str, seed: int = 0):
        self.name, self.make, self.seed, self.restarted = name, make, seed, 0
        self.envs = make(seed)
        self._closed_by(self.envs.close)
        self.num_envs = int(self.envs.num_envs)
        mode = getattr(self.envs, "metadata", {}).get("autoreset_mode")
        self.mode = getattr(mode, "name", None) or "NEXT_STEP"  # which is Gymnasium's default
        self.lockstep = self.mode != "NEXT_STEP"
        try:
            self.obs_tree = contract.describe(self.envs.single_observation_space)
            self.action_tree = contract.describe(self.envs.single_action_space, field="action_space")
        except Violation as error:
            self.close()
            raise ConfigError(f"env={name!r}: {error}") from None
        self.observation_space, self.action_space = space(self.obs_tree), space(self.action_tree)
        self.episodes = Episodes(self.num_envs)
        self.resetting = np.zeros(self.num_envs, bool)  # [N] whether the next step is a reset
        self.interrupted: Callable[[], bool] = lambda: False
        self.fresh = True  # nobody has stepped the first one

    def watch(self, interrupted: Callable[[], bool]) -> None:
        """A vector environment cannot be interrupted; the collector asks between steps."""
        self.interrupted = interrupted

    def reset(self, seed: int | None = None) -> PyTree:
        """Begin new episodes, seeded by `seed`, or else by the pool's; the observations [N, ...]."""
        self._open()
        seed = self.seed if seed is None else seed
        if not self.fresh or seed != self.seed:
            self.envs.close()
            self.envs = self.make(seed)
            self._closed_by(self.envs.close)
        self.seed, self.fresh = seed, False
        self.episodes.clear()
        self.resetting[:] = False
        self.obs = self._read("obs of reset", self.envs.reset(seed=seed)[0])
        return jax.tree.map(np.copy, self.obs)

    def step(self, actions: PyTree, *, copy: bool = True) -> Step:
        """One step of each environment; see `Pool.step`. What it returns is the caller's.

        Raises:
          ConfigError: the environment broke its contract.
        """
        self._open()
        obs, reward, terminated, truncated, infos = self.envs.step(self._native(actions))
        reward, terminated, truncated = (np.asarray(x) for x in (reward, terminated, truncated))
        for field, value in (("reward", reward), ("terminated", terminated), ("truncated", truncated)):
            if value.shape != (self.num_envs,):
                self._fail(Violation(field, f"one for each of {self.num_envs} environments", list(value.shape)))
        obs = next_obs = self._read("obs of step", obs)
        real = ~self.resetting
        terminated, truncated = terminated.astype(bool) & real, truncated.astype(bool) & real
        done = terminated | truncated
        if self.mode == "NEXT_STEP":
            self.resetting = done
        elif done.any():
            if self.mode == "SAME_STEP":
                next_obs = self._finals(infos, done, obs)
            else:
                obs = self._read("obs of reset", self.envs.reset(options={"reset_mask": done.copy()})[0])
        reward = np.where(real, reward, 0.0).astype(np.float32)
        returns, lengths = self.episodes.step(reward, done, real)
        return Step(obs, reward, terminated, truncated, next_obs, real, returns.copy(), lengths.copy())

    def _native(self, actions: PyTree) -> Any:
        leaves = [np.asarray(x) for x in jax.tree.leaves(actions)]
        found = []
        for leaf, x in zip(contract.leaves(self.action_tree), leaves, strict=True):
            if x.shape != (self.num_envs, *leaf.shape):
                raise ConfigError(f"actions must be {[self.num_envs, *leaf.shape]}, got {list(x.shape)}")
            found.append(x.astype(leaf.native) + leaf.low if leaf.discrete else x.astype(leaf.native))
        return contract.build(self.action_tree, iter(found))

    def _read(self, field: str, obs: Any) -> PyTree:
        """A batch of observations as rlkit has them: copies."""
        values = [
            self._checked(field, leaf, value)
            for leaf, value in zip(contract.leaves(self.obs_tree), _parts(self.obs_tree, obs), strict=True)
        ]
        return contract.build(self.obs_tree, iter(values))

    def _checked(self, field: str, leaf: Leaf, value: Any) -> np.ndarray:
        value, shape = np.asarray(value), (self.num_envs, *leaf.shape)
        if value.shape != shape or (value.dtype != leaf.native and not leaf.discrete):
            said = f"{leaf.native.name}{list(shape)}, as single_observation_space says"
            self._fail(Violation(field + leaf.path, said, f"{value.dtype.name}{list(value.shape)}"))
        return self._stored(field, leaf, value).astype(leaf.stored)

    def _stored(self, field: str, leaf: Leaf, value: np.ndarray) -> np.ndarray:
        value = value - leaf.low if leaf.discrete else value
        try:
            return contract.fitting(leaf, field, value) if leaf.wide else value
        except Violation as violation:
            self._fail(violation)

    def _finals(self, infos: dict[str, Any], done: np.ndarray, obs: PyTree) -> PyTree:
        """The observations with those in which episodes ended in their places."""
        final: Any = infos.get("final_obs")
        if final is None:
            self._fail(Violation("infos", "final_obs where an episode ended, as SAME_STEP promises", sorted(infos)))
        values = []
        for index, (leaf, kept) in enumerate(zip(contract.leaves(self.obs_tree), jax.tree.leaves(obs), strict=True)):
            kept = kept.copy()
            for env in np.flatnonzero(done):
                whole = isinstance(final, np.ndarray) and final.dtype == object
                parts = _parts(self.obs_tree, final[env] if whole else final)
                value = np.asarray(parts[index] if whole else parts[index][env])
                kept[env] = self._stored("final_obs", leaf, value)
            values.append(kept)
        return contract.build(self.obs_tree, iter(values))

    def _fail(self, violation: Violation) -> NoReturn:
        raise ConfigError(f"env={self.name!r}: {violation}")

    def _open(self) -> None:
        if self.closed:
            raise HostError(f"env={self.name!r}: the pool is closed")


def _parts(tree: Tree, value: Any) -> list[Any]:
    """The leaves of a value, in the order of the tree's."""
    if isinstance(tree, Leaf):
        return [value]
    if isinstance(tree, dict):
        return [part for name, child in tree.items() for part in _parts(child, value[name])]
    return [part for child, item in zip(tree, value, strict=True) for part in _parts(child, item)]
