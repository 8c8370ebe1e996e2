"""What programs have in the place of an environment that cannot be traced."""

from typing import Any, NamedTuple

from rlkit.spaces import Space
from rlkit.types import ConfigError, Key, PyTree


class HostEnv(NamedTuple):
    """Stands where other programs have an environment: its spaces are known, but nothing can be traced."""

    name: str
    obs: Space
    action: Space

    def observation_space(self, params: Any) -> Space:
        """The space of one observation."""
        return self.obs

    def action_space(self, params: Any) -> Space:
        """The space of one action."""
        return self.action

    def reset(self, key: Key, params: Any) -> Any:
        """Raises ConfigError: such an environment cannot be part of a compiled program."""
        raise ConfigError(f"env={self.name!r} is outside of JAX and cannot be traced; step it with rlkit.hosts.make")

    def step(self, key: Key, state: Any, action: PyTree, params: Any) -> Any:
        """Raises ConfigError, as `reset` does."""
        self.reset(key, params)
