"""Replay buffers: agreement with a plain model, and cases that are known to go wrong in other libraries."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from buffer_invariants import check_buffer
from compilations import compilations
from compiled_buffers import fill, prioritized, slices, uniform, with_counts
from replay_model import FEW, HEART, KINDS, ONE, B, Harness, N, R, Stream, example, steps

from rlkit import replay
from rlkit.replay import segment_tree


@pytest.mark.parametrize(
    "kind",
    [k if k in HEART else pytest.param(k, marks=pytest.mark.slow) for k in KINDS],
)
def test_agrees_with_the_model(kind):
    harness = Harness(*KINDS[kind])
    random = np.random.default_rng(1)
    handles = []
    for i in range(30):
        harness.add(int(random.choice([1, 3, R])) if i % 5 else 1)
        handles.append(harness.sample(jax.random.key(i)))
        sample, starts = handles[random.integers(max(len(handles) - 4, 0), len(handles))]  # also one that has aged
        if starts:
            priority = random.choice([0.0, 1e-4, 3.0, -2.0, 100.0, np.nan, np.inf], size=B).astype(np.float32)
            harness.update(sample, starts, priority)
        if i % 6 == 0:
            check_buffer(harness.state)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [k if k in HEART else pytest.param(k, marks=pytest.mark.slow) for k in FEW])
def test_jit_vmap_scan_and_a_loop_agree(kind):
    buffer, _ = KINDS[kind]
    streams = [Stream(N, seed).rollout(12) for seed in range(3)]
    keys = jax.random.split(jax.random.key(5), 12)

    def fold(state, rollout):  # twelve adds of one row, with a sample and an update after each
        def body(state, inputs):
            row, key = inputs
            state = buffer.add(state, jax.tree.map(lambda x: x[None], row))
            sample = buffer.sample(state, key)
            return buffer.update(state, sample.index, sample.item.reward.reshape(B, -1)[:, 0]), sample

        return jax.lax.scan(body, state, (rollout, jax.random.wrap_key_data(bits)))

    bits = jax.random.key_data(keys)
    one = jax.jit(fold)
    start = buffer.init(example(), N)
    with jax.debug_key_reuse(True):
        single = [one(start, rollout) for rollout in streams]
    batched = jax.jit(jax.vmap(fold, (None, 0)))(start, jax.tree.map(lambda *x: jnp.stack(x), *streams))
    for i, (state, samples) in enumerate(single):
        for x, y in zip(jax.tree.leaves((state, samples)), jax.tree.leaves(batched), strict=True):
            np.testing.assert_allclose(np.asarray(y[i], np.float64), np.asarray(x, np.float64), rtol=1e-6)
    state = start
    add, sample_jit, update = jax.jit(buffer.add), jax.jit(buffer.sample), jax.jit(buffer.update)
    for t in range(12):
        state = add(state, jax.tree.map(lambda x, t=t: x[t : t + 1], streams[0]))
        sample = sample_jit(state, keys[t])
        state = update(state, sample.index, sample.item.reward.reshape(B, -1)[:, 0])
    for x, y in zip(jax.tree.leaves(state), jax.tree.leaves(single[0][0]), strict=True):
        np.testing.assert_allclose(np.asarray(x, np.float64), np.asarray(y, np.float64), rtol=1e-6)


def test_absolute_rows_may_wrap():
    """Draws and updates stay correct where absolute rows pass 2^31, and where they wrap at 2^32."""
    buffer = prioritized(8, B)
    for row in (2**31 - 4, 2**32 - 4):
        state = buffer.init(ONE, 1)
        for _ in range(8):
            state = buffer.add(state, steps(1))
        state = with_counts(state, head=jnp.uint32(row))
        for i in range(8):
            state = buffer.add(state, steps(1))
            drawn = buffer.sample(state, jax.random.key(i))
            age = (row + i + 1 - np.asarray(drawn.index.row, np.int64)) % 2**32
            assert ((age >= 1) & (age <= 8)).all()
            state = buffer.update(state, drawn.index, np.ones((B,), np.float32))
        assert segment_tree.maximum(state.priorities.mass) > 0


def test_a_ring_fills_up_with_chunks_that_do_not_divide_it():
    buffer = uniform(10, 1000)
    add = jax.jit(buffer.add)
    state = buffer.init(ONE, 1)
    for i in range(5):
        state = add(state, steps(3, obs=jnp.full((3, 1), i, jnp.float32)))
    assert buffer.size(state) == 10
    slots = np.unique(np.asarray(buffer.sample(state, jax.random.key(0)).index.row))
    np.testing.assert_array_equal(slots, np.arange(5, 15))


def test_a_chunk_may_be_as_long_as_the_ring_and_no_longer():
    buffer = uniform(10, 4)
    assert buffer.size(fill(buffer, 10)) == 10
    with pytest.raises(ValueError, match=r"reward has shape \(11, 1\), expected \[T, 1\] with 1 <= T <= 10"):
        buffer.add(buffer.init(ONE, 1), steps(11))


@pytest.mark.parametrize("make", [replay.uniform, replay.prioritized], ids=["uniform", "prioritized"])
def test_an_empty_buffer(make):
    buffer = make(16, 4, length=3)
    empty = buffer.init(ONE, 1)
    assert buffer.size(empty) == 0
    with pytest.raises(ValueError, match="nothing to draw"):
        buffer.sample(empty, jax.random.key(0))
    assert not jax.jit(buffer.sample)(empty, jax.random.key(0)).mask.any()
    two = fill(buffer, 2)  # a window needs three
    sample = jax.jit(buffer.sample)(two, jax.random.key(0))
    assert not sample.mask.any()
    assert np.isfinite(sample.weight).all()


def test_the_power_is_applied_once():
    """A new item next to a measured priority of 4, with alpha 0.6: 4^0.6, and not its power again."""
    buffer = prioritized(8, 1, alpha=0.6, eps=0.0)
    state = fill(buffer, 1)
    state = buffer.update(state, buffer.sample(state, jax.random.key(0)).index, jnp.array([4.0]))
    state = buffer.add(state, steps(1))
    np.testing.assert_allclose(segment_tree.values(state.priorities.mass)[:2], [2.2974, 2.2974], rtol=1e-4)
    first = fill(prioritized(8, 1, alpha=0.6, eps=0.5, start_priority=3.0), 1)
    np.testing.assert_allclose(segment_tree.values(first.priorities.mass)[0], 3.5**0.6, rtol=1e-6)


def test_weights_are_of_the_items_in_the_buffer():
    """Priorities 1, 2, 4, 8 of six places: (N P)^-beta over its maximum; and again without the least of them."""
    buffer = prioritized(6, 256, alpha=0.6, beta=0.4, eps=0.0)
    state = fill(buffer, 4)
    handle = type(buffer.sample(state, jax.random.key(0)).index)(
        jnp.arange(4, dtype=jnp.uint32), jnp.zeros(4, jnp.int32)
    )
    state = buffer.update(state, handle, jnp.array([1.0, 2.0, 4.0, 8.0]))

    def expected(priority):
        mass = np.asarray(priority) ** 0.6
        weight = (mass.size * mass / mass.sum()) ** -0.4
        return weight / weight.max()

    sample = buffer.sample(state, jax.random.key(1))
    np.testing.assert_allclose(sample.weight, expected([1, 2, 4, 8])[sample.index.row], rtol=1e-6)
    state = jax.jit(buffer.add)(state, steps(3))  # rows 4, 5 and 6: the first row, and with it the minimum, is gone
    sample = buffer.sample(state, jax.random.key(2))
    np.testing.assert_allclose(
        sample.weight, expected([2, 4, 8, 8, 8, 8][:6])[np.asarray(sample.index.row) - 1], rtol=1e-6
    )


@pytest.mark.parametrize("make", [prioritized, partial(slices, slice_len=1, prioritized=True)])
def test_a_sample_has_one_item_of_each_stratum(make):
    buffer = make(8, 8)
    sample = buffer.sample(fill(buffer, 8), jax.random.key(0))
    np.testing.assert_array_equal(sample.index.row, np.arange(8))


def test_beta_is_an_array_of_the_state():
    buffer = prioritized(8, 16, beta=0.4)
    state = fill(buffer, 8)
    state = buffer.update(state, buffer.sample(state, jax.random.key(0)).index, jnp.arange(16.0))
    weights = [buffer.sample(state.replace(beta=jnp.float32(b)), jax.random.key(1)).weight for b in (0.0, 0.4, 1.0)]
    np.testing.assert_array_equal(weights[0], np.ones(16))
    np.testing.assert_allclose(weights[2], weights[1] ** 2.5, rtol=1e-5)
    swept = jax.vmap(lambda b: buffer.sample(state.replace(beta=b), jax.random.key(1)).weight)(
        jnp.array([0.0, 0.4, 1.0])
    )
    np.testing.assert_allclose(swept, jnp.stack(weights), rtol=1e-6)


def test_an_evicted_outlier_is_forgotten():
    buffer = prioritized(4, 1, alpha=0.6, eps=0.0)
    state = fill(buffer, 4)
    handle = type(buffer.sample(state, jax.random.key(0)).index)(
        jnp.arange(2, dtype=jnp.uint32), jnp.zeros(2, jnp.int32)
    )
    state = buffer.update(state, handle, jnp.array([1000.0, 2.7]))
    state = buffer.add(state, steps(1))  # over the outlier: the eviction comes before the new item's mass
    np.testing.assert_allclose(segment_tree.values(state.priorities.mass)[0], 2.7**0.6, rtol=1e-6)


def test_new_items_follow_recent_measurements():
    """As many adds as draws, all TD errors 1e-4: the initial guess of 1 must not be passed on for ever."""
    buffer = prioritized(2**9, 64, eps=0.0, start_priority=1.0)

    def round_of(state, key):
        state = buffer.add(state, steps(64))
        return buffer.update(state, buffer.sample(state, key).index, jnp.full((64,), 1e-4)), None

    state, _ = jax.jit(lambda s: jax.lax.scan(round_of, s, jax.random.split(jax.random.key(0), 300)))(
        buffer.init(ONE, 1)
    )
    state = jax.jit(buffer.add)(state, steps(1))
    newest = segment_tree.values(state.priorities.mass)[state.ring.slot - 1]
    np.testing.assert_allclose(newest, 1e-4**0.6, rtol=1e-3)


@pytest.mark.parametrize(
    "kind",
    [
        *("prioritized windows, obs once", "prioritized slices across ends"),
        pytest.param("prioritized slices", marks=pytest.mark.slow),
    ],
)
def test_a_late_update_changes_nothing(kind):
    buffer, _ = KINDS[kind]
    add = jax.jit(buffer.add)
    state = add(buffer.init(example(), N), Stream(N, 0, end=0.0).rollout(R))
    old = jax.jit(buffer.sample)(state, jax.random.key(0)).index
    state = add(state, Stream(N, 1, end=0.0).rollout(R))
    late = jax.jit(buffer.update)(state, old, jnp.full((B,), 77.0))
    assert all(jax.tree.leaves(jax.tree.map(lambda x, y: np.array_equal(x, y), state, late)))


@pytest.mark.parametrize("make", [partial(prioritized, length=4), partial(slices, slice_len=4, prioritized=True)])
def test_an_update_of_an_invalid_sample_changes_nothing(make):
    """Two rows, one of them terminal, hold no window of four: a sample has no valid item."""
    buffer = make(32, 4)
    ended = steps(2, terminated=jnp.array([[False], [True]]))
    state = buffer.add(buffer.init(ONE, 1), ended)
    sample = buffer.sample(state, jax.random.key(0))
    assert buffer.size(state) == 0
    assert not sample.mask.any()
    to_come = sample.index._replace(row=jnp.full(4, state.ring.head))  # as after a return to an earlier state
    for handle in (to_come, sample.index):
        after = buffer.update(state, handle, jnp.full(4, 7.0))
        assert all(jax.tree.leaves(jax.tree.map(lambda x, y: np.array_equal(x, y), state, after)))
    assert not buffer.sample(after, jax.random.key(1)).mask.any()
    check_buffer(buffer.add(after, ended))


def test_windows_never_cross_the_write_head():
    """A step counter as obs rises by one along each window, at every position of the head, three times round."""
    for buffer in (uniform(16, 512, length=4), slices(16, 512, 4), prioritized(16, 512, length=4)):
        add, sample = jax.jit(buffer.add), jax.jit(buffer.sample)
        state = buffer.init(ONE, 1)
        for t in range(48):
            state = add(state, steps(1, obs=np.full((1, 1), t, np.float32)))
            if t >= 3:
                obs = sample(state, jax.random.key(t)).item.obs
                assert obs.shape == (512, 4)
                assert (np.diff(obs, axis=1) == 1).all()


def test_the_end_of_a_slice_is_truncated_and_never_terminated():
    """A slice that ends while its episode goes on bootstraps; the flags of the episode's own end stay as they are."""
    ended = jnp.zeros((8, 1), bool).at[5].set(True)
    buffer = slices(8, 256, 3)
    state = jax.jit(buffer.add)(buffer.init(ONE, 1), steps(8, terminated=ended))
    sample = buffer.sample(state, jax.random.key(0))
    rows = np.asarray(sample.index.row)
    assert set(rows) == {0, 1, 2, 3}  # the steps 6 and 7 are not three
    np.testing.assert_array_equal(sample.item.terminated[:, 2], rows == 3)
    np.testing.assert_array_equal(sample.item.truncated[:, 2], rows != 3)
    assert not sample.item.truncated[:, :2].any()
    assert sample.mask.all()


@pytest.mark.parametrize(
    "buffer",
    [
        replay.uniform(3 * N, B, store_obs_once=True),
        pytest.param(replay.prioritized(3 * N, B, store_obs_once=True), marks=pytest.mark.slow),
        pytest.param(replay.slices(3 * N, B, 2, store_obs_once=True), marks=pytest.mark.slow),
        pytest.param(replay.slices(3 * N, B, 2, prioritized=True, store_obs_once=True), marks=pytest.mark.slow),
    ],
    ids=["uniform", "prioritized", "slices", "prioritized slices"],
)
def test_a_second_sample_outside_of_jit_compiles_nothing(buffer):
    state = buffer.add(buffer.init(ONE, N), steps(3, N))
    buffer.sample(state, jax.random.key(0))
    with compilations() as compiled:
        buffer.sample(state, jax.random.key(1))
    assert not compiled
