"""Updates of an off-policy agent: of DQN itself, and of a stand-in that writes down what it was given."""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.agents import dqn
from rlkit.agents.base import as_arrays
from rlkit.agents.common import off_policy
from rlkit.replay import segment_tree
from rlkit.spaces import Box, Discrete
from rlkit.types import Transition

OBS = Box(-100, 100, (1,))
ZERO = jnp.zeros(())
EXAMPLE = Transition(jnp.zeros(1), jnp.zeros((), jnp.int32), ZERO, ZERO > 0, ZERO > 0, jnp.zeros(1))
SMALL = {"capacity": 64, "batch_size": 4, "learning_starts": 0, "replay_ratio": 0.125, "hidden_sizes": (4,)}


def rollout(num_steps=1, num_envs=8, first=0.0):
    """Every observation and reward is the number of its step."""
    time = first + jnp.arange(num_steps * num_envs, dtype=jnp.float32).reshape(num_steps, num_envs)
    never = jnp.zeros(time.shape, bool)
    return Transition(time[..., None], jnp.zeros(time.shape, jnp.int32), time, never, never, time[..., None] + 1)


def stand_in(look, settings=None, hyper=None, num_envs=8):
    """-> state, update. `look(state, sample, due)` gives what is added to the parameters at every gradient step."""
    config = dqn.Config(**(SMALL | (settings or {})))
    static = SimpleNamespace(config=config, obs_space=OBS, buffer=off_policy.buffer(config), axis_name=None)

    def step(static, state, sample, schedules, key):
        addend = look(state, sample, schedules.update_target)
        params = jax.tree.map(lambda old, new: old + new, state.params, addend)
        priority = 10.0 + sample.item.reward.reshape(sample.weight.shape[0], -1)[:, 0]
        return state.replace(params=params), priority, {"loss": jnp.ones(())}

    hyper = as_arrays(dqn.Hyper(**(hyper or {})), config, num_envs)
    state = off_policy.init(static, hyper, EXAMPLE, num_envs, ((), ()))
    sample = jax.eval_shape(static.buffer.sample, state.replay.buffer, jax.random.key(0))
    shapes = jax.eval_shape(look, state, sample, jax.ShapeDtypeStruct((), bool))
    state = state.replace(params=jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes))

    return state, partial(off_policy.update, step, static)


def repeated(state, update, count, **size):
    """The states after each of `count` updates, stacked."""

    def body(state, key):
        state, _ = update(state, rollout(**size), key)
        return state, state

    return jax.jit(lambda s: jax.lax.scan(body, s, jax.random.split(jax.random.key(1), count))[1])(state)


def due(state, sample, due):
    return jnp.where(due, 1, 0)


def real(settings=None, hyper=None):
    agent = dqn.make(dqn.Config(**(SMALL | {"replay": "prioritized"} | (settings or {}))), OBS, Discrete(2))
    return agent, jax.jit(agent.init, static_argnums=3)(dqn.Hyper(**(hyper or {})), jax.random.key(0), EXAMPLE, 8)


def masses(state, count):
    return np.asarray(segment_tree.read(state.replay.buffer.priorities.mass, np.arange(count)))
