"""What is drawn from a ring: single steps, or windows of L rows of one environment."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.ops._integers import uniform_below
from rlkit.replay import storage as rings
from rlkit.replay.storage import Ring
from rlkit.types import Array, Key, PyTree, Sample

_TRIES = 16


class Place(NamedTuple):
    """Where steps are, or where windows start."""

    slot: Array  # [B] int32
    env: Array  # [B] int32
    mass: PyTree = ()  # [B] float32, what it is drawn in proportion to, where that differs


class Handle(NamedTuple):
    """What `Buffer.update` takes: a row's absolute number tells whether its slot has been overwritten since."""

    row: Array  # [B] uint32, modulo 2^32
    env: Array  # [B] int32


def num_starts(ring: Ring, window: int) -> Array:
    """[] int32, of how many places `window` rows of their environment are stored."""
    return jnp.maximum(ring.count - (window - 1), 0) * ring.num_envs


def slots_completed(ring: Ring, num_rows: int, window: int) -> Array:
    """[T] int32, the slots where the windows start that the next T rows complete; R where there is none.

    There is none before the first window's rows are there, nor where the T rows overwrite the start themselves.
    """
    start = jnp.arange(num_rows, dtype=jnp.int32) - (window - 1)  # relative to the next row
    exists = start >= jnp.maximum(-ring.count, num_rows - ring.num_rows)
    slot = rings.advance(ring.slot, jnp.where(start < 0, start + ring.num_rows, start), ring.num_rows)
    return jnp.where(exists, slot, ring.num_rows)


def draw_uniformly(ring: Ring, key: Key, batch_size: int, window: int) -> Place:
    """Places [B] of which `window` rows are stored, each equally likely. Arbitrary where there is none."""
    nth = uniform_below(key, (batch_size,), num_starts(ring, window).astype(jnp.uint32)).astype(jnp.int32)
    oldest = rings.advance(ring.slot, ring.num_rows - ring.count, ring.num_rows)
    return Place(rings.advance(oldest, nth // ring.num_envs, ring.num_rows), nth % ring.num_envs)


def draw_known(ring: Ring, draw: Callable[[Key], Place], key: Key, rows_needed: int) -> tuple[Place, Array]:
    """Places [B] by `draw`, drawn anew while one of their first `rows_needed` rows lacks its final observation.

    Returns:
      The places, and [B] bool: False at those that were still not whole after a number of tries.
    """
    if isinstance(ring.finals, tuple):
        place = draw(key)
        return place, jnp.ones(place.slot.shape, bool)

    def whole(place: Place) -> Array:
        slots, envs = _rows(ring, place, rows_needed)
        return rings.known(ring, slots, envs).all(-1)

    def again(carry):
        tries, key, place, accepted = carry
        draw_key, key = jax.random.split(key)
        place = jax.tree.map(lambda old, new: jnp.where(accepted, old, new), place, draw(draw_key))
        return tries + 1, key, place, whole(place)

    first_key, key = jax.random.split(key)
    place = draw(first_key)
    *_, place, accepted = jax.lax.while_loop(
        lambda carry: (carry[0] < _TRIES) & ~carry[-1].all(), again, (0, key, place, whole(place))
    )
    return place, accepted


def take(
    ring: Ring, place: Place, weight: Array, drawn: Array, window: int | None, *, across_ends: bool = False
) -> Sample:
    """The sample of what starts at `place` [B]: single steps where `window` is None, else windows of that many rows.

    A window's mask ends with the episode of its first step (not so where it runs `across_ends`), and with the newest
    row. Its last real step is marked truncated unless it is terminated, so that a return computed along the window
    bootstraps there.

    Args:
      weight: [B] float32.
      drawn: [B] bool, False at what could not be drawn: its mask is False, and its handle is of no stored row, so that
        an update with it changes nothing.

    Returns:
      Sample: item [B, ...] or [B, L, ...], mask [B] or [B, L].
    """
    nowhere = ring.row + np.uint32(2**31)  # is stored when as many rows more have come, and no ring holds so many
    index = Handle(jnp.where(drawn, _after(rings.row_of(ring, place.slot), weight), nowhere), place.env)
    if window is None:
        return Sample(rings.steps_at(ring, place.slot, place.env), index, weight, drawn)
    slots, envs = _rows(ring, place, window)
    item = rings.steps_at(ring, slots, envs)
    mask = _stored(ring, place, window) & rings.known(ring, slots, envs) & drawn[:, None]
    if not across_ends:
        ended = jnp.cumsum(item.terminated | item.truncated, axis=1, dtype=jnp.int32)
        mask &= jnp.pad(ended, ((0, 0), (1, 0)))[:, :-1] == 0
    last = mask & ~jnp.pad(mask, ((0, 0), (0, 1)))[:, 1:]
    item = item._replace(truncated=item.truncated | (last & ~item.terminated))
    return Sample(item, index, weight, mask)


def _after(row: Array, weight: Array) -> Array:
    """row [B] itself, computed after weight [B], which is never below 0.

    What `Buffer.update` writes to depends on the handle, and so comes after the weights, which read the priorities. XLA
    may read them later otherwise, where nothing else depends on the weights, and would keep a copy of the priorities
    for it. It could see through a condition that it can decide; it does not know that a power is not negative.
    """
    return row + (weight < 0).astype(row.dtype)


def _rows(ring: Ring, place: Place, window: int) -> tuple[Array, Array]:
    """The slots and environments [B, L] of windows."""
    slots = rings.advance(place.slot[:, None], jnp.arange(window, dtype=jnp.int32)[None], ring.num_rows)
    return slots, jnp.broadcast_to(place.env[:, None], slots.shape)


def _stored(ring: Ring, place: Place, window: int) -> Array:
    """[B, L] bool, which rows of the windows lie before the newest row's end."""
    age = ring.row - rings.row_of(ring, place.slot)
    return jnp.arange(window, dtype=jnp.uint32)[None] < age[:, None]
