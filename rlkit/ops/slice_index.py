"""Where the legal slices of a replay ring are, kept up to date as steps arrive, at a cost that ignores the capacity.

The ring holds R rows of N environments; row t of all that ever came (an absolute row) lies in slot t mod R. A slice is
L consecutive rows of one environment, all of them stored, and

- by default all of one episode. An unfinished episode can be used up to its newest step;
- with `cross_episodes` episodes do not matter;
- with `strict=False` every stored step begins a slice, whose mask says where the episode, or what is stored, ends.

A slice is born when its last row arrives (with `strict=False`, its first) and dies when its first row is overwritten,
so slices die in the order of their births. Those of one episode wait in a queue; the others need none. There are two
laws: "slice" draws uniformly from all slices; "episode" draws uniformly from the episodes that hold a slice, as far as
they are stored, then from the slices of that one. It keeps a queue of episodes instead, in the order of their ends.

Inside a scan, `add` comes before `sample`: XLA copies the queue in the other order.
"""

from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from rlkit.ops import _ring, _row_queue, _slice_births, _slice_draws
from rlkit.ops._arrays import check_bools
from rlkit.ops._integers import uint32, uniform_below
from rlkit.ops._ring import Cursor
from rlkit.ops._row_queue import RowQueue
from rlkit.ops._slice_check import LAWS as LAWS
from rlkit.ops._slice_check import check as check
from rlkit.ops._slice_check import check_settings
from rlkit.ops.permutation import permute
from rlkit.types import Array, Key


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


def init(
    num_rows: int,
    num_envs: int,
    slice_len: int,
    *,
    strict: bool = True,
    cross_episodes: bool = False,
    law: str = "slice",
) -> SliceIndex:
    """The index of an empty ring [R, N].

    It takes 4 bytes a step and 4 a row; under "episode" 8 / L a step and 8 a row. With `strict=False` it takes 1 byte a
    step; under "episode" 9 a step and 4 a row. With `cross_episodes` it takes nothing.

    Args:
      num_rows, num_envs: R and N; R * N < 2^31.
      slice_len: L, 1 <= L <= R.
      strict: whether a slice must have L steps; otherwise its mask says which it has.
      cross_episodes: whether a slice may run on into the next episode of its environment.
      law: "slice" or "episode", what is drawn uniformly.

    Raises:
      ValueError: a size out of range, or a law that is unknown or has no meaning here.
    """
    check_settings(num_rows, num_envs, slice_len, cross_episodes, law)
    by_episode = law == "episode"
    queued = strict and not cross_episodes
    starts = (num_rows - slice_len + 1) * num_envs
    episodes = num_rows // (slice_len if strict else 1) * num_envs
    return SliceIndex(
        ring=_ring.init(num_rows),
        age=jnp.zeros(num_envs, jnp.uint32) if queued or by_episode else None,
        starts=_row_queue.init(starts, num_rows, () if by_episode else jnp.int32) if queued else None,
        episodes=_row_queue.init(episodes, num_rows, (jnp.int32, jnp.uint32)) if by_episode else None,
        ended=None if strict or cross_episodes else jnp.zeros((num_rows, num_envs), jnp.bool_),
        num_envs=num_envs,
        slice_len=slice_len,
        strict=strict,
        cross_episodes=cross_episodes,
        law=law,
    )


def build(
    done: Array,
    *,
    slice_len: int,
    num_rows: int | None = None,
    strict: bool = True,
    cross_episodes: bool = False,
    law: str = "slice",
) -> SliceIndex:
    """The index of a data set at hand, done [T, N] bool, in one pass; `num_rows` (T by default) leaves room for more.

    It equals what `init` and `add` give. It takes some 25 bytes a step beside the index while it runs: `add` a very
    large data set in parts instead. The other arguments are those of `init`. Raises ValueError as `init` and `add` do.
    """
    num_steps, num_envs = done.shape
    num_rows = num_steps if num_rows is None else num_rows
    return add(init(num_rows, num_envs, slice_len, strict=strict, cross_episodes=cross_episodes, law=law), done)


def add(state: SliceIndex, done: Array) -> SliceIndex:
    """The index after T rows more, which overwrite the oldest where the ring is full.

    Args:
      state: of a ring [R, N].
      done: [T, N] bool, terminated | truncated, 1 <= T <= R.

    Raises:
      ValueError: done is not boolean, or not of such a shape.
    """
    ages, born = _slice_births.arrivals(state, done)
    slots = _ring.next_slots(state.ring, done.shape[0])
    after = state.replace(ring=_ring.advance(state.ring, done.shape[0]))
    # Slices that begin in the oldest row were born with this one: what was born, or ended, before it is dead. Until
    # that row has come, nothing was, and this is the slot of the next row, which still has the first position.
    first = _ring.slot_of(after.ring, _starting_rows(after))
    if state.starts is not None:
        begin = () if state.law == "episode" else _slice_births.steps_of(state, _slice_births.start_slots(state, slots))
        starts = _row_queue.push(state.starts, slots, born, begin)
        after = after.replace(starts=_row_queue.drop_before(starts, first))
    if state.episodes is not None:
        episodes = _row_queue.push(state.episodes, slots, born & done, (_slice_births.steps_of(state, slots), ages))
        after = after.replace(episodes=_row_queue.drop_before(episodes, first))
    if ages is not None:
        after = after.replace(age=jnp.where(done[-1], jnp.uint32(0), ages[-1]))
    if state.ended is not None:
        after = after.replace(ended=state.ended.at[slots].set(done, unique_indices=True))
    return after


