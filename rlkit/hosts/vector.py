"""Pools of Gymnasium's vector environments, and of others with that interface.

They reset in one of three autoreset modes. SAME_STEP: in the step that ends an episode; the last observation is in the
infos. NEXT_STEP: in the step after it, which ignores the action and gives no reward; it is not a transition, so it is
marked as not real. DISABLED: by an explicit call, which is made here at once.
"""

import re
from collections.abc import Callable
from typing import Any, NoReturn

import jax
import numpy as np

from rlkit.hosts.pool import Closeable, Episodes, Step
from rlkit.hosts.spaces import as_actions, space
from rlkit.hosts.worker import contract, identity, own_rewards
from rlkit.hosts.worker.contract import Leaf, SpaceTree, Violation
from rlkit.names import OWN_DONE, OWN_REWARD, success_name
from rlkit.types import ConfigError, PyTree

RESETTING = "resetting"  # in the infos of NEXT_STEP, where the next step is no transition; without it: at each end
_MODES = ("NEXT_STEP", "SAME_STEP", "DISABLED")  # the first is the default of Gymnasium


class VectorPool(Closeable):
    """A vector environment with the interface of `Pool`, without supervision: no timeouts and no restarts.

    Its infos may have `own_reward` [N] float and `own_done` [N] bool, those of the environment itself where it changes
    rewards or ends for learning: scores are of these.

    Args:
      make: seed -> a vector environment. Each `reset` with another seed calls it again.
      name: of the environment, for errors.
      seed: of the first vector environment.

    Raises:
      ConfigError: `make` returns no vector environment, or one with another autoreset mode than Gymnasium's three; or
        rlkit does not support one of its spaces.
    """

    first, num_players, shared_reward = 0, 1, False  # as of `Pool`

    def __init__(self, make: Callable[[int], Any], *, name: str, seed: int = 0):
        self.name, self.make, self.seed, self.restarted = name, make, seed, 0
        self._make(seed)
        try:
            for attribute in ("num_envs", "single_observation_space", "single_action_space"):
                if not hasattr(self.envs, attribute):
                    kind = type(self.envs).__name__
                    raise ConfigError(
                        f"env={name!r} must be a vector environment, and {kind} has no {attribute}; use "
                        "gymnasium.make_vec, or hosts.make for single environments"
                    )
            if isinstance(singles := getattr(self.envs, "envs", None), list | tuple):  # of a SyncVectorEnv
                identity.check_distinct(singles)
            self.num_envs, self.mode = int(self.envs.num_envs), _autoreset_mode(self.envs)
            self.lockstep = self.mode != "NEXT_STEP"
            self.obs_tree = contract.describe(self.envs.single_observation_space)
            self.action_tree = contract.describe(self.envs.single_action_space, field="action_space")
        except (Violation, ConfigError) as error:
            self.close()
            raise ConfigError(f"env={name!r}: {error}" if isinstance(error, Violation) else str(error)) from None
        self.observation_space, self.action_space = space(self.obs_tree), space(self.action_tree)
        self.to_native = [contract.to_native(leaf) for leaf in contract.leaves(self.action_tree)]
        self.episodes = Episodes(self.num_envs)
        self.resetting = np.zeros(self.num_envs, bool)  # [N] true where the next step is no transition
        self.over = np.zeros(self.num_envs, bool)  # [N] true where the next step is a reset of the environment itself
        self.interrupted: Callable[[], bool] = lambda: False
        self.inspecting, self.native = False, []  # of `native_obs`
        self.unused = True  # the first vector environment has not been reset yet

    def _make(self, seed: int) -> None:
        self.envs = self.make(seed)
        self._set_close(getattr(self.envs, "close", lambda: None))
        self.recorder = own_rewards.record(self.envs)

    def watch(self, interrupted: Callable[[], bool], on_failure: Any = None) -> None:
        """Store `interrupted`, which the collector calls between steps; a step itself cannot be interrupted.

        `on_failure` is not called: a failure ends the pool, as there are no restarts.
        """
        self.interrupted = interrupted

    def inspect(self, on: bool) -> None:
        """Switch on or off that observations of float64 are kept as they are, for `native_obs`."""
        self.inspecting = on

    def mask_source(self) -> str | None:
        """Return None: no library of these has masks of actions."""

    def native_obs(self) -> list[tuple[str, np.ndarray]]:
        """Return the newest observations' leaves of float64: their paths and copies [N, ...], while inspecting."""
        return self.native

    def locate(self, env: int) -> str:
        """Name an environment and the seed of the vector environment, in words, for errors."""
        return f"environment {env}, seed {self.seed}"

    def reset(self, seed: int | None = None) -> PyTree:
        """Begin new episodes, seeded by `seed` or else by the pool's seed; return the observations [N, ...]."""
        self._check_open()
        seed = self.seed if seed is None else seed
        if not self.unused or seed != self.seed:
            self.envs.close()
            self._make(seed)
        self.seed, self.unused = seed, False
        self.episodes.clear()
        self.resetting[:] = self.over[:] = False
        self.obs = self._read("obs of reset", self.envs.reset(seed=seed)[0])
        return jax.tree.map(np.copy, self.obs)

    def step(self, actions: PyTree, *, copy: bool = True) -> Step:
        """Take one step in each environment, as `Pool.step` does; the returned arrays are always copies.

        Raises:
          ConfigError: the environment violated its contract.
        """
        self._check_open()
        obs, reward, terminated, truncated, infos = self.envs.step(self._to_native(actions))
        reward, terminated, truncated = (np.array(x) for x in (reward, terminated, truncated))  # kept after a reset
        own_reward = infos.get(OWN_REWARD, reward) if self.recorder is None else self.recorder.take_reward()
        for field, value in (("reward", reward), ("terminated", terminated), ("truncated", truncated)):
            if value.shape != (self.num_envs,):
                self._fail(Violation(field, f"one for each of {self.num_envs} environments", list(value.shape)))
        obs = next_obs = self._read("obs of step", obs)
        real = ~self.resetting
        terminated, truncated = terminated.astype(bool) & real, truncated.astype(bool) & real
        done = terminated | truncated
        if self.mode == "NEXT_STEP":
            self.resetting = infos.get(RESETTING, done)
        elif done.any():
            if self.mode == "SAME_STEP":
                next_obs = self._final_obs(infos, done, obs)
            else:
                obs = self._read("obs of reset", self.envs.reset(options={"reset_mask": done.copy()})[0])
        over, played = infos.get(OWN_DONE, done), ~self.over
        returns, lengths = self.episodes.step(np.where(played, own_reward, 0.0), over, played)
        self.over = over & (self.mode == "NEXT_STEP")
        reward = np.where(real, reward, 0.0).astype(np.float32)
        successes = np.where(lengths > 0, _successes(infos, self.num_envs), np.float32(np.nan))
        return Step(obs, reward, terminated, truncated, next_obs, real, returns.copy(), lengths.copy(), successes)

    def _to_native(self, actions: PyTree) -> Any:
        """Convert actions to the dtypes of the vector environment."""
        leaves = zip(contract.leaves(self.action_tree), self.to_native, jax.tree.leaves(actions), strict=True)
        native = [convert(as_actions(leaf, x, self.num_envs)) for leaf, convert, x in leaves]
        return contract.build(self.action_tree, iter(native))

    def _read(self, field: str, obs: Any) -> PyTree:
        """Convert a batch of observations to the dtypes of rlkit: copies."""
        values = [
            self._to_stored(field, leaf, value)
            for leaf, value in zip(contract.leaves(self.obs_tree), _leaves(self.obs_tree, obs), strict=True)
        ]
        if self.inspecting:
            pairs = zip(contract.leaves(self.obs_tree), _leaves(self.obs_tree, obs), strict=True)
            self.native = [(leaf.path, np.array(x)) for leaf, x in pairs if leaf.native_dtype == np.float64]
        return contract.build(self.obs_tree, iter(values))

    def _to_stored(self, field: str, leaf: Leaf, value: Any) -> np.ndarray:
        """Check the shape and dtype of a batch of one leaf, and convert it."""
        value, shape = np.asarray(value), (self.num_envs, *leaf.shape)
        if value.shape != shape or (value.dtype != leaf.native_dtype and not leaf.discrete):
            expected = f"{leaf.native_dtype.name}{list(shape)}, as single_observation_space declares"
            self._fail(Violation(field + leaf.path, expected, f"{value.dtype.name}{list(value.shape)}"))
        return self._checked(field, leaf, value).astype(leaf.stored_dtype)

    def _checked(self, field: str, leaf: Leaf, value: np.ndarray) -> np.ndarray:
        """Subtract the start of a discrete leaf, and check that integers fit int32."""
        value = value - leaf.low if leaf.discrete else value
        try:
            return contract.check_int32(leaf, field, value) if leaf.may_overflow else value
        except Violation as violation:
            self._fail(violation)

    def _final_obs(self, infos: dict[str, Any], done: np.ndarray, obs: PyTree) -> PyTree:
        """Return `obs` with the final observations of the episodes that ended, where they ended."""
        final: Any = infos.get("final_obs")
        if final is None:
            self._fail(Violation("infos", "final_obs where an episode ended, as SAME_STEP requires", sorted(infos)))
        values = []
        for index, (leaf, batch) in enumerate(zip(contract.leaves(self.obs_tree), jax.tree.leaves(obs), strict=True)):
            batch = batch.copy()
            for env in np.flatnonzero(done):
                per_env = isinstance(final, np.ndarray) and final.dtype == object  # [N] observations, else a batch
                leaves = _leaves(self.obs_tree, final[env] if per_env else final)
                value = np.asarray(leaves[index] if per_env else leaves[index][env])
                batch[env] = self._checked("final_obs", leaf, value)
            values.append(batch)
        return contract.build(self.obs_tree, iter(values))

    def _fail(self, violation: Violation) -> NoReturn:
        raise ConfigError(f"env={self.name!r}: {violation}")


