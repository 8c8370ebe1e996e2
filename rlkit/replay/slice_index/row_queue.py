"""Queue of items that arrive with the rows of a ring, and are removed with them, in order of arrival.

Each row of the ring brings some items. Whenever the ring overwrites its oldest row, the items of one row at the tail of
the queue are removed. The items present are therefore one contiguous stretch of the queue, and the position before each
row's items, kept for all rows of the ring, tells where that stretch begins. Positions are modulo twice the capacity, so
that they never overflow, and a full queue differs from an empty one.
"""

import flax.struct
import jax
import jax.numpy as jnp

from rlkit.ops._integers import add_mod, sub_mod, uint32
from rlkit.replay.short_repr import short_repr
from rlkit.types import Array, PyTree


class RowQueue(flax.struct.PyTreeNode):
    """Items in the order of their rows, C of them at most, and the position of each row's items.

    Attributes:
      items: leaves [C]; position p is at index p mod C. Without leaves the queue only counts.
      before: [R] uint32, the position before the items of each ring row.
      head: [] uint32, position of the next item. All positions are modulo 2 C.
      tail: [] uint32, position of the oldest item.
      capacity: C, static.
    """

    items: PyTree  # leaves [C]
    before: Array  # [R]
    head: Array  # []
    tail: Array  # []
    capacity: int = flax.struct.field(pytree_node=False)

    __repr__ = short_repr


def init(capacity: int, num_rows: int, dtypes: PyTree) -> RowQueue:
    """Return an empty queue for items of the given dtypes, beside a ring of R rows."""
    items = jax.tree.map(lambda dtype: jnp.zeros(capacity, dtype), dtypes)
    before = jnp.zeros(num_rows, jnp.uint32)
    return RowQueue(items, before, jnp.zeros((), jnp.uint32), jnp.zeros((), jnp.uint32), capacity)


def clear(queue: RowQueue) -> RowQueue:
    """Return the queue without items, in the same arrays."""
    zero = jnp.zeros_like(queue.head)
    return queue.replace(before=jnp.zeros_like(queue.before), head=zero, tail=zero)


def push(queue: RowQueue, slots: Array, mask: Array, items: PyTree) -> RowQueue:
    """Return the queue after T more rows; `drop_before` must follow.

    Args:
      queue: a queue that may still hold items which these rows remove: they are overwritten.
      slots: [T] uint32, the slots of the rows, all different.
      mask: [T, N] bool, True at items that arrive; no more than the capacity are present at once.
      items: leaves [T, N].
    """
    arrives = mask.reshape(-1)
    position = add_mod(queue.head, jnp.cumsum(arrives, dtype=jnp.uint32) - uint32(arrives), 2 * queue.capacity)
    index = jnp.where(arrives, _index(queue, position), jnp.uint32(queue.capacity))  # dropped at the capacity
    return queue.replace(
        items=jax.tree.map(lambda stored, new: stored.at[index].set(new.reshape(-1), mode="drop"), queue.items, items),
        before=queue.before.at[slots].set(position.reshape(mask.shape)[:, 0], unique_indices=True),
        head=add_mod(position[-1], uint32(arrives[-1]), 2 * queue.capacity),
    )


def drop_before(queue: RowQueue, slot: Array) -> RowQueue:
    """Return the queue without the items older than those of the row in `slot` [] uint32."""
    return queue.replace(tail=queue.before[slot])


def size(queue: RowQueue) -> Array:
    """Number of items, [] uint32."""
    return sub_mod(queue.head, queue.tail, 2 * queue.capacity)


def take(queue: RowQueue, nth: Array) -> PyTree:
    """Return items by age: nth [...] uint32 in [0, C), 0 for the oldest -> leaves [...]."""
    index = _index(queue, add_mod(queue.tail, nth, 2 * queue.capacity))
    return jax.tree.map(lambda stored: stored[index], queue.items)


def _index(queue: RowQueue, position: Array) -> Array:
    """Array index of a position."""
    return jnp.where(position >= queue.capacity, position - jnp.uint32(queue.capacity), position)