def births(state: SliceIndex, done: Array) -> Births:
    """The slices that `add(state, done)` is about to bring, without those that it also kills.

    All slices that begin in one of the T slots from `state.ring.slot` on die with it.

    Args:
      state: the index before these rows.
      done: [T, N] bool, as for `add`.

    Returns:
      Births: slot [T] int32, born [T, N] bool.

    Raises:
      ValueError: as `add`.
    """
    _, born = _slice_births.arrivals(state, done)
    slots = _slice_births.start_slots(state, _ring.next_slots(state.ring, done.shape[0]))
    return Births(slots.astype(jnp.int32), born)


def size(state: SliceIndex) -> Array:
    """How many slices can be drawn now, [] int32."""
    if state.starts is not None:
        return _row_queue.size(state.starts).astype(jnp.int32)
    return (_starting_rows(state) * jnp.uint32(state.num_envs)).astype(jnp.int32)


def num_episodes(state: SliceIndex) -> Array:
    """How many episodes hold at least one slice that can be drawn now, [] int32.

    Raises:
      ValueError: the law of the index is "slice": it does not know.
    """
    if state.episodes is None:
        raise ValueError(f"law={state.law!r} must be 'episode' for num_episodes; give it to init")
    unfinished = jnp.sum(_slice_draws.is_open(state), dtype=jnp.uint32)
    return (_row_queue.size(state.episodes) + unfinished).astype(jnp.int32)


def sample(state: SliceIndex, key: Key, num_slices: int) -> Slices:
    """Draw slices by the law of the index, with replacement.

    Args:
      state: of slices of L steps.
      key: a key.
      num_slices: B, static.

    Returns:
      Slices: row, slot, env [B], mask [B, L]; where there is nothing to draw the mask is all False.
    """
    if state.law == "episode":
        slot, env = _slice_draws.draw_by_episode(state, key, num_slices)
    else:
        slot, env = _slice_draws.start_of(state, uniform_below(key, (num_slices,), uint32(size(state))))
    slices = _slices(state, slot, env)
    return slices._replace(mask=slices.mask & (size(state) > 0))


def batch_of_pass(state: SliceIndex, key: Key, k: Array | int, num_slices: int) -> Slices:
    """Batch k of a pass in which each slice comes once, in random order, provided that nothing is added meanwhile.

    Args:
      state: of slices of L steps, under the law "slice".
      key: the key of the pass, the same for all of its batches.
      k: [] int, from 0; a pass has size / B batches, rounded up.
      num_slices: B, static.

    Returns:
      Slices: row, slot, env [B], mask [B, L]; the mask is False beyond the end of the pass.

    Raises:
      ValueError: the law of the index is "episode".
    """
    if state.law != "slice":
        raise ValueError(f"law={state.law!r} must be 'slice' for batch_of_pass; give it to init")
    total = size(state)
    place = uint32(k) * jnp.uint32(num_slices) + jnp.arange(num_slices, dtype=jnp.uint32)
    real = place < uint32(total)
    item = permute(jax.random.clone(key), jnp.where(real, place, 0), jnp.maximum(total, 1))
    slices = _slices(state, *_slice_draws.start_of(state, uint32(item)))
    return slices._replace(mask=slices.mask & real[:, None])


def at(state: SliceIndex, slot: Array, env: Array) -> Slices:
    """The slices that begin at given steps, found elsewhere: in a tree of priorities, say.

    Args:
      state: of slices of L steps.
      slot, env: [B] int, stored steps at which slices begin.

    Returns:
      Slices: row, slot, env [B], mask [B, L].
    """
    return _slices(state, uint32(slot), uint32(env))


def slice_starts_from_done(done: Array, slice_len: int) -> Array:
    """Where the slices of `slice_len` steps of one episode begin in a batch at hand, unfinished episodes included.

    Args:
      done: [T, ...] bool, terminated | truncated.
      slice_len: at least 1, static.

    Returns:
      [T, ...] bool.

    Raises:
      ValueError: done is not boolean, or slice_len < 1.
    """
    check_bools(done=done)
    if slice_len < 1:
        raise ValueError(f"slice_len={slice_len} must be at least 1")
    lost = min(slice_len - 1, done.shape[0])
    ends = _slice_births.ages_of(done, jnp.zeros(done.shape[1:], jnp.uint32)) >= slice_len
    return jnp.concatenate([ends[lost:], jnp.zeros((lost, *done.shape[1:]), jnp.bool_)])


def _starting_rows(state: SliceIndex) -> Array:
    """How many rows are old enough for a slice to begin there, [] uint32."""
    too_new = jnp.uint32(state.span - 1)
    return jnp.maximum(state.ring.rows, too_new) - too_new


def _slices(state: SliceIndex, slot: Array, env: Array) -> Slices:
    """The slices that begin there; slot, env [B] uint32."""
    back = _ring.back_of(state.ring, slot)
    mask = _slice_draws.mask_of(state, slot, env, back)
    return Slices(state.ring.head - back, slot.astype(jnp.int32), env.astype(jnp.int32), mask)
