"""rlkit.replay.slice_index: examples by hand, a model that lists all slices, the compiled program."""

import math
import re
from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chi2

from rlkit.ops import _integers
from rlkit.replay import slice_index
from rlkit.replay.slice_index.sampling import start_of

KINDS = {
    "strict": {},
    "strict, by episode": {"sampling": "episode"},
    "padded": {"strict": False},
    "padded, by episode": {"strict": False, "sampling": "episode"},
    "cross episodes": {"cross_episodes": True},
    "padded, cross episodes": {"strict": False, "cross_episodes": True},
}
add = jax.jit(slice_index.add)
build = jax.jit(slice_index.build, static_argnames=("slice_len", "num_rows", "strict", "cross_episodes", "sampling"))


def to_numpy(fn, **kwargs):
    """Compile a function, and return its results as NumPy arrays."""
    jitted = jax.jit(fn, **kwargs)
    return lambda *args, **kwargs: jax.device_get(jitted(*args, **kwargs))


uniform_below = jax.jit(_integers.uniform_below, static_argnums=1)
completed_slices = to_numpy(slice_index.completed_slices)
sample = to_numpy(slice_index.sample, static_argnames="num_slices")
batch_of_pass = to_numpy(slice_index.batch_of_pass, static_argnames="num_slices")


def picture(*envs: str) -> np.ndarray:
    """Make done [T, N] of one string an environment, where `|` follows the last step of an episode: `..|...`."""
    ends = [[c == "|" for c in env.replace(".|", "|")] for env in envs]
    return np.array(ends).T


@to_numpy
def listing(state):
    """List all slices in the order of completion, with sampling "slice"; masks are False beyond their number."""
    item = jnp.arange(state.num_rows * state.num_envs, dtype=jnp.uint32)
    slices = slice_index.at(state, *start_of(state, item))
    return slices._replace(mask=slices.mask & (item < _integers.uint32(slice_index.size(state)))[:, None])


def starts(state) -> list[tuple[int, int]]:
    """List (row, env) of all slices in the order of completion, with sampling "slice"."""
    slices = listing(state)
    real = slices.mask.any(axis=1)
    return list(zip(slices.row[real].tolist(), slices.env[real].tolist(), strict=True))


class Model:
    """The ring as a list of rows, from which every slice and episode is listed anew each time."""

    def __init__(self, num_rows, num_envs, slice_len, strict=True, cross_episodes=False, sampling="slice", head=0):
        self.num_rows, self.num_envs, self.slice_len = num_rows, num_envs, slice_len
        self.strict, self.cross = strict, cross_episodes
        self.rows, self.head = [], head  # rows: (absolute row, done [N])

    def add(self, done):
        self.rows += [(self.head + i, row) for i, row in enumerate(done)]
        self.head += len(done)
        self.rows = self.rows[-self.num_rows :]

    def slices(self) -> dict[tuple[int, int], int]:
        """Map (absolute row, env) of each slice to its number of real steps."""
        lengths = {}
        for i, (row, _) in enumerate(self.rows):
            for env in range(self.num_envs):
                steps = self.rows[i : i + self.slice_len]
                ends = [] if self.cross else [j for j, (_, done) in enumerate(steps) if done[env]]
                length = ends[0] + 1 if ends else len(steps)
                if length == self.slice_len or not self.strict:
                    lengths[row, env] = length
        return lengths

    def episodes(self) -> list[list[tuple[int, int]]]:
        """List the slices of each episode that has some."""
        slices, groups = self.slices(), []
        for env in range(self.num_envs):
            group = []
            for row, done in self.rows:
                group += [(row, env)] if (row, env) in slices else []
                if done[env] or row == self.head - 1:
                    groups, group = [*groups, group], []
        return [group for group in groups if group]


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
    slice_index.check(state)
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


