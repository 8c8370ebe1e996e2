"""Passes over a buffer, clearing, rows of slices, and buffers of any structure."""

from collections import Counter
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from buffer_invariants import check_buffer
from flax import struct
from mistakes import mistake
from replay_model import KINDS, ONE, Harness, N, R, steps

from rlkit import replay
from rlkit.replay import slice_index
from rlkit.types import Array

pytestmark = pytest.mark.thorough
KEY = jax.random.key(0)
BY_SLICE = [kind for kind in KINDS if "by episode" not in kind]
FEW = [
    "uniform",
    "prioritized windows, obs once",
    "slices, obs once, few final obs",
    "slices by episode",
    "slices across ends",
    "prioritized padded slices",
]


@pytest.mark.parametrize("kind", [pytest.param(k, marks=() if k in FEW else pytest.mark.slow) for k in BY_SLICE])
def test_a_pass_visits_each_item_once(kind):
    harness = Harness(*KINDS[kind])
    buffer = harness.buffer
    batch_of_pass = jax.jit(partial(_smaller, buffer.batch_of_pass))
    for num_steps in (2, R, 3):
        harness.add(num_steps)
        size = int(buffer.size(harness.state))
        visited = []
        for k in range(-(-size // 5) + 1):
            sample = batch_of_pass(harness.state, KEY, jnp.int32(k))
            valid = np.asarray(sample.mask.reshape(5, -1)[:, 0])
            assert valid.sum() <= max(min(5, size - 5 * k), 0)
            assert (sample.weight == 1).all()
            places = zip(sample.index.row.tolist(), sample.index.env.tolist(), strict=True)
            for i, (place, is_valid) in enumerate(zip(places, valid, strict=True)):
                if is_valid:
                    harness._check_item(
                        jax.tree.map(lambda x, i=i: np.asarray(x[i]), sample.item), np.asarray(sample.mask[i]), place
                    )
                    visited.append(place)
        assert Counter(visited) == Counter(harness.model.drawable())


def _smaller(batch_of_pass, *args):
    """Batches of 5, whatever the buffer's own size."""
    if "batch_size" in batch_of_pass.keywords:
        return batch_of_pass(*args, batch_size=5)
    (static,) = batch_of_pass.args
    name = next(name for name in ("batch_size", "num_slices") if name in static._fields)
    return batch_of_pass.func(static._replace(**{name: 5}), *args)


def test_the_order_of_a_pass_depends_on_its_key():
    buffer = replay.uniform(300, 300)
    state = buffer.add(buffer.init(ONE, 1), steps(300))
    first, again, other = (buffer.batch_of_pass(state, jax.random.key(i), 0).item.obs for i in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert (first != jnp.sort(first)).any()


def test_a_pass_by_episode_is_refused():
    buffer = replay.slices(8, 4, 2, sampling="episode")
    with pytest.raises(ValueError, match="sampling='episode' must be 'slice' for batch_of_pass"):
        buffer.batch_of_pass(buffer.add(buffer.init(ONE, 1), steps(4)), KEY, 0)


@pytest.mark.parametrize("kind", [pytest.param(k, marks=() if k in FEW else pytest.mark.slow) for k in KINDS])
def test_a_cleared_buffer_is_an_empty_one(kind):
    harness = Harness(*KINDS[kind])
    for num_steps in (R, 3):
        harness.add(num_steps)
        old, starts = harness.sample(KEY)
        if "prioritized" in kind and starts:
            harness.update(old, starts, np.full(len(starts), 9.0, np.float32))
    clear = jax.jit(replay.clear, donate_argnums=0)
    before = harness.state.ring.stored.words.unsafe_buffer_pointer()
    harness.state = clear(harness.state)
    assert harness.state.ring.stored.words.unsafe_buffer_pointer() == before
    assert int(harness.buffer.size(harness.state)) == 0
    check_buffer(harness.state)
    rows = harness.model.rows
    model = harness.model
    # From here on, the rows of the model are those since the clearing, with a beginning that is not stored.
    harness.model = type(model)(
        model.num_rows, model.num_envs, model.window, model.kind, max_final_obs=model.max_final_obs
    )
    for num_steps in (1, 3, R, 2):
        rollout = harness.stream.rollout(num_steps)
        harness.state = harness.add_jit(harness.state, rollout)
        harness.model.add(rollout)
        check_buffer(harness.state)
        assert int(harness.buffer.size(harness.state)) == len(harness.model.starts())
        sample = jax.device_get(harness.sample_jit(harness.state, KEY))
        drawn = sample.mask.reshape(len(sample.mask), -1)[:, 0]
        places = set(zip((sample.index.row - np.uint32(len(rows))).tolist(), sample.index.env.tolist(), strict=True))
        assert bool(drawn.any()) == bool(harness.model.drawable())
        assert not drawn.any() or places <= set(harness.model.drawable())
        late = harness.update_jit(harness.state, old.index, np.full(drawn.shape, 77.0, np.float32))
        assert all(jax.tree.leaves(jax.tree.map(np.array_equal, late, harness.state)))


@pytest.mark.parametrize("kind", ["slices", "padded slices", "slices across ends"])
def test_gathered_rows_are_those_of_the_buffer(kind):
    harness = Harness(*KINDS[kind])
    for num_steps in (R, 3):
        harness.add(num_steps)
    state = harness.state
    slices = slice_index.sample(state.index, KEY, 32)
    got = slice_index.gather(state.ring.steps, slices)
    for i, (row, env) in enumerate(zip(slices.row.tolist(), slices.env.tolist(), strict=True)):
        for k in np.flatnonzero(slices.mask[i]):
            expected = harness.model.item(row + int(k), env)
            jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[i, k], y), got, expected)  # noqa: B023
    flat = np.arange(R * N).reshape(R, N)
    places = slice_index.gather(flat, slices)
    np.testing.assert_array_equal(places[:, 0], slices.slot * N + slices.env)


def test_gather_names_leaves_that_do_not_fit():
    slices = slice_index.sample(slice_index.build(jnp.zeros((8, 2), bool), slice_len=3), KEY, 4)
    for data in (jnp.zeros(16), {"a": jnp.zeros((8, 2)), "b": jnp.zeros((2, 8))}, {}):
        with pytest.raises(ValueError, match=r"data has leaves with leading axes .*; give all of them the ring's"):
            slice_index.gather(data, slices)


class Step(NamedTuple):
    frame: dict[str, Array]
    terminated: Array
    truncated: Array


class Record(struct.PyTreeNode):
    frame: dict[str, Array]
    terminated: Array
    truncated: Array


STRUCTURES = {
    "named tuple": Step,
    "dataclass": Record,
    "dict": lambda frame, terminated, truncated: {"frame": frame, "terminated": terminated, "truncated": truncated},
}


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("kind", ["uniform", "windows", "prioritized windows", "slices", "prioritized slices"])
def test_steps_of_any_structure_are_those_of_transitions(structure, kind):
    buffer = {
        "uniform": replay.uniform(16, 8),
        "windows": replay.uniform(16, 8, length=3),
        "prioritized windows": replay.prioritized(16, 8, length=3),
        "slices": replay.slices(16, 8, 3, strict=False),
        "prioritized slices": replay.slices(16, 8, 3, prioritized=True),
    }[kind]
    ended = jnp.array([[False], [False], [True], [False], [False], [False]])
    rollout = steps(6, terminated=ended)
    other = STRUCTURES[structure]({"id": rollout.obs.astype(jnp.int32)}, ended, ended & False)

    def drawn(rollout):
        state = buffer.add(buffer.init(jax.tree.map(lambda x: x[0, 0], rollout), 1), rollout)
        check_buffer(state)
        sample = buffer.sample(state, KEY)
        return sample, buffer.update(state, sample.index, jnp.ones(8)), buffer.batch_of_pass(state, KEY, 0)

    (sample, _, batch), (expected, _, expected_batch) = drawn(other), drawn(rollout)
    for one, two in ((sample, expected), (batch, expected_batch)):
        item = one.item if isinstance(one.item, dict) else {name: getattr(one.item, name) for name in Step._fields}
        np.testing.assert_array_equal(item["frame"]["id"], two.item.obs.astype(jnp.int32))
        np.testing.assert_array_equal(item["truncated"], two.item.truncated)
        np.testing.assert_array_equal(one.mask, two.mask)


def test_single_steps_need_no_flags():
    buffer = replay.prioritized(8, 16)
    state = buffer.add(buffer.init(jnp.zeros(3), 2), jnp.arange(12.0).reshape(2, 2, 3))
    check_buffer(state)
    assert set(np.asarray(buffer.sample(state, KEY).item[:, 0]).tolist()) <= {0.0, 3.0, 6.0, 9.0}


ERRORS = {
    "example=tuple has no leaf": lambda: replay.uniform(8, 4).init((), 1),
    "example=dict lacks truncated, which windows need": lambda: replay.uniform(8, 4, length=2).init(
        {"terminated": jnp.array(True)}, 1
    ),
    "lacks terminated and truncated, which slices need": lambda: replay.slices(8, 4, 2).init(jnp.zeros(3), 1),
    "example.truncated=.* must be a bool": lambda: replay.slices(8, 4, 2).init(
        ONE._replace(truncated=jnp.zeros(())), 1
    ),
    "store_obs_once=True needs steps of type Transition, and example=dict": lambda: replay.uniform(
        8, 4, store_obs_once=True
    ).init({"obs": jnp.zeros(3)}, 1),
}


@pytest.mark.parametrize("message", ERRORS)
def test_what_a_step_needs_is_named(message):
    with mistake() as caught:
        ERRORS[message]()
    assert caught.match(message)


def test_the_first_leaf_gives_the_number_of_rows():
    buffer = replay.uniform(8, 4)
    state = buffer.init({"x": jnp.zeros(3)}, 2)
    with pytest.raises(ValueError, match=r"x has shape \(5, 2, 3\), expected \[T, 2, 3\] with 1 <= T <= 4"):
        buffer.add(state, {"x": jnp.zeros((5, 2, 3))})
