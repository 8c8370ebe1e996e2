"""Replay buffers: agreement with a plain model, and cases that are known to go wrong in other libraries."""

from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from replay_model import FEW, KINDS, ONE, PRIORITIZED, B, Harness, Model, N, R, Start, Stream, example, steps
from scipy.stats import chi2

from rlkit import replay
from rlkit.replay import packing, segment_tree
from rlkit.types import ConfigError


def compiled(make):
    """Wrap a constructor so that its buffers have compiled functions; op by op they take seconds to compile."""

    def compiled_buffer(*args, **kwargs):
        buffer = make(*args, **kwargs)
        return buffer._replace(**{name: jax.jit(getattr(buffer, name)) for name in ("add", "sample", "update", "size")})

    return compiled_buffer


uniform, prioritized, slices = map(compiled, (replay.uniform, replay.prioritized, replay.slices))


def fill(buffer, num_steps: int, num_envs: int = 1):
    return jax.jit(buffer.add)(buffer.init(ONE, num_envs), steps(num_steps, num_envs))


@pytest.mark.parametrize("kind", KINDS)
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
            replay.check(harness.state)


@pytest.mark.parametrize("kind", KINDS)
def test_everything_that_may_be_drawn_is_drawn(kind):
    harness = Harness(*KINDS[kind])
    for num_steps in (R, 1, 3):
        harness.add(num_steps)
        drawn = {start for i in range(12) for start in harness.sample(jax.random.key(i))[1]}
        assert drawn == set(harness.model.drawable())


def flags_changed(state):
    """Set the terminated flags of the second row."""
    steps = state.ring.steps
    changed = packing.pack(state.ring.stored.layout, steps._replace(terminated=steps.terminated.at[1].set(True)))
    return state.replace(ring=state.ring.replace(stored=changed))


def with_counts(state, **counts):
    return state.replace(ring=state.ring.replace(cursor=state.ring.cursor.with_counts(**counts)))


def with_words(state, words):
    return state.replace(ring=state.ring.replace(stored=state.ring.stored.replace(words=words)))


def with_mass(state, place, mass):
    tree = segment_tree.write(state.priorities.mass, jnp.array([place]), jnp.array([mass]))
    return state.replace(priorities=state.priorities.replace(mass=tree))


