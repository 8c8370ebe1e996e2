"""agents.minibatches: every row once an epoch, the same gradient in chunks, memory that one chunk needs."""

from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ppo_rollouts import rollout_of, start

import rlkit
from rlkit.agents import ppo, pqn
from rlkit.agents.common import minibatches
from rlkit.agents.common.minibatches import MetricRows
from rlkit.spaces import Box, Discrete

KEY = jax.random.key(7)


def test_every_epoch_takes_each_row_once_in_an_order_of_its_own():
    orders = np.asarray(minibatches.shuffled(jax.random.key(0), 5, 4, 24))
    assert orders.shape == (5, 4, 6)
    flat = orders.reshape(5, 24)
    np.testing.assert_array_equal(np.sort(flat, axis=1), np.broadcast_to(np.arange(24), (5, 24)))
    assert len({tuple(order) for order in flat}) == 5


def squares(params, batch, key):
    error = jnp.tanh(batch["x"] @ params) - batch["y"]
    return jnp.mean(error**2), ((), {"loss": jnp.mean(error**2), "bias": jnp.mean(error)})


def batch_of(rows, width=4):
    x_key, y_key = jax.random.split(jax.random.key(rows))
    return {"x": jax.random.normal(x_key, (rows, width)), "y": jax.random.normal(y_key, (rows,))}


@pytest.mark.parametrize("chunk_size", [1, 7, 30, 100])
def test_chunks_give_the_gradient_and_the_metrics_of_the_whole(chunk_size):
    batch, params = batch_of(30), jnp.linspace(-1.0, 1.0, 4)
    whole = minibatches.gradient(squares, 1)(params, batch, KEY)
    assert not np.allclose(whole[0], 0.0)
    chunks = minibatches.num_chunks(ppo.Config(chunk_size=chunk_size), (), batch)
    parts = jax.jit(minibatches.gradient(squares, chunks))(params, batch, KEY)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), parts, whole)


def test_each_chunk_has_noise_of_its_own():
    """As dropout needs it: with one mask for all chunks, its noise would not average out."""

    def noisy(params, batch, key):
        return params * jnp.mean(jax.random.normal(key, batch.shape)), ((), {})

    found, _ = minibatches.gradient(noisy, 16)(jnp.float32(1.0), jnp.zeros(4096), KEY)
    assert abs(float(found)) < 4 / np.sqrt(4096)
    draws = [float(noisy(1.0, jnp.zeros(256), k)[0]) for k in jax.random.split(KEY, 16)]
    np.testing.assert_allclose(found, np.mean(draws), atol=1e-6)


