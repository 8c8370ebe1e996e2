"""Population-based training of agents, and of a problem whose answer is known."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from rlkit import envs, training
from rlkit.agents import dqn, ppo
from rlkit.training import TrainState, population

KEY = jax.random.key(3)


def surrogate(state: TrainState) -> TrainState:
    """A step of gradient ascent on Jaderberg et al. 2017, section 3.1: 1.2 - (h0 θ0² + h1 θ1²)."""
    h = jnp.stack([state.agent.hyper.h0, state.agent.hyper.h1])
    return state.replace(agent=state.agent.replace(params=state.agent.params * (1.0 - 2 * 0.02 * h)))


class QuadraticHyper(struct.PyTreeNode):
    h0: jax.Array
    h1: jax.Array


class Quadratic(struct.PyTreeNode):
    hyper: QuadraticHyper
    params: jax.Array  # [2]


@pytest.mark.parametrize(("explore", "low"), [("resample", 0.0), ("perturb", 0.01)])
def test_a_population_reaches_what_none_of_its_members_can(explore, low):
    """Each of two members can climb along one axis alone; their maximum without evolution is 1.2 - 0.8² = 0.56."""
    hyper = QuadraticHyper(jnp.array([1.0, 0.0]), jnp.array([0.0, 1.0]))
    params = jnp.array([[0.9, 0.8], [0.9, 0.8]])
    start = TrainState(Quadratic(hyper, params), (), jax.random.split(KEY, 2), jnp.zeros(2))
    ranges = {"h0": (low, 1.0, "uniform"), "h1": (low, 1.0, "uniform")}

    def interval(state, key, evolves):
        state = jax.lax.fori_loop(0, 10, lambda _, s: jax.vmap(surrogate)(s), state)
        value = 1.2 - (state.agent.params**2).sum(1)
        return (population.evolve(state, value, key, ranges, explore=explore)[0] if evolves else state), value

    best = {}
    for evolves in (True, False):
        function = partial(interval, evolves=evolves)
        run = jax.jit(partial(jax.lax.scan, function))
        best[evolves] = float(run(start, jax.random.split(jax.random.key(0), 200))[1][-1].max())
    assert best[True] > 1.19
    assert best[False] == pytest.approx(0.56, abs=1e-3)


@pytest.mark.thorough
def test_a_population_of_an_off_policy_agent_keeps_its_buffers():
    """With a real state: the buffer, its counts and the environments stay; the optimizer and the targets follow."""
    env, params = envs.make("Probe-ObservationAction")
    config = dqn.Config(capacity=64, batch_size=4, learning_starts=8, hidden_sizes=(4,))
    agent = dqn.make(config, env.observation_space(params), env.action_space(params))
    pair = training.make(agent, env, params, num_envs=4, num_steps=4)
    hyper = population.initial(dqn.Hyper(), KEY, 4, {"learning_rate": (1e-3, 1e-1)})
    state = jax.vmap(pair.init)(hyper, jax.random.split(KEY, 4))
    step = jax.jit(jax.vmap(pair.step))
    for _ in range(3):
        state, metrics = step(state)
    evolve = jax.jit(partial(population.evolve, ranges={"learning_rate": (1e-3, 1e-1)}, exploit="tournament"))
    after, lineage = evolve(state, jnp.arange(4.0), KEY)
    parent = np.asarray(lineage.parent)
    assert (parent != np.arange(4)).any()
    equal = lambda a, b: jax.tree.map(np.testing.assert_array_equal, a, b)  # noqa: E731
    equal(after.agent.replay, state.agent.replay)
    equal(after.envs, state.envs)
    for name in ("params", "target_params", "opt_state", "normalizer"):
        equal(getattr(after.agent, name), jax.tree.map(lambda x: x[parent], getattr(state.agent, name)))
    after, metrics = step(after)
    copies = [int(parent[m]) for m in range(4) if parent[m] != m]
    assert np.isfinite(metrics["loss"]).all(), copies


@pytest.mark.slow
def test_learning_rates_that_are_bad_recover():
    """PPO on CartPole-v1 with learning rates from 1e-6 to 1e-1: the median member learns only where they evolve."""
    env, params = envs.make("CartPole-v1")
    config = ppo.Config(num_epochs=4, num_minibatches=4, hidden_sizes=(32,))
    agent = ppo.make(config, env.observation_space(params), env.action_space(params))
    pair = training.make(agent, env, params, num_envs=8, num_steps=64)
    hyper = ppo.Hyper(learning_rate=jnp.logspace(-6, -1, 8), gamma=jnp.full(8, 0.98), gae_lambda=jnp.full(8, 0.8))
    hyper = jax.tree.map(lambda x: jnp.broadcast_to(jnp.asarray(x, jnp.float32), (8,)), hyper)
    ranges = {"learning_rate": (1e-6, 1e-1)}

    @partial(jax.jit, static_argnums=2)
    def interval(state, key, evolves):
        state, metrics = jax.lax.scan(lambda s, _: jax.vmap(pair.step)(s), state, length=10)
        ended = metrics["lengths"] > 0
        scores = jnp.mean(metrics["returns"], (0, 2, 3), where=ended)
        return (population.evolve(state, scores, key, ranges)[0] if evolves else state), scores

    medians, rates = {}, {}
    for evolves in (True, False):
        state = jax.vmap(pair.init)(hyper, jax.random.split(jax.random.key(0), 8))
        for key in jax.random.split(jax.random.key(1), 20):
            state, scores = interval(state, key, evolves)
        medians[evolves], rates[evolves] = float(jnp.median(scores)), np.asarray(state.agent.hyper.learning_rate)
    assert medians[True] > 400 > 200 > medians[False]
    assert rates[True].min() > 1e-4  # the descendants of the smallest rates are gone
