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

from rlkit.ops import segment_tree
from rlkit.ops.segment_tree import SegmentTree
from rlkit.replay import ring as rings
from rlkit.replay.ring import Ring
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


def refresh(priorities: Priorities, overwritten: Array, born: Array) -> Priorities:
    """Forget the places that were overwritten, then give those that can be drawn from now on a new item's mass.

    Args:
      overwritten: [A] int32 places; those of the capacity and above are skipped.
      born: [B] int32 places, likewise; a place in both is born.
    """
    mass = segment_tree.write(priorities.mass, overwritten, jnp.zeros(overwritten.shape))
    largest = segment_tree.maximum(mass)
    new = jnp.broadcast_to(jnp.where(largest > 0, largest, priorities.start), born.shape)
    return priorities.replace(mass=segment_tree.write(mass, born, new, in_maximum=False))


def draw(priorities: Priorities, key: Key, batch_size: int, num_envs: int) -> Place:
    """Places [B] in proportion to their masses, one of each of B equal strata of the total."""
    leaf = segment_tree.sample(priorities.mass, key, batch_size)
    return Place(leaf // num_envs, leaf % num_envs)


def weights(priorities: Priorities, place: Place, num_envs: int, beta: Array) -> Array:
    """[B] float32 in [0, 1], (size * P)^-beta over the largest that any item has now (Schaul et al. 2016, section 3.4).

    That is (mass / least mass)^-beta: size and total cancel.
    """
    mass = segment_tree.read(priorities.mass, place.slot * num_envs + place.env)
    least = segment_tree.minimum(priorities.mass)
    return jnp.where(mass > 0, (jnp.maximum(mass, least) / least) ** -beta, 0.0)


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