@pytest.mark.parametrize("near_wrap", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_agrees_with_a_model_under_random_chunks(kind, near_wrap):
    """Chunks of one row, of the whole ring, and across its end, with episodes from one step to longer than the ring."""
    rng, num_rows, num_envs, slice_len = np.random.default_rng(7), 9, 3, 4
    state, head = slice_index.init(num_rows, num_envs, slice_len, **KINDS[kind]), 0
    if near_wrap:
        head = 2**32 - 200
        state = start_at(state, head, 17)
    model = Model(num_rows, num_envs, slice_len, **KINDS[kind], head=head)
    assert_agrees(state, model, jax.random.key(0))
    for i in range(150):
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


# Probabilities of the draws.


def probabilities(model: Model, sampling: str) -> dict[tuple[int, int], float]:
    groups = [list(model.slices())] if sampling == "slice" else model.episodes()
    return {start: 1 / len(groups) / len(group) for group in groups for start in group}


def p_value(batch, expected: dict[tuple[int, int], float]) -> float:
    """P-value of Pearson's chi-square test that the batch's starts have these probabilities."""
    counts = Counter(zip(batch.row.tolist(), batch.env.tolist(), strict=True))
    if not counts.keys() <= expected.keys():
        return 0.0
    n = counts.total()
    assert n * min(expected.values()) >= 5
    statistic = sum((counts[start] - n * p) ** 2 / (n * p) for start, p in expected.items())
    return float(chi2.sf(statistic, len(expected) - 1))


NUM_CHI_SQUARE_TESTS = 10
ALPHA = 1e-6 / NUM_CHI_SQUARE_TESTS  # so that all of them together fail by chance once in a million


def filled_twice(**kind) -> tuple[slice_index.SliceIndex, Model]:
    """Fill a ring with episodes that are whole, partly overwritten, or unfinished; env 2 has one episode only."""
    rng = np.random.default_rng(5)
    done = rng.random((48, 3)) < [0.1, 0.2, 0.0]
    state, model = slice_index.init(30, 3, 4, **kind), Model(30, 3, 4, **kind)
    for chunk in np.split(done, 3):
        state = add(state, chunk)
        model.add(chunk)
    return state, model


@pytest.mark.parametrize("kind", KINDS)
def test_draws_have_the_documented_probabilities(kind):
    state, model = filled_twice(**KINDS[kind])
    expected = probabilities(model, state.sampling)
    assert p_value(sample(state, jax.random.key(0), num_slices=100_000), expected) > ALPHA


@pytest.mark.parametrize("sampling", ["slice", "episode"])
def test_a_short_and_a_long_episode(sampling):
    """Lengths 5 and 95, slices of 5: 1 and 91 starts, as likely each, or half the draws for each episode."""
    state = build(picture("." * 5 + "|" + "." * 95 + "|"), slice_len=5, sampling=sampling)
    batch = sample(state, jax.random.key(1), num_slices=200_000)
    by_slice = dict.fromkeys([(0, 0), *((t, 0) for t in range(5, 96))], 1 / 92)
    by_episode = dict.fromkeys(by_slice, 1 / 182) | {(0, 0): 1 / 2}
    right, wrong = (by_slice, by_episode) if sampling == "slice" else (by_episode, by_slice)
    assert p_value(batch, right) > ALPHA
    assert p_value(batch, wrong) < ALPHA


def test_a_biased_sampler_fails_the_chi_square_test():
    """Modulo 2^10 instead of all bits: some of 92 starts come 12/11 as often."""
    state = build(picture("." * 5 + "|" + "." * 95 + "|"), slice_len=5)
    item = jax.random.bits(jax.random.key(0), (200_000,)) % 2**10 % 92
    row = np.where(np.asarray(item) == 0, 0, np.asarray(item) + 4)
    batch = slice_index.at(state, jnp.asarray(row), jnp.zeros(200_000, jnp.int32))
    assert p_value(batch, dict.fromkeys(starts(state), 1 / 92)) < ALPHA


def test_the_last_step_is_drawn():
    """An episode of 5, slices of 2: starts 0 to 3, a quarter each."""
    state = build(picture(".....|"), slice_len=2)
    batch = sample(state, jax.random.key(2), num_slices=100_000)
    np.testing.assert_allclose(np.bincount(batch.row, minlength=4) / 100_000, 0.25, atol=0.01)


def test_an_unfinished_episode_is_usable_up_to_the_head_and_its_end_changes_nothing():
    for end in ("", "|"):
        state = build(picture("...." + end), slice_len=2)
        assert starts(state) == [(0, 0), (1, 0), (2, 0)]


def test_draws_reach_everything_among_hundreds_of_millions():
    """A ring of 600M rows that stores 346M, without a queue; float32 could name only every 32nd of its slices."""
    state = slice_index.init(600_000_000, 1, 4, cross_episodes=True)
    rows = jnp.uint32(346_000_003)
    state = state.replace(ring=state.ring.with_counts(head=rows, slot=rows, rows=rows))
    assert slice_index.size(state) == 346_000_000
    row = np.asarray(sample(state, jax.random.key(0), num_slices=2**20).row)
    for modulus in (2, 3, 32):
        shares = np.bincount(row % modulus) / row.size
        np.testing.assert_allclose(shares, 1 / modulus, atol=0.005)
    assert row.max() < 346_000_000
    # A remainder of 32 bits would draw the lower 0.413 of them 13 times as often as others 12 times.
    np.testing.assert_allclose(np.mean(row < 2**32 % 346_000_000), 2**32 % 346_000_000 / 346e6, atol=0.003)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 92, 2**16 + 1, 3 * 2**30, 2**32 - 1])
