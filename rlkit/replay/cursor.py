"""Where the rows of a ring are: R rows, of which the newest take the place of the oldest.

A row has two names: the absolute row, which counts all rows that ever came, modulo 2^32; and the slot that it takes,
the absolute row modulo R. Both are counted from the head, so that neither count has to fit the other.
"""

import flax.struct
import jax.numpy as jnp

from rlkit.ops._integers import add_mod, sub_mod, uint32
from rlkit.types import Array


class Cursor(flax.struct.PyTreeNode):
    """The next row to arrive and how many are stored.

    Attributes:
      counts: [3] uint32, `head`, `slot` and `rows`; one array, for each costs time whenever a program is called.
      num_rows: R, static, below 2^31.
    """

    counts: Array  # [3]
    num_rows: int = flax.struct.field(pytree_node=False)

    @property
    def head(self) -> Array:
        """[] uint32, the absolute row of the next one, modulo 2^32."""
        return self.counts[0]

    @property
    def slot(self) -> Array:
        """[] uint32, the slot that it will take."""
        return self.counts[1]

    @property
    def rows(self) -> Array:
        """[] uint32, how many rows are stored."""
        return self.counts[2]

    def at(self, **counts: Array | int) -> "Cursor":
        """The cursor with other values of some of its counts."""
        known = {"head": self.head, "slot": self.slot, "rows": self.rows} | counts
        return self.replace(counts=jnp.stack([uint32(known[name]) for name in ("head", "slot", "rows")]))


def init(num_rows: int) -> Cursor:
    """Of an empty ring."""
    return Cursor(jnp.zeros((3,), jnp.uint32), num_rows)


def advance(ring: Cursor, count: int) -> Cursor:
    """The ring after `count` rows more, R at most."""
    return ring.at(
        head=ring.head + jnp.uint32(count),
        slot=add_mod(ring.slot, uint32(count), ring.num_rows),
        rows=jnp.minimum(ring.rows + jnp.uint32(count), jnp.uint32(ring.num_rows)),
    )


def next_slots(ring: Cursor, count: int) -> Array:
    """The slots of the next `count` rows, R at most: [count] uint32."""
    return add_mod(ring.slot, jnp.arange(count, dtype=jnp.uint32), ring.num_rows)


def slot_of(ring: Cursor, back: Array) -> Array:
    """The slot of the row that is `back` [...] uint32 rows before the head: 1 is the newest, R at most."""
    return sub_mod(ring.slot, back, ring.num_rows)


def back_of(ring: Cursor, slot: Array) -> Array:
    """How many rows before the head the row in `slot` [...] uint32 is: 1 for the newest, R at most."""
    back = sub_mod(ring.slot, slot, ring.num_rows)
    return jnp.where(back == 0, jnp.uint32(ring.num_rows), back)


def join(slot: Array, env: Array, num_envs: int) -> Array:
    """Slot and environment, uint32, as one number: slot * N + env, int32 (R * N is below 2^31)."""
    return (slot * jnp.uint32(num_envs) + env).astype(jnp.int32)


def split(step: Array, num_envs: int) -> tuple[Array, Array]:
    """Slot and environment, uint32, of what `join` made."""
    return jnp.divmod(uint32(step), jnp.uint32(num_envs))
