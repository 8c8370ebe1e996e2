"""Fields of Hyper that are None: values of other settings or of other fields take their place."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlkit import agents
from rlkit.agents import dqn, ppo, r2d2, sac, td3
from rlkit.agents.base import as_arrays
from rlkit.agents.base.keys import LearningRate, marked
from rlkit.agents.base.mistakes import UNSET
from rlkit.agents.common import clocks, exploration
from rlkit.agents.common.hyper import value_or
from rlkit.runs.config.parse import parse
from rlkit.training import population
from rlkit.types import ConfigError

RUN = {"env": "CartPole-v1", "num_envs": 2, "num_steps": 4, "total_steps": 64}


@pytest.mark.parametrize("name", agents.names())
def test_a_state_has_arrays_alone_and_no_field_is_infinite_by_default_but_limits(name):
    module = agents.get(name)
    arrays = as_arrays(module.Hyper(), module.Config(), 4)
    assert {(isinstance(x, jax.Array), x.shape, x.dtype.name) for x in vars(arrays).values()} == {(True, (), "float32")}
    infinite = {key for key, value in vars(module.Hyper()).items() if value is not None and np.isinf(value)}
    limits = {"actor_max_grad_norm", "critic_max_grad_norm", "max_grad_norm"}
    assert infinite <= limits | {"dual_clip", "vf_clip_eps", "target_kl", "kl_target"}
    again = as_arrays(arrays, module.Config(), 4)
    jax.tree.map(np.testing.assert_array_equal, again, arrays)


def test_values_of_other_settings():
    assert as_arrays(dqn.Hyper(), dqn.Config(), 4).tau == np.float32(0.005)
    assert as_arrays(dqn.Hyper(), dqn.Config(target_every=8), 4).tau == 1.0
    assert as_arrays(r2d2.Hyper(), r2d2.Config(), 1).epsilon_end == np.float32(0.05)
    assert as_arrays(ppo.Hyper(), ppo.Config(), 4).schedule_steps == np.inf


def test_a_batch_of_a_field_that_is_given_beside_fields_that_are_not():
    def rates(rate):
        hyper = as_arrays(td3.Hyper(learning_rate=0.5, actor_learning_rate=rate), td3.Config(), 4)
        state = dataclasses.make_dataclass("State", ["hyper", "replay"])
        replay = clocks.ReplayState((), jnp.uint32(2000), jnp.int32(0))
        return clocks.learning_rates(td3.Config(), state(hyper, replay), 4)

    found = jax.vmap(rates)(jnp.array([0.1, 0.0]))
    np.testing.assert_array_equal(found["actor_learning_rate"], np.float32([0.1, 0.0]))
    np.testing.assert_array_equal(found["critic_learning_rate"], np.float32([0.5, 0.5]))


@pytest.mark.parametrize("unset", [None, UNSET, jnp.array(UNSET)])
def test_another_field_takes_the_place_of_one_that_is_not_set(unset):
    assert value_or(unset, 0.25) == 0.25
    hyper = dqn.Hyper(epsilon_start=1.0, epsilon_end=0.0, epsilon_steps=100.0, schedule_steps=200.0)
    object.__setattr__(hyper, "epsilon_fraction", unset)
    assert exploration.epsilon(hyper, jnp.uint32(50)) == 0.5
    assert exploration.epsilon(hyper.replace(epsilon_fraction=0.25), jnp.uint32(50)) == 0.0


def test_a_rate_that_is_not_set_follows_one_that_changes():
    """As in a population, and where a state's Hyper is replaced."""
    hyper = as_arrays(sac.Hyper(learning_rate=0.5), sac.Config(), 4).replace(learning_rate=jnp.float32(0.25))
    assert [value_or(getattr(hyper, name), hyper.learning_rate) for name in marked(sac.Hyper, LearningRate)] == [
        0.25
    ] * 4


def test_runs_that_set_a_field_or_not_are_one_program():
    values = RUN | {"agent": "sac", "capacity": 256}
    config, other = parse(values | {"actor_learning_rate": None}), parse(values | {"actor_learning_rate": 0.5})
    assert config == parse(values)
    assert (config.hyper["actor_learning_rate"], config.hyper_arrays["actor_learning_rate"]) == (None, UNSET)
    assert other.hyper_arrays["actor_learning_rate"] == 0.5
    assert "actor_learning_rate: null" in config.resolved()
    assert parse(config.flat()) == dataclasses.replace(config, follow_run=False)


def test_members_of_a_population_start_with_values_of_a_field_that_is_not_set():
    ranges = {"actor_learning_rate": (1e-4, 1e-2)}
    members = population.initial(sac.Hyper(), jax.random.key(0), 8, ranges)
    assert members.critic_learning_rate is None
    drawn = np.asarray(members.actor_learning_rate)
    assert len(set(drawn.tolist())) == 8
    assert ((drawn >= 1e-4) & (drawn <= 1e-2)).all()


@pytest.mark.parametrize(("module", "name"), [(dqn, "gamma"), (ppo, "max_grad_norm"), (sac, "temperature")])
def test_a_field_that_nothing_replaces_must_be_given(module, name):
    with pytest.raises(ConfigError, match=f"^{name}=None must be a number; the default is "):
        as_arrays(module.Hyper(**{name: None}), module.Config(), 4)
