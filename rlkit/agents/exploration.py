"""Exploration in a discrete space: random actions with a probability that falls."""

import jax
import jax.numpy as jnp

from rlkit.agents.settings import EpsilonHyper
from rlkit.types import Array, ConfigError, Discrete, Key, Scalar, Space


def discrete(space: Space, agent: str, others: str) -> Discrete:
    """The space, if it is Discrete; else a ConfigError that names the agents for such a space."""
    if not isinstance(space, Discrete):
        raise ConfigError(f"agent={agent!r} needs a Discrete action space, and this one is {space}; use {others}")
    return space


def epsilon(hyper: EpsilonHyper, num_steps: Array) -> Array:
    """The probability [] of a random action after so many environment steps []: linear, then constant."""
    progress = jnp.clip(num_steps.astype(jnp.float32) / hyper.epsilon_steps, 0.0, 1.0)
    return hyper.epsilon_start + progress * (hyper.epsilon_end - hyper.epsilon_start)


def legal(q: Array, mask: Array | None) -> Array:
    """Values [..., A] that no illegal action can win; `mask` [..., A] bool, or None where all are legal."""
    return q if mask is None else jnp.where(mask, q, jnp.finfo(q.dtype).min)


def epsilon_greedy(key: Key, q: Array, mask: Array | None, epsilon: Scalar) -> Array:
    """The action [] int32 of the largest value among q [A], or with probability epsilon any legal one, all alike."""
    explore_key, action_key = jax.random.split(key)
    if mask is None:
        random = jax.random.randint(action_key, (), 0, q.shape[-1])
    else:
        random = jax.random.categorical(action_key, legal(jnp.zeros_like(q), mask)).astype(jnp.int32)
    greedy = jnp.argmax(legal(q, mask), axis=-1).astype(jnp.int32)
    return jnp.where(jax.random.uniform(explore_key) < epsilon, random, greedy)
