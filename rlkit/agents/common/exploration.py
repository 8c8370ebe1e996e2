"""Exploration: random actions with a probability that falls, and noise that is held over steps."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.agents.base.mistakes import UNSET
from rlkit.spaces import Box, Discrete, shape_of
from rlkit.types import Array, Key, PyTree, Scalar


def add_steps(num_steps: Array, more: int) -> Array:
    """Environment steps [] uint32 after `more`; at most 2^32 - 1, where schedules have long ended."""
    most = np.uint32(2**32 - 1)
    return jnp.where(num_steps > most - np.uint32(more), most, num_steps + np.uint32(more))


def epsilon(hyper: Any, num_steps: Array) -> Array:
    """The probability [] of a random action after so many environment steps []: linear, then constant.

    `hyper` has `schedule_steps` too, of which `epsilon_fraction` is a share.
    """
    steps = hyper.epsilon_steps
    if hyper.epsilon_fraction is not None:
        share = hyper.epsilon_fraction * hyper.schedule_steps
        steps = jnp.where(hyper.epsilon_fraction == UNSET, steps, share)
    progress = jnp.clip(num_steps.astype(jnp.float32) / steps, 0.0, 1.0)
    return hyper.epsilon_start + progress * (hyper.epsilon_end - hyper.epsilon_start)


def mask_illegal(q: Array, mask: Array | None) -> Array:
    """Values [..., A], those of illegal actions least; `mask` [..., A] bool, or None where all actions are legal."""
    return q if mask is None else jnp.where(mask, q, jnp.finfo(q.dtype).min)


def greedy(space: Discrete, q: Array, mask: Array | None) -> Array:
    """The legal action [...] of the largest value among q [..., A], in the space's dtype."""
    return jnp.argmax(mask_illegal(q, mask), axis=-1).astype(shape_of(space).dtype)


def epsilon_greedy(key: Key, space: Discrete, q: Array, mask: Array | None, epsilon: Scalar) -> Array:
    """The greedy action [] among q [A], or with probability epsilon a legal one drawn uniformly."""
    explore_key, action_key = jax.random.split(key)
    if mask is None:
        random = jax.random.randint(action_key, (), 0, q.shape[-1], jnp.int32)
    else:
        random = jax.random.categorical(action_key, mask_illegal(jnp.zeros_like(q), mask))
    explores = jax.random.uniform(explore_key) < epsilon
    return jnp.where(explores, random.astype(shape_of(space).dtype), greedy(space, q, mask))


def uniform_while(warming_up: Array, space: Box, key: Key, action: Array) -> Array:
    """The action, or one drawn uniformly from a bounded box where `warming_up` [] bool is true."""
    return jnp.where(warming_up, space.sample(key), action)


def gsde_step(output: PyTree, noise: PyTree, redraw_every: int, key: Key) -> tuple[Array, PyTree]:
    """A raw action [D] of state-dependent exploration, and the noise for the next step (Raffin et al. 2021).

    Args:
      output: as for `action_distributions.distribution`: (loc [D], log_std [F, D], features [F]).
      noise: (standard normal [F, D], steps since it was drawn [] int32); at 0 it is drawn anew.
      redraw_every: steps; 0 holds it for the episode.
    """
    matrix, age = noise
    matrix = jnp.where(age == 0, jax.random.normal(key, matrix.shape, jnp.float32), matrix)
    age = age + 1
    loc, log_std, features = output
    return loc + features @ (jnp.exp(log_std) * matrix), (matrix, age % redraw_every if redraw_every else age)


def gsde_start(features: int, size: int) -> PyTree:
    """The noise of `gsde_step` before the first step of an episode."""
    return np.zeros((features, size), np.float32), np.zeros((), np.int32)
