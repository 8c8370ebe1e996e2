"""Base class and helpers of the adapters for other libraries' environments.

An adapter defines the start of an episode and one step without a reset; `Adapter` builds the protocol of
`rlkit.types.Env` from the two. Every new episode starts from a reset with a key of its own, unless `step_with` is given
other starts.
"""

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
from rlkit.names import did_you_mean, place, raised, shorten
from rlkit.spaces import Space, shape_of
from rlkit.types import Array, ConfigError, Key, PyTree


class Adapter:
    """An environment of another library with float32 rewards, observations of their space's dtype and strong types."""

    name: str
    num_players: int = 1  # P; with more than one, all but the state and the spaces have a first axis [P]
    shared_reward: bool = False  # True for the players of a team
    _obs_space: Space  # set by a subclass, unless its spaces depend on the parameters
    _action_space: Space

    def _start(self, key: Key, params: Any) -> tuple[PyTree, Any]:
        """Start an episode: -> obs, state."""
        raise NotImplementedError

    def _advance(self, key: Key, state: Any, action: PyTree, params: Any) -> tuple[PyTree, Any, Array, Array, Array]:
        """Take one step without any reset: -> obs, state, reward, terminated, truncated."""
        raise NotImplementedError

    def _info(self, state: Any) -> dict[str, Array]:
        """Return what the info of a step has beside the final observation, from the state that the step led to."""
        return {}

    def reset(self, key: Key, params: Any) -> tuple[PyTree, Any]:
        """Start an episode: -> obs, state."""
        with standard_promotion():
            obs, state = self._start(key, params)
        return self._observation(obs, params), jax.tree.map(strongly_typed, state)

    def step(
        self, key: Key, state: Any, action: PyTree, params: Any
    ) -> tuple[PyTree, Any, Array, Array, Array, dict[str, Any]]:
        """Take one step: -> obs, state, reward, terminated, truncated, info, as in `rlkit.types.Env`."""
        return self.step_with(lambda key: self.reset(key, params), key, state, action, params)

    def step_with(
        self, start: Callable[[Key], tuple[PyTree, Any]], key: Key, state: Any, action: PyTree, params: Any
    ) -> tuple[PyTree, Any, Array, Array, Array, dict[str, Any]]:
        """Take the same step, where a new episode starts as `start(key) -> obs, state` does."""
        step_key, reset_key = jax.random.split(key)
        final_obs, next_state, reward, terminated, truncated = self.advance(step_key, state, action, params)
        players = () if self.num_players == 1 else (self.num_players,)
        spread = jnp.broadcast_to if players else jnp.reshape  # one flag of a world is that of all its players
        terminated, truncated = (spread(jnp.asarray(flag, bool), players) for flag in (terminated, truncated))
        final_obs = self._observation(final_obs, params)
        info = {"final_observation": final_obs, **self._info(next_state)}
        reset_obs, reset_state = start(reset_key)
        done = terminated | truncated
        done = done if self.num_players == 1 else jnp.any(done)
        obs = jax.tree.map(lambda new, old: jnp.where(done, new, old), reset_obs, final_obs)
        state = jax.tree.map(lambda new, old: jnp.where(done, new, cast_like(old, new)), reset_state, next_state)
        reward = cast(jnp.reshape(reward, players), np.float32)
        return obs, state, reward, terminated, truncated, info

    def advance(self, key: Key, state: Any, action: PyTree, params: Any) -> tuple[PyTree, Any, Array, Array, Array]:
        """Take one step without any reset: -> obs, state, reward, terminated, truncated, in the library's dtypes.

        `step` gives it the first of the two keys that its own key is split into.
        """
        state = jax.tree.map(lambda x: x, state)  # copied: some environments modify dictionaries of their state
        with standard_promotion():
            return self._advance(key, state, action, params)

    def observation_space(self, params: Any) -> Space:
        return self._obs_space

    def action_space(self, params: Any) -> Space:
        return self._action_space

    def _observation(self, obs: PyTree, params: Any) -> PyTree:
        return jax.tree.map(lambda x, shape: cast(x, shape.dtype), obs, self._observation_shape(params))

    def _observation_shape(self, params: Any) -> PyTree:
        """Return the shapes and dtypes of an observation: jax.ShapeDtypeStruct leaves."""
        return shape_of(self.observation_space(params))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class TimeLimitParams(struct.PyTreeNode):
    """Parameters of environments whose library has no time limits of its own."""

    max_steps_in_episode: int | Array = 1000  # an episode is truncated after this number of steps


