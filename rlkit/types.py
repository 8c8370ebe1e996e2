"""The records that everything in rlkit speaks: transitions, environments, buffers, agents, and the spaces.

Records are NamedTuples of arrays or of pure functions. Nothing here has behavior beyond the spaces' `sample` and
`contains`; `shape_of` and `zeros` say what a value of a space is like. Shapes: T is time, N is environments, B is a
batch.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array
Key = jax.Array  # a typed key of shape [], as made by jax.random.key
PyTree = Any
Scalar = jax.Array | float  # a traced scalar [], or a Python number that becomes one


class ConfigError(ValueError):
    """A mistake in a setting, seen before anything ran. One line: the field, the value, the rule, a remedy."""


class Transition(NamedTuple):
    """One step of one environment; in a rollout every leaf is [T, N, ...], time first."""

    obs: PyTree
    action: PyTree
    reward: Array  # [] float32
    terminated: Array  # [] bool, the world ended: the value of next_obs is 0
    truncated: Array  # [] bool, the clock ended: bootstrap from next_obs
    next_obs: PyTree  # the observation after the action, before the automatic reset
    extras: PyTree = ()  # what Agent.act wants back at Agent.update: log-prob, recurrent memory, ...


class Env(Protocol):
    """A functional environment for one stream, in gymnax 1.0's shape. It resets itself at episode ends."""

    def reset(self, key: Key, params: Any) -> tuple[PyTree, Any]:
        """Start an episode: -> obs, state."""
        ...

    def step(
        self, key: Key, state: Any, action: PyTree, params: Any
    ) -> tuple[PyTree, Any, Array, Array, Array, dict[str, Any]]:
        """Take one step: -> obs, state, reward [] float32, terminated [] bool, truncated [] bool, info.

        Where the episode ended, `obs` and `state` are those of a new episode, and `info["final_observation"]` is the
        observation that the action led to. Elsewhere `info["final_observation"]` equals `obs`.
        """
        ...

    def observation_space(self, params: Any) -> "Space": ...

    def action_space(self, params: Any) -> "Space": ...


class Sample(NamedTuple):
    """What a buffer draws."""

    item: PyTree  # leaves [B, ...], or [B, L, ...] where the buffer draws windows
    index: PyTree  # a handle for Buffer.update; it knows when its slot has been overwritten since
    weight: Array  # [B] float32, importance weights; 1 where drawn uniformly
    mask: Array  # [B] or [B, L] bool, which entries are real


class Buffer(NamedTuple):
    """A replay buffer as pure functions."""

    init: Callable[[Transition, int], PyTree]  # (example, num_envs) -> state; example: one step, no batch axes
    add: Callable[[PyTree, Transition], PyTree]  # (state, rollout) -> state; leaves [T, N, ...], any T >= 1
    sample: Callable[[PyTree, Key], Sample]
    update: Callable[[PyTree, PyTree, Array], PyTree]  # (state, index, priority) -> state
    size: Callable[[PyTree], Array]  # state -> [] how many items can be drawn now


class Agent(NamedTuple):
    """A learning algorithm as pure functions. It sees transitions and spaces, never an environment."""

    init: Callable[..., PyTree]  # (hyper, key, example: Transition, num_envs) -> state; example: one step, extras=()
    actor: Callable[[PyTree], PyTree]  # state -> only what acting needs: params, normalizer, exploration
    act: Callable[..., tuple[PyTree, PyTree, PyTree]]  # (actor, memory, obs, key) -> memory, action, extras; explores
    policy: Callable[..., tuple[PyTree, PyTree, PyTree]]  # the same; what evaluation and deployment use
    update: Callable[..., tuple[PyTree, dict[str, Array]]]  # (state, rollout [T, N, ...], key) -> state, metrics
    memory: PyTree = ()  # a recurrent policy's start value, for one environment
    memories: Callable[[int], PyTree] | None = None  # num_envs -> start values [N, ...], where environments differ
    check: Callable[..., None] = lambda num_envs, num_steps: None  # raises ConfigError where a rollout cannot fit
    # What an off-policy agent's update is made of, so that it can learn from a dataset alone: add(state, rollout) ->
    # state, and learn(state, key, num_steps) -> state, metrics: the gradient steps that follow so many steps.
    add: Callable[..., PyTree] | None = None
    learn: Callable[..., tuple[PyTree, dict[str, Array]]] | None = None


class Network(NamedTuple):
    """A function with parameters, for one observation or any batch of them.

    flax modules fit as `Network(module.init, module.apply)`; an NNX or equinox module through its split or partition.
    With `memory` set the network is recurrent: `init(key, obs, memory)` and `apply(params, obs, memory)`, which then
    also returns the next memory, last.
    """

    init: Callable[..., PyTree]  # (key, obs) -> params
    apply: Callable[..., Any]  # (params, obs) -> whatever the agent asks of its network
    memory: PyTree = ()  # a recurrent network's start value, for one environment
    # A recurrent network may give `apply` in three parts, so that only the second runs step by step along time:
    # encode(params, obs) -> x; advance(params, memory, x) -> (memory, y); decode(params, y) -> apply's other results.
    parts: tuple[Callable, Callable, Callable] | None = None


