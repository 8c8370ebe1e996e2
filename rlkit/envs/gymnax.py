"""gymnax's environments in rlkit's protocol."""

import inspect
from typing import Any

import jax
import numpy as np

from rlkit import spaces
from rlkit.envs._import import drawing_deferred
from rlkit.envs.adapter import Adapter, gymnax_space, lenient, refuse_others, replaced
from rlkit.spaces import Space
from rlkit.types import Array, ConfigError, Key, PyTree

CANNOT_RUN = {
    "MNISTBandit-bsuite": "it downloads its data when it is made, and rlkit downloads nothing; try SimpleBandit-bsuite"
}


class GymnaxEnv(Adapter):
    """A gymnax environment with float32 rewards, observations of their space's dtype, strong types, and rlkit's spaces.

    The same keys give the same episodes as gymnax's own `reset` and `step`.
    """

    def __init__(self, name: str, env: Any):
        self.name = name
        self.env = env
        self._like: PyTree = None

    def _start(self, key: Key, params: Any) -> tuple[PyTree, Any]:
        return self.env.reset_env(key, params)

    def _advance(self, key: Key, state: Any, action: PyTree, params: Any) -> tuple[PyTree, Any, Array, Array, Array]:
        obs, state, reward, terminated, _ = self.env.step_env(key, state, action, params)
        return obs, state, reward, terminated, self.env.is_truncated(state, params)

    def observation_space(self, params: Any) -> Space:
        """The observations' space; where gymnax's bounds are wrong, the right ones.

        Bounds that depend on traced parameters are not known yet: they count as infinite.
        """
        with jax.ensure_compile_time_eval(), lenient():
            return _corrected(self.name, self.env, gymnax_space(self.env.observation_space(params)))

    def action_space(self, params: Any) -> Space:
        """The actions' space; bounds that depend on traced parameters count as infinite."""
        with jax.ensure_compile_time_eval(), lenient():
            return gymnax_space(self.env.action_space(params))

    def _observed(self, params: Any) -> PyTree:
        """What an observation is like: remembered, as a space takes longer to make than a step to trace.

        gymnax's parameters never change an observation's dtype.
        """
        if self._like is None:
            self._like = super()._observed(params)
        return self._like


def names() -> list[str]:
    """The ids that `make` accepts."""
    return [name for name in _gymnax().registered_envs if name not in CANNOT_RUN]


def make(name: str, **kwargs: Any) -> tuple[GymnaxEnv, Any]:
    """A gymnax environment and its parameters.

    Args:
      name: a gymnax id.
      kwargs: fields of the environment's parameters (max_steps_in_episode=5) or arguments of its constructor.

    Raises:
      ConfigError: for a task that cannot run, a keyword that is neither, or a value that does not fit its field.
    """
    if name in CANNOT_RUN:
        raise ConfigError(f"env={name!r} cannot run: {CANNOT_RUN[name]}")
    registration = _gymnax().registration
    constructor = inspect.signature(registration._registry[name]).parameters
    with lenient():
        built = {key: value for key, value in kwargs.items() if key in constructor}
        try:
            env, params = registration.make(name, **built)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"env={name!r} refuses {built}: {error}") from error
    refuse_others(name, kwargs, [*params.__dataclass_fields__, *constructor])
    changes = {key: value for key, value in kwargs.items() if key in params.__dataclass_fields__}
    return GymnaxEnv(name, env), replaced(name, params, changes)


def _gymnax() -> Any:
    with drawing_deferred():
        import gymnax
    return gymnax


def _corrected(name: str, env: Any, space: Space) -> Space:
    """The observation space, with the right bounds where random play leaves gymnax's own."""
    if not isinstance(space, spaces.Box):
        return space
    low, high = space.low.copy(), space.high.copy()
    if name == "MemoryChain-bsuite":  # the context is -1 or 1
        low[:], high[:] = -1, max(1, env.num_bits)
    elif name == "MetaMaze-misc":  # [..., last reward, clock]: the goal pays 10; the clock may be normalized to [-1, 1]
        low[-1], high[-2] = -1, 10
    elif name == "GaussianBandit-misc":  # [last reward, ..., clock]: rewards are normal, and the clock as above
        low[0], high[0], low[-1] = -np.inf, np.inf, -1
    return spaces.Box(low, high, dtype=space.dtype)
