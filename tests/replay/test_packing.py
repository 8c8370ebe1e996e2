"""rlkit.replay.packing: steps are read back bit for bit, from shared words and from arrays of their own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlkit.replay import packing

SHAPES = [(), (3,), (2, 5), (0,)]
DTYPES = ["bool", "int8", "uint8", "int16", "uint16", "float16", "bfloat16", "int32", "uint32", "float32", "complex64"]
DTYPES += ["float8_e4m3fn", "int4"]


def bits(x):
    return np.asarray(x).tobytes()


def steps(random, *leading):
    """Steps with leaves of every dtype and shape, of random bytes, which include NaNs of every kind."""

    def leaf(dtype, shape):
        dtype = jnp.dtype(dtype)
        if dtype in (jnp.bool_, jnp.int4):
            return jnp.asarray(random.integers(0, 2, (*leading, *shape)).astype(dtype))
        size = int(np.prod((*leading, *shape))) * dtype.itemsize
        return jnp.asarray(np.frombuffer(random.bytes(size), dtype).reshape((*leading, *shape)))

    return {
        f"{dtype}{shape}": leaf(dtype, shape) for dtype in DTYPES for shape in SHAPES[: 4 if dtype == "int8" else 2]
    }


def test_written_steps_are_read_back_bit_for_bit():
    random = np.random.default_rng(0)
    stored = packing.init(steps(random), 7, 2)
    first, second = steps(random, 3, 2), steps(random, 1, 2)
    stored = jax.jit(packing.write)(stored, jnp.array([6, 0, 1]), first)  # across the end of the ring
    stored = jax.jit(packing.write)(stored, jnp.array([4]), second)
    read = jax.device_get(jax.jit(packing.at)(stored, jnp.array([[0, 4], [1, 6]]), jnp.array([[1, 0], [0, 1]])))
    first, second = jax.device_get((first, second))
    for name, leaf in read.items():
        expected = [[first[name][1, 1], second[name][0, 0]], [first[name][2, 0], first[name][0, 1]]]
        assert leaf.dtype == first[name].dtype
        assert [[bits(x) for x in row] for row in leaf] == [[bits(x) for x in row] for row in expected], name
    for name, leaf in jax.jit(packing.unpack)(stored).items():
        assert bits(np.asarray(leaf)[[6, 0, 1]]) == bits(first[name])
        assert not any(bits(np.asarray(leaf)[5]))


def test_small_leaves_share_words_and_wide_ones_keep_their_dtype():
    pixels = jnp.zeros((84, 84), jnp.uint8)
    stored = packing.init(
        {"pixels": pixels, "reward": jnp.float32(0), "done": False, "x": jnp.zeros(5, jnp.int8)}, 10, 4
    )
    assert stored.words.shape == (10, 4, 1 + 2)  # a reward; six bytes of done and x, filled up to two words
    assert [(x.shape, x.dtype) for x in stored.own] == [((10, 4, 84, 84), jnp.uint8)]
    only = packing.init({"pixels": pixels}, 10, 4)
    assert only.words.shape == (10, 4, 0)
    assert packing.at(packing.write(only, jnp.array([2]), {"pixels": jnp.ones((1, 4, 84, 84), jnp.uint8)}), 2, 3)[
        "pixels"
    ].all()


def test_four_bytes_a_step_take_four_bytes():
    byte = jnp.zeros((), jnp.uint8)
    stored = packing.init({"obs": byte, "reward": byte, "terminated": False, "truncated": False}, 100, 1)
    assert sum(x.nbytes for x in jax.tree.leaves(stored)) == 400


@pytest.mark.parametrize("batch", [pytest.param((), marks=pytest.mark.slow), (3,)])
def test_rows_of_several_buffers_are_unpacked_together(batch):
    random = np.random.default_rng(1)
    new = steps(random, *batch, 2, 2)
    write = packing.write
    for _ in batch:
        write = jax.vmap(write, in_axes=(0, None, 0))
    empty = jax.tree.map(lambda x: jnp.zeros((*batch, *x.shape), x.dtype), packing.init(steps(random), 5, 2))
    whole = jax.jit(lambda empty, new: packing.unpack(write(empty, jnp.array([3, 4]), new)))(empty, new)
    for name, x in new.items():
        assert bits(np.asarray(whole[name])[:, 3:] if batch else np.asarray(whole[name])[3:]) == bits(x)
