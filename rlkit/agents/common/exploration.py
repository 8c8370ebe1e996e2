"""How agents explore: random actions with a probability that falls, noise that is held over steps."""

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.agents.common import action_distributions, validation
from rlkit.agents.common.config import EpsilonHyper
from rlkit.spaces import Box, Discrete, Space
from rlkit.types import Array, Key, PyTree, Scalar


def discrete(space: Space, agent: str) -> Discrete:
    """The space, if it is Discrete; else a ConfigError that names the agents for such a space."""
    if not isinstance(space, Discrete):
        raise validation.cannot_act(agent, "a Discrete action space", space)
    return space


def count(num_steps: Array, more: int) -> Array:
    """Environment steps [] uint32 after `more`; at most 2^32 - 1, where schedules have long ended."""
    most = np.uint32(2**32 - 1)
    return jnp.where(num_steps > most - np.uint32(more), most, num_steps + np.uint32(more))


def epsilon(hyper: EpsilonHyper, num_steps: Array) -> Array:
    """The probability [] of a random action after so many environment steps []: linear, then constant."""
    progress = jnp.clip(num_steps.astype(jnp.float32) / hyper.epsilon_steps, 0.0, 1.0)
    return hyper.epsilon_start + progress * (hyper.epsilon_end - hyper.epsilon_start)


def legal(q: Array, mask: Array | None) -> Array:
    """Values [..., A] that no illegal action can win; `mask` [..., A] bool, or None where all are legal."""
    return q if mask is None else jnp.where(mask, q, jnp.finfo(q.dtype).min)


def greedy(space: Discrete, q: Array, mask: Array | None) -> Array:
    """The legal action [...] of the largest value among q [..., A], in the space's dtype."""
    return jnp.argmax(legal(q, mask), axis=-1).astype(space.dtype)


def epsilon_greedy(key: Key, space: Discrete, q: Array, mask: Array | None, epsilon: Scalar) -> Array:
    """The action [] of the largest value among q [A], or with probability epsilon any legal one, all alike."""
    explore_key, action_key = jax.random.split(key)
    if mask is None:
        random = jax.random.randint(action_key, (), 0, q.shape[-1], jnp.int32)
    else:
        random = jax.random.categorical(action_key, legal(jnp.zeros_like(q), mask))
    explores = jax.random.uniform(explore_key) < epsilon
    return jnp.where(explores, random.astype(space.dtype), greedy(space, q, mask))


def warm_up(space: Box, key: Key, action: Array, warming: Array) -> Array:
    """The action, or one drawn uniformly from a bounded box while an agent is `warming` [] up."""
    return jnp.where(warming, space.sample(key), action)


def gsde_step(output: PyTree, noise: PyTree, redraw_every: int, key: Key) -> tuple[Array, PyTree]:
    """A raw action [D] of state-dependent exploration, and what to hold on to (Raffin et al. 2021).

    Args:
      output: what `action_distributions.distribution` takes for it: (loc [D], log_std [F, D], features [F]).
      noise: (standard normal [F, D], steps since it was drawn [] int32); at 0 it is drawn anew.
      redraw_every: steps; 0 holds it for the episode.
    """
    matrix, age = noise
    matrix = jnp.where(age == 0, action_distributions.gsde_noise(key, *matrix.shape), matrix)
    age = age + 1
    return action_distributions.gsde_sample(output, matrix), (matrix, age % redraw_every if redraw_every else age)


def gsde_start(features: int, size: int) -> PyTree:
    """The noise of `gsde_step` before the first step of an episode."""
    return np.zeros((features, size), np.float32), np.zeros((), np.int32)
