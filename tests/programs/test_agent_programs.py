"""Compiled train steps of off-policy agents: no operation reads or writes a whole replay buffer."""

import jax
import jax.numpy as jnp
import pytest
from hlo import large_operations

from rlkit import agents, envs, training

pytestmark = pytest.mark.thorough
CAPACITY = 2**18
CASES = {
    "dqn": ("Probe-ObservationAction", {"replay": "prioritized", "n_step": 3}),
    "r2d2": ("Probe-Memory", {"memory_size": 4, "burn_in": 2, "unroll_len": 4}),
}


@pytest.mark.parametrize(
    ("name", "seeds"),
    [("dqn", 2), *(pytest.param(*case, marks=pytest.mark.slow) for case in (("dqn", None), ("r2d2", 2)))],
)
def test_nothing_in_a_train_step_touches_the_whole_buffer(name, seeds):
    """Neither before learning starts, nor in the scan over gradient steps, nor for several seeds."""
    module, (env_name, settings) = agents.get(name), CASES[name]
    env, params = envs.make(env_name)
    config = module.Config(hidden_sizes=(8,), capacity=CAPACITY, batch_size=32, replay_ratio=0.125, **settings)
    agent = module.make(config, env.observation_space(params), env.action_space(params))
    pair = training.make(agent, env, params, num_envs=8, num_steps=4)
    key = jax.eval_shape(lambda: jax.random.key(0))
    state = jax.eval_shape(pair.init, module.Hyper(), key)
    step = pair.step
    if seeds:
        state = jax.tree.map(lambda x: jax.ShapeDtypeStruct((seeds, *x.shape), x.dtype), state)
        step = jax.vmap(step)
    program = jax.jit(step, donate_argnums=0).lower(state).compile()
    assert large_operations(program.as_text(), CAPACITY // 4) == []
    memory = program.memory_analysis()
    num_bytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state.agent.replay))
    assert memory.alias_size_in_bytes >= num_bytes  # donated: the buffer is updated in place
    assert memory.temp_size_in_bytes < 2**20 < num_bytes


@pytest.mark.slow
def test_a_planted_select_of_the_buffer_is_reported():
    config = agents.get("dqn").Config(hidden_sizes=(8,), capacity=CAPACITY, replay_ratio=0.125)
    env, params = envs.make("Probe-ObservationAction")
    agent = agents.get("dqn").make(config, env.observation_space(params), env.action_space(params))
    pair = training.make(agent, env, params, num_envs=8, num_steps=4)
    state = jax.eval_shape(pair.init, agents.get("dqn").Hyper(), jax.eval_shape(lambda: jax.random.key(0)))

    def step_with_select(state):
        after, _ = pair.step(state)
        learning = after.agent.replay.num_steps > 1000
        chosen = jax.tree.map(lambda new, old: jnp.where(learning, new, old), after.agent, state.agent)
        return after.replace(agent=chosen)

    text = jax.jit(step_with_select, donate_argnums=0).lower(state).compile().as_text()
    assert large_operations(text, CAPACITY // 4) != []
