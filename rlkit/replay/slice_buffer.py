"""Replay of slices: L consecutive rows of one environment, drawn uniformly, by episode, or by priority.

Uniform slices within one episode are those of TorchRL's SliceSampler; prioritized slices that run on across episode
ends are those of R2D2 (Kapturowski et al. 2019, section 2.3). `rlkit.replay.slice_index` keeps track of the slices that
can be drawn.
"""

from functools import partial
from typing import Literal

import jax.numpy as jnp
from flax import struct

from rlkit import _mesh
from rlkit._mesh import vary_like
from rlkit.ops._arrays import check_key
from rlkit.replay import priorities, segment_tree, slice_index, storage, validation, windows
from rlkit.replay.flags import check_flags, flags
from rlkit.replay.priorities import Priorities
from rlkit.replay.short_repr import short_repr
from rlkit.replay.slice_index import SliceIndex
from rlkit.replay.storage import Ring
from rlkit.replay.windows import Handle, Place
from rlkit.types import Array, Buffer, ConfigError, Key, PyTree, Sample


class SlicesState(struct.PyTreeNode):
    """State of a buffer of slices without priorities."""

    ring: Ring  # the stored steps
    index: SliceIndex  # the slices that can be drawn

    __repr__ = short_repr


class PrioritizedSlicesState(struct.PyTreeNode):
    """State of a buffer of slices with priorities."""

    ring: Ring  # the stored steps
    index: SliceIndex  # the slices that can be drawn
    priorities: Priorities  # of the slices, at their first steps
    beta: Array  # [] float32, the exponent of the importance weights; anneal it by `state.replace(beta=...)`

    __repr__ = short_repr


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
      store_obs_once, max_final_obs: see `uniform`.
      axis_name: see `uniform` and `prioritized`. Each device draws from its own slices, of which it may have more or
        less than others.

    Returns:
      `Buffer`. `sample` of a buffer without a slice raises ValueError outside of jit; inside, its mask is False.

    Raises:
      ConfigError: a setting is out of range, or two contradict each other; at `init`, the capacity does not fit.
    """
    capacity, num_slices, slice_len = validation.sizes(capacity=capacity, num_slices=num_slices, slice_len=slice_len)
    final_obs_capacity = validation.final_obs_capacity(
        store_obs_once=store_obs_once, max_final_obs=max_final_obs, capacity=capacity
    )
    _check_kind(sampling, strict, cross_episodes, prioritized)
    settings = priorities.Settings(alpha, beta, eps, start_priority) if prioritized else None
    rows_needed = slice_len if strict and not cross_episodes else 1  # a strict slice has no masked steps
    return Buffer(
        init=partial(
            init,
            capacity=capacity,
            final_obs_capacity=final_obs_capacity,
            settings=settings,
            slice_len=slice_len,
            strict=strict,
            cross_episodes=cross_episodes,
            sampling=sampling,
            axis_name=axis_name,
        ),
        add=partial(add, axis_name=axis_name),
        sample=partial(sample, num_slices=num_slices, rows_needed=rows_needed, settings=settings, axis_name=axis_name),
        update=partial(update, settings=settings),
        size=partial(size, settings=settings),
        batch_of_pass=partial(batch_of_pass, num_slices=num_slices, rows_needed=rows_needed, axis_name=axis_name),
    )


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


def init(
    example: PyTree,
    num_envs: int,
    *,
    capacity: int,
    final_obs_capacity: int | None,
    settings: priorities.Settings | None,
    slice_len: int,
    axis_name: str | None,
    **kind: bool | str,
) -> SlicesState | PrioritizedSlicesState:
    """Return an empty buffer for steps like `example`, leaves [...], of `num_envs` environments."""
    check_flags(example, "slices")
    capacity, num_envs, final_obs_capacity = validation.shard(capacity, num_envs, final_obs_capacity, axis_name)
    ring = storage.init(example, num_envs, capacity, slice_len, final_obs_capacity)
    index = slice_index.init(ring.num_rows, num_envs, slice_len, **kind)  # type: ignore[arg-type]
    if settings is None:
        return _mesh.vary(vary_like(SlicesState(ring, index), example), axis_name)
    state = PrioritizedSlicesState(ring, index, priorities.init(capacity, settings), jnp.float32(settings.beta))
    return _mesh.vary(vary_like(state, example), axis_name)


def add(
    state: SlicesState | PrioritizedSlicesState, rollout: PyTree, *, axis_name: str | None
) -> SlicesState | PrioritizedSlicesState:
    """Add a rollout [T, N, ...] to the ring, to the index and, where there are some, to the priorities."""
    ring = storage.add(state.ring, rollout)
    terminated, truncated = flags(rollout)
    done = terminated | truncated
    added = state.replace(ring=ring, index=slice_index.add(state.index, done))
    if isinstance(state, SlicesState):
        return added
    start_slot, is_completed = slice_index.completed_slices(state.index, done)
    completed = jnp.where(is_completed, storage.flat_indices(start_slot, ring.num_envs), ring.capacity)
    overwritten = storage.next_slots(state.ring.cursor, done.shape[0]).astype(jnp.int32)
    remaining = priorities.remove_rows(state.priorities, overwritten, ring.num_envs)
    return added.replace(priorities=priorities.insert(remaining, completed.reshape(-1), axis_name))


def sample(
    state: SlicesState | PrioritizedSlicesState,
    key: Key,
    *,
    num_slices: int,
    rows_needed: int,
    settings: priorities.Settings | None,
    axis_name: str | None,
) -> Sample:
    """Draw B slices: leaves [B, L, ...], mask [B, L], and weights [B]."""
    check_key(key)
    validation.check_not_empty(size(state, settings=settings))
    index, num_envs = state.index, state.ring.num_envs
    num_slices = _mesh.share("num_slices", num_slices, _mesh.size(axis_name))

    def draw(key: Key, stratified: bool = True) -> Place:
        if isinstance(state, PrioritizedSlicesState):
            return priorities.draw(state.priorities, key, num_slices, num_envs, stratified=stratified)
        starts = slice_index.sample(index, key, num_slices)
        return Place(starts.slot, starts.env)

    place, valid = windows.draw_with_next_obs(state.ring, draw, key, rows_needed, partial(draw, stratified=False))
    if isinstance(state, PrioritizedSlicesState):
        valid &= segment_tree.total(state.priorities.mass) > 0
        weight = priorities.weights(state.priorities, place, state.beta, axis_name)
    else:
        valid &= slice_index.size(index) > 0
        weight = jnp.ones((num_slices,), jnp.float32)
    return windows.take(state.ring, place, weight, valid, index.slice_len, across_ends=index.cross_episodes)


def batch_of_pass(
    state: SlicesState | PrioritizedSlicesState,
    key: Key,
    k: Array | int,
    *,
    num_slices: int,
    rows_needed: int,
    axis_name: str | None,
) -> Sample:
    """Return batch k of a pass over all slices, whatever their priorities; see `Buffer.batch_of_pass`.

    Raises:
      ValueError: the slices are drawn by episode.
    """
    index = state.index
    num_slices = _mesh.share("num_slices", num_slices, _mesh.size(axis_name))
    chosen = slice_index.batch_of_pass(index, key, k, num_slices)
    place, across = Place(chosen.slot, chosen.env), index.cross_episodes
    return windows.take_all(state.ring, place, chosen.mask[:, 0], rows_needed, index.slice_len, across_ends=across)


def update(
    state: SlicesState | PrioritizedSlicesState, index: Handle, priority: Array, *, settings: priorities.Settings | None
) -> SlicesState | PrioritizedSlicesState:
    """Set the priorities of the slices of `index` to |priority| [B]; without priorities, return the state unchanged."""
    if isinstance(state, SlicesState) or settings is None:
        return state
    return state.replace(priorities=priorities.update(state.priorities, state.ring, index, priority, settings))


def size(state: SlicesState | PrioritizedSlicesState, *, settings: priorities.Settings | None) -> Array:
    """Number of slices that can be drawn, [] int32."""
    num_slices = slice_index.size(state.index)
    if isinstance(state, SlicesState) or settings is None:
        return num_slices
    return priorities.num_items(state.priorities, num_slices, settings)
