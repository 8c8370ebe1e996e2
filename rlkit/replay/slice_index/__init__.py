"""Index of the slices of a replay ring, updated as steps arrive, at a cost that does not grow with the capacity.

The ring holds R rows of N environments. A slice is L consecutive stored rows of one environment, and

- by default all of one episode; unfinished episodes have slices up to their newest step;
- with `cross_episodes` of any episodes;
- with `strict=False` every stored step starts a slice, whose mask ends with the episode or with the newest row.

A slice is completed when its last row arrives (with `strict=False`, its first), and removed when its first row is
overwritten, so slices are removed in order of completion. Slices of one episode are kept in a queue; the others need
none. With sampling "slice" all slices have the same probability. With sampling "episode" an episode is drawn uniformly
from those that hold a slice, as far as they are stored, and then one of its slices: the index then keeps a queue of
episodes instead, in order of their ends.

Inside a scan, call `add` before `sample`: the other order copies the queue.
"""

import jax.numpy as jnp

from rlkit.ops._arrays import as_arrays, as_int, check_bools, check_integers, check_key, check_shape, check_shapes
from rlkit.ops._integers import uint32, uniform_below
from rlkit.replay import passes, storage
from rlkit.replay.slice_index import row_queue, update
from rlkit.replay.slice_index.row_queue import RowQueue
from rlkit.replay.slice_index.sampling import draw_by_episode, has_unfinished_slice, mask_of, start_of
from rlkit.replay.slice_index.sampling import gather as gather
from rlkit.replay.slice_index.settings import SAMPLING as SAMPLING
from rlkit.replay.slice_index.settings import check_settings
from rlkit.replay.slice_index.state import CompletedSlices, SliceIndex, Slices
from rlkit.types import Array, Key


def init(
    num_rows: int,
    num_envs: int,
    slice_len: int,
    *,
    strict: bool = True,
    cross_episodes: bool = False,
    sampling: str = "slice",
) -> SliceIndex:
    """Return the index of an empty ring [R, N].

    It takes 4 bytes a step and 4 a row; with sampling "episode" 8 / L a step and 8 a row. With `strict=False` it takes
    1 byte a step; with sampling "episode" 9 a step and 4 a row. With `cross_episodes` it takes nothing.

    Args:
      num_rows, num_envs: R and N; R * N < 2^31.
      slice_len: L, 1 <= L <= R.
      strict: True for slices of exactly L steps; False for slices whose mask marks the real steps.
      cross_episodes: True for slices that run on into the next episode of their environment.
      sampling: "slice" or "episode", the items that are drawn uniformly.

    Raises:
      ValueError: a size is out of range, or `sampling` is unknown or has no meaning with `cross_episodes`.
    """
    num_rows, num_envs, slice_len = check_settings(num_rows, num_envs, slice_len, cross_episodes, sampling)
    by_episode = sampling == "episode"
    queued = strict and not cross_episodes
    max_slices = (num_rows - slice_len + 1) * num_envs
    max_episodes = num_rows // (slice_len if strict else 1) * num_envs
    return SliceIndex(
        ring=storage.empty_cursor(num_rows),
        age=jnp.zeros(num_envs, jnp.uint32) if queued or by_episode else None,
        starts=row_queue.init(max_slices, num_rows, () if by_episode else jnp.int32) if queued else None,
        episodes=row_queue.init(max_episodes, num_rows, (jnp.int32, jnp.uint32)) if by_episode else None,
        ended=None if strict or cross_episodes else jnp.zeros((num_rows, num_envs), jnp.bool_),
        num_envs=num_envs,
        slice_len=slice_len,
        strict=strict,
        cross_episodes=cross_episodes,
        sampling=sampling,
    )


