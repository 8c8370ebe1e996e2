"""Items drawn from a ring: single steps, or windows of L consecutive rows of one environment."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlkit import _cpu
from rlkit._mesh import vary_like
from rlkit.ops._integers import uniform_below
from rlkit.replay import passes, storage
from rlkit.replay.flags import flags, with_truncated
from rlkit.replay.storage import Ring
from rlkit.types import Array, Key, PyTree, Sample

_MAX_DRAWS = 16  # of a place that lacks its final observation, or frames
_MOST_DRAWS = 256  # while all places do


class Place(NamedTuple):
    """Slots and environments of B steps, or of the first steps of B windows."""

    slot: Array  # [B] int32
    env: Array  # [B] int32
    mass: PyTree = ()  # [B] float32, priority masses; () where all places are equally likely


class Handle(NamedTuple):
    """Handle of B items for `Buffer.update`. The absolute row tells whether the item has been overwritten since."""

    row: Array  # [B] uint32, absolute row of the first step, modulo 2^32
    env: Array  # [B] int32


def num_windows(ring: Ring, window: int) -> Array:
    """Number of windows of `window` rows that are stored, [] int32."""
    return jnp.maximum(ring.count - (window - 1), 0) * ring.num_envs


def completed_windows(ring: Ring, num_rows: int, window: int) -> Array:
    """Slots of the first rows of the windows that the next T rows complete: [T] int32, R where there is none.

    There is none before `window` rows are stored, nor where the T rows overwrite the first row themselves.
    """
    start = jnp.arange(num_rows, dtype=jnp.int32) - (window - 1)  # relative to the next row
    exists = start >= jnp.maximum(-ring.count, num_rows - ring.num_rows)
    slot = storage.slot_after(ring.slot, jnp.where(start < 0, start + ring.num_rows, start), ring.num_rows)
    return jnp.where(exists, slot, ring.num_rows)


def draw_uniformly(ring: Ring, key: Key, batch_size: int, window: int) -> Place:
    """Draw the starts of B stored windows, each equally likely; arbitrary places where none is stored."""
    return _place_of(ring, uniform_below(key, (batch_size,), num_windows(ring, window).astype(jnp.uint32)))


def batch_of_pass(ring: Ring, key: Key, k: Array | int, *, batch_size: int, length: int) -> Sample:
    """Return batch k of a pass over all windows of L rows; see `Buffer.batch_of_pass`."""
    nth, in_pass = passes.batch_of_pass(key, k, batch_size, num_windows(ring, length))
    return take_all(ring, _place_of(ring, nth), in_pass, 1, length if length > 1 else None)


def take_all(
    ring: Ring, place: Place, valid: Array, rows_needed: int, window: int | None, *, across_ends: bool = False
) -> Sample:
    """Return the items that start at `place` [B], with weights 1, as `take` does.

    The mask of an item is False, too, where one of its first `rows_needed` rows lacks its final observation, or frames.
    """
    valid &= storage.has_next_obs(ring, *_rows(ring, place, rows_needed)).all(-1)
    return take(ring, place, jnp.ones(valid.shape, jnp.float32), valid, window, across_ends=across_ends)


def _place_of(ring: Ring, nth: Array) -> Place:
    """Return the starts of stored windows: nth [B] uint32, 0 for that of the oldest row and the first environment."""
    nth = nth.astype(jnp.int32)
    oldest = storage.slot_after(ring.slot, ring.num_rows - ring.count, ring.num_rows)
    return Place(storage.slot_after(oldest, nth // ring.num_envs, ring.num_rows), nth % ring.num_envs)


@_cpu.straight_line_keys
def draw_with_next_obs(
    ring: Ring,
    draw: Callable[[Key], Place],
    key: Key,
    rows_needed: int,
    draw_again: Callable[[Key], Place] | None = None,
) -> tuple[Place, Array]:
    """Draw B places, and draw again those where one of the first rows lacks its final observation, or frames.

    Args:
      ring: the rows.
      draw: key -> places [B].
      key: a key.
      rows_needed: number of rows from each place on that must have their next_obs.
      draw_again: the same for the places that are drawn again, where `draw` draws each of the B from another part of
        the items, in which there may be none that is complete.

    Returns:
      The places, and [B] bool, False at those that lack one: all, if several draws of each found no complete place.
      Otherwise a place that was not found is one of those that were.
    """
    if isinstance(ring.final_obs, tuple) and not ring.frames:
        place = draw(key)
        return place, jnp.ones(place.slot.shape, bool)

    def is_complete(place: Place) -> Array:
        slots, envs = _rows(ring, place, rows_needed)
        return storage.has_next_obs(ring, slots, envs).all(-1)

    def next_draw(carry):
        num_draws, key, place, complete = carry
        draw_key, key = jax.random.split(key)
        new = (draw_again or draw)(draw_key)
        place = jax.tree.map(lambda old, new: jnp.where(complete, old, new), place, new)
        return num_draws + 1, key, place, is_complete(place)

    first_key, key = jax.random.split(key)
    place = draw(first_key)
    start = vary_like((0, key, place, is_complete(place)))

    def goes_on(carry):
        num_draws, _, _, complete = carry
        return ~complete.all() & (num_draws < jnp.where(complete.any(), _MAX_DRAWS, _MOST_DRAWS))

    _, key, place, complete = jax.lax.while_loop(goes_on, next_draw, start)
    num_complete = complete.sum(dtype=jnp.uint32)
    nth = uniform_below(key, complete.shape, num_complete).astype(jnp.int32)
    index = jnp.arange(complete.size)
    slot = jnp.where(complete, jnp.cumsum(complete, dtype=jnp.int32) - 1, complete.size)
    complete_places = vary_like(jnp.zeros_like(index), slot).at[slot].set(index, mode="drop")
    chosen = jnp.where(complete, index, complete_places[nth])
    return jax.tree.map(lambda x: x[chosen], place), jnp.broadcast_to(num_complete > 0, complete.shape)


def take(
    ring: Ring, place: Place, weight: Array, valid: Array, window: int | None, *, across_ends: bool = False
) -> Sample:
    """Return the items that start at `place` [B] as a sample.

    The mask of a window ends with the newest row and, unless `across_ends`, with the episode of its first step. It is
    False at a step whose final observation or frames are no longer stored. A real step that no real step follows is
    marked truncated unless it is terminated.

    Args:
      ring: the rows.
      place: [B], where the items start.
      weight: [B] float32, not negative.
      valid: [B] bool, False at items that could not be drawn: their mask is False and `Buffer.update` skips them.
      window: rows of a window; None for single steps, whose leaves are [B, ...].
      across_ends: windows run on across episode ends.
    """
    unused_row = ring.head + np.uint32(2**31)  # not stored until 2^31 more rows have come
    row = _computed_after(storage.row_of_slot(ring, place.slot), weight)
    index = Handle(jnp.where(valid, row, unused_row), place.env)
    if window is None:
        return Sample(storage.steps_at(ring, place.slot, place.env), index, weight, valid)
    slots, envs = _rows(ring, place, window)
    item = storage.steps_at(ring, slots, envs)
    mask = _stored(ring, place, window) & storage.has_next_obs(ring, slots, envs) & valid[:, None]
    terminated, truncated = flags(item)
    if not across_ends:
        ends = jnp.cumsum(terminated | truncated, axis=1, dtype=jnp.int32)
        mask &= jnp.pad(ends, ((0, 0), (1, 0)))[:, :-1] == 0
    last = mask & ~jnp.pad(mask, ((0, 0), (0, 1)))[:, 1:]
    item = with_truncated(item, truncated | (last & ~terminated))
    return Sample(item, index, weight, mask)


def _computed_after(row: Array, weight: Array) -> Array:
    """Return row [B] unchanged, computed after weight [B], which is never negative."""
    # An update writes the priorities at the handle's rows, so it must come after the weights have been read from them;
    # otherwise the priorities are copied.
    return row + (weight < 0).astype(row.dtype)


def _rows(ring: Ring, place: Place, window: int) -> tuple[Array, Array]:
    """Slots and environments of windows, [B, L] int32 each."""
    return storage.window_at(place.slot, place.env, window, ring.num_rows)


def _stored(ring: Ring, place: Place, window: int) -> Array:
    """Mark the rows of windows that come no later than the newest row, [B, L] bool."""
    distance = ring.head - storage.row_of_slot(ring, place.slot)
    return jnp.arange(window, dtype=jnp.uint32)[None] < distance[:, None]