BROKEN = {  # a kind, a change that breaks it, and the message
    "count": ("uniform", lambda s: with_counts(s, rows=R + 1), "ring.count=9"),
    "slot": ("prioritized", lambda s: with_counts(s, slot=jnp.uint32(2**32 - 1)), "ring.slot=-1"),
    "beta": ("prioritized", lambda s: s.replace(beta=jnp.float32(jnp.nan)), "beta=nan"),
    "words": (
        "uniform",
        lambda s: with_words(s, s.ring.stored.words[1:]),
        rf"ring.stored.words is \[{R - 1}, {N}, .*not \[{R}, {N}, ",
    ),
    "head": ("slices", lambda s: with_counts(s, head=s.ring.head + 1), "and the ring at"),
    "flags": ("slices", flags_changed, "the index counts .* slices, and the stored flags allow"),
    "flags of a pair": ("slices by episode", flags_changed, "and the stored flags"),
    "ended": ("padded slices", flags_changed, "index.ended differs"),
    "mass": ("prioritized slices", None, "has mass 5 and could be drawn"),
    "mass at the head": ("prioritized slices across ends", None, "has mass 5 and could be drawn"),
    "final_obs": (
        "uniform, obs once",
        lambda s: s.replace(ring=s.ring.replace(final_obs=s.ring.final_obs.replace(count=s.ring.final_obs.count * 0))),
        "final_obs.number of a truncated step",
    ),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_check_names_the_broken_field(broken):
    kind, change, message = BROKEN[broken]
    harness = Harness(*KINDS[kind])
    for num_steps in (R, 3, 1, 1):
        harness.add(num_steps)
    replay.check(harness.state)
    if change is None:
        legal = {row % R * N + env for row, env in harness.model.starts()}
        place = min(set(range(R * N)) - legal)
        change = lambda state: with_mass(state, place, 5.0)  # noqa: E731
    with pytest.raises(ValueError, match=message):
        replay.check(change(harness.state))


def probabilities(kind: str, model: Model) -> dict[Start, float]:
    """Probability of each start that may be drawn, in this kind of buffer."""
    places = model.drawable()
    shares = dict.fromkeys(places, 1.0)
    if "prioritized" in kind:
        shares = {start: model.mass[start] for start in places}
    elif "episode" in kind:
        episode: dict[Start, Start] = {}  # of each start, the first start in the same episode
        for row, env in sorted(places):
            episode[row, env] = episode.get((row - 1, env), (row, env))
        sizes = Counter(episode.values())
        shares = {start: 1.0 / sizes[episode[start]] for start in places}
    return {start: share / sum(shares.values()) for start, share in shares.items()}


def p_value(counts: np.ndarray, shares: dict[Start, float]) -> float:
    """P-value of Pearson's chi-square test that counts [R, N] of drawn slots have these probabilities."""
    probability = np.zeros((R, N))
    for (row, env), share in shares.items():
        probability[row % R, env] = share
    drawn = counts.sum()
    possible = probability > 0
    expected = drawn * probability[possible]
    assert expected.min() > 5
    if counts[~possible].any():
        return 0.0
    return float(chi2.sf(((counts[possible] - expected) ** 2 / expected).sum(), possible.sum() - 1))


def histogram(harness: Harness, num_samples: int) -> np.ndarray:
    """Count the draws of each slot and environment, [R, N]."""

    @jax.jit
    def run(state):
        def one(counts, key):
            sample = harness.buffer.sample(state, key)
            drawn = sample.mask.reshape(B, -1)[:, 0].astype(jnp.int32)
            return counts.at[(sample.index.row % R).astype(jnp.int32), sample.index.env].add(drawn), None

        keys = jax.random.split(jax.random.key(3), num_samples)
        return jax.lax.scan(one, jnp.zeros((R, N), jnp.int32), keys)[0]

    return np.asarray(run(harness.state))


def filled(kind: str) -> Harness:
    """Fill a buffer twice, with measured priorities, and steps added after them."""
    harness = Harness(*KINDS[kind])
    for i, num_steps in enumerate((R, R, 5)):
        harness.add(num_steps)
        sample, starts = harness.sample(jax.random.key(i))
        priority = np.random.default_rng(i).uniform(0.05, 3.0, size=B).astype(np.float32)
        if starts:
            harness.update(sample, starts, priority)
    harness.add(2)
    return harness


@pytest.mark.parametrize("kind", KINDS)
def test_draws_have_the_documented_probabilities(kind):
    """A family-wise alpha of 1e-6."""
    harness = filled(kind)
    expected = probabilities(kind, harness.model)
    assert p_value(histogram(harness, 2000), expected) > 1e-6 / len(KINDS)


@pytest.mark.parametrize(
    ("kind", "other"),
    [("slices", "slices by episode"), ("slices by episode", "slices"), ("prioritized", "uniform")],
)
def test_draws_of_another_kind_fail_the_chi_square_test(kind, other):
    harness = filled(kind)
    wrong = probabilities(other, harness.model)
    assert p_value(histogram(harness, 2000), wrong) < 1e-6 / len(KINDS)


@pytest.mark.parametrize("kind", FEW)
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
    for kind in ("uniform windows", "prioritized"):
        buffer, _ = KINDS[kind]
        add, sample = jax.jit(buffer.add), jax.jit(buffer.sample)
        for row in (2**31 - 4, 2**32 - 4):
            state = add(buffer.init(example(), N), Stream(N, 0).rollout(R))
            state = with_counts(state, head=jnp.uint32(row))
            for i in range(8):
                state = add(state, Stream(N, i).rollout(1))
                drawn = sample(state, jax.random.key(i))
                age = (row + i + 1 - np.asarray(drawn.index.row, np.int64)) % 2**32
                assert ((age >= 1) & (age <= R)).all()
                state = jax.jit(buffer.update)(state, drawn.index, jnp.ones((B,)))
            if kind == "prioritized":
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
    buffer = prioritized(2**12, 256, eps=0.0, start_priority=1.0)

    def round_of(state, key):
        state = buffer.add(state, steps(256))
        return buffer.update(state, buffer.sample(state, key).index, jnp.full((256,), 1e-4)), None

    state, _ = jax.jit(lambda s: jax.lax.scan(round_of, s, jax.random.split(jax.random.key(0), 600)))(
        buffer.init(ONE, 1)
    )
    state = jax.jit(buffer.add)(state, steps(1))
    newest = segment_tree.values(state.priorities.mass)[state.ring.slot - 1]
    np.testing.assert_allclose(newest, 1e-4**0.6, rtol=1e-3)


@pytest.mark.parametrize("kind", PRIORITIZED)
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
    after = buffer.update(state, sample.index, jnp.full(4, 7.0))
    assert all(jax.tree.leaves(jax.tree.map(lambda x, y: np.array_equal(x, y), state, after)))
    assert not buffer.sample(after, jax.random.key(1)).mask.any()
    replay.check(buffer.add(after, steps(8)))


def test_windows_never_cross_the_write_head():
    """A step counter as obs rises by one along each window, at every position of the head, three times round."""
    for buffer in (uniform(16, 512, length=4), slices(16, 512, 4), prioritized(16, 512, length=4)):
        add, sample = jax.jit(buffer.add), jax.jit(buffer.sample)
        state = buffer.init(ONE, 1)
        for t in range(48):
            state = add(state, steps(1, obs=jnp.full((1, 1), t, jnp.float32)))
            if t >= 3:
                obs = sample(state, jax.random.key(t)).item.obs
                assert obs.shape == (512, 4)
                assert (jnp.diff(obs, axis=1) == 1).all()


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


ERRORS = {
    "capacity=0 must be an integer of at least 1": lambda: replay.uniform(0, 4),
    "capacity=2147483648 must be below 2\\^31": lambda: replay.uniform(2**31, 4),
    "batch_size=0 must be an integer": lambda: replay.prioritized(8, 0),
    "length=0 must be an integer": lambda: replay.uniform(8, 4, length=0),
    "capacity=10 must be a multiple of num_envs = 4; try 8": lambda: replay.uniform(10, 4).init(ONE, 4),
    "capacity=8 must be at least 12": lambda: replay.uniform(8, 4, length=3).init(ONE, 4),
    "alpha=-1 must be finite": lambda: replay.prioritized(8, 4, alpha=-1),
    "beta=nan must be finite": lambda: replay.prioritized(8, 4, beta=float("nan")),
    "eps=-1 must be finite": lambda: replay.prioritized(8, 4, eps=-1),
    "start_priority=0 must be finite and above 0": lambda: replay.prioritized(8, 4, start_priority=0),
    "max_final_obs=3 is for store_obs_once": lambda: replay.uniform(8, 4, max_final_obs=3),
    "max_final_obs=9 must lie in": lambda: replay.uniform(8, 4, store_obs_once=True, max_final_obs=9),
    "num_slices=0 must be an integer": lambda: replay.slices(8, 0, 4),
    "slice_len=0 must be an integer": lambda: replay.slices(8, 4, 0),
    "sampling='steps' must be": lambda: replay.slices(8, 4, 2, sampling="steps"),
    "sampling='episode' has no meaning with prioritized": lambda: replay.slices(
        8, 4, 2, sampling="episode", prioritized=True
    ),
    "sampling='episode' has no meaning with cross": lambda: replay.slices(
        8, 4, 2, sampling="episode", cross_episodes=True
    ),
    "strict=False": lambda: replay.slices(8, 4, 2, strict=False, cross_episodes=True),
    "obs is float32 of shape": lambda: replay.uniform(8, 4).add(
        replay.uniform(8, 4).init(ONE, 1), steps(2, obs=jnp.zeros((2, 1, 1)))
    ),
    "action is int32 of shape": lambda: replay.uniform(8, 4).add(
        replay.uniform(8, 4).init(ONE, 1), steps(2, action=jnp.zeros((2, 1), jnp.int32))
    ),
    "rollout has the structure": lambda: replay.uniform(8, 4).add(
        replay.uniform(8, 4).init(ONE, 1), steps(2, extras=(jnp.zeros((2, 1)),))
    ),
    "priority has shape": lambda: prioritized(8, 4).update(
        fill(prioritized(8, 4), 8),
        prioritized(8, 4).sample(fill(prioritized(8, 4), 8), jax.random.key(0)).index,
        jnp.zeros((4, 1)),
    ),
}


@pytest.mark.parametrize("message", ERRORS)
def test_mistakes_are_named_in_one_line(message):
    with pytest.raises(ValueError, match=message) as caught:
        ERRORS[message]()
    assert "\n" not in str(caught.value)
    if "shape" not in message and "structure" not in message:
        assert isinstance(caught.value, ConfigError)
