"""Replay of slices: L consecutive rows of one environment, drawn uniformly, by episode, or by priority.

Uniform slices within one episode are those of TorchRL's SliceSampler; prioritized slices that run on across episode
ends are those of R2D2 (Kapturowski et al. 2019, section 2.3). `rlkit.replay.slice_index` keeps track of the slices that
can be drawn.
"""

from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from rlkit import _mesh
from rlkit._mesh import vary_like
from rlkit.ops._arrays import as_arrays, check_key
from rlkit.replay import priorities, segment_tree, slice_index, storage, validation, windows
from rlkit.replay.flags import check_flags, flags
from rlkit.replay.priorities import Priorities
from rlkit.replay.short_repr import short_repr
from rlkit.replay.slice_index import SliceIndex
from rlkit.replay.storage import Ring
from rlkit.replay.validation import ObsStorage
from rlkit.replay.windows import Handle, Place
from rlkit.types import Array, Buffer, ConfigError, Key, PyTree, Sample, StateNode


class SlicesState(StateNode):
    """State of a buffer of slices without priorities."""

    ring: Ring  # the stored steps
    index: SliceIndex  # the slices that can be drawn

    __repr__ = short_repr


class PrioritizedSlicesState(StateNode):
    """State of a buffer of slices with priorities."""

    ring: Ring  # the stored steps
    index: SliceIndex  # the slices that can be drawn
    priorities: Priorities  # of the slices, at their first steps
    beta: Array  # [] float32, the exponent of the importance weights; anneal it by `state.replace(beta=...)`

    __repr__ = short_repr


class Static(NamedTuple):
    """Arguments that `slices` binds."""

    capacity: int
    num_slices: int
    slice_len: int
    sampling: str
    strict: bool
    cross_episodes: bool
    settings: priorities.Settings | None  # None without priorities
    obs_storage: ObsStorage
    axis_name: str | None

    @property
    def rows_needed(self) -> int:  # a strict slice has no masked steps
        return self.slice_len if self.strict and not self.cross_episodes else 1


def slices(
    capacity: int,
    num_slices: int,
    slice_len: int,
    *,
    sampling: Literal["slice", "episode"] = "slice",
    strict: bool = True,
    cross_episodes: bool = False,
    prioritized: bool = False,
    alpha: float = 0.6,
    beta: float = 0.4,
    eps: float = 1e-6,
    start_priority: float = 1.0,
    store_obs_once: bool = False,
    max_final_obs: int | None = None,
    frame_stack: int = 1,
    image_axes: str = "auto",
    axis_name: str | None = None,
) -> Buffer:
    """Return a buffer of the last `capacity` steps, which draws slices of `slice_len` steps, with replacement.

    Items have leaves [B, L, ...] and a mask [B, L]. A slice lies in one environment and ends no later than the newest
    row; unfinished episodes have slices too. The last real step of a slice is marked truncated unless it is terminated,
    so that a return computed along the slice bootstraps there. `size` counts slices.

    Args:
      capacity: steps of all environments together, a multiple of their number, below 2^31.
      num_slices: B, slices of a sample.
      slice_len: L, steps of a slice.
      sampling: "slice" draws all slices with the same probability; "episode" draws an episode uniformly from those that
        hold a slice, as far as they are stored, and then one of its slices uniformly.
      strict: True for slices of L steps of one episode only. With False every stored step starts a slice, and its mask
        ends with its episode or with the newest row.
      cross_episodes: True for slices of any L consecutive rows, whatever episodes end inside, for recurrent agents that
        reset their memory there.
      prioritized: draw in proportion to the priorities given to `update`, one for each slice, instead of by `sampling`.
      alpha, beta, eps, start_priority: of the priorities; see `prioritized`.
      store_obs_once, max_final_obs, frame_stack, image_axes: see `uniform`.
      axis_name: see `uniform` and `prioritized`. Each device draws from its own slices, of which it may have more or
        less than others.

    Returns:
      `Buffer`. `sample` of a buffer without a slice raises ValueError outside of jit; inside, its mask is False.

    Raises:
      ConfigError: a setting is out of range, or two contradict each other; at `init`, the capacity does not fit.
    """
    capacity, num_slices, slice_len = validation.sizes(capacity=capacity, num_slices=num_slices, slice_len=slice_len)
    obs_storage = validation.obs_storage(
        store_obs_once=store_obs_once,
        max_final_obs=max_final_obs,
        frame_stack=frame_stack,
        image_axes=image_axes,
        capacity=capacity,
    )
    _check_kind(sampling, strict, cross_episodes, prioritized)
    settings = priorities.Settings(alpha, beta, eps, start_priority) if prioritized else None
    static = Static(capacity, num_slices, slice_len, sampling, strict, cross_episodes, settings, obs_storage, axis_name)
    functions: Any = (init, add, sample, update, size, batch_of_pass)
    return Buffer(*(partial(function, static) for function in functions))


