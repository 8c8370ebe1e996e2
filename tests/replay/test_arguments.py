"""Arguments of replay and ops at the door: keys, lists, floats, integers of NumPy, missing axes; and short reprs."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_buffers import fill
from replay_model import ONE, steps

from rlkit import replay
from rlkit.ops import chunked, permutation, statistics
from rlkit.ops._integers import nearest_int32
from rlkit.replay import segment_tree, slice_index
from rlkit.types import ConfigError

pytestmark = pytest.mark.thorough
KEY = jax.random.key(0)
DONE = jnp.zeros((8, 1), bool)
BUFFERS = {"uniform": replay.uniform(8, 4), "prioritized": replay.prioritized(8, 4), "slices": replay.slices(8, 4, 2)}


# Computed when a test asks for them, and not where the file is only collected.
@cache
def index():
    return slice_index.build(DONE, slice_len=3)


@cache
def tree():
    return segment_tree.build(jnp.ones(5))


@cache
def filled(kind):
    return fill(BUFFERS[kind], 4)


DRAWS = {
    "permute": lambda key: permutation.permute(key, jnp.arange(3), 300),
    "permute a traced number": lambda key: permutation.permute(key, jnp.arange(3), jnp.int32(300)),
    "permutations": lambda key: permutation.permutations(key, 2, 3),
    "stratified_bootstrap": lambda key: statistics.stratified_bootstrap(jnp.ones((3, 2)), key, resamples=2),
    "segment_tree.sample": lambda key: segment_tree.sample(tree(), key, 2),
    "slice_index.sample": lambda key: slice_index.sample(index(), key, 2),
    "slice_index.batch_of_pass": lambda key: slice_index.batch_of_pass(index(), key, 0, 2),
    **{f"{kind}.sample": lambda key, kind=kind: BUFFERS[kind].sample(filled(kind), key) for kind in BUFFERS},
}
WRONG_KEYS = {
    "key is 0, expected a key; make one with jax.random.key": 0,
    "key is an array of uint32, expected a key": jax.random.key_data(KEY),
    "key has shape .2,., expected one key": jax.random.split(KEY),
}


@pytest.mark.parametrize("wrong", WRONG_KEYS)
@pytest.mark.parametrize("draw", DRAWS)
def test_a_key_that_is_none_is_named(draw, wrong):
    with pytest.raises(ValueError, match=wrong):
        DRAWS[draw](WRONG_KEYS[wrong])


ERRORS = {
    "index has dtype float32, expected integers": lambda: permutation.permute(KEY, jnp.ones(3), 5),
    "n has dtype float32, expected integers": lambda: permutation.permute(KEY, jnp.arange(3), 5.0),
    "n=5.0 must be an integer": lambda: permutation.permutations(KEY, 1, 5.0),
    "count=True must be an integer": lambda: permutation.permutations(KEY, True, 5),
    "slot has dtype float32, expected integers": lambda: slice_index.at(index(), jnp.ones(2), jnp.zeros(2, jnp.int32)),
    "env has shape .1,., expected .2,.": lambda: slice_index.at(index(), jnp.arange(2), jnp.arange(1)),
    "slot has shape .., expected .1,.": lambda: slice_index.at(index(), 1, 0),
    "k has dtype float32, expected integers": lambda: slice_index.batch_of_pass(index(), KEY, 1.0, 2),
    "k has shape .1,., expected ..": lambda: slice_index.batch_of_pass(index(), KEY, jnp.arange(1), 2),
    "done has shape .8,., expected .T, N.": lambda: slice_index.build(DONE[:, 0], slice_len=3),
    "done has shape .., expected .T, ....": lambda: slice_index.slice_starts_from_done(jnp.array(True), 3),
    "num_rows=8.0 must be an integer": lambda: slice_index.init(8.0, 1, 3),
    "capacity=8.0 must be an integer of at least 1": lambda: segment_tree.init(8.0),
    "batch_size=2.0 must be an integer of at least 1": lambda: segment_tree.sample(tree(), KEY, 2.0),
    "batch has leaves with leading axes": lambda: chunked.chunked_map(lambda x: x, [1.0, 2.0], 1),
}
CONFIG_ERRORS = {
    "capacity=8.0 must be an integer": lambda: replay.uniform(8.0, 4),
    "batch_size=True must be an integer": lambda: replay.uniform(8, True),
    "num_envs=2.0 must be an integer": lambda: replay.uniform(8, 4).init(ONE, 2.0),
}


@pytest.mark.parametrize("message", [*ERRORS, *CONFIG_ERRORS])
def test_mistakes_are_named_in_one_line(message):
    error = ConfigError if message in CONFIG_ERRORS else ValueError
    with pytest.raises(error, match=message) as caught:
        (ERRORS | CONFIG_ERRORS)[message]()
    assert "\n" not in str(caught.value)


def test_integers_of_numpy_are_integers():
    eight = np.int64(8)
    for buffer in (
        replay.uniform(eight, np.int32(4), length=np.uint8(2)),
        replay.prioritized(eight, np.int32(4)),
        replay.slices(eight, np.int32(4), np.uint8(2)),
    ):
        state = buffer.add(buffer.init(ONE, np.int64(1)), steps(4))
        assert buffer.sample(state, KEY).mask.all()
    expected = permutation.permute(KEY, jnp.array([2, 0]), 8)
    np.testing.assert_array_equal(permutation.permute(KEY, [2, 0], eight), expected)
    empty = segment_tree.init(eight, fanout=np.int64(4))
    assert (type(empty.capacity), type(empty.fanout)) == (int, int)
    assert jax.tree.structure(empty) == jax.tree.structure(segment_tree.init(8, fanout=4))
    starts = slice_index.init(eight, np.int64(1), np.int64(3))
    assert {type(starts.num_rows), type(starts.num_envs), type(starts.slice_len)} == {int}


def test_lists_are_arrays():
    added = slice_index.add(slice_index.init(8, 1, 3), [[False], [False], [True]])
    assert slice_index.size(added) == 1
    assert slice_index.completed_slices(added, [[False]]).completed.shape == (1, 1)
    assert slice_index.slice_starts_from_done([False, False, True], 3).tolist() == [True, False, False]
    buffer, state = BUFFERS["prioritized"], filled("prioritized")
    handle = buffer.sample(state, KEY).index
    after = buffer.update(state, handle, [1.0, 2.0, 3.0, 4.0])
    expected = buffer.update(state, handle, jnp.array([1.0, 2.0, 3.0, 4.0]))
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, after, expected)))


@pytest.mark.parametrize("k", [-1, 4, 2**30, 2**31 - 1, 2**31, 2**32 - 4, 2**32 - 1, 2**32, 2**64])
def test_a_batch_far_beyond_its_pass_is_empty(k):
    """Six slices in batches of four: k times four passes 2^32 and lands in the pass again."""
    np.testing.assert_array_equal(slice_index.batch_of_pass(index(), KEY, 1, 4).mask[:, 0], [True, True, False, False])
    assert not slice_index.batch_of_pass(index(), KEY, k, 4).mask.any()
    if 0 <= k < 2**32:
        assert not slice_index.batch_of_pass(index(), KEY, jnp.uint32(k), 4).mask.any()


def test_nearest_int32():
    lowest, highest = -(2**31), 2**31 - 1
    cases = {5: 5, np.uint8(200): 200, 2**40: highest, -(2**40): lowest, np.uint32(2**32 - 1): highest}
    assert [int(nearest_int32("x", x)) for x in cases] == list(cases.values())
    arrays = [jnp.uint32(2**32 - 1), jnp.int8(-3), jnp.uint32(7)]
    assert [int(nearest_int32("x", x)) for x in arrays] == [highest, -3, 7]


@pytest.mark.parametrize("kind", BUFFERS)
def test_the_repr_of_a_state_has_shapes_and_no_numbers(kind):
    text = repr(filled(kind))
    assert "counts=uint32[3]" in text
    assert "words=uint32[8,1," in text
    assert "Array(" not in text
    assert "\n" not in text
    assert len(text) < 1200


def test_reprs_of_structures():
    tree = segment_tree.init(10, fanout=8)
    assert repr(tree) == (
        "SegmentTree(leaves=float32[16], nodes=(float32[24],), roots=float32[3], capacity=10, fanout=8, "
        "statistics=('sum', 'min', 'max'))"
    )
    assert repr(jax.tree.map(lambda x: None, tree)).startswith("SegmentTree(leaves=None, ")
    assert "starts=RowQueue(items=int32[6], before=uint32[8]" in repr(index())
