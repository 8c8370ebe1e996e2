"""What the adapters of other libraries' environments share: the automatic reset, strong types, lenient promotion.

An adapter says how an episode starts and what one bare step does; `Adapter` makes the protocol of `rlkit.types.Env` of
the two. An episode that ends is followed by a fresh start with a key of its own, never by one kept from before.
"""

import difflib
import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.core import Tracer

from rlkit import spaces
from rlkit.spaces import Space, shape_of
from rlkit.types import Array, ConfigError, Key, PyTree


class Adapter:
    """An environment of another library with float32 rewards, observations of their space's dtype and strong types."""

    name: str

    def _start(self, key: Key, params: Any) -> tuple[PyTree, Any]:
        """-> obs, state of a new episode."""
        raise NotImplementedError

    def _advance(self, key: Key, state: Any, action: PyTree, params: Any) -> tuple[PyTree, Any, Array, Array, Array]:
        """One step without any reset: -> obs, state, reward, terminated, truncated."""
        raise NotImplementedError

    def reset(self, key: Key, params: Any) -> tuple[PyTree, Any]:
        """Start an episode: -> obs, state."""
        with lenient():
            obs, state = self._start(key, params)
        return self._observation(obs, params), jax.tree.map(strong, state)

    def step(
        self, key: Key, state: Any, action: PyTree, params: Any
    ) -> tuple[PyTree, Any, Array, Array, Array, dict[str, Any]]:
        """Take one step: -> obs, state, reward, terminated, truncated, info, as in `rlkit.types.Env`."""
        step_key, reset_key = jax.random.split(key)
        state = jax.tree.map(lambda x: x, state)  # some environments write into the dictionaries of the state they get
        with lenient():
            final_obs, next_state, reward, terminated, truncated = self._advance(step_key, state, action, params)
        terminated, truncated = (jnp.reshape(jnp.asarray(flag, bool), ()) for flag in (terminated, truncated))
        final_obs = self._observation(final_obs, params)
        reset_obs, reset_state = self.reset(reset_key, params)
        done = terminated | truncated
        obs = jax.tree.map(lambda new, old: jnp.where(done, new, old), reset_obs, final_obs)
        state = jax.tree.map(lambda new, old: jnp.where(done, new, alike(old, new)), reset_state, next_state)
        reward = cast(jnp.reshape(reward, ()), np.float32)
        return obs, state, reward, terminated, truncated, {"final_observation": final_obs}

    def observation_space(self, params: Any) -> Space:
        raise NotImplementedError

    def action_space(self, params: Any) -> Space:
        raise NotImplementedError

    def _observation(self, obs: PyTree, params: Any) -> PyTree:
        return jax.tree.map(lambda x, like: cast(x, like.dtype), obs, self._observed(params))

    def _observed(self, params: Any) -> PyTree:
        """What an observation is like: jax.ShapeDtypeStruct leaves."""
        return shape_of(self.observation_space(params))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class Limit(struct.PyTreeNode):
    """The parameters of environments whose library leaves time limits to others."""

    max_steps_in_episode: int | Array = 1000  # an episode is truncated then


class Timed(struct.PyTreeNode):
    """A state and how long its episode has lasted."""

    env_state: Any
    elapsed: Array  # [] int32, steps of this episode so far


@contextmanager
def lenient() -> Iterator[None]:
    """Other libraries mix dtypes and ranks; a user's strict settings must not reach them. Free after tracing."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def cast(x: Any, dtype: Any) -> Array:
    """An array of this dtype, never of a weak type; keys stay what they are."""
    return x if _is_key(dtype) else jax.lax.convert_element_type(x, dtype)


def _is_key(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)


def alike(x: Any, example: Array) -> Array:
    """A part of a step's state in the type of a start's: libraries mix Python numbers and arrays.

    Raises:
      TypeError: that would lose something.
    """
    if _is_key(example.dtype):
        return x
    if not np.can_cast(jnp.result_type(x), example.dtype, "same_kind"):
        raise TypeError(f"a state starts with {example.dtype} where a step leaves {jnp.result_type(x)}")
    return cast(x, example.dtype)


def strong(x: Any) -> Array:
    """An array of the same dtype, not of a weak type."""
    x = jnp.asarray(x)
    return cast(x, x.dtype)


def library(module: str, extra: str) -> Any:
    """An environment library's module, imported now.

    Raises:
      ConfigError: it is not installed, or what is installed does not fit; with the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        top = module.partition(".")[0]
        missing = str(error.name).partition(".")[0] == top
        why = "is not installed" if missing else f"cannot be imported ({first_line(error)})"
        raise ConfigError(f"env={extra}:... needs {top}, which {why}; pip install 'rlkit-jax[{extra}]'") from error


