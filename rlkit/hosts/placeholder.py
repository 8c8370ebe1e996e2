"""A placeholder for programs that expect an `rlkit.types.Env` where the environment cannot be traced."""

from typing import Any, NamedTuple

import jax
import numpy as np

from rlkit.hosts.worker import contract
from rlkit.spaces import Space
from rlkit.types import ConfigError, Key, PyTree


class HostEnv(NamedTuple):
    """The spaces of an environment outside of JAX, in the interface of `rlkit.types.Env`; it cannot be stepped.

    Integers of its spaces count from 0. Those of the environment itself count from `obs_starts` and `action_starts`, in
    the structure of an observation and of an action, as `hosts.spaces.starts` returns them; 0 where all count from 0.
    Spaces are those of one player.
    """

    name: str
    obs: Space
    action: Space
    obs_starts: PyTree = 0
    action_starts: PyTree = 0
    action_tree: contract.SpaceTree | None = None  # of the environment's own action space; None where it is unknown
    num_players: int = 1
    shared_reward: bool = False

    @property
    def counts_from_0(self) -> bool:
        """True where the integers of the environment are those of its spaces here."""
        return not any(map(np.any, jax.tree.leaves((self.obs_starts, self.action_starts))))

    def stored_obs(self, obs: PyTree) -> PyTree:
        """Return an observation of the environment as one of `obs`: leaves [..., *shape]; entries may be missing."""
        return _shifted(obs, self.obs_starts, -1)

    def native_obs(self, obs: PyTree) -> PyTree:
        """Return an observation of `obs` as one of the environment: the inverse of `stored_obs`."""
        return _shifted(obs, self.obs_starts, 1)

    def native_action(self, action: PyTree) -> PyTree:
        """Return an action of `action` as one of the environment, in the dtypes of `action`."""
        return _shifted(action, self.action_starts, 1)

    def environment_action(self, action: PyTree) -> PyTree:
        """Return an action of `action` as the environment's own `action_space` holds it: NumPy, in its dtypes."""
        if self.action_tree is None:
            return jax.tree.map(lambda x: np.array(x)[()], self.native_action(action))
        pairs = zip(contract.leaves(self.action_tree), jax.tree.leaves(action), strict=True)
        native = [(leaf, contract.to_native(leaf)(np.asarray(x)[None])[0]) for leaf, x in pairs]
        values = [x if leaf.discrete else np.asarray(x) for leaf, x in native]  # a Box without axes has arrays too
        return contract.build(self.action_tree, iter(values))

    def observation_space(self, params: Any) -> Space:
        """Return the space of one observation."""
        return self.obs

    def action_space(self, params: Any) -> Space:
        """Return the space of one action."""
        return self.action

    def reset(self, key: Key, params: Any) -> Any:
        """Raise ConfigError: such an environment cannot be part of a compiled program."""
        raise ConfigError(f"env={self.name!r} is outside of JAX and cannot be traced; step it with rlkit.hosts.make")

    def step(self, key: Key, state: Any, action: PyTree, params: Any) -> Any:
        """Raise ConfigError, as `reset` does."""
        self.reset(key, params)


def _shifted(value: PyTree, starts: PyTree, sign: int) -> PyTree:
    """Add the starts of its leaves, times the sign, to a value, whose dicts may lack entries."""
    if isinstance(starts, dict):
        return {name: _shifted(x, starts[name], sign) for name, x in value.items()}
    if isinstance(starts, tuple):
        return tuple(_shifted(x, start, sign) for x, start in zip(value, starts, strict=True))
    return value + sign * starts if np.any(starts) else value
