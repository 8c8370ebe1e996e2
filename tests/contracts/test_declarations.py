"""Declarations of agents and of the records in their states, without compiling anything."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from agent_examples import EXAMPLES
from flax import struct
from jax.sharding import AbstractMesh
from models import model_of

from rlkit import agents, envs, training
from rlkit.agents import pqn
from rlkit.agents.base.keys import LearningRate, marked
from rlkit.types import Array


def records(tree):
    """The flax records within a tree."""
    if isinstance(tree, struct.PyTreeNode):
        yield tree
        tree = [getattr(tree, field.name) for field in dataclasses.fields(tree)]
    if isinstance(tree, tuple | list | dict):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from records(part)


def a_run(module, name, settings, **arguments):
    """An agent and its training run on an environment."""
    env, params = envs.make(name)
    config = module.Config(hidden_sizes=(4,), **settings)
    spaces = env.observation_space(params), env.action_space(params)
    agent = module.make(config, *spaces, **model_of(module, spaces[0], env, params), **arguments)
    return agent, training.make(agent, env, params, num_envs=4, num_steps=8)


@pytest.mark.parametrize("name", agents.names())
def test_the_divided_fields_are_fields_of_their_records(name):
    module = agents.get(name)
    env_name, settings = EXAMPLES[name][0]
    settings = {key: value for key, value in settings.items() if key != "hidden_sizes"}
    run = a_run(module, env_name, settings)[1]
    state = jax.eval_shape(lambda key: run.init(module.Hyper(), key), jax.random.key(0))
    divided = {
        type(record): (getattr(record, "by_environment", ()), getattr(record, "by_device", ()))
        for record in records(state)
    }
    assert any(names != ((), ()) for names in divided.values())
    for record, names in divided.items():
        assert {*names[0], *names[1]} <= {field.name for field in dataclasses.fields(record)}


@pytest.mark.parametrize("name", agents.names())
def test_learning_rates_are_declared(name):
    module = agents.get(name)
    rates = {field.name for field in dataclasses.fields(module.Hyper) if field.name.endswith("learning_rate")}
    assert rates == set(marked(module.Hyper, LearningRate))


class Counts(struct.PyTreeNode):
    """Numbers that a made-up agent keeps beside its parameters."""

    by_environment = ("of_env",)
    by_device = ("of_device",)

    of_env: Array  # [N]
    of_device: Array  # []
    of_all: Array  # []


class State(pqn.State):
    """PQN's state with such numbers, in a dict."""

    counts: dict[str, Counts]


def test_the_records_of_any_agent_divide_their_own_fields():
    agent, _ = a_run(pqn, "CartPole-v1", {}, axis_name="data")

    def init(hyper, key, example, num_envs):
        counts = Counts(jnp.zeros(num_envs // 2), jnp.zeros(()), jnp.zeros(()))
        return State(**vars(agent.init(hyper, key, example, num_envs)), counts={"a": counts})

    env, params = envs.make("CartPole-v1")
    run = training.make(agent._replace(init=init), env, params, num_envs=4, num_steps=8)
    mesh: Any = AbstractMesh((2,), ("data",))
    run = training.data_parallel(run, mesh, "data", check_vma=False)
    state = jax.eval_shape(run.init, pqn.Hyper(), jax.random.key(0))
    counts = state.agent.counts["a"]
    assert (counts.of_env.shape, counts.of_device.shape, counts.of_all.shape) == ((4,), (2,), ())
    assert jax.tree.structure(jax.eval_shape(run.step, state)[0]) == jax.tree.structure(state)