def find(task: str, known: Iterable[str], prefix: str) -> str:
    """The task, if it is known.

    Raises:
      ConfigError: it is not; names the nearest.
    """
    known = list(known)
    if task not in known:
        raise ConfigError(f"env={prefix + str(task)!r} is not known; {nearest(task, known, prefix)}")
    return task


def nearest(name: Any, known: Iterable[str], prefix: str = "") -> str:
    """`try ...`, with the known names that are most like this one."""
    lower = {other.lower(): other for other in known}
    near = difflib.get_close_matches(str(name).lower(), lower, 3, 0.4) or sorted(lower, key=len)[:3]
    return f"try {', '.join(prefix + lower[match] for match in near)}"


def construct(name: str, constructor: Callable, kwargs: Mapping[str, Any], known: Iterable[str] = ()) -> Any:
    """`constructor(**kwargs)`, for the environment that errors call `name`.

    Raises:
      ConfigError: a keyword that is neither the constructor's own nor in `known`, or a value that it refuses.
    """
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    own = [p.name for p in inspect.signature(constructor).parameters.values() if p.kind in named]
    refuse_others(name, kwargs, [*own, *known])
    try:
        with lenient():
            return constructor(**kwargs)
    except (TypeError, ValueError, KeyError, AttributeError, NotImplementedError) as error:
        raise ConfigError(f"env={name!r} refuses {dict(kwargs)}: {first_line(error)}") from error


def refuse_others(name: str, kwargs: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise a ConfigError for the first keyword that is not known."""
    known = sorted(set(known))
    for key, value in kwargs.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, 3, 0.5) or known
            remedy = f"try {', '.join(near)}" if near else "it has none"
            raise ConfigError(f"{key}={value!r} is no parameter of env {name!r}; {remedy}")


def replaced(name: str, params: Any, values: Mapping[str, Any]) -> Any:
    """Parameters with some fields changed, each in the type of its default.

    Raises:
      ConfigError: there is no such field, or a value does not fit its field.
    """
    refuse_others(name, values, params.__dataclass_fields__)
    return params.replace(**{key: like(getattr(params, key), value, f"{name}.{key}") for key, value in values.items()})


def like(default: Any, value: Any, field: str) -> Any:
    """The value in the type of the default that it replaces. Raises ConfigError where it does not fit."""
    expected = np.asarray(default)
    if expected.dtype.kind not in "biuf":
        raise ConfigError(f"{field} cannot be set by a keyword; replace it in the parameters that make returns")
    accepted, called = {"b": ("b", "true or false"), "f": ("iuf", "a number")}.get(expected.dtype.kind, ("iu", "whole"))
    try:
        given = np.asarray(value)
        fits = given.shape == expected.shape and given.dtype.kind in accepted
    except (TypeError, ValueError):
        fits = False
    if not fits:
        shape = f" in each of {list(expected.shape)} entries" if expected.shape else ""
        raise ConfigError(f"{field}={value!r} must be {called}{shape}; its default is {default}")
    return type(default)(value) if isinstance(default, bool | int | float) else jnp.asarray(value, default.dtype)


def at_least_one(field: str, value: int) -> int:
    """The value, if it is a whole number from 1 on; else a ConfigError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{field}={value!r} must be a whole number, at least 1; try 1000")
    return value


def gymnax_space(space: Any) -> Space:
    """A space of gymnax, or of a library that took over its spaces, as rlkit's."""
    match type(space).__name__:
        case "Discrete":
            return spaces.Discrete(int(space.n), np.dtype(space.dtype))
        case "Box":
            return spaces.Box(_bound(space.low, -np.inf), _bound(space.high, np.inf), tuple(space.shape), space.dtype)
        case "Dict":
            return spaces.Dict({name: gymnax_space(child) for name, child in space.spaces.items()})
        case "Tuple":
            return spaces.Tuple(tuple(gymnax_space(child) for child in space.spaces))
    raise ConfigError(f"{space!r} is no space that rlkit knows; use Discrete, Box, Dict or Tuple")


def _bound(bound: Any, unknown: float) -> np.ndarray:
    """gymnax writes an infinite bound as float32's largest number."""
    bound = np.asarray(unknown if isinstance(bound, Tracer) else bound)
    if bound.dtype.kind != "f":
        return bound
    return np.where(np.abs(bound) >= np.finfo(np.float32).max, np.copysign(np.inf, bound), bound)


def unbounded(shape: tuple[int, ...], dtype: Any) -> spaces.Box:
    """A Box of which nothing is known but its shape and dtype."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return spaces.Box(False, True, shape, dtype)
    info = np.iinfo(dtype) if dtype.kind in "iu" else None
    return spaces.Box(info.min, info.max, shape, dtype) if info else spaces.Box(-np.inf, np.inf, shape, dtype)


def first_line(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