def build(
    done: Array,
    *,
    slice_len: int,
    num_rows: int | None = None,
    strict: bool = True,
    cross_episodes: bool = False,
    sampling: str = "slice",
) -> SliceIndex:
    """Return the index of a whole data set in one pass: equal to what `init` and `add` give.

    While it runs it takes some 25 bytes a step beside the index: `add` a very large data set in parts instead.

    Args:
      done: [T, N] bool, terminated | truncated.
      num_rows: R, T by default; more leaves room for steps to come.
      slice_len, strict, cross_episodes, sampling: see `init`.

    Raises:
      ValueError: as `init` and `add`.
    """
    done = jnp.asarray(done)
    if done.ndim != 2:
        raise ValueError(f"done has shape {done.shape}, expected [T, N]; give one environment an axis of its own")
    num_steps, num_envs = done.shape
    num_rows = num_steps if num_rows is None else num_rows
    return add(
        init(num_rows, num_envs, slice_len, strict=strict, cross_episodes=cross_episodes, sampling=sampling), done
    )


def add(state: SliceIndex, done: Array) -> SliceIndex:
    """Return the index after T more rows, which overwrite the oldest where the ring is full.

    Args:
      state: of a ring [R, N].
      done: [T, N] bool, terminated | truncated, 1 <= T <= R.

    Raises:
      ValueError: `done` is not boolean, or not of such a shape.
    """
    state = as_arrays(state)
    done = jnp.asarray(done)
    lengths, completed = update.completions(state, done)
    slots = storage.next_slots(state.ring, done.shape[0])
    after = state.replace(ring=storage.advance(state.ring, done.shape[0]))
    # The slices of the oldest row were completed by the row in this slot, so what earlier rows completed, or ended, is
    # to be removed. Before `span` rows are stored this is the slot of the next row, with the queue's first position.
    first = storage.slot_before_head(after.ring, _starting_rows(after))
    if state.starts is not None:
        by_episode = state.sampling == "episode"
        begin = () if by_episode else storage.flat_indices(update.start_slots(state, slots), state.num_envs)
        starts = row_queue.push(state.starts, slots, completed, begin)
        after = after.replace(starts=row_queue.drop_before(starts, first))
    if state.episodes is not None:
        ends = storage.flat_indices(slots, state.num_envs)
        episodes = row_queue.push(state.episodes, slots, completed & done, (ends, lengths))
        after = after.replace(episodes=row_queue.drop_before(episodes, first))
    if lengths is not None:
        after = after.replace(age=jnp.where(done[-1], jnp.uint32(0), lengths[-1]))
    if state.ended is not None:
        after = after.replace(ended=state.ended.at[slots].set(done, unique_indices=True))
    return after


def clear(state: SliceIndex) -> SliceIndex:
    """Return the index of the emptied ring, in which the next row is the first."""

    def emptied(queue: RowQueue | None) -> RowQueue | None:
        return queue if queue is None else row_queue.clear(queue)

    return state.replace(
        ring=state.ring.with_counts(slot=0, rows=0),
        age=None if state.age is None else jnp.zeros_like(state.age),
        starts=emptied(state.starts),
        episodes=emptied(state.episodes),
    )


def completed_slices(state: SliceIndex, done: Array) -> CompletedSlices:
    """Slices that `add(state, done)` will complete, without those whose first row it overwrites again.

    All slices that begin in one of the T slots from `state.ring.slot` on are removed by it.

    Args:
      state: the index before these rows.
      done: [T, N] bool, as for `add`.

    Returns:
      CompletedSlices: slot [T] int32, completed [T, N] bool.

    Raises:
      ValueError: as `add`.
    """
    state = as_arrays(state)
    done = jnp.asarray(done)
    _, completed = update.completions(state, done)
    slots = update.start_slots(state, storage.next_slots(state.ring, done.shape[0]))
    return CompletedSlices(slots.astype(jnp.int32), completed)


def size(state: SliceIndex) -> Array:
    """Number of slices that can be drawn now, [] int32."""
    if state.starts is not None:
        return row_queue.size(state.starts).astype(jnp.int32)
    return (_starting_rows(state) * jnp.uint32(state.num_envs)).astype(jnp.int32)


def num_episodes(state: SliceIndex) -> Array:
    """Number of episodes that hold a slice that can be drawn now, [] int32.

    Raises:
      ValueError: the index does not keep episodes, as its sampling is "slice".
    """
    if state.episodes is None:
        raise ValueError(f"sampling={state.sampling!r} must be 'episode' for num_episodes; give it to init")
    num_unfinished = jnp.sum(has_unfinished_slice(state), dtype=jnp.uint32)
    return (row_queue.size(state.episodes) + num_unfinished).astype(jnp.int32)


