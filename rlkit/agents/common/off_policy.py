"""Off-policy updates: store a rollout, then sample, learn and set priorities.

An update stores a rollout and then makes `replay_ratio` gradient steps for each of its environment steps, in one scan.
Each draws a sample, learns from it, and writes the new priorities back with the handles of the sample. Before
`learning_starts` a `lax.cond` skips the gradient step. The buffer is not part of it: under `vmap` a cond computes both
branches and selects between their results.
"""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rlkit import _mesh, replay
from rlkit._mesh import vary_like
from rlkit.agents.common import exploration, normalization
from rlkit.agents.common.config import OffPolicyConfig
from rlkit.agents.common.optimizer import Optimizer
from rlkit.ops.windows import n_step_window
from rlkit.replay.validation import check_capacity
from rlkit.spaces import Space
from rlkit.types import Array, Buffer, Key, PyTree, Sample, Scalar, Transition


class ReplayState(struct.PyTreeNode):
    """Replay buffer and counts of environment steps; the field `replay` of every off-policy agent's State."""

    buffer: PyTree
    num_steps: Array  # [] uint32, environment steps so far; it stays at 2^32 - 1
    since_target: Array  # [] int32, environment steps since the last update of the target network


class Schedules(NamedTuple):
    """Scheduled values at one gradient step."""

    learning_rate: Array  # [] float32
    update_target: Array  # [] bool, true where the target network is to be updated
    group_rates: dict[str, Array] = {}  # noqa: RUF012 a constant; [], by the field of Hyper, as actor_learning_rate


class Batch(NamedTuple):
    """A batch of n-step transitions, leaves [B, ...]."""

    obs: PyTree
    action: PyTree
    reward: Array  # [B] the sum of n rewards, discounted
    discount: Array  # [B] factor of the value of next_obs, γ^n; 0 at a terminal state
    next_obs: PyTree
    weight: Array  # [B] importance weight, 0 where nothing was drawn


class Static(Protocol):
    """The static arguments that the functions of this module need."""

    @property
    def config(self) -> Any: ...

    @property
    def buffer(self) -> Buffer: ...

    @property
    def obs_space(self) -> Space: ...

    @property
    def axis_name(self) -> str | None: ...  # of the mesh axis over which environments and batches are divided


# (static, state, sample, schedules, key) -> state, priority [B], metrics. The state comes without its `replay`.
GradientStep = Callable[[Any, Any, Sample, Schedules, Key], tuple[Any, Array, dict[str, Array]]]


def buffer(config: OffPolicyConfig, axis_name: str | None = None) -> Buffer:
    """The buffer of transitions, or of windows for n-step returns, that a config describes."""
    settings: Any = {"length": config.n_step, "store_obs_once": config.store_obs_once, "axis_name": axis_name}
    if config.replay == "prioritized":
        return replay.prioritized(config.capacity, config.batch_size, alpha=config.alpha, **settings)
    return replay.uniform(config.capacity, config.batch_size, **settings)


def init(buffer: Buffer, example: Transition, num_envs: int) -> ReplayState:
    """An empty buffer for transitions like `example`, leaves [...], of `num_envs` environments."""
    return ReplayState(buffer.init(example, num_envs), jnp.zeros((), jnp.uint32), jnp.zeros((), jnp.int32))


def check(config: OffPolicyConfig, num_envs: int, num_steps: int, devices: int = 1) -> None:
    """Raise a ConfigError where a rollout or a batch does not fit the buffer, the gradient steps or the devices."""
    config.num_gradient_steps(num_envs * num_steps)
    purpose = f"rollouts of {num_steps} steps, and items of {config.item_length}, of {num_envs} environments"
    check_capacity(config.capacity, num_envs, min_rows=max(num_steps, config.item_length), purpose=purpose)
    config.check_batch_size()
    _mesh.share("num_envs", num_envs, devices)
    _mesh.share("batch_size", config.batch_size, devices)


