"""Values of Config and Hyper in Python: a mistake is a ConfigError of one line; tracing and vmap are as before."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlkit import agents, envs
from rlkit.agents import dqn, ppo, sac, td3
from rlkit.agents.base import as_arrays
from rlkit.runs.config.schema import schema
from rlkit.types import ConfigError


def message(call, *arguments, **keywords) -> str:
    with pytest.raises(ConfigError) as error:
        call(*arguments, **keywords)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"gamma": 1.5}, "gamma=1.5 must be at least 0 and at most 1; the default is 0.99"),
        ({"gamma": float("nan")}, "gamma=nan must be"),
        ({"learning_rate": np.float32(-1)}, "learning_rate=-1 must be at least 0 and finite; the default is 0.0003"),
        ({"learning_rate": float("inf")}, "learning_rate=inf must be at least 0 and finite"),
        ({"adam_eps": 0.0}, "adam_eps=0 must be greater than 0 and finite"),
        ({"max_grad_norm": -1.0}, "max_grad_norm=-1 must be greater than 0; the default is 0.5"),
    ],
)
def test_a_float_of_hyper_out_of_range_is_named_when_it_is_made(values, said):
    assert message(ppo.Hyper, **values).startswith(said)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"gamma": 2}, "gamma=2 must be"),
        ({"gamma": np.float32(1) + np.arange(2, dtype=np.float32)[1]}, "gamma=2 must be"),
        ({"gamma": jnp.float32(2.0)}, "gamma=2 must be"),
        ({"gamma": "x"}, "gamma='x' must be a number"),
    ],
)
def test_init_names_other_values_that_are_known(values, said):
    assert message(lambda: as_arrays(dqn.Hyper(**values), dqn.Config(), 1)).startswith(said)


def test_defaults_that_stand_for_other_settings_are_accepted():
    for name in agents.names():
        hyper = agents.get(name).Hyper()
        assert agents.get(name).Hyper(**hyper.__dict__) == hyper
    assert message(dqn.Hyper, tau=2.0) == "tau=2 must be greater than 0 and at most 1; the default is None"


def test_the_range_is_that_of_a_config_file():
    for name in agents.names():
        for key, field in schema(name).models[2].model_fields.items():
            bounds = [getattr(rule, bound, None) for rule in field.metadata for bound in ("ge", "gt")]
            lowest = max((bound for bound in bounds if bound is not None), default=None)
            if lowest is not None and np.isfinite(lowest):
                assert message(agents.get(name).Hyper, **{key: lowest - 1.0}).startswith(f"{key}=")


def test_traced_values_and_axes_of_vmap_are_not_checked():
    hyper = jax.vmap(lambda rate: as_arrays(ppo.Hyper(learning_rate=rate), ppo.Config(), 4))(jnp.array([-1.0, 1.0]))
    assert hyper.learning_rate.tolist() == [-1.0, 1.0]
    axes = jax.tree.map(lambda x: 0, hyper)  # max_grad_norm must be greater than 0
    assert jax.vmap(lambda h: h.max_grad_norm, in_axes=(axes,))(hyper).shape == (2,)
    assert jax.tree.map(np.ndim, hyper).adam_eps == 1
    assert jax.jit(lambda h: as_arrays(h, ppo.Config(), 4))(ppo.Hyper()).gamma == np.float32(0.99)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"hidden": (8,)}, "hidden is not a field of ppo.Config; did you mean 'hidden_sizes'?"),
        ({"num_epochs": -1}, "num_epochs=-1 must be at least 1"),
        (
            {"num_epochs": 0, "num_minibatches": 0},
            "num_epochs=0 must be at least 1",
        ),
        ({"activation": "tann"}, "activation='tann' must be"),
        ({"gamma": 0.9}, "gamma is not a field of ppo.Config; it is a field of ppo.Hyper"),
    ],
)
def test_a_mistake_in_a_config_is_one_line(values, said):
    assert message(ppo.Config, **values).startswith(said)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"hidden_sizes": 3}, "hidden_sizes is not a field of ppo.Hyper; it is a field of ppo.Config"),
        ({"gama": 0.9}, "gama is not a field of ppo.Hyper; did you mean 'gamma'?"),
    ],
)
def test_a_name_that_is_no_field_of_a_hyper_is_one_line(values, said):
    assert message(ppo.Hyper, **values) == said
    assert message(ppo.Hyper().replace, **values) == said


@pytest.mark.parametrize("name", agents.names())
def test_the_config_of_another_agent_is_refused(name):
    other = ppo if name != "ppo" else sac
    env, params = envs.make(
        "Probe-Continuous"
        if name in ("ppo", "sac", "tqc", "crossq", "iql", "td3", "ddpg", "td3_bc", "rebrac")
        else "CartPole-v1"
    )
    spaces = env.observation_space(params), env.action_space(params)
    said = message(agents.get(name).make, other.Config(), *spaces)
    wanted = f"this is {other.__name__.rpartition('.')[2]}.Config; use {name}.Config(...)"
    assert said == f"agent={name!r} needs a Config of its own, and {wanted}"
    assert "this is builtins.dict" in message(agents.get(name).make, {}, *spaces)


def test_the_hyper_of_another_agent_is_refused_and_a_config_of_the_users_own_is_not():
    said = message(as_arrays, ppo.Hyper(), sac.Config(), 1)
    assert said == "agent='sac' needs a Hyper of its own, and this is ppo.Hyper; use sac.Hyper(...)"

    class Config(td3.Config):
        pass

    assert as_arrays(td3.Hyper(), Config(), 1).gamma == np.float32(0.99)