def sample(state: SliceIndex, key: Key, num_slices: int) -> Slices:
    """Draw slices as the index's `sampling` prescribes, with replacement.

    Args:
      state: of slices of L steps.
      key: a key.
      num_slices: B, static.

    Returns:
      Slices: row, slot, env [B], mask [B, L]; where there is nothing to draw the mask is all False.

    Raises:
      ValueError: `key` is not a key, or B is not an integer of at least 1.
    """
    state = as_arrays(state)
    check_key(key)
    num_slices = as_int("num_slices", num_slices)
    if state.sampling == "episode":
        slot, env = draw_by_episode(state, key, num_slices)
    else:
        slot, env = start_of(state, uniform_below(key, (num_slices,), uint32(size(state))))
    slices = _slices(state, slot, env)
    return slices._replace(mask=slices.mask & (size(state) > 0))


def batch_of_pass(state: SliceIndex, key: Key, k: Array | int, num_slices: int) -> Slices:
    """Return batch k of a pass that visits each slice once, in random order, as long as nothing is added.

    Args:
      state: of slices of L steps, with sampling "slice".
      key: the key of the pass, the same for all of its batches.
      k: [] int, from 0; a pass has size / B batches, rounded up.
      num_slices: B, static.

    Returns:
      Slices: row, slot, env [B], mask [B, L]; the mask is False beyond the end of the pass, however far, and at k < 0.

    Raises:
      ValueError: the sampling of the index is "episode", `key` is not a key, or `k` or B are not such integers.
    """
    state = as_arrays(state)
    if state.sampling != "slice":
        raise ValueError(f"sampling={state.sampling!r} must be 'slice' for batch_of_pass; give it to init")
    nth, in_pass = passes.batch_of_pass(key, k, num_slices, size(state))
    slices = _slices(state, *start_of(state, nth))
    return slices._replace(mask=slices.mask & in_pass[:, None])


def at(state: SliceIndex, slot: Array, env: Array) -> Slices:
    """Return the slices that begin at given steps, such as steps drawn from a tree of priorities.

    Args:
      state: of slices of L steps.
      slot, env: [B] int, stored steps at which slices begin.

    Returns:
      Slices: row, slot, env [B], mask [B, L].

    Raises:
      ValueError: `slot` and `env` are not integers of one shape [B].
    """
    state = as_arrays(state)
    slot, env = jnp.asarray(slot), jnp.asarray(env)
    check_integers(slot=slot, env=env)
    check_shape("slot", slot, (slot.size,))
    check_shapes(slot=slot, env=env)
    return _slices(state, uint32(slot), uint32(env))


def slice_starts_from_done(done: Array, slice_len: int) -> Array:
    """Mark the steps of a batch at which slices of one episode begin, unfinished episodes included.

    Args:
      done: [T, ...] bool, terminated | truncated.
      slice_len: steps of a slice, at least 1, static.

    Returns:
      [T, ...] bool.

    Raises:
      ValueError: `done` is not boolean, or slice_len < 1.
    """
    done = jnp.asarray(done)
    check_bools(done=done)
    slice_len = as_int("slice_len", slice_len)
    if done.ndim == 0:
        raise ValueError("done has shape (), expected [T, ...]")
    num_without = min(slice_len - 1, done.shape[0])  # steps at the end, too late for a slice to begin
    ends = update.episode_lengths(done, jnp.zeros(done.shape[1:], jnp.uint32)) >= slice_len
    return jnp.concatenate([ends[num_without:], jnp.zeros((num_without, *done.shape[1:]), jnp.bool_)])


def _starting_rows(state: SliceIndex) -> Array:
    """Number of rows that are old enough for a slice to begin there, [] uint32."""
    too_new = jnp.uint32(state.span - 1)
    return jnp.maximum(state.ring.rows, too_new) - too_new


def _slices(state: SliceIndex, slot: Array, env: Array) -> Slices:
    """Return the slices that begin at slots and environments [B] uint32."""
    distance = storage.distance_to_head(state.ring, slot)
    mask = mask_of(state, slot, env, distance)
    return Slices(state.ring.head - distance, slot.astype(jnp.int32), env.astype(jnp.int32), mask)
