"""rlkit.agents.pqn with a memory: targets and losses against a loop over steps, and what it learns."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ppo_rollouts import OBS, SMALL, all_finite, rollout_of, update
from short_trainings import mean_return, trained

from rlkit import envs
from rlkit.agents import pqn
from rlkit.agents.common.policy_evaluation import episode_starts
from rlkit.networks.cores.recurrent import where_rows
from rlkit.spaces import Discrete
from rlkit.types import ConfigError, Transition

T, N = 7, 4


def an_agent(scale=3, **settings):
    """-> an agent with a memory, and its state, its weights enlarged for values that depend on the memory."""
    agent = pqn.make(pqn.Config(**SMALL | {"memory_size": 5} | settings), OBS, Discrete(3))
    example = Transition(jnp.zeros(3), jnp.zeros((), jnp.int32), 0.0, False, False, jnp.zeros(3))
    hyper = pqn.Hyper(gamma=0.9, q_lambda=0.6, epsilon_steps=100.0)
    state = jax.jit(partial(agent.init, hyper, num_envs=N))(jax.random.key(0), example=example)
    return agent, state.replace(params=jax.tree.map(lambda x: scale * x, state.params))


@pytest.mark.parametrize("settings", [
    {"recurrent": "mingru", "chunk_size": 5},
    pytest.param({"recurrent": "gru", "normalize_obs": True}, marks=pytest.mark.thorough),
    pytest.param({"recurrent": "lstm", "memory_layers": 2, "dueling": True}, marks=pytest.mark.slow),
])  # fmt: skip
def test_targets_and_losses_are_those_of_a_loop(settings):
    agent, state = an_agent(**settings)
    network = agent.static.network
    rollout = jax.tree.map(np.asarray, rollout_of(agent, state, T, N, done=0.25))
    done, start = rollout.terminated | rollout.truncated, np.asarray(episode_starts(rollout))
    assert rollout.truncated[:-1].any()
    assert rollout.terminated[:-1].any()
    apply = jax.jit(lambda obs, core: network.apply(state.params, state.stats, obs, core)[0])

    core, q, next_value = jax.tree.map(lambda x: x[0], rollout.extras), [], []
    for t in range(T):
        core = where_rows(start[t], network.memory, core)
        jax.tree.map(lambda x, y, t=t: np.testing.assert_allclose(x[t], y, atol=1e-5), rollout.extras, core)
        values, core = apply(rollout.obs[t], core)
        q.append(np.asarray(values)[np.arange(N), rollout.action[t]])
        next_value.append(np.asarray(apply(rollout.next_obs[t], core)[0]).max(-1))
    expected, later = np.zeros((T, N)), next_value[-1]
    for t in reversed(range(T)):
        later = np.where(rollout.truncated[t] | (t == T - 1), next_value[t], 0.4 * next_value[t] + 0.6 * later)
        later = expected[t] = rollout.reward[t] + 0.9 * later * ~rollout.terminated[t]
    found = jax.jit(partial(pqn.targets, agent.static))(state, rollout)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)

    loss = jax.jit(partial(pqn.loss, agent.static))
    first = jax.tree.map(lambda x: x[0], rollout.extras)
    batch = pqn.Batch(rollout.obs, rollout.action, found, start)
    got = [
        loss(state.params, state.stats, state, b, jax.random.key(0), first)[0]
        for b in (batch, batch._replace(start=~done))
    ]
    np.testing.assert_allclose(got[0], np.mean(np.square(np.array(q) - expected)) / 2, rtol=1e-4)
    assert abs(got[1] - got[0]) > 1e-4 * got[0]  # other starts would be seen


@pytest.mark.thorough
def test_minibatches_are_environments_from_their_memories():
    """In the middle of episodes; a learning rate of 0 keeps the parameters, and the mean loss is that of the whole."""
    agent, state = an_agent(recurrent="gru", num_minibatches=2)
    state = state.replace(hyper=state.hyper.replace(learning_rate=jnp.zeros(())))
    later = jax.tree.map(lambda x: x[3:], rollout_of(agent, state, T, N, done=0.0))
    first = jax.tree.map(lambda x: x[0], later.extras)
    assert np.ptp(np.asarray(jax.tree.leaves(first)[0]), axis=0).max() > 0.05
    found = jax.jit(partial(pqn.targets, agent.static))(state, later)
    batch = pqn.Batch(later.obs, later.action, found, episode_starts(later))
    whole, (_, metrics) = jax.jit(partial(pqn.loss, agent.static))(
        state.params, state.stats, state, batch, jax.random.key(0), first
    )
    got = update(agent, state, later)[1]
    np.testing.assert_allclose([got["loss"], got["q"]], [whole, metrics["q"]], rtol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("settings", [
    {"recurrent": "mingru"},
    {"recurrent": "lru", "memory_layers": 2},
    pytest.param({"recurrent": "s5", "dueling": True}, marks=pytest.mark.slow),
    pytest.param({"recurrent": "gru", "normalize_obs": True}, marks=pytest.mark.slow),
    pytest.param({"recurrent": "lstm", "memory_layers": 2}, marks=pytest.mark.slow),
])  # fmt: skip
def test_an_update_is_finite_and_moves_every_weight(settings):
    agent, state = an_agent(scale=1, **settings)
    after, metrics = update(agent, state, rollout_of(agent, state, T, N))
    assert all_finite(after, metrics)
    moved = jax.tree.map(lambda a, b: bool(jnp.any(a != b)), state.params, after.params)
    assert all(jax.tree.leaves(moved)), moved


def test_minibatches_divide_environments():
    agent = pqn.make(pqn.Config(num_minibatches=4, recurrent="mingru"), OBS, Discrete(3))
    agent.check(8, 2)
    with pytest.raises(ConfigError, match="num_minibatches=4 must divide num_envs = 6"):
        agent.check(6, 2)


@pytest.mark.thorough
@pytest.mark.parametrize("recurrent", ["mingru", pytest.param("gru", marks=pytest.mark.slow)])
def test_memory_is_learned_where_it_is_needed(recurrent):
    env = envs.make("Probe-Memory")
    config = pqn.Config(recurrent=recurrent, memory_size=16, hidden_sizes=(16,), num_epochs=2, num_minibatches=4)
    hyper = pqn.Hyper(learning_rate=3e-3, epsilon_start=1.0, epsilon_end=0.05, epsilon_steps=10_000.0)
    agent, state = trained(pqn, config, hyper, env, 150, num_envs=16, num_steps=16)
    assert mean_return(agent, state, env) >= 0.95
