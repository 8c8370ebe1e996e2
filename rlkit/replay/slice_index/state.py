"""The state of a slice index, and the records that it gives out."""

from typing import NamedTuple

import flax.struct

from rlkit.replay.cursor import Cursor
from rlkit.replay.slice_index.row_queue import RowQueue
from rlkit.types import Array


class SliceIndex(flax.struct.PyTreeNode):
    """What is known of a ring [R, N] and its slices of L steps. What the kind of slices does not need is None.

    Attributes:
      ring: the next row to arrive (head, slot: [] uint32) and how many are stored (rows: [] uint32).
      age: [N] uint32, how many steps the unfinished episode has, R at most.
      starts: the slices in the order of their births: where they begin. Under "episode" they are only counted.
      episodes: the finished episodes that hold a slice, in the order of their ends: the end, and the length up to R.
      ended: [R, N] bool, which stored steps were the last of their episode.
      num_envs, slice_len, strict, cross_episodes, law: as given to `init`, static.
    """

    ring: Cursor
    age: Array | None  # [N]
    starts: RowQueue | None  # of slot * N + env, [(R - L + 1) * N] int32
    episodes: RowQueue | None  # of slot * N + env, [R // L * N] int32, and lengths, [R // L * N] uint32
    ended: Array | None  # [R, N]
    num_envs: int = flax.struct.field(pytree_node=False)
    slice_len: int = flax.struct.field(pytree_node=False)
    strict: bool = flax.struct.field(pytree_node=False)
    cross_episodes: bool = flax.struct.field(pytree_node=False)
    law: str = flax.struct.field(pytree_node=False)

    @property
    def num_rows(self) -> int:
        """R, the rows of the ring [R, N]."""
        return self.ring.num_rows

    @property
    def span(self) -> int:
        """How many stored rows of [R, N] a slice needs: L, or 1 with `strict=False`."""
        return self.slice_len if self.strict else 1


class Slices(NamedTuple):
    """Slices that were drawn: [B] starts. One is still stored while `state.ring.head - row <= state.ring.rows`."""

    row: Array  # [B] uint32, absolute row of the first step, modulo 2^32
    slot: Array  # [B] int32, where in the ring that row lies
    env: Array  # [B] int32
    mask: Array  # [B, L] bool, which steps are real


class Births(NamedTuple):
    """The slices that [T, N] steps bring: those that end with a step, or begin with it where `strict=False`."""

    slot: Array  # [T] int32, where in the ring they begin
    born: Array  # [T, N] bool