@dataclass(frozen=True)
class Discrete:
    """The integers 0 ... n - 1."""

    n: int
    dtype: np.dtype = field(default=np.dtype(np.int32))

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    def sample(self, key: Key) -> Array:
        return jax.random.randint(key, (), 0, self.n, self.dtype)

    def contains(self, x: Any) -> Array:
        return (jnp.asarray(x) >= 0) & (jnp.asarray(x) < self.n)


@dataclass(frozen=True)
class MultiDiscrete:
    """Vectors of integers, entry i in 0 ... nvec[i] - 1."""

    nvec: tuple[int, ...]
    dtype: np.dtype = field(default=np.dtype(np.int32))

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.nvec),)

    def sample(self, key: Key) -> Array:
        return jax.random.randint(key, self.shape, 0, np.asarray(self.nvec), self.dtype)

    def contains(self, x: Any) -> Array:
        return jnp.all((jnp.asarray(x) >= 0) & (jnp.asarray(x) < np.asarray(self.nvec)))


class Box:
    """Arrays between two bounds, which may be infinite."""

    def __init__(self, low: Any, high: Any, shape: tuple[int, ...] | None = None, dtype: Any = np.float32):
        self.dtype = np.dtype(dtype)
        low, high = np.asarray(low), np.asarray(high)
        self.shape = tuple(shape) if shape is not None else np.broadcast_shapes(low.shape, high.shape)
        self.low = np.broadcast_to(low, self.shape).astype(self.dtype)  # [*shape]
        self.high = np.broadcast_to(high, self.shape).astype(self.dtype)  # [*shape]

    @property
    def bounded(self) -> bool:
        """Whether every bound is finite (float32's largest number counts as infinite, as gymnax uses it)."""
        limit = np.finfo(np.float32).max
        return bool(np.all(np.abs(self.low) < limit) and np.all(np.abs(self.high) < limit))

    def sample(self, key: Key) -> Array:
        if not self.bounded:
            return jax.random.normal(key, self.shape).clip(self.low, self.high).astype(self.dtype)
        if not np.issubdtype(self.dtype, np.floating):
            low, high = self.low.astype(np.int64), self.high.astype(np.int64)
            return jax.random.randint(key, self.shape, low, high + 1).astype(self.dtype)
        return jax.random.uniform(key, self.shape, self.dtype, self.low, self.high)

    def contains(self, x: Any) -> Array:
        return jnp.all((jnp.asarray(x) >= self.low) & (jnp.asarray(x) <= self.high))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Box)
            and self.dtype == other.dtype
            and np.array_equal(self.low, other.low)
            and np.array_equal(self.high, other.high)
        )

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype, self.low.tobytes(), self.high.tobytes()))

    def __repr__(self) -> str:
        low, high = (np.unique(bound) for bound in (self.low, self.high))
        text = ", ".join(str(b[0]) if b.size == 1 else f"[{b[0]} ... {b[-1]}]" for b in (low, high) if b.size)
        return f"Box({text}, shape={self.shape}, dtype={self.dtype.name})"


class Dict:
    """A dictionary of spaces. The leaf called `action_mask`, where there is one, marks the legal actions."""

    def __init__(self, spaces: dict[str, "Space"]):
        self.spaces = dict(sorted(spaces.items()))  # JAX sorts dictionary keys, so the order of the leaves agrees

    def sample(self, key: Key) -> dict[str, PyTree]:
        keys = jax.random.split(key, len(self.spaces))
        return {name: space.sample(k) for k, (name, space) in zip(keys, self.spaces.items(), strict=True)}

    def contains(self, x: Any) -> Array:
        return jnp.all(jnp.stack([space.contains(x[name]) for name, space in self.spaces.items()]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dict) and self.spaces == other.spaces

    def __hash__(self) -> int:
        return hash(tuple(self.spaces.items()))

    def __repr__(self) -> str:
        return f"Dict({self.spaces})"


@dataclass(frozen=True)
class Tuple:
    """A tuple of spaces."""

    spaces: tuple["Space", ...]

    def sample(self, key: Key) -> tuple[PyTree, ...]:
        keys = jax.random.split(key, len(self.spaces))
        return tuple(space.sample(k) for k, space in zip(keys, self.spaces, strict=True))

    def contains(self, x: Any) -> Array:
        return jnp.all(jnp.stack([space.contains(leaf) for space, leaf in zip(self.spaces, x, strict=True)]))


Space = Discrete | MultiDiscrete | Box | Dict | Tuple


def shape_of(space: Space) -> PyTree:
    """What a value of the space is like: `jax.ShapeDtypeStruct`s in its structure, in the dtypes that JAX knows."""
    match space:
        case Dict():
            return {name: shape_of(child) for name, child in space.spaces.items()}
        case Tuple():
            return tuple(shape_of(child) for child in space.spaces)
    return jax.ShapeDtypeStruct(space.shape, jax.dtypes.canonicalize_dtype(space.dtype))


def zeros(space: Space) -> PyTree:
    """A value of the space's shapes and dtypes, all zero, be that within its bounds or not."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shape_of(space))
