"""Records of a slice index: its state, slices that were drawn, and slices that new rows complete."""

from typing import NamedTuple

import flax.struct

from rlkit.replay.short_repr import short_repr
from rlkit.replay.slice_index.row_queue import RowQueue
from rlkit.replay.storage import Cursor
from rlkit.types import Array, StateNode


class SliceIndex(StateNode):
    """Slices of L steps in a ring [R, N]. Fields that this kind of slices does not need are None.

    Attributes:
      ring: cursor of the ring: the next row (head, slot: [] uint32) and the number of stored rows (rows: [] uint32).
      age: [N] uint32, length so far of each environment's unfinished episode, R at most.
      starts: first steps of the slices in order of completion; with sampling "episode" the slices are only counted.
      episodes: last steps and lengths, R at most, of the finished episodes that hold a slice, in order of their ends.
      ended: [R, N] bool, True at stored steps that were the last of their episode.
      num_envs, slice_len, strict, cross_episodes, sampling: as given to `init`, static.
    """

    ring: Cursor
    age: Array | None  # [N]
    starts: RowQueue | None  # of flat indices, [(R - L + 1) * N] int32
    episodes: RowQueue | None  # of flat indices, [R // L * N] int32, and lengths, [R // L * N] uint32
    ended: Array | None  # [R, N]
    num_envs: int = flax.struct.field(pytree_node=False)
    slice_len: int = flax.struct.field(pytree_node=False)
    strict: bool = flax.struct.field(pytree_node=False)
    cross_episodes: bool = flax.struct.field(pytree_node=False)
    sampling: str = flax.struct.field(pytree_node=False)

    __repr__ = short_repr

    @property
    def num_rows(self) -> int:
        """R, the rows of the ring [R, N]."""
        return self.ring.num_rows

    @property
    def span(self) -> int:
        """Number of stored rows that a slice needs: L, or 1 with `strict=False`."""
        return self.slice_len if self.strict else 1


class Slices(NamedTuple):
    """First steps and masks of B slices. A slice is stored while `state.ring.head - row <= state.ring.rows`."""

    row: Array  # [B] uint32, absolute row of the first step, modulo 2^32
    slot: Array  # [B] int32, slot of that row
    env: Array  # [B] int32
    mask: Array  # [B, L] bool, True at real steps


class CompletedSlices(NamedTuple):
    """Slices that [T, N] steps complete: those that end with a step, or begin with it where `strict=False`."""

    slot: Array  # [T] int32, slot of the first step of the slices that row t completes
    completed: Array  # [T, N] bool, True where step (t, n) completes a slice
