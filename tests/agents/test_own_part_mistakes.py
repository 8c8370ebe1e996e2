"""Mistakes in an optimizer and a schedule of the user's own: one line each, before anything is compiled."""

import jax
import jax.numpy as jnp
import optax
import pytest
from mistakes import mistake
from optax import GradientTransformation

from rlkit import envs, training
from rlkit.agents import ppo, sac
from rlkit.types import ConfigError


def start(module, env="CartPole-v1", hyper=None, **settings):
    """Trace the start of a run, without computing it."""
    env, params = envs.make(env)
    config = module.Config(hidden_sizes=(4,), **settings)
    agent = module.make(config, env.observation_space(params), env.action_space(params))
    run = training.make(agent, env, params, num_envs=4, num_steps=8)
    return jax.eval_shape(lambda key: run.init(module.Hyper(**(hyper or {})), key), jax.random.key(0))


def no_rate():
    return optax.adam(1e-3)


def boom(_):
    raise RuntimeError("boom")


BOOM = f"raised RuntimeError: boom (test_own_part_mistakes.py, line {boom.__code__.co_firstlineno + 1})"


def without_state(update):
    return GradientTransformation(lambda params: (), update)


def sums(grads, state, params):
    return jax.tree.map(jnp.sum, grads), state


def counting(start, update):
    return GradientTransformation(
        lambda params: {"count": start}, lambda grads, state, params=None: (grads, update(state))
    )


COUNT = jnp.zeros((), jnp.int32)


@pytest.mark.parametrize(("optimizer", "words"), [
    (no_rate, ["a function of the learning rate", "raised TypeError", "no_rate", "learning rate alone"]),
    (boom, [BOOM]),
    (lambda rate: 3, ["a function of the learning rate", "returned 3"]),
    (without_state(lambda *arguments: boom(1)), ["update(grads, state, params)", "RuntimeError: boom (test_own_part"]),
    (without_state(lambda grads, state, params: grads), ["(updates, state)"]),
    (without_state(sums), ["the parameters' shapes", "[] for [4]"]),
    (without_state(lambda grads, state, params: ((), state)), ["the parameters' shapes", "another structure"]),
    (counting(COUNT, lambda state: {}), ["keep", "its state", "0 arrays for 1"]),
    (counting(COUNT, lambda state: {"count": state["count"] + 1.0}), ["float32[] for int32[] at ['count']"]),
    (optax.contrib.reduce_on_plateau(), ["update(grads, state, params)", "'value'", "no loss"]),
    (optax.lbfgs(), ["update(grads, state, params)", "'value_fn'", "no loss"]),
])  # fmt: skip
def test_a_mistake_of_an_optimizer_is_one_line(optimizer, words):
    with mistake("optimizer=", *words):
        start(ppo, num_minibatches=1, optimizer=optimizer)


def test_each_part_with_a_rate_of_its_own_is_checked():
    with pytest.raises(ConfigError, match=r"^optimizer=.*the parameters' shapes"):
        start(sac, "Pendulum-v1", {"actor_learning_rate": 1e-3}, optimizer=without_state(sums))


@pytest.mark.parametrize(("schedule", "words"), [
    (optax.adam(1e-3), "give a function"),
    (lambda: 1.0, "raised TypeError"),
    (boom, BOOM),
    (lambda steps: jnp.stack([steps, steps]), "returned an array [2]"),
    (lambda steps: None, "returned None"),
])  # fmt: skip
def test_a_mistake_of_a_schedule_is_one_line(schedule, words):
    with mistake("learning_rate_schedule=", "a function of the environment steps", words):
        start(ppo, num_minibatches=1, learning_rate_schedule=schedule)


@pytest.mark.parametrize(
    "optimizer", [optax.adam(1e-3), optax.lion, optax.adafactor, optax.contrib.schedule_free_adamw]
)
def test_optimizers_of_optax_pass(optimizer):
    start(ppo, num_minibatches=1, optimizer=optimizer, learning_rate_schedule=lambda steps: 1e-3)
