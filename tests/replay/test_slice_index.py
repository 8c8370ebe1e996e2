"""rlkit.replay.slice_index: examples by hand, and agreement with a model that lists all slices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from index_invariants import check_index
from slice_index_model import KINDS, Model, add, build, completed_slices, listing, picture, sample, starts, to_numpy

from rlkit.replay import slice_index

HEART = ("strict", "padded, by episode", "cross episodes")


def start_at(state, head, position):
    """Return the empty index with counters near their limits, as if rows and slices had been added and removed."""

    def moved(queue):
        if queue is None:
            return None
        start = jnp.uint32((2 * queue.capacity - position) % (2 * queue.capacity))
        return queue.replace(head=start, tail=start, before=jnp.full_like(queue.before, start))

    ring = state.ring.with_counts(head=jnp.uint32(head))
    return state.replace(ring=ring, starts=moved(state.starts), episodes=moved(state.episodes))


@to_numpy
def observe(state, key):
    results = {"size": slice_index.size(state), "drawn": slice_index.sample(state, key, 64)}
    if state.sampling == "episode":
        results["episodes"] = slice_index.num_episodes(state)
    return results


def assert_agrees(state, model, key):
    check_index(state)
    observed, slices, start = observe(state, key), model.slices(), int(state.ring.slot)
    assert observed["size"] == len(slices)
    assert int(state.ring.head) == model.head % 2**32

    def lengths(batch):
        """Map (absolute row, env) to the number of real steps, in a batch that may hold a slice more than once."""
        real, counts = batch.mask.any(axis=1), {}
        for row, slot, env, mask in zip(*(x[real] for x in batch), strict=True):
            row = next(r for r, _ in model.rows if r % 2**32 == row)
            assert slot == (row - model.head + start) % model.num_rows
            assert mask[: mask.sum()].all()
            counts[row, int(env)] = int(mask.sum())
        return counts

    assert lengths(observed["drawn"]).items() <= slices.items()
    assert np.all(observed["drawn"].mask.any(axis=1) == bool(slices))
    if state.sampling == "episode":
        assert observed["episodes"] == len(model.episodes())
    else:
        every = listing(state)
        assert every.mask.any(axis=1).sum() == len(slices)
        assert lengths(every) == slices


@pytest.mark.parametrize("near_wrap", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("kind", [k if k in HEART else pytest.param(k, marks=pytest.mark.slow) for k in KINDS])
def test_agrees_with_a_model_under_random_chunks(kind, near_wrap):
    """Chunks of one row, of the whole ring, and across its end, with episodes from one step to longer than the ring."""
    rng, num_rows, num_envs, slice_len = np.random.default_rng(7), 9, 3, 4
    state, head = slice_index.init(num_rows, num_envs, slice_len, **KINDS[kind]), 0
    if near_wrap:
        head = 2**32 - 200
        state = start_at(state, head, 17)
    model = Model(num_rows, num_envs, slice_len, **KINDS[kind], head=head)
    assert_agrees(state, model, jax.random.key(0))
    for i in range(100):
        rate = rng.choice([0.0, 0.05, 0.3, 1.0], p=[0.3, 0.3, 0.3, 0.1])
        done = rng.random((rng.choice([1, 5, 9], p=[0.6, 0.3, 0.1]), num_envs)) < rate
        before = model.slices()
        model.add(done)
        slot, completed = completed_slices(state, done)
        at = {(model.head - len(done) + t - state.span + 1, env) for t, env in zip(*np.nonzero(completed), strict=True)}
        assert at == model.slices().keys() - before.keys()
        slots = (int(state.ring.slot) + np.arange(len(done)) - state.span + 1) % num_rows
        np.testing.assert_array_equal(slot, slots)
        state = add(state, done)
        assert_agrees(state, model, jax.random.key(i))


@pytest.mark.thorough
@pytest.mark.optimized
@pytest.mark.parametrize(("num_rows", "num_envs", "slice_len"), [(4, 1, 4), (5, 2, 1)])
@pytest.mark.parametrize("kind", ["strict", "strict, by episode"])
def test_agrees_with_a_model_where_the_ring_barely_holds_a_slice(kind, num_rows, num_envs, slice_len):
    rng = np.random.default_rng(3)
    state = slice_index.init(num_rows, num_envs, slice_len, **KINDS[kind])
    model = Model(num_rows, num_envs, slice_len, **KINDS[kind])
    for i in range(25):
        done = rng.random((rng.choice([1, num_rows]), num_envs)) < rng.choice([0.0, 0.3])
        model.add(done)
        state = add(state, done)
        assert_agrees(state, model, jax.random.key(i))


def test_by_hand():
    """Two environments, five rows, slices of two. The ring turns by one row, then by all of them."""
    state = slice_index.init(5, 2, 2)
    state = add(state, picture(".", "."))
    assert slice_index.size(state) == 0
    state = add(state, picture(".|.", ".."))  # rows 1 and 2
    assert starts(state) == [(0, 0), (0, 1), (1, 1)]
    state = add(state, picture("..", ".|."))  # rows 3 and 4: the ring is full
    assert starts(state) == [(0, 0), (0, 1), (1, 1), (2, 0), (2, 1), (3, 0)]
    state = add(state, picture(".", "."))  # row 5 overwrites row 0
    assert starts(state) == [(1, 1), (2, 0), (2, 1), (3, 0), (4, 0), (4, 1)]
    state = add(
        state, picture("...|..", ".....")
    )  # rows 6 to 10 overwrite all: (5, 0) and (5, 1) are completed and overwritten
    assert starts(state) == [(6, 0), (6, 1), (7, 0), (7, 1), (8, 1), (9, 0), (9, 1)]


def test_an_episode_end_counts_at_once():
    """Draws before it must not change the result."""
    state = add(slice_index.init(8, 1, 3), picture("..."))
    sample(state, jax.random.key(0), num_slices=4)
    state = add(state, picture(".|."))
    sample(state, jax.random.key(0), num_slices=4)
    assert starts(add(state, picture(".."))) == [(0, 0), (1, 0), (4, 0)]


@pytest.mark.parametrize(
    ("kind", "size", "masks"),
    [
        ("strict", 6, {(t, 4) for t in range(6, 12)}),
        ("padded", 15, {(0, 1), (1, 2), (2, 1), (3, 3), (4, 2), (5, 1), (12, 3), (13, 2), (14, 1)}),
    ],
)
def test_episodes_shorter_than_the_slice(kind, size, masks):
    """Lengths 1, 2, 3 and 9, slices of 4: only the last holds a full one; padded, each step begins one."""
    done = picture(".|..|...|.........|")
    state = build(done, slice_len=4, **KINDS[kind])
    assert slice_index.size(state) == size
    batch = sample(state, jax.random.key(0), num_slices=500)
    drawn = set(zip(batch.row.tolist(), batch.mask.sum(axis=1).tolist(), strict=True))
    assert masks <= drawn <= masks | {(t, 4) for t in range(6, 12)}
    assert np.all(np.diff(batch.mask.astype(np.int32), axis=1) <= 0)


@pytest.mark.parametrize("kind", ["strict", "strict, by episode", "cross episodes"])
def test_there_may_be_no_slice_at_all(kind):
    """In an empty ring, in one of episodes that are too short, in one with too few rows; masks are False."""
    state = slice_index.init(9, 3, 4, **KINDS[kind])
    short = add(state, np.zeros((1, 3), bool) if kind == "cross episodes" else picture(*[".|..|...|..|."] * 3))
    for empty in (state, short):
        assert slice_index.size(empty) == 0
        batch = sample(empty, jax.random.key(0), num_slices=64)
        assert not np.any(batch.mask)
        assert np.all((batch.slot >= 0) & (batch.slot < 9) & (batch.env >= 0) & (batch.env < 3))
        if empty.sampling == "episode":
            assert slice_index.num_episodes(empty) == 0
        else:
            assert starts(empty) == []


def test_no_slice_crosses_the_head():
    """16 rows, slices of 4, every position of the head, three times round: the steps drawn count up by one."""
    state = slice_index.init(16, 1, 4)
    ids = np.zeros(16, np.int64)
    for t in range(16 * 3):
        state = add(state, np.zeros((1, 1), bool))
        ids[t % 16] = t
        if t >= 3:
            batch = sample(state, jax.random.key(t), num_slices=10_000)
            drawn = ids[(batch.slot[:, None] + np.arange(4)) % 16]
            assert np.all(np.diff(drawn, axis=1) == 1)
            assert np.all(drawn[:, 0] == batch.row)
            assert set(drawn[:, 0]) == set(range(max(0, t - 15), t - 2))


def test_an_unfinished_episode_is_usable_up_to_the_head_and_its_end_changes_nothing():
    for end in ("", "|"):
        state = build(picture("...." + end), slice_len=2)
        assert starts(state) == [(0, 0), (1, 0), (2, 0)]


@pytest.mark.parametrize("kind", ["strict, by episode"])
def test_build_is_init_and_add(kind):
    done = np.random.default_rng(1).random((9, 3)) < 0.2
    state = slice_index.init(12, 3, 4, **KINDS[kind])
    for row in done:
        state = add(state, row[None])
    built = build(done, num_rows=12, slice_len=4, **KINDS[kind])
    jax.tree.map(np.testing.assert_array_equal, built, state)
    assert build(done, slice_len=4, **KINDS[kind]).num_rows == 9


@pytest.mark.parametrize("slice_len", [1, 3, 12, 13, 40])
def test_slice_starts_in_a_batch(slice_len):
    done = np.random.default_rng(2).random((12, 4)) < [0.0, 0.1, 0.3, 1.0]
    starts = slice_index.slice_starts_from_done(done, slice_len)
    expected = [
        [t + slice_len <= 12 and not done[t : t + slice_len - 1, env].any() for env in range(4)] for t in range(12)
    ]
    np.testing.assert_array_equal(starts, expected)
    for env in range(4):
        np.testing.assert_array_equal(slice_index.slice_starts_from_done(done[:, env], slice_len), starts[:, env])


@pytest.mark.parametrize("kind", [pytest.param("strict, by episode", marks=pytest.mark.slow), "padded"])
def test_vmap_is_a_loop(kind):
    done = np.random.default_rng(4).random((6, 3, 5, 3)) < 0.2
    keys = jax.random.split(jax.random.key(0), 3)
    empty = slice_index.init(9, 3, 4, **KINDS[kind])

    @jax.vmap
    def run(done, key):
        state, _ = jax.lax.scan(lambda state, chunk: (slice_index.add(state, chunk), None), empty, done)
        return state, slice_index.sample(state, key, 64)

    together = jax.jit(run)(done.swapaxes(0, 1), keys)
    for i in range(3):
        state = empty
        for chunk in done[:, i]:
            state = add(state, chunk)
        alone = state, sample(state, keys[i], num_slices=64)
        jax.tree.map(np.testing.assert_array_equal, jax.tree.map(lambda x, i=i: x[i], together), alone)


def test_draws_are_the_same_after_saving_and_loading():
    state = add(slice_index.init(9, 3, 4), np.random.default_rng(6).random((9, 3)) < 0.2)
    loaded = jax.tree.map(jnp.asarray, jax.device_get(state))
    for i in range(10):
        jax.tree.map(
            np.testing.assert_array_equal, *(sample(s, jax.random.key(i), num_slices=64) for s in (state, loaded))
        )


def test_types_are_the_same_with_64_bits():
    with jax.enable_x64(True):
        state = add(slice_index.init(9, 3, 4, sampling="episode"), np.zeros((5, 3), bool))
        batch = sample(state, jax.random.key(0), num_slices=64)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(state)} == {"uint32", "int32"}
    assert [leaf.dtype.name for leaf in batch] == ["uint32", "int32", "int32", "bool"]


@pytest.mark.thorough
def test_the_largest_ring():
    """2^31 - 1 steps in one environment: positions beyond 2^30 do not overflow."""
    rows = 2**31 - 1
    state = slice_index.init(rows, 1, 4, cross_episodes=True)
    state = state.replace(
        ring=state.ring.with_counts(head=jnp.uint32(2**32 - 4), slot=jnp.uint32(rows - 4), rows=jnp.uint32(rows))
    )
    state = add(state, np.zeros((8, 1), bool))
    assert [int(x) for x in (state.ring.head, state.ring.slot, state.ring.rows)] == [4, 4, rows]
    assert slice_index.size(state) == rows - 3
    batch = sample(state, jax.random.key(0), num_slices=10_000)
    assert np.all((batch.slot >= 0) & (batch.slot < rows))
    back = (4 - np.asarray(batch.row).astype(np.int64)) % 2**32
    assert np.all((4 - back) % rows == batch.slot)
    assert 4 <= back.min() < rows / 100
    assert rows * 0.99 < back.max() <= rows
