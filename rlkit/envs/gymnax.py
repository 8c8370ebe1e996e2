"""gymnax's environments in rlkit's protocol."""

import difflib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from rlkit import types
from rlkit.envs._import import drawing_deferred
from rlkit.envs._spaces import leaves
from rlkit.types import Array, ConfigError, Key, PyTree, Space

CANNOT_RUN = {
    "MNISTBandit-bsuite": "it downloads its data when it is made, and rlkit downloads nothing; try SimpleBandit-bsuite"
}


class GymnaxEnv:
    """A gymnax environment with float32 rewards, observations of their space's dtype, strong types, and rlkit's spaces.

    The same keys give the same episodes as gymnax's own `reset` and `step`.
    """

    def __init__(self, name: str, env: Any):
        self.name = name
        self.env = env
        self._obs_dtype = jax.tree.map(lambda space: space.dtype, leaves(self.observation_space(env.default_params)))

    def reset(self, key: Key, params: Any) -> tuple[PyTree, Any]:
        """Start an episode: -> obs, state."""
        with _gymnax_promotion():
            obs, state = self.env.reset_env(key, params)
        return self._observation(obs), _strong(state)

    def step(
        self, key: Key, state: Any, action: PyTree, params: Any
    ) -> tuple[PyTree, Any, Array, Array, Array, dict[str, Any]]:
        """Take one step: -> obs, state, reward, terminated, truncated, info, as in `rlkit.types.Env`."""
        step_key, reset_key = jax.random.split(key)
        with _gymnax_promotion():
            final_obs, next_state, reward, terminated, _ = self.env.step_env(step_key, state, action, params)
            truncated = self.env.is_truncated(next_state, params)
        terminated, truncated = (jnp.reshape(jnp.asarray(flag, bool), ()) for flag in (terminated, truncated))
        final_obs = self._observation(final_obs)
        reset_obs, reset_state = self.reset(reset_key, params)
        done = terminated | truncated
        obs = jax.tree.map(lambda new, old: jnp.where(done, new, old), reset_obs, final_obs)
        # gymnax mixes Python numbers and arrays; beside a reset's strong types a step's state gets the same ones.
        state = jax.tree.map(lambda new, old: jnp.where(done, new, old), reset_state, next_state)
        reward = _cast(jnp.reshape(reward, ()), np.float32)
        return obs, state, reward, terminated, truncated, {"final_observation": final_obs}

    def observation_space(self, params: Any) -> Space:
        """The observations' space; where gymnax's bounds are wrong, the right ones.

        Bounds that depend on traced parameters are not known yet: they count as infinite.
        """
        with jax.ensure_compile_time_eval(), _gymnax_promotion():
            return _corrected(self.name, self.env, _space(self.env.observation_space(params)))

    def action_space(self, params: Any) -> Space:
        """The actions' space; bounds that depend on traced parameters count as infinite."""
        with jax.ensure_compile_time_eval(), _gymnax_promotion():
            return _space(self.env.action_space(params))

    def _observation(self, obs: PyTree) -> PyTree:
        return jax.tree.map(_cast, obs, self._obs_dtype)

    def __repr__(self) -> str:
        return f"GymnaxEnv({self.name!r})"


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
    with _gymnax_promotion():
        built = {key: value for key, value in kwargs.items() if key in constructor}
        try:
            env, params = registration.make(name, **built)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"env={name!r} refuses {built}: {error}") from error
    fields = {field: getattr(params, field) for field in params.__dataclass_fields__}
    updates = {}
    for key, value in kwargs.items():
        if key in fields:
            updates[key] = _like(fields[key], value, f"{name}.{key}")
        elif key not in constructor:
            known = sorted([*fields, *constructor])
            near = difflib.get_close_matches(key, known, 3, 0.5) or known
            raise ConfigError(f"{key}={value!r} is no parameter of env {name!r}; try {', '.join(near)}")
    return GymnaxEnv(name, env), params.replace(**updates)


def _gymnax() -> Any:
    with drawing_deferred():
        import gymnax
    return gymnax


@contextmanager
def _gymnax_promotion() -> Iterator[None]:
    """gymnax mixes dtypes and ranks; a user's strict settings must not reach it. This costs nothing after tracing."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def _cast(x: Any, dtype: Any) -> Array:
    """An array of this dtype, never of a weak type."""
    return jax.lax.convert_element_type(x, dtype)


def _strong(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: _cast(x, jnp.asarray(x).dtype), tree)


def _like(default: Any, value: Any, field: str) -> Any:
    """The value in the type of the default that it replaces."""
    expected = np.asarray(default)
    accepted, called = {"b": ("b", "true or false"), "i": ("iu", "whole"), "f": ("iuf", "a number")}[
        expected.dtype.kind
    ]
    try:
        given = np.asarray(value)
        fits = given.shape == expected.shape and given.dtype.kind in accepted
    except (TypeError, ValueError):
        fits = False
    if not fits:
        shape = f" in each of {list(expected.shape)} entries" if expected.shape else ""
        raise ConfigError(f"{field}={value!r} must be {called}{shape}; its default is {default}")
    return type(default)(value) if isinstance(default, bool | int | float) else jnp.asarray(value, default.dtype)


def _space(space: Any) -> Space:
    """A gymnax space as rlkit's."""
    match type(space).__name__:
        case "Discrete":
            return types.Discrete(int(space.n), np.dtype(space.dtype))
        case "Box":
            return types.Box(_bound(space.low, -np.inf), _bound(space.high, np.inf), tuple(space.shape), space.dtype)
        case "Dict":
            return types.Dict({name: _space(child) for name, child in space.spaces.items()})
        case "Tuple":
            return types.Tuple(tuple(_space(child) for child in space.spaces))
    raise ConfigError(f"{space!r} is no space that rlkit knows; use Discrete, Box, Dict or Tuple")


def _bound(bound: Any, unknown: float) -> np.ndarray:
    """gymnax writes an infinite bound as float32's largest number."""
    bound = np.asarray(unknown if isinstance(bound, Tracer) else bound)
    if bound.dtype.kind != "f":
        return bound
    return np.where(np.abs(bound) >= np.finfo(np.float32).max, np.copysign(np.inf, bound), bound)


def _corrected(name: str, env: Any, space: Space) -> Space:
    """The observation space, with the right bounds where random play leaves gymnax's own."""
    if not isinstance(space, types.Box):
        return space
    low, high = space.low.copy(), space.high.copy()
    if name == "MemoryChain-bsuite":  # the context is -1 or 1
        low[:], high[:] = -1, max(1, env.num_bits)
    elif name == "MetaMaze-misc":  # [..., last reward, clock]: the goal pays 10; the clock may be normalized to [-1, 1]
        low[-1], high[-2] = -1, 10
    elif name == "GaussianBandit-misc":  # [last reward, ..., clock]: rewards are normal, and the clock as above
        low[0], high[0], low[-1] = -np.inf, np.inf, -1
    return types.Box(low, high, dtype=space.dtype)