def test_the_memory_of_a_gradient_is_that_of_a_chunk():
    def temporary(rows, chunk_size):
        shape = jax.eval_shape(lambda: batch_of(rows, 64))
        program = jax.jit(lambda p, b: minibatches.gradient(wide, rows // chunk_size)(p, b, KEY))
        params = jax.ShapeDtypeStruct((64, 64), jnp.float32)
        return program.lower(params, shape).compile().memory_analysis().temp_size_in_bytes

    def wide(params, batch, key):
        hidden = jnp.tanh(jnp.tanh(jnp.tanh(batch["x"] @ params) @ params) @ params)
        return jnp.mean(hidden), ((), {"loss": jnp.mean(hidden)})

    assert temporary(2**16, 2**10) < 1.5 * temporary(2**12, 2**10)
    assert temporary(2**16, 2**16) > 8 * temporary(2**16, 2**10)


@pytest.mark.parametrize("module", [ppo, pqn])
def test_a_cpu_has_chunks_of_its_own_and_a_number_is_kept(module):
    make = lambda **settings: module.make(module.Config(**settings), Box(-1, 1, (4,)), Discrete(2))  # noqa: E731
    assert make().static.config.chunk_size == minibatches.CPU_ROWS
    assert make(chunk_size=5).static.config.chunk_size == 5


@pytest.mark.parametrize(
    ("obs_space", "settings"),
    [
        (Box(-1, 1, (4,)), {"hidden_sizes": (64, 64)}),
        pytest.param(Box(0, 255, (36, 36, 4), np.uint8), {"encoder": "nature"}, marks=pytest.mark.slow),
    ],
)
def test_chunks_of_other_devices_fill_a_small_part_of_the_memory(obs_space, settings):
    """Counted for a few rows, and compared with what a compiled gradient takes."""
    config, memory, rows = ppo.Config(**settings), 2**38, 256
    network = ppo.make(config, obs_space, Discrete(2)).static.policy.network
    obs = jax.ShapeDtypeStruct((rows, *obs_space.shape), obs_space.dtype)
    weights = jax.eval_shape(network.init, jax.random.key(0), jax.ShapeDtypeStruct(obs_space.shape, obs_space.dtype))

    def loss(params, stats, obs):
        (logits, value), _ = network.apply(params, stats, obs)
        return jnp.square(logits).mean() + jnp.square(value).mean()

    taken = jax.jit(jax.grad(loss)).lower(*weights, obs).compile().memory_analysis().temp_size_in_bytes / rows
    chunk = minibatches.with_chunk_size(config, network, obs_space, memory).chunk_size
    assert chunk > minibatches.CPU_ROWS
    assert memory / 256 < chunk * taken < memory / 16
    assert minibatches.with_chunk_size(config, network, obs_space, 2**20).chunk_size == minibatches.CPU_ROWS


@pytest.mark.parametrize("recurrent", ["none", "gru"])
def test_a_device_is_asked_for_its_memory(monkeypatch, recurrent):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [SimpleNamespace(memory_stats=lambda: {"bytes_limit": 2**35})])
    agent = ppo.make(ppo.Config(recurrent=recurrent), Box(-1, 1, (4,)), Discrete(2))
    assert agent.static.config.chunk_size > minibatches.CPU_ROWS
    monkeypatch.setattr(jax, "local_devices", lambda: [SimpleNamespace(memory_stats=lambda: None)])
    agent = ppo.make(ppo.Config(recurrent=recurrent), Box(-1, 1, (4,)), Discrete(2))
    assert agent.static.config.chunk_size == minibatches.CPU_ROWS


def test_each_step_has_noise_of_its_own():
    keys = minibatches.noise_keys(jax.random.key(0), 6)
    assert len(np.unique(jax.vmap(jax.random.uniform)(keys))) == 6


def test_steps_that_do_not_count_are_left_out_of_the_means():
    """Three steps of four count."""

    def step(total, more):
        total = total + more
        return total, MetricRows.of({"a": total, "b": -total}, total < 20)

    _, metrics = jax.lax.scan(step, jnp.zeros(()), jnp.array([1.0, 5.0, 9.0, 13.0]))  # running sums 1, 6, 15, 28
    means = metrics.means()
    assert {name: float(mean) for name, mean in means.items()} == pytest.approx({"a": 22 / 3, "b": -22 / 3})


@pytest.mark.parametrize("module", [ppo, pqn])
def test_a_traceback_is_short_from_the_update_to_the_loss(module, monkeypatch):
    """As of a network of the user's that raises: six functions of the package, those two included."""

    def broken(*_):
        raise ZeroDivisionError

    config = module.Config(hidden_sizes=(8,), num_minibatches=2)
    agent = module.make(config, Box(-1, 1, (3,)), Discrete(3))
    state = jax.eval_shape(lambda: start(agent, module.Hyper()))
    rollout = jax.eval_shape(lambda state: rollout_of(agent, state, 4, 4), state)
    monkeypatch.setattr(module, "loss", broken)
    with pytest.raises(ZeroDivisionError) as raised:
        jax.eval_shape(agent.update, state, rollout, KEY)
    package = str(Path(rlkit.__file__).parent)
    frames = [entry.name for entry in raised.traceback if str(entry.path).startswith(package)]
    assert frames[0] == "update"
    assert len(frames) + 1 <= 6, [*frames, "loss"]
