"""No random key is used twice: in an evaluation, or in the evolution of a population."""

import functools

import jax
import jax.numpy as jnp
import pytest

from rlkit import envs, training
from rlkit.agents import dqn, sac
from rlkit.training import population

RANGES = {"learning_rate": (1e-4, 1e-2), "gamma": (0.9, 0.99, "uniform")}


def make(module, name):
    env, params = envs.make(name)
    config = module.Config(hidden_sizes=(4,), capacity=64, batch_size=4, learning_starts=4)
    agent = module.make(config, env.observation_space(params), env.action_space(params))
    return agent, env, params, training.make(agent, env, params, num_envs=2, num_steps=2)


@pytest.mark.parametrize(("module", "name"), [(dqn, "CartPole-v1"), (sac, "Pendulum-v1")])
def test_no_key_of_an_evaluation_is_used_twice(module, name):
    agent, env, params, pair = make(module, name)
    state = jax.eval_shape(lambda key: pair.init(module.Hyper(), key), jax.random.key(0))

    def evaluate(state, key):
        return training.evaluate(agent, env, params, agent.actor(state), key, num_envs=2, episodes_per_env=2)

    with jax.debug_key_reuse(True):  # which looks while it traces
        jax.jit(evaluate).trace(state.agent, jax.random.key(1))


@pytest.mark.parametrize("explore", ["perturb", "resample"])
@pytest.mark.parametrize("exploit", ["truncation", "tournament"])
def test_no_key_of_an_evolution_is_used_twice(exploit, explore, monkeypatch):
    """All but copying: it gives a survivor the key that it had, and JAX counts the change of the others as a use."""

    def inherit(state, parent, key, **_):
        return state.replace(step=jax.random.bits(key, parent.shape))

    def start(hyper_key, init_key):
        hyper = population.initial(dqn.Hyper(), hyper_key, 4, RANGES)
        return jax.vmap(pair.init)(hyper, jax.random.split(init_key, 4))

    *_, pair = make(dqn, "CartPole-v1")
    monkeypatch.setattr(population, "inherit", inherit)
    evolve = functools.partial(population.evolve, ranges=RANGES, exploit=exploit, explore=explore)
    with jax.debug_key_reuse(True):
        state = jax.jit(start).trace(jax.random.key(0), jax.random.key(1)).out_info
        jax.jit(lambda *args: evolve(*args)).trace(state, jnp.zeros(4), jax.random.key(2))
