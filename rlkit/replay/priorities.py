"""Priorities over the places of a ring, in a tree: which places can be drawn, how likely, and with what weight.

The mass of a place is (|p| + eps)^alpha, and a place is drawn with P = mass / total (Schaul et al. 2016, eq. 1). One
that must not be drawn has mass 0. The leaves are the places, slot * N + env; the tree keeps the sum and the minimum of
all masses, and the maximum of those that `update` wrote. The mass of a new item is that maximum, so that it will soon
be seen. What an item was given when it was new does not count for it, or a first guess would hand itself on for ever;
and an outlier is forgotten when its place is overwritten.
"""

import math
from dataclasses import dataclass

import jax.numpy as jnp
from flax import struct

from rlkit.replay import segment_tree
from rlkit.replay import storage as rings
from rlkit.replay.segment_tree import SegmentTree
from rlkit.replay.storage import Ring
from rlkit.replay.windows import Handle, Place
from rlkit.types import Array, ConfigError, Key


class Priorities(struct.PyTreeNode):
    """The priorities of R * N places."""

    mass: SegmentTree  # over [R * N] float32; only what was measured counts for its maximum
    start: Array  # [] float32, the mass of a new item while nothing has been measured


@dataclass(frozen=True)
class Settings:
    """How priorities become masses and weights. Raises ConfigError where a setting is out of range."""

    alpha: float
    beta: float
    eps: float
    start_priority: float

    def __post_init__(self):
        if not 0 <= self.alpha < math.inf:
            raise ConfigError(f"alpha={self.alpha} must be finite and at least 0; 0 draws uniformly, 0.6 is usual")
        if not 0 <= self.beta < math.inf:
            raise ConfigError(f"beta={self.beta} must be finite and at least 0; 0 gives weights of 1, 0.4 is usual")
        if not 0 <= self.eps < math.inf:
            raise ConfigError(f"eps={self.eps} must be finite and at least 0; 1e-6 is usual")
        if not 0 < self.start_priority < math.inf:
            raise ConfigError(f"start_priority={self.start_priority} must be finite and above 0; 1 is usual")


def init(capacity: int, settings: Settings) -> Priorities:
    """Priorities of `capacity` places, none of which can be drawn."""
    return Priorities(
        mass=segment_tree.init(capacity),
        start=jnp.float32((settings.start_priority + settings.eps) ** settings.alpha),
    )


def forget(priorities: Priorities, slots: Array, num_envs: int) -> Priorities:
    """The places of the rows in slots [T] int32, which were overwritten, cannot be drawn; a slot R is skipped."""
    nothing = jnp.zeros((slots.shape[0] * num_envs,))
    return priorities.replace(mass=_write_rows(priorities.mass, slots, nothing))


def renew(priorities: Priorities, slots: Array, num_envs: int) -> Priorities:
    """All places of the rows in slots [T] int32 are new items; a slot R is skipped."""
    new = jnp.broadcast_to(_new(priorities), (slots.shape[0] * num_envs,))
    return priorities.replace(mass=_write_rows(priorities.mass, slots, new, in_maximum=False))


def renew_places(priorities: Priorities, place: Array) -> Priorities:
    """The places [B] int32 are new items; those of the capacity and above are skipped."""
    new = jnp.broadcast_to(_new(priorities), place.shape)
    return priorities.replace(mass=segment_tree.write(priorities.mass, place, new, in_maximum=False))


def _new(priorities: Priorities) -> Array:
    """[] float32, the mass of a new item."""
    largest = segment_tree.maximum(priorities.mass)
    return jnp.where(largest > 0, largest, priorities.start)


def _write_rows(mass: SegmentTree, slots: Array, value: Array, *, in_maximum: bool = True) -> SegmentTree:
    """The tree with values [T * N] at the places of the rows in slots [T]; one row is a run of leaves."""
    num_envs = value.shape[0] // slots.shape[0]
    if slots.shape[0] == 1:
        return segment_tree.write_run(mass, slots[0] * num_envs, value, in_maximum=in_maximum)
    return segment_tree.write(mass, rings.places(slots, num_envs), value, in_maximum=in_maximum)


def draw(priorities: Priorities, key: Key, batch_size: int, num_envs: int) -> Place:
    """Places [B] in proportion to their masses, one of each of B equal strata of the total."""
    leaf, mass = segment_tree.sample_with_values(priorities.mass, key, batch_size)
    return Place(leaf // num_envs, leaf % num_envs, mass)


def weights(priorities: Priorities, place: Place, beta: Array) -> Array:
    """[B] float32 in [0, 1], (size * P)^-beta over the largest that any item has now (Schaul et al. 2016, section 3.4).

    That is (mass / least mass)^-beta: size and total cancel.
    """
    least = segment_tree.minimum(priorities.mass)
    return jnp.where(place.mass > 0, (jnp.maximum(place.mass, least) / least) ** -beta, 0.0)


def update(priorities: Priorities, ring: Ring, index: Handle, priority: Array, settings: Settings) -> Priorities:
    """The priorities after |priority| [B] was measured of the items that `index` was given with.

    Nothing changes where an item has been overwritten since, and where its priority is not finite. Of several
    priorities of one item the largest stays.

    Raises:
      ValueError: `priority` has not the shape of the handle, [B].
    """
    if jnp.shape(priority) != jnp.shape(index.row):
        raise ValueError(
            f"priority has shape {jnp.shape(priority)}, expected {jnp.shape(index.row)}, one for each item of a sample"
        )
    slot, stored = rings.slot_of(ring, index.row)
    capacity = ring.capacity
    written = stored & jnp.isfinite(priority)
    leaf = jnp.where(written, jnp.where(stored, slot, 0) * ring.num_envs + index.env, capacity)
    size = jnp.abs(jnp.where(written, priority, 0)).astype(jnp.float32)
    mass = (size + settings.eps) ** settings.alpha
    return priorities.replace(mass=segment_tree.write(priorities.mass, leaf, mass))