def num_steps(static: Static, rollout: Transition) -> int:
    """The environment steps of a rollout, on all devices together."""
    return rollout.reward.size * _mesh.size(static.axis_name)


def store(static: Static, state: Any, rollout: Transition) -> Any:
    """The state with a rollout [T, N, ...] in its buffer."""
    return state.replace(replay=state.replay.replace(buffer=static.buffer.add(state.replay.buffer, rollout)))


def update_statistics(static: Static, state: Any, rollout: Transition) -> Any:
    """The state with a rollout [T, N, ...] in its observation statistics."""
    normalizer = normalization.update(state.normalizer, static.obs_space, rollout, state.hyper.gamma, static.axis_name)
    return state.replace(normalizer=normalizer)


def add(static: Static, state: Any, rollout: Transition) -> Any:
    """The state with a rollout [T, N, ...] in its buffer and its statistics: `Agent.add`, for datasets."""
    return update_statistics(static, store(static, state, rollout), rollout)


def learn(
    static: Static, gradient_step: GradientStep, state: Any, key: Key, num_steps: int
) -> tuple[Any, dict[str, Array]]:
    """Make the gradient steps that follow `num_steps` environment steps, from samples of the buffer.

    Before learning starts they change nothing but counts, and nothing is computed for them unless the states of several
    seeds are vmapped.

    Args:
      static: the agent's static arguments.
      gradient_step: of the agent: (static, state, sample, schedules, key) -> state, priority [B], metrics.
      state: the agent's state, with the rollout stored.
      key: a key.
      num_steps: environment steps of all environments together since the last call.

    Returns:
      The state, and the means of the metrics over the gradient steps; zeros before learning starts.
    """
    config, buffer, axis_name = static.config, static.buffer, static.axis_name
    key = _mesh.own_key(key, axis_name)
    count = config.num_gradient_steps(num_steps)
    rates = _learning_rates(config, state, num_steps)
    state = state.replace(replay=_advance(state, num_steps))
    has_items = (
        _mesh.least(buffer.size(state.replay.buffer), axis_name) > 0
    )  # on each device, so that all learn or none
    started = (state.replay.num_steps >= np.uint32(config.learning_starts)) & has_items
    elapsed = np.diff(np.arange(count + 1) * num_steps // count).astype(np.int32)  # steps before each gradient step
    bound_gradient_step = jax.jit(partial(gradient_step, static))  # traced once, for its shapes and for its branch

    def step(state: Any, inputs: tuple[Key, Array]) -> tuple[Any, dict[str, Array]]:
        key, elapsed = inputs
        sample_key, step_key = jax.random.split(key)
        replay, state = state.replay, state.replace(replay=())
        sample = buffer.sample(replay.buffer, sample_key)
        since = replay.since_target + elapsed
        update_target = since >= config.target_every if config.target_every else jnp.array(True)
        arguments = (state, sample, Schedules(rates["learning_rate"], update_target, rates), step_key)
        shapes = jax.eval_shape(bound_gradient_step, *arguments)

        def unchanged(state: Any, *_: Any) -> tuple[Any, Array, dict[str, Array]]:
            _, priority, metrics = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
            return vary_like((state, _mesh.vary(priority, axis_name), metrics), shapes, without=axis_name)

        state, priority, metrics = jax.lax.cond(started, bound_gradient_step, unchanged, *arguments)
        # A weight is never negative. The condition orders the write of priorities after the read of weights, so that
        # the priorities are changed in place.
        priority = jnp.where(started & (sample.weight >= 0), priority, jnp.nan)
        replay = replay.replace(
            buffer=buffer.update(replay.buffer, sample.index, priority),
            since_target=_since_target(config, since),
        )
        return state.replace(replay=replay), metrics

    start, inputs = vary_like(state, key, without=axis_name), (jax.random.split(key, count), jnp.asarray(elapsed))
    state, metrics = jax.lax.scan(step, start, inputs)
    metrics = jax.tree.map(jnp.mean, metrics)
    size = _mesh.total(buffer.size(state.replay.buffer), axis_name)
    return state, metrics | {"learning_rate": rates["learning_rate"], "buffer_size": size}


def wait(static: Static, state: Any, rollout: Transition) -> tuple[Any, dict[str, Array]]:
    """An update before learning starts, which stores a rollout [T, N, ...] and counts its steps: `Agent.wait`.

    The metrics are those of `learn` that need no gradient step.
    """
    config, axis_name, count = static.config, static.axis_name, num_steps(static, rollout)
    rates = _learning_rates(config, state, count)
    state = store(static, state, rollout)
    replay = _advance(state, count)
    state = state.replace(replay=replay.replace(since_target=_since_target(config, replay.since_target + count)))
    size = _mesh.total(static.buffer.size(state.replay.buffer), axis_name)
    metrics = {"learning_rate": rates["learning_rate"], "buffer_size": size}
    return update_statistics(static, state, rollout), metrics


def n_step_batch(sample: Sample, gamma: Scalar) -> Batch:
    """The n-step transitions of a sample of single steps [B, ...] or of windows [B, L, ...]."""
    item: Transition = sample.item
    if sample.mask.ndim == 1:
        discount = jnp.where(item.terminated, 0.0, gamma)
        weight = jnp.where(sample.mask, sample.weight, 0.0)
        return Batch(item.obs, item.action, item.reward, discount, item.next_obs, weight)
    window = n_step_window(item.reward, item.terminated, sample.mask, gamma=gamma)
    rows = jnp.arange(window.last.shape[0])
    first = jax.tree.map(lambda x: x[:, 0], item)
    next_obs = jax.tree.map(lambda x: x[rows, window.last], item.next_obs)
    weight = jnp.where(sample.mask[:, 0], sample.weight, 0.0)
    return Batch(first.obs, first.action, window.reward, window.discount, next_obs, weight)


def bootstrapped(batch: Batch, next_value: Array) -> Array:
    """The targets [B], reward + discount * next_value; next_value [B] is not read at a terminal state."""
    return batch.reward + jnp.where(batch.discount == 0, 0.0, batch.discount * next_value)


def target_update(params: PyTree, target_params: PyTree, tau: Scalar, *, when: Array) -> PyTree:
    """The target's parameters, moved by a share `tau` towards the new ones where `when` [] bool is true."""
    return jax.tree.map(lambda new, old: jnp.where(when, (1.0 - tau) * old + tau * new, old), params, target_params)


def _learning_rates(config: OffPolicyConfig, state: Any, num_steps: int) -> dict[str, Array]:
    """The learning rates [] by their fields in Hyper; the warm-up begins with the first gradient step."""
    before = state.replay.num_steps.astype(jnp.float32)
    learned = jnp.maximum(before + float(num_steps - config.learning_starts), 0.0)
    names = [field.name for field in fields(state.hyper) if field.name.endswith("learning_rate")]
    return {
        name: Optimizer.scheduled_rate(config, state.hyper, before, learned, getattr(state.hyper, name))
        for name in names
    }


def _since_target(config: OffPolicyConfig, since: Array) -> Array:
    """The environment steps since the last update of the target network, after one that was due."""
    return since % config.target_every if config.target_every else since


def _advance(state: Any, num_steps: int) -> ReplayState:
    """The replay state after `num_steps` more environment steps, with the importance exponent β that follows."""
    replay = state.replay.replace(num_steps=exploration.add_steps(state.replay.num_steps, num_steps))
    if not hasattr(replay.buffer, "beta"):
        return replay
    hyper = state.hyper
    progress = jnp.clip(replay.num_steps.astype(jnp.float32) / hyper.schedule_steps, 0.0, 1.0)
    beta = hyper.beta + progress * (hyper.beta_end - hyper.beta)
    return replay.replace(buffer=replay.buffer.replace(beta=vary_like(beta, replay.buffer.beta)))
