"""gymnax's environments in rlkit's protocol."""

import inspect
from typing import Any

import jax
import numpy as np

from rlkit import spaces
from rlkit.envs._lazy_plotting import plotting_imported_lazily
from rlkit.envs.adapter import Adapter, check_keywords, gymnax_space, replace_params, standard_promotion
from rlkit.spaces import Space
from rlkit.types import Array, ConfigError, Key, PyTree, num_players

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
        self.num_players, self.shared_reward = num_players(env), getattr(env, "shared_reward", False)
        self._cached_shape: PyTree = None

    def _start(self, key: Key, params: Any) -> tuple[PyTree, Any]:
        return self.env.reset_env(key, params)

    def _advance(self, key: Key, state: Any, action: PyTree, params: Any) -> tuple[PyTree, Any, Array, Array, Array]:
        obs, state, reward, terminated, _ = self.env.step_env(key, state, action, params)
        return obs, state, reward, terminated, self.env.is_truncated(state, params)

    def observation_space(self, params: Any) -> Space:
        """Return the space of observations, with the correct bounds where those of gymnax are wrong.

        Bounds that depend on traced parameters are unknown and count as infinite.
        """
        with jax.ensure_compile_time_eval(), standard_promotion():
            return _corrected(self.name, self.env, gymnax_space(self.env.observation_space(params)))

    def action_space(self, params: Any) -> Space:
        """Return the space of actions; bounds that depend on traced parameters count as infinite."""
        with jax.ensure_compile_time_eval(), standard_promotion():
            return gymnax_space(self.env.action_space(params))

    def _observation_shape(self, params: Any) -> PyTree:
        """Return the cached shapes and dtypes of an observation: making a space takes longer than tracing a step.

        gymnax's parameters never change an observation's dtype.
        """
        if self._cached_shape is None:
            self._cached_shape = super()._observation_shape(params)
        return self._cached_shape


def names() -> list[str]:
    """Return the ids that `make` accepts."""
    return [name for name in _gymnax().registered_envs if name not in CANNOT_RUN]


def make(name: str, /, **kwargs: Any) -> tuple[GymnaxEnv, Any]:
    """Make a gymnax environment and its parameters.

    Args:
      name: a gymnax id.
      kwargs: fields of the environment's parameters (max_steps_in_episode=5) or arguments of its constructor.

    Raises:
      ConfigError: the task cannot run, a keyword is neither of these, or a value does not fit its field.
    """
    if name in CANNOT_RUN:
        raise ConfigError(f"env={name!r} cannot run: {CANNOT_RUN[name]}")
    registration = _gymnax().registration
    constructor = inspect.signature(registration._registry[name]).parameters
    with standard_promotion():
        arguments = {key: value for key, value in kwargs.items() if key in constructor}
        try:
            env, params = registration.make(name, **arguments)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"env={name!r} rejects {arguments}: {error}") from error
    check_keywords(name, kwargs, [*params.__dataclass_fields__, *constructor])
    changes = {key: value for key, value in kwargs.items() if key in params.__dataclass_fields__}
    return GymnaxEnv(name, env), replace_params(name, params, changes)


def _gymnax() -> Any:
    with plotting_imported_lazily():
        import gymnax
    return gymnax


def _corrected(name: str, env: Any, space: Space) -> Space:
    """Return the observation space, with correct bounds where random play leaves those of gymnax."""
    if not isinstance(space, spaces.Box):
        return space
    low, high = space.low.copy(), space.high.copy()
    if name == "MemoryChain-bsuite":  # the context is -1 or 1
        low[:], high[:] = -1, max(1, env.num_bits)
    elif name == "MetaMaze-misc":  # [..., last reward, time]: the goal gives 10; the time may be normalized to [-1, 1]
        low[-1], high[-2] = -1, 10
    elif name == "GaussianBandit-misc":  # [last reward, ..., time]: rewards are normal; the time as above
        low[0], high[0], low[-1] = -np.inf, np.inf, -1
    return spaces.Box(low, high, dtype=space.dtype)
