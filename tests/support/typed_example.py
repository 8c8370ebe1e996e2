"""A loop of one's own with types, that a type checker accepts."""

import jax
import jax.numpy as jnp

from rlkit import envs, replay, training
from rlkit.agents import dqn
from rlkit.ops import returns
from rlkit.types import Agent, Array, Buffer, Env, Key, PyTree, Transition


def make(name: str) -> tuple[Agent, Env, PyTree]:
    env, params = envs.make(name)
    config = dqn.Config(hidden_sizes=(32,), capacity=1024)
    return dqn.make(config, env.observation_space(params), env.action_space(params)), env, params


def train(key: Key, updates: int) -> Array:
    agent, env, params = make("Catch-bsuite")
    init, step = training.make(agent, env, params, num_envs=4, num_steps=8, total_steps=32 * updates)
    _, metrics = jax.lax.scan(lambda state, _: step(state), init(dqn.Hyper(gamma=0.9), key), None, updates)
    return metrics["episode_return"]


def advantage(rollout: Transition, value: Array, next_value: Array) -> Array:
    return returns.gae(
        rollout.reward, value, next_value, rollout.terminated, rollout.truncated, gamma=0.99, gae_lambda=0.95
    )[0]


def store(buffer: Buffer, state: PyTree, steps: Transition) -> PyTree:
    return buffer.add(state, steps)


buffer: Buffer = replay.uniform(capacity=1024, batch_size=32)
print(jnp.nanmean(train(jax.random.key(0), 10)))