class TimedState(struct.PyTreeNode):
    """An environment's state and the number of steps of its episode."""

    env_state: Any
    elapsed: Array  # [] int32, steps of this episode so far


@contextmanager
def standard_promotion() -> Iterator[None]:
    """Allow JAX's standard promotion of dtypes and ranks inside the context, whatever the user's settings.

    Other libraries mix dtypes and ranks. The context costs nothing after tracing.
    """
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def cast(x: Any, dtype: Any) -> Array:
    """Convert to an array of this dtype, never weakly typed; keys are returned unchanged."""
    return x if _is_key(dtype) else jax.lax.convert_element_type(x, dtype)


def _is_key(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)


def cast_like(x: Any, example: Array) -> Array:
    """Cast a leaf of a step's state to the dtype that it has after a reset: libraries mix Python numbers and arrays.

    Raises:
      TypeError: the cast would lose information.
    """
    if _is_key(example.dtype):
        return x
    if not np.can_cast(jnp.result_type(x), example.dtype, "same_kind"):
        raise TypeError(f"a leaf of the state is {example.dtype} after a reset and {jnp.result_type(x)} after a step")
    return cast(x, example.dtype)


def strongly_typed(x: Any) -> Array:
    """Convert to an array of the same dtype that is not weakly typed."""
    x = jnp.asarray(x)
    return cast(x, x.dtype)


def library(module: str, extra: str) -> Any:
    """Import a module of an environment library.

    Raises:
      ConfigError: it is not installed or cannot be imported; the message contains the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        top = module.partition(".")[0]
        missing = str(error.name).partition(".")[0] == top
        problem = "is not installed" if missing else f"cannot be imported ({first_line(error)})"
        raise ConfigError(f"env={extra}:... needs {top}, which {problem}; pip install 'rlkit-jax[{extra}]'") from error


def known_task(task: str, known: Iterable[str], prefix: str) -> str:
    """Return the task unchanged, where it is known.

    Raises:
      ConfigError: it is not; the message suggests similar names.
    """
    known = list(known)
    if task not in known:
        raise ConfigError(f"env={prefix + str(task)!r} is not known{suggestion(task, known, prefix=prefix)}")
    return task


def suggestion(word: object, known: Iterable[str], *, prefix: str = "") -> str:
    """Suggest similar names, or else list the shortest three, to be appended to an error message."""
    known = list(known)
    shortest = ", ".join(prefix + name for name in sorted(known, key=len)[:3])
    similar = did_you_mean(word, known, cutoff=0.4, prefix=prefix)
    return similar or (f"; try {shortest}" if known else "")


def construct(name: str, constructor: Callable, kwargs: Mapping[str, Any], known: Iterable[str] = ()) -> Any:
    """Call `constructor(**kwargs)`; errors name the environment `name`.

    Raises:
      ConfigError: a keyword is neither a parameter of the constructor nor in `known`, or a value is rejected.
    """
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    own = [p.name for p in inspect.signature(constructor).parameters.values() if p.kind in named]
    check_keywords(name, kwargs, [*own, *known])
    try:
        with standard_promotion():
            return constructor(**kwargs)
    except (TypeError, ValueError, KeyError, AttributeError, NotImplementedError) as error:
        raise ConfigError(f"env={name!r} rejects {dict(kwargs)}: {first_line(error)}{place(error)}") from error
    except Exception as error:
        if isinstance(error, ConfigError) or not place(error):
            raise
        raise ConfigError(f"env={name!r} cannot be made with {dict(kwargs)}: it raised {raised(error)}") from error


def check_keywords(name: str, kwargs: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise a ConfigError for the first keyword that is not in `known`."""
    known = sorted(set(known))
    for key, value in kwargs.items():
        if key not in known:
            all_names = f"; it has {', '.join(known) or 'no parameters'}"
            remedy = did_you_mean(key, known, cutoff=0.5) or all_names
            raise ConfigError(f"{shorten(key)}={shorten(repr(value))} is not a parameter of env {name!r}{remedy}")


