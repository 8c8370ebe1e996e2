"""Learning from a replay buffer alone, which must hold something."""

from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlkit import envs, training
from rlkit.agents import dqn
from rlkit.types import ConfigError


def test_an_empty_buffer_is_nan_under_jit():
    """Learning from nothing had losses of zero."""
    env, params = envs.make("Probe-ObservationAction")
    config = dqn.Config(hidden_sizes=(4,), capacity=64, batch_size=4, learning_starts=0, replay_ratio=0.25)
    agent = dqn.make(config, env.observation_space(params), env.action_space(params))
    pair = training.offline(agent, env, params, num_envs=2, num_steps=8)
    state = jax.jit(pair.init)(dqn.Hyper(), jax.random.key(0))
    step = jax.jit(pair.step)
    after, metrics = step(state)
    assert all(np.isnan(metrics[name]) for name in ("loss", "q", "grad_norm"))
    jax.tree.map(np.testing.assert_array_equal, after.agent.params, state.agent.params)
    online = training.make(agent, env, params, num_envs=2, num_steps=8)
    filled, _ = jax.jit(online.step)(state)
    after, metrics = step(filled)
    assert after.key != filled.key  # the next step draws other samples
    assert metrics["buffer_size"] == 16
    assert jnp.isfinite(metrics["loss"])


@pytest.mark.parametrize("size", [0, 16])
def test_without_jit_an_empty_buffer_is_refused(size):
    env, params = envs.make("Probe-ObservationAction")
    metrics = {"buffer_size": jnp.int32(size), "loss": jnp.float32(1)}
    agent = dqn.make(dqn.Config(capacity=64, batch_size=4), env.observation_space(params), env.action_space(params))
    agent = agent._replace(learn=lambda state, *_: (state, metrics))
    pair = training.offline(agent, env, params, num_envs=2, num_steps=8)
    state = jax.jit(pair.init)(dqn.Hyper(), jax.random.key(0))
    refusal = pytest.raises(ConfigError, match=r"replay buffer .* empty; .*agent\.add")
    with nullcontext() if size else refusal:
        assert pair.step(state)[1]["loss"] == 1.0
