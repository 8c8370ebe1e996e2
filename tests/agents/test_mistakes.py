"""Values of Config and Hyper in Python: a mistake is a ConfigError of one line; tracing and vmap are as before."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mistakes import mistake

from rlkit import agents, envs
from rlkit.agents import dqn, ppo, sac, td3
from rlkit.agents.base import as_arrays
from rlkit.runs.config.schema import schema


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"gamma": 1.5}, ["gamma=1.5 must", "at least 0", "at most 1", "default is 0.99"]),
        ({"gamma": float("nan")}, ["gamma=nan must"]),
        ({"gamma": "x"}, ["gamma='x' must", "number", "default is 0.99"]),
        ({"learning_rate": float("inf")}, ["learning_rate=inf must", "finite", "default is 0.0003"]),
        ({"max_grad_norm": np.float32(-1)}, ["max_grad_norm=-1 must", "greater than 0", "default is 0.5"]),
    ],
)
def test_a_value_of_hyper_out_of_range_is_named_when_it_is_made(values, parts):
    with mistake(*parts):
        ppo.Hyper(**values)


@pytest.mark.parametrize("value", [2, jnp.float32(2.0)])
def test_init_names_other_values_that_are_known(value):
    with mistake("gamma=2 must"):
        as_arrays(dqn.Hyper(gamma=value), dqn.Config(), 1)


def test_defaults_that_stand_for_other_settings_are_accepted():
    for name in agents.names():
        hyper = agents.get(name).Hyper()
        assert agents.get(name).Hyper(**hyper.__dict__) == hyper
    with mistake("tau=2 must", "default is None"):
        dqn.Hyper(tau=2.0)


def test_the_range_is_that_of_a_config_file():
    for name in agents.names():
        for key, field in schema(name).models[2].model_fields.items():
            bounds = [getattr(rule, bound, None) for rule in field.metadata for bound in ("ge", "gt")]
            lowest = max((bound for bound in bounds if bound is not None), default=None)
            if lowest is not None and np.isfinite(lowest):
                with mistake(f"{key}="):
                    agents.get(name).Hyper(**{key: lowest - 1.0})


def test_traced_values_and_axes_of_vmap_are_not_checked():
    hyper = jax.vmap(lambda rate: as_arrays(ppo.Hyper(learning_rate=rate), ppo.Config(), 4))(jnp.array([-1.0, 1.0]))
    assert hyper.learning_rate.tolist() == [-1.0, 1.0]
    axes = jax.tree.map(lambda x: 0, hyper)  # max_grad_norm must be greater than 0
    assert jax.vmap(lambda h: h.max_grad_norm, in_axes=(axes,))(hyper).shape == (2,)
    assert jax.tree.map(np.ndim, hyper).adam_eps == 1
    assert jax.jit(lambda h: as_arrays(h, ppo.Config(), 4))(ppo.Hyper()).gamma == np.float32(0.99)


@pytest.mark.parametrize(
    ("make", "values", "parts"),
    [
        (ppo.Config, {"hidden": (8,)}, ["hidden is not a field of ppo.Config", "did you mean 'hidden_sizes'"]),
        (ppo.Config, {"num_epochs": 0, "num_minibatches": 0}, ["num_epochs=0 must be at least 1"]),
        (ppo.Config, {"gamma": 0.9}, ["gamma is not a field of ppo.Config", "a field of ppo.Hyper"]),
        (ppo.Hyper, {"hidden_sizes": 3}, ["hidden_sizes is not a field of ppo.Hyper", "a field of ppo.Config"]),
        (ppo.Hyper().replace, {"gama": 0.9}, ["gama is not a field of ppo.Hyper", "did you mean 'gamma'"]),
    ],
)
def test_a_mistake_in_a_config_or_a_hyper_is_one_line(make, values, parts):
    with mistake(*parts):
        make(**values)


@pytest.mark.parametrize("name", agents.names())
def test_the_config_of_another_agent_is_refused(name):
    other = ppo if name != "ppo" else sac
    env, params = envs.make(
        "Probe-Continuous"
        if name in ("ppo", "sac", "tqc", "crossq", "iql", "td3", "ddpg", "td3_bc", "rebrac")
        else "CartPole-v1"
    )
    spaces = env.observation_space(params), env.action_space(params)
    for config, given in ((other.Config(), f"{other.__name__.rpartition('.')[2]}.Config"), ({}, "builtins.dict")):
        with mistake(f"agent={name!r} ", given, f"use {name}.Config"):
            agents.get(name).make(config, *spaces)


def test_the_hyper_of_another_agent_is_refused_and_a_config_of_the_users_own_is_not():
    with mistake("agent='sac' ", "ppo.Hyper", "use sac.Hyper"):
        as_arrays(ppo.Hyper(), sac.Config(), 1)

    class Config(td3.Config):
        pass

    assert as_arrays(td3.Hyper(), Config(), 1).gamma == np.float32(0.99)