def _autoreset_mode(envs: Any) -> str:
    """Return the autoreset mode in a vector environment's metadata, by its name or its value in Gymnasium."""
    mode = (getattr(envs, "metadata", None) or {}).get("autoreset_mode")
    if mode is None:
        return _MODES[0]
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", str(getattr(mode, "name", mode))).upper()  # NextStep as NEXT_STEP
    if name not in _MODES:
        raise Violation("metadata['autoreset_mode']", " or ".join(_MODES), repr(mode))
    return name


def _successes(infos: dict[str, Any], num_envs: int) -> np.ndarray:
    """The success of each environment's step, [N] float32: 1 or 0, or NaN where the infos do not say."""
    result = np.full(num_envs, np.nan, np.float32)
    # Where an episode ended, `infos` may be of the next one already.
    for found in (infos, infos.get("final_info")):
        if not isinstance(found, dict) or (name := success_name(found)) is None:
            continue
        values = np.asarray(found[name])
        if values.shape == (num_envs,) and values.dtype.kind in "biuf":
            where = np.asarray(found.get(f"_{name}", np.ones(num_envs, bool)))
            result = np.where(where, (values != 0).astype(np.float32), result)
    return result


def _leaves(tree: SpaceTree, value: Any) -> list[Any]:
    """Return the leaves of a value, in the order of the tree's leaves."""
    if isinstance(tree, Leaf):
        return [value]
    if isinstance(tree, dict):
        return [leaf for name, child in tree.items() for leaf in _leaves(child, value[name])]
    return [leaf for child, item in zip(tree, value, strict=True) for leaf in _leaves(child, item)]