def _check_kind(sampling: str, strict: bool, cross_episodes: bool, prioritized: bool) -> None:
    if sampling not in slice_index.SAMPLING:
        raise ConfigError(f"sampling={sampling!r} must be one of {', '.join(map(repr, slice_index.SAMPLING))}")
    if sampling == "episode" and prioritized:
        raise ConfigError(
            "sampling='episode' has no meaning with prioritized=True, which draws by priority; leave it out"
        )
    if sampling == "episode" and cross_episodes:
        raise ConfigError(
            "sampling='episode' has no meaning with cross_episodes=True: such slices belong to no episode; leave it out"
        )
    if cross_episodes and not strict:
        raise ConfigError("strict=False has no meaning with cross_episodes=True: such slices are full; leave it out")


def init(static: Static, example: PyTree, num_envs: int) -> SlicesState | PrioritizedSlicesState:
    """Return an empty buffer for steps like `example`, leaves [...], of `num_envs` environments."""
    check_flags(example, "slices")
    sizes = static.capacity, num_envs, static.obs_storage
    capacity, num_envs, obs_storage = validation.shard(*sizes, static.axis_name)
    ring = storage.init(example, num_envs, capacity, static.slice_len, obs_storage)
    kind = {"strict": static.strict, "cross_episodes": static.cross_episodes, "sampling": static.sampling}
    index = slice_index.init(ring.num_rows, num_envs, static.slice_len, **kind)  # type: ignore[arg-type]
    if static.settings is None:
        return _mesh.vary(vary_like(SlicesState(ring, index), example), static.axis_name)
    masses, beta = priorities.init(capacity, static.settings), jnp.float32(static.settings.beta)
    return _mesh.vary(vary_like(PrioritizedSlicesState(ring, index, masses, beta), example), static.axis_name)


def add(static: Static, state: Any, rollout: PyTree) -> Any:
    """Add a rollout [T, N, ...] to the ring, to the index and, where there are some, to the priorities."""
    state = as_arrays(state)
    ring = storage.add(state.ring, rollout)
    terminated, truncated = flags(rollout)
    done = terminated | truncated
    added = state.replace(ring=ring, index=slice_index.add(state.index, done))
    if static.settings is None:
        return added
    start_slot, is_completed = slice_index.completed_slices(state.index, done)
    completed = jnp.where(is_completed, storage.flat_indices(start_slot, ring.num_envs), ring.capacity)
    overwritten = storage.next_slots(state.ring.cursor, done.shape[0]).astype(jnp.int32)
    remaining = priorities.remove_rows(state.priorities, overwritten, ring.num_envs)
    return added.replace(priorities=priorities.insert(remaining, completed.reshape(-1), static.axis_name))


def sample(static: Static, state: Any, key: Key) -> Sample:
    """Draw B slices: leaves [B, L, ...], mask [B, L], and weights [B]."""
    state = as_arrays(state)
    check_key(key)
    validation.check_not_empty(size(static, state))
    index, num_slices = state.index, _mesh.share("num_slices", static.num_slices, _mesh.size(static.axis_name))
    place, valid = _draw_places(state, key, num_slices, static.rows_needed)
    if static.settings is not None:
        valid &= segment_tree.total(state.priorities.mass) > 0
        weight = priorities.weights(state.priorities, place, state.beta, static.axis_name)
    else:
        valid &= slice_index.size(index) > 0
        weight = jnp.ones((num_slices,), jnp.float32)
    return windows.take(state.ring, place, weight, valid, index.slice_len, across_ends=index.cross_episodes)


# Jitted, because JAX compiles a loop anew whenever it is called outside of jit. Inlined, it changes no jitted program.
@partial(jax.jit, static_argnames=("num_slices", "rows_needed"), inline=True)
def _draw_places(state: Any, key: Key, num_slices: int, rows_needed: int) -> tuple[Place, Array]:
    def draw(key: Key, stratified: bool = True) -> Place:
        if isinstance(state, PrioritizedSlicesState):
            return priorities.draw(state.priorities, key, num_slices, state.ring.num_envs, stratified=stratified)
        starts = slice_index.sample(state.index, key, num_slices)
        return Place(starts.slot, starts.env)

    return windows.draw_with_next_obs(state.ring, draw, key, rows_needed, partial(draw, stratified=False))


def batch_of_pass(static: Static, state: Any, key: Key, k: Array | int) -> Sample:
    """Return batch k of a pass over all slices, whatever their priorities; see `Buffer.batch_of_pass`.

    Raises:
      ValueError: the slices are drawn by episode.
    """
    state = as_arrays(state)
    index = state.index
    num_slices = _mesh.share("num_slices", static.num_slices, _mesh.size(static.axis_name))
    chosen = slice_index.batch_of_pass(index, key, k, num_slices)
    place, across = Place(chosen.slot, chosen.env), index.cross_episodes
    valid = chosen.mask[:, 0]
    return windows.take_all(state.ring, place, valid, static.rows_needed, index.slice_len, across_ends=across)


def update(static: Static, state: Any, index: Handle, priority: Array) -> Any:
    """Set the priorities of the slices of `index` to |priority| [B]; without priorities, return the state unchanged."""
    state = as_arrays(state)
    if static.settings is None:
        return state
    return state.replace(priorities=priorities.update(state.priorities, state.ring, index, priority, static.settings))


def size(static: Static, state: Any) -> Array:
    """Number of slices that can be drawn, [] int32."""
    num_slices = slice_index.size(state.index)
    return (
        num_slices if static.settings is None else priorities.num_items(state.priorities, num_slices, static.settings)
    )
