"""What `training.make` and its functions are given by mistake: one line before anything runs."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from counter_env import Counter
from mistakes import mistake

from rlkit import envs, spaces, training
from rlkit.agents import ppo, sac

SIZES = {"num_envs": 2, "num_steps": 4}


def agent_for(env, params, of=ppo, **keys):
    return of.make(of.Config(**keys), env.observation_space(params), env.action_space(params))


@pytest.mark.parametrize(
    ("of", "own", "other"), [(ppo, "CartPole-v1", "Acrobot-v1"), (sac, "Pendulum-v1", "CartPole-v1")]
)
def test_an_agent_of_another_environment_is_refused(of, own, other):
    agent = agent_for(*envs.make(own), of)
    with mistake("obs_space of the agent"):
        training.make(agent, *envs.make(other), **SIZES)


class OtherActions(Counter):
    def action_space(self, params):
        return spaces.Discrete(7)


def test_an_agent_with_other_actions_is_refused():
    with mistake("action_space of the agent"):
        training.make(agent_for(Counter(), ()), OtherActions(), (), **SIZES)


def test_what_is_no_environment_no_parameters_or_no_agent_is_named():
    env, params = envs.make("CartPole-v1")
    agent = agent_for(env, params)
    for wrong in ("CartPole-v1", (env, params), gymnasium.make("CartPole-v1")):
        with mistake("env="):
            training.make(agent, wrong, params, **SIZES)
    with mistake("params=None"):
        training.make(agent, env, None, **SIZES)
    with mistake("agent="):
        training.make(ppo, env, params, **SIZES)  # pyright: ignore[reportArgumentType]
    with mistake("env=None"):
        envs.make(None)  # pyright: ignore[reportArgumentType]
    with mistake("Gymnasium"):
        envs.adapt(gymnasium.make("CartPole-v1"))


def test_hyper_parameters_are_scalars_unless_a_vmap_maps_them():
    run = training.make(agent_for(Counter(), ()), Counter(), (), **SIZES)
    rates = ppo.Hyper(learning_rate=jnp.array([1e-3, 1e-4]))
    with mistake("learning_rate has shape [2]"):
        run.init(rates, jax.random.key(0))
    axes = jax.tree.map(lambda x: 0 if np.ndim(x) else None, rates)
    states = jax.vmap(run.init, (axes, None))(rates, jax.random.key(0))
    np.testing.assert_array_equal(states.agent.hyper.learning_rate, rates.learning_rate)


class WithoutFinal(Counter):
    def step(self, key, state, action, params):
        return *super().step(key, state, action, params)[:-1], {}


class LongReward(Counter):
    def step(self, key, state, action, params):
        obs, state, reward, *rest = super().step(key, state, action, params)
        return obs, state, reward[None], *rest


class FiveValues(Counter):
    def step(self, key, state, action, params):
        return super().step(key, state, action, params)[:-1]


@pytest.mark.parametrize(
    ("env", "named"), [(WithoutFinal, "final_observation"), (LongReward, "reward"), (FiveValues, "step")]
)
def test_a_step_of_another_form_is_named(env, named):
    run = training.make(agent_for(Counter(), ()), env(), (), **SIZES)
    state = run.init(ppo.Hyper(), jax.random.key(0))
    with mistake(named):
        jax.eval_shape(run.step, state)


class OtherObservations(Counter):
    def observation_space(self, params):
        return spaces.Box(-1, 1, (9,))


def test_observations_of_another_shape_than_their_space_are_named():
    run = training.make(agent_for(OtherObservations(), ()), OtherObservations(), (), **SIZES)
    with mistake("observations"):
        run.init(ppo.Hyper(), jax.random.key(0))
