"""What a notebook prints of the records: one or two lines."""

import jax
import pytest

from rlkit import agents, envs, replay, training


@pytest.mark.parametrize("name", ["ppo", "pqn", "dqn", "sac", "r2d2"])
def test_a_record_or_a_state_is_at_most_two_short_lines(name):
    module = agents.get(name)
    env, params = envs.make("CartPole-v1")
    config = module.Config(hidden_sizes=(8,), **({} if name in ("ppo", "pqn") else {"capacity": 64, "batch_size": 8}))
    agent = module.make(config, env.observation_space(params), env.action_space(params))
    run = training.make(agent, env, params, num_envs=2, num_steps=4)
    state = jax.eval_shape(run.init, module.Hyper(), jax.random.key(0))
    for thing in (agent, state, state.agent, state.envs, config):
        lines = repr(thing).splitlines()
        assert len(lines) <= 2
        assert max(map(len, lines)) < 200
    assert f"{name}.Config(hidden_sizes=(8,)" in repr(agent)
    assert "params" in repr(state.agent)


def test_a_buffer_names_its_functions_and_its_state_its_shapes():
    buffer = replay.prioritized(64, 8)
    assert repr(buffer) == "Buffer of rlkit.replay.prioritized_buffer: init, add, sample, update, size, batch_of_pass"
    state = buffer.init({"obs": jax.numpy.zeros(3)}, 2)
    assert repr(state).startswith("PrioritizedState(ring=")
    assert "\n" not in repr(state)