def test_uniform_below_is_the_integer_part_of_n_times_a_64_bit_fraction(n):
    key = jax.random.key(n % 1000)
    high, low = np.asarray(jax.random.bits(key, (2, 1000), jnp.uint32)).astype(object)
    drawn = uniform_below(jax.random.clone(key), (1000,), jnp.uint32(n))
    np.testing.assert_array_equal(np.asarray(drawn), ((high * 2**32 + low) * n // 2**64).astype(np.uint32))


@pytest.mark.parametrize("n", [1, 2, 7, 2**31, 2**32 - 2])
def test_modular_sums_do_not_overflow(n):
    rng = np.random.default_rng(0)
    a = np.array([0, n - 1, n // 2, *rng.integers(0, n, 100)])
    b = np.array([n, n, (n + 1) // 2, *rng.integers(0, n + 1, 100)])
    a32, b32 = (jnp.asarray(x, jnp.uint32) for x in (a, b))
    np.testing.assert_array_equal(_integers.add_mod(a32, b32, n), (a + b) % n)
    np.testing.assert_array_equal(_integers.sub_mod(a32, b32, n), (a - b) % n)


# Passes, whole data sets, batches.


@pytest.mark.parametrize("kind", ["strict", "padded"])
def test_a_pass_draws_each_slice_once(kind):
    state, model = filled_twice(**KINDS[kind])
    total, visited = int(slice_index.size(state)), []
    for k in range(math.ceil(total / 7)):
        batch = batch_of_pass(state, jax.random.key(0), k, num_slices=7)
        real = np.asarray(batch.mask).any(axis=1)
        assert np.array_equal(real, 7 * k + np.arange(7) < total)
        visited += zip(batch.row[real].tolist(), batch.env[real].tolist(), strict=True)
    assert len(visited) == total
    assert set(visited) == set(model.slices())
    assert visited != sorted(visited)
    assert not np.any(batch_of_pass(state, jax.random.key(0), math.ceil(total / 7), num_slices=7).mask)


def test_batches_of_a_pass_may_share_their_key():
    state, _ = filled_twice()
    with jax.debug_key_reuse(True):
        key = jax.random.key(0)
        first, again = (batch_of_pass(state, key, 0, num_slices=7) for _ in range(2))
    np.testing.assert_array_equal(first.row, again.row)


@pytest.mark.parametrize("kind", ["strict", "strict, by episode", "padded"])
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


# States as wholes.


@pytest.mark.parametrize("kind", ["strict, by episode", "padded"])
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


@pytest.mark.parametrize("kind", ["strict", "padded, by episode"])
def test_draws_are_the_same_after_saving_and_loading(kind):
    state = add(slice_index.init(9, 3, 4, **KINDS[kind]), np.random.default_rng(6).random((9, 3)) < 0.2)
    loaded = jax.tree.map(jnp.asarray, jax.device_get(state))
    for i in range(100):
        jax.tree.map(
            np.testing.assert_array_equal, *(sample(s, jax.random.key(i), num_slices=64) for s in (state, loaded))
        )


def large_ops(text: str, elements: int) -> Counter:
    """Count the instructions of each kind in an optimized program with a result of so many elements or more."""
    counts = Counter()
    for shape, name in re.findall(r"= (.*?) ([a-z][a-z-]*)\(", text):
        sizes = [math.prod(int(n) for n in dims.split(",") if n) for dims in re.findall(r"\w\[([\d,]*)\]", shape)]
        counts[name] += max(sizes, default=0) >= elements
    return +counts


ALLOWED = {"parameter", "tuple", "get-tuple-element", "while", "fusion", "gather", "scatter", "bitcast"} | {
    "dynamic-slice",
    "dynamic-update-slice",
}


def compiled(step, state, num_states=None):
    """Compile a scan of `step(state, done, key)`, which returns a state and draws; the state is donated."""
    run = lambda state, dones, keys: jax.lax.scan(lambda s, x: step(s, *x), state, (dones, keys))  # noqa: E731
    args = state, jax.ShapeDtypeStruct((3, 8, 16), bool), jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 3))
    if num_states:
        run = jax.vmap(run)
        args = jax.tree.map(lambda x: jax.ShapeDtypeStruct((num_states, *x.shape), x.dtype), args)
    return jax.jit(run, donate_argnums=0).lower(*args).compile()


def add_and_sample(state, done, key):
    state = slice_index.add(state, done)
    return state, slice_index.sample(state, key, 32)


@pytest.mark.planned
@pytest.mark.parametrize("num_states", [None, 4])
@pytest.mark.parametrize("kind", ["strict", "strict, by episode", "padded"])
def test_no_step_reads_the_whole_ring(kind, num_states):
    """At 2^20 steps: nothing as large as the rows of the ring is copied, selected, sorted or reduced."""
    state = jax.eval_shape(partial(slice_index.init, 2**16, 16, 4, **KINDS[kind]))
    program = compiled(add_and_sample, state, num_states)
    ops = large_ops(program.as_text(), 2**16)
    assert ops["scatter"] > 0
    assert set(ops) <= ALLOWED
    memory = program.memory_analysis()
    assert memory.temp_size_in_bytes < 2**18
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    assert memory.alias_size_in_bytes >= size * (num_states or 1)


@pytest.mark.planned
def test_the_check_fails_for_a_step_that_reads_the_whole_ring():
    def step(state, done, key):
        new, drawn = add_and_sample(state, done, key)
        return jax.lax.cond(done[0, 0], lambda: new, lambda: state), drawn

    state = jax.eval_shape(partial(slice_index.init, 2**16, 16, 4))
    assert not set(large_ops(compiled(step, state, 4).as_text(), 2**16)) <= ALLOWED


@pytest.mark.parametrize("kind", ["strict", "strict, by episode", "padded"])
def test_a_donated_state_keeps_its_memory_address(kind):
    state = slice_index.init(64, 2, 3, **KINDS[kind])
    large = lambda state: [x.unsafe_buffer_pointer() for x in jax.tree.leaves(state) if x.size >= 40]  # noqa: E731
    before = large(state)
    assert large(jax.jit(slice_index.add, donate_argnums=0)(state, np.zeros((5, 2), bool))) == before


def test_types_are_the_same_with_64_bits():
    with jax.enable_x64(True):
        state = add(slice_index.init(9, 3, 4, sampling="episode"), np.zeros((5, 3), bool))
        batch = sample(state, jax.random.key(0), num_slices=64)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(state)} == {"uint32", "int32"}
    assert [leaf.dtype.name for leaf in batch] == ["uint32", "int32", "int32", "bool"]


# Mistakes.


def test_mistakes_are_named():
    for kwargs, message in [
        ({"num_rows": 0}, "num_rows=0 must be at least 1"),
        ({"num_envs": -1}, "num_envs=-1 must be at least 1"),
        ({"slice_len": 0}, "slice_len=0 must be at least 1"),
        ({"slice_len": 9}, "slice_len=9 must be at most num_rows=8"),
        ({"num_rows": 2**30}, "num_rows \\* num_envs = 2147483648 must be below 2\\^31"),
        ({"sampling": "step"}, "sampling='step' must be one of 'slice', 'episode'"),
        ({"sampling": "episode", "cross_episodes": True}, "sampling='episode' needs cross_episodes=False"),
    ]:
        with pytest.raises(ValueError, match=message):
            slice_index.init(**({"num_rows": 8, "num_envs": 2, "slice_len": 3} | kwargs))
    state = slice_index.init(8, 2, 3)
    for done, message in [
        (np.zeros((9, 2), bool), "done has 9 rows, expected 1 to 8"),
        (np.zeros((0, 2), bool), "done has 0 rows, expected 1 to 8"),
        (np.zeros((4, 3), bool), r"done has shape \(4, 3\), expected \(4, 2\)"),
        (np.zeros(2, bool), r"done has shape \(2,\)"),
        (np.zeros((4, 2), np.float32), "done has dtype float32, expected bool"),
    ]:
        for fn in (slice_index.add, slice_index.completed_slices):
            with pytest.raises(ValueError, match=message):
                fn(state, done)
    with pytest.raises(ValueError, match="sampling='slice' must be 'episode' for num_episodes"):
        slice_index.num_episodes(state)
    with pytest.raises(ValueError, match="sampling='episode' must be 'slice' for batch_of_pass"):
        slice_index.batch_of_pass(slice_index.init(8, 2, 3, sampling="episode"), jax.random.key(0), 0, 4)
    with pytest.raises(ValueError, match="slice_len=0 must be at least 1"):
        slice_index.slice_starts_from_done(np.zeros((3, 2), bool), 0)
    with pytest.raises(ValueError, match="call it outside of jit"):
        jax.jit(lambda state: slice_index.check(state))(state)


def break_ring(**values):
    return lambda s: s.replace(ring=s.ring.with_counts(**values))


def break_queue(name, **changes):
    def change(state):
        queue = getattr(state, name)
        return state.replace(**{name: queue.replace(**{k: f(getattr(queue, k)) for k, f in changes.items()})})

    return change


def swap(x):
    return x.at[:2].set(x[:2][::-1])


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("strict", break_ring(rows=21), "rows=21 is at most num_rows=20"),
        ("strict", break_ring(slot=20), "slot=20 is below"),
        ("strict", break_ring(slot=3), "slot=3 is rows=12"),
        ("strict", lambda s: s.replace(age=s.age + 9), "no longer than what is stored"),
        ("strict", lambda s: s.replace(age=s.age.at[0].add(1)), "that `age` allows"),
        ("strict", break_queue("starts", head=lambda x: x + 10_000), "below twice the capacity"),
        ("strict", break_queue("starts", head=lambda x: x + 60), "fit the capacity"),
        ("strict", break_queue("starts", head=lambda x: x - 1), "that `age` allows"),
        ("strict", break_queue("starts", tail=lambda x: x + 1), "come after those of the row before"),
        ("strict", break_queue("starts", before=lambda x: x.at[2].set(1)), "the first row .* has the tail"),
        ("strict", break_queue("starts", before=lambda x: x.at[6].add(1)), "each step lies in the row"),
        ("strict", break_queue("starts", items=swap), "environments of one row are in order"),
        ("strict", break_queue("starts", items=lambda x: x.at[0].add(3)), "each step lies in the row"),
        ("strict, by episode", break_queue("starts", head=lambda x: x + 1), "slices are the"),
        ("strict, by episode", break_queue("episodes", items=lambda x: (x[0], x[1] - 3)), "episodes have a slice"),
        ("strict, by episode", break_queue("episodes", items=lambda x: (x[0], x[1] + 3)), "slices are the|overlap"),
        ("padded, by episode", break_queue("episodes", items=lambda x: (x[0], x[1] + 3)), "do not overlap"),
        ("padded, by episode", lambda s: s.replace(age=s.age.at[0].add(3)), "comes after the finished"),
        ("padded, by episode", lambda s: s.replace(ended=s.ended.at[5, 1].set(~s.ended[5, 1])), "`ended` marks"),
        ("padded", lambda s: s.replace(ended=s.ended[:5]), "`ended` is"),
    ],
)
def test_check_names_the_broken_rule(kind, change, message):
    done = picture("...|....|.....", "......|....|..", "............")
    state = build(done, num_rows=20, slice_len=3, **KINDS[kind])
    slice_index.check(state)
    with pytest.raises(ValueError, match=message):
        slice_index.check(change(state))


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