def replace_params(name: str, params: Any, values: Mapping[str, Any]) -> Any:
    """Return parameters with some fields replaced, each converted to the type of its default.

    Raises:
      ConfigError: there is no such field, or a value does not fit its field.
    """
    check_keywords(name, values, params.__dataclass_fields__)
    converted = {key: convert(getattr(params, key), value, f"{name}.{key}") for key, value in values.items()}
    if (length := values.get("max_steps_in_episode", 1)) < 1:
        raise ConfigError(f"{name}.max_steps_in_episode={length} must be at least 1; try 1000")
    return params.replace(**converted)


def convert(default: Any, value: Any, field: str) -> Any:
    """Convert a value to the type of the default that it replaces. Raises ConfigError where it does not fit."""
    expected = np.asarray(default)
    if expected.dtype.kind not in "biuf":
        raise ConfigError(f"{field} cannot be set by a keyword; replace it in the parameters that make returns")
    rules = {"b": ("b", "true or false"), "f": ("iuf", "a number")}
    kinds, rule = rules.get(expected.dtype.kind, ("iu", "an integer"))
    if expected.dtype.kind in "iu" and isinstance(value, float) and value.is_integer():
        value = int(value)  # 1e3 is the whole number that it looks like
    try:
        given = np.asarray(value)
        fits = given.shape == expected.shape and given.dtype.kind in kinds
    except (TypeError, ValueError):
        fits = False
    if not fits:
        shape = f" in each of {list(expected.shape)} entries" if expected.shape else ""
        raise ConfigError(f"{field}={shorten(repr(value))} must be {rule}{shape}; its default is {default}")
    _check_32_bits(given, f"{field}={shorten(repr(value))}")
    return type(default)(value) if isinstance(default, bool | int | float) else jnp.asarray(value, default.dtype)


def _check_32_bits(given: np.ndarray, described: str) -> None:
    """Raise a ConfigError where a number is beyond int32 or float32, the types that JAX computes with."""
    if given.dtype.kind in "iu" and given.size and (given.min() < -(2**31) or given.max() >= 2**31):
        raise ConfigError(f"{described} must be within the range of int32; try {2**31 - 1}")
    with np.errstate(over="ignore"):
        if given.dtype.kind == "f" and (np.isinf(given.astype(np.float32)) != np.isinf(given)).any():
            raise ConfigError(f"{described} must be within the range of float32; try 1e30 or .inf")


def positive_integer(field: str, value: int) -> int:
    """Return the value unchanged. Raises ConfigError where it is not an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{field}={value!r} must be an integer of at least 1; try 1000")
    return value


def gymnax_space(space: Any) -> Space:
    """Convert a space of gymnax, or of a library with copies of its spaces, to a space of rlkit."""
    match type(space).__name__:
        case "Discrete":
            return spaces.Discrete(int(space.n), np.dtype(space.dtype))
        case "Box":
            return spaces.Box(_bound(space.low, -np.inf), _bound(space.high, np.inf), tuple(space.shape), space.dtype)
        case "Dict":
            return spaces.Dict({name: gymnax_space(child) for name, child in space.spaces.items()})
        case "Tuple":
            return spaces.Tuple(tuple(gymnax_space(child) for child in space.spaces))
    raise ConfigError(f"{space!r} is not a supported space; use Discrete, Box, Dict or Tuple")


def _bound(bound: Any, unknown: float) -> np.ndarray:
    """Return a bound of gymnax, where float32's largest number stands for infinity; `unknown` where it is traced."""
    bound = np.asarray(unknown if isinstance(bound, Tracer) else bound)
    if bound.dtype.kind != "f":
        return bound
    return np.where(np.abs(bound) >= np.finfo(np.float32).max, np.copysign(np.inf, bound), bound)


def unbounded_box(shape: tuple[int, ...], dtype: Any) -> spaces.Box:
    """Return a Box of this shape with the widest bounds of its dtype."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return spaces.Box(False, True, shape, dtype)
    info = np.iinfo(dtype) if dtype.kind in "iu" else None
    return spaces.Box(info.min, info.max, shape, dtype) if info else spaces.Box(-np.inf, np.inf, shape, dtype)


def first_line(error: Exception) -> str:
    """Return the type and the first line of an error."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
