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

import jax
import jax.numpy as jnp

from rlkit.ops._arrays import check_bools
from rlkit.ops._integers import uint32, uniform_below
from rlkit.ops.permutation import permute
from rlkit.replay import cursor
from rlkit.replay.slice_index import row_queue, sampling, update
from rlkit.replay.slice_index.invariants import LAWS as LAWS
from rlkit.replay.slice_index.invariants import check as check
from rlkit.replay.slice_index.invariants import check_settings
from rlkit.replay.slice_index.state import Births, SliceIndex, Slices
from rlkit.types import Array, Key


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
        ring=cursor.init(num_rows),
        age=jnp.zeros(num_envs, jnp.uint32) if queued or by_episode else None,
        starts=row_queue.init(starts, num_rows, () if by_episode else jnp.int32) if queued else None,
        episodes=row_queue.init(episodes, num_rows, (jnp.int32, jnp.uint32)) if by_episode else None,
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
    ages, born = update.arrivals(state, done)
    slots = cursor.next_slots(state.ring, done.shape[0])
    after = state.replace(ring=cursor.advance(state.ring, done.shape[0]))
    # Slices that begin in the oldest row were born with this one: what was born, or ended, before it is dead. Until
    # that row has come, nothing was, and this is the slot of the next row, which still has the first position.
    first = cursor.slot_of(after.ring, _starting_rows(after))
    if state.starts is not None:
        begin = () if state.law == "episode" else update.steps_of(state, update.start_slots(state, slots))
        starts = row_queue.push(state.starts, slots, born, begin)
        after = after.replace(starts=row_queue.drop_before(starts, first))
    if state.episodes is not None:
        episodes = row_queue.push(state.episodes, slots, born & done, (update.steps_of(state, slots), ages))
        after = after.replace(episodes=row_queue.drop_before(episodes, first))
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
    _, born = update.arrivals(state, done)
    slots = update.start_slots(state, cursor.next_slots(state.ring, done.shape[0]))
    return Births(slots.astype(jnp.int32), born)


def size(state: SliceIndex) -> Array:
    """How many slices can be drawn now, [] int32."""
    if state.starts is not None:
        return row_queue.size(state.starts).astype(jnp.int32)
    return (_starting_rows(state) * jnp.uint32(state.num_envs)).astype(jnp.int32)


def num_episodes(state: SliceIndex) -> Array:
    """How many episodes hold at least one slice that can be drawn now, [] int32.

    Raises:
      ValueError: the law of the index is "slice": it does not know.
    """
    if state.episodes is None:
        raise ValueError(f"law={state.law!r} must be 'episode' for num_episodes; give it to init")
    unfinished = jnp.sum(sampling.is_open(state), dtype=jnp.uint32)
    return (row_queue.size(state.episodes) + unfinished).astype(jnp.int32)


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
        slot, env = sampling.draw_by_episode(state, key, num_slices)
    else:
        slot, env = sampling.start_of(state, uniform_below(key, (num_slices,), uint32(size(state))))
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
    slices = _slices(state, *sampling.start_of(state, uint32(item)))
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
    ends = update.ages_of(done, jnp.zeros(done.shape[1:], jnp.uint32)) >= slice_len
    return jnp.concatenate([ends[lost:], jnp.zeros((lost, *done.shape[1:]), jnp.bool_)])


def _starting_rows(state: SliceIndex) -> Array:
    """How many rows are old enough for a slice to begin there, [] uint32."""
    too_new = jnp.uint32(state.span - 1)
    return jnp.maximum(state.ring.rows, too_new) - too_new


def _slices(state: SliceIndex, slot: Array, env: Array) -> Slices:
    """The slices that begin there; slot, env [B] uint32."""
    back = cursor.back_of(state.ring, slot)
    mask = sampling.mask_of(state, slot, env, back)
    return Slices(state.ring.head - back, slot.astype(jnp.int32), env.astype(jnp.int32), mask)
