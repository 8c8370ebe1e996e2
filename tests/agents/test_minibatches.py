"""agents.minibatches: every row once an epoch, the same gradient in chunks, memory that one chunk needs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlkit.agents.common import minibatches


def test_every_epoch_takes_each_row_once_in_an_order_of_its_own():
    orders = np.asarray(minibatches.shuffled(jax.random.key(0), 5, 4, 24))
    assert orders.shape == (5, 4, 6)
    flat = orders.reshape(5, 24)
    np.testing.assert_array_equal(np.sort(flat, axis=1), np.broadcast_to(np.arange(24), (5, 24)))
    assert len({tuple(order) for order in flat}) == 5


def squares(params, batch):
    error = jnp.tanh(batch["x"] @ params) - batch["y"]
    return jnp.mean(error**2), ((), {"loss": jnp.mean(error**2), "bias": jnp.mean(error)})


def batch_of(rows, width=4):
    x_key, y_key = jax.random.split(jax.random.key(rows))
    return {"x": jax.random.normal(x_key, (rows, width)), "y": jax.random.normal(y_key, (rows,))}


@pytest.mark.parametrize("chunk_size", [1, 5, 6, 7, 29, 30, 100])
def test_chunks_give_the_gradient_and_the_metrics_of_the_whole(chunk_size):
    batch, params = batch_of(30), jnp.linspace(-1.0, 1.0, 4)
    whole = minibatches.gradient(squares, params, batch, None)
    assert not np.allclose(whole[0], 0.0)
    parts = jax.jit(lambda p, b: minibatches.gradient(squares, p, b, chunk_size))(params, batch)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), parts, whole)


def test_the_memory_of_a_gradient_is_that_of_a_chunk():
    def temporary(rows, chunk_size):
        shape = jax.eval_shape(lambda: batch_of(rows, 64))
        program = jax.jit(lambda p, b: minibatches.gradient(wide, p, b, chunk_size))
        params = jax.ShapeDtypeStruct((64, 64), jnp.float32)
        return program.lower(params, shape).compile().memory_analysis().temp_size_in_bytes

    def wide(params, batch):
        hidden = jnp.tanh(jnp.tanh(jnp.tanh(batch["x"] @ params) @ params) @ params)
        return jnp.mean(hidden), ((), {"loss": jnp.mean(hidden)})

    assert temporary(2**16, 2**10) < 1.5 * temporary(2**12, 2**10)
    assert temporary(2**16, None) > 8 * temporary(2**16, 2**10)


def test_steps_that_do_not_count_are_left_out_of_the_means():
    """Three steps of four count; the learner sees every row of every order."""

    def step(learner, rows, key):
        learner = learner + rows.sum()
        return learner, ({"a": learner, "b": -learner}, learner < 20)

    orders = jnp.arange(8.0).reshape(4, 2)  # running sums 1, 6, 15, 28
    learner, metrics = minibatches.descend(step, jnp.zeros(()), orders, jax.random.key(0))
    assert float(learner) == 28.0
    means = metrics.means()
    assert {name: float(mean) for name, mean in means.items()} == pytest.approx({"a": 22 / 3, "b": -22 / 3})
