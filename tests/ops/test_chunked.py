"""rlkit.ops.chunked: the result of one call on the whole batch, in bounded memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlkit.ops.chunked import chunked_map, num_chunks

pytestmark = pytest.mark.optimized


@pytest.mark.parametrize(("rows", "chunk_size"), [(1, 1), (7, 3), (10, 4), (16, 16), (10, 100), (7, 1), (2, None)])
def test_every_row_comes_out_in_its_place(rows, chunk_size):
    batch = {"x": jnp.arange(rows * 2.0).reshape(rows, 2), "n": jnp.arange(rows)}

    def fn(b):
        return b["x"].sum(-1) + b["n"].astype(jnp.float32), b["n"][:, None] * 2

    first, second = jax.jit(lambda b: chunked_map(fn, b, chunk_size))(batch)
    np.testing.assert_array_equal(first, np.asarray(batch["x"]).sum(-1) + np.arange(rows))
    np.testing.assert_array_equal(second, 2 * np.arange(rows)[:, None])
    assert second.dtype == jnp.int32


def test_no_call_gets_more_than_a_chunk():
    shapes = []

    def fn(x):
        shapes.append(x.shape)
        return x

    chunked_map(fn, jnp.zeros((10, 3)), 4)
    assert set(shapes) == {(4, 3)}


def test_gradients_are_those_of_the_whole_batch():
    x = jnp.linspace(-1.0, 2.0, 10)
    for chunk_size in (5, 4):
        gradient = jax.grad(lambda w, c=chunk_size: chunked_map(lambda b: jnp.sin(w * b), x, c).sum())(0.7)
        np.testing.assert_allclose(gradient, jax.grad(lambda w: jnp.sin(w * x).sum())(0.7), rtol=1e-5)


def test_typed_keys_can_be_leaves():
    keys = jax.random.split(jax.random.key(0), 10)
    drawn = chunked_map(jax.vmap(jax.random.uniform), keys, 4)
    np.testing.assert_array_equal(drawn, jax.vmap(jax.random.uniform)(keys))


def test_vmap_over_batches():
    x = jnp.arange(30.0).reshape(3, 10)
    np.testing.assert_array_equal(jax.vmap(lambda b: chunked_map(lambda r: r * 2, b, 4))(x), x * 2)


@pytest.mark.parametrize("chunk_size", [4096, 3000])
def test_temporary_memory_does_not_depend_on_the_rows(chunk_size):
    w = jnp.ones((8, 64))

    def temporary_bytes(rows):
        program = jax.jit(lambda x: chunked_map(lambda c: jnp.tanh(jnp.tanh(c @ w) @ w.T).sum(-1), x, chunk_size))
        return (
            program.lower(jax.ShapeDtypeStruct((rows, 8), jnp.float32)).compile().memory_analysis().temp_size_in_bytes
        )

    small, large = temporary_bytes(2**14), temporary_bytes(2**19)
    assert abs(large - small) <= 0.05 * small
    assert large < 2**19 * 4  # less than a single copy of the output


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="leading axes"):
        chunked_map(lambda b: b, (jnp.zeros(3), jnp.zeros(4)), 2)
    with pytest.raises(ValueError, match="leading axes"):
        chunked_map(lambda b: b, (jnp.zeros(3), jnp.zeros(())), 2)
    with pytest.raises(ValueError, match="chunk_size=0"):
        chunked_map(lambda b: b, jnp.zeros(3), 0)


@pytest.mark.parametrize(
    ("rows", "chunk_size", "expected"),
    [(100, None, 1), (100, 100, 1), (100, 50, 2), (100, 49, 4), (65536, 8192, 8), (97, 50, 1), (24578, 8192, 1)],
)
def test_equal_chunks_are_as_few_as_divide_the_rows(rows, chunk_size, expected):
    assert num_chunks(rows, chunk_size) == expected


def test_chunks_of_no_rows_are_refused():
    with pytest.raises(ValueError, match="chunk_size=0"):
        num_chunks(10, 0)
