"""A queue whose items arrive with the rows of a ring and die with them, in the order in which they came.

Each row of the ring brings some items, and each time that the ring overwrites its oldest row, a later row's items die.
What lives is one contiguous stretch of the queue, and the position before each row's items, kept for all rows of the
ring, says where that stretch begins. Positions count modulo twice the capacity: they never overflow, and a full queue
differs from an empty one.
"""

import flax.struct
import jax
import jax.numpy as jnp

from rlkit.ops._integers import add_mod, sub_mod, uint32
from rlkit.types import Array, PyTree


class RowQueue(flax.struct.PyTreeNode):
    """Items in the order of their rows, C of them at most, and where each row's items begin.

    Attributes:
      items: leaves [C]; position p lies at index p mod C. Without leaves the queue only counts.
      before: [R] uint32, the position before the items of each ring row.
      head: [] uint32, where the next item goes. All positions are modulo 2 C.
      tail: [] uint32, the oldest item that lives.
      capacity: C, static.
    """

    items: PyTree  # leaves [C]
    before: Array  # [R]
    head: Array  # []
    tail: Array  # []
    capacity: int = flax.struct.field(pytree_node=False)


def init(capacity: int, num_rows: int, dtypes: PyTree) -> RowQueue:
    """An empty queue for items of those dtypes, fed by a ring of R rows."""
    items = jax.tree.map(lambda dtype: jnp.zeros(capacity, dtype), dtypes)
    before = jnp.zeros(num_rows, jnp.uint32)
    return RowQueue(items, before, jnp.zeros((), jnp.uint32), jnp.zeros((), jnp.uint32), capacity)


def push(queue: RowQueue, slots: Array, keep: Array, items: PyTree) -> RowQueue:
    """The queue after T rows more, to be followed by `drop_before`.

    Args:
      queue: a queue whose items that die with these rows need not be gone yet: they are overwritten.
      slots: [T] uint32, the ring rows, each once.
      keep: [T, N] bool, which items arrive; no more than will live at once.
      items: leaves [T, N].
    """
    kept = keep.reshape(-1)
    place = add_mod(queue.head, jnp.cumsum(kept, dtype=jnp.uint32) - uint32(kept), 2 * queue.capacity)
    index = jnp.where(kept, _index(queue, place), jnp.uint32(queue.capacity))  # beyond the end: not written
    return queue.replace(
        items=jax.tree.map(lambda all, new: all.at[index].set(new.reshape(-1), mode="drop"), queue.items, items),
        before=queue.before.at[slots].set(place.reshape(keep.shape)[:, 0], unique_indices=True),
        head=add_mod(place[-1], uint32(kept[-1]), 2 * queue.capacity),
    )


def drop_before(queue: RowQueue, slot: Array) -> RowQueue:
    """The queue without the items older than those of the row in `slot` [] uint32."""
    return queue.replace(tail=queue.before[slot])


def size(queue: RowQueue) -> Array:
    """How many items live, [] uint32."""
    return sub_mod(queue.head, queue.tail, 2 * queue.capacity)


def take(queue: RowQueue, i: Array) -> PyTree:
    """The i-th oldest living items: i [...] uint32 in [0, C) -> leaves [...]."""
    index = _index(queue, add_mod(queue.tail, i, 2 * queue.capacity))
    return jax.tree.map(lambda all: all[index], queue.items)


def _index(queue: RowQueue, place: Array) -> Array:
    """Where a position lies in memory."""
    return jnp.where(place >= queue.capacity, place - jnp.uint32(queue.capacity), place)
