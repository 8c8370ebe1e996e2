"""A placeholder for programs that expect an `rlkit.types.Env` where the environment cannot be traced."""

from typing import Any, NamedTuple

from rlkit.spaces import Space
from rlkit.types import ConfigError, Key, PyTree


class HostEnv(NamedTuple):
    """The spaces of an environment outside of JAX, in the interface of `rlkit.types.Env`; it cannot be stepped."""

    name: str
    obs: Space
    action: Space

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
