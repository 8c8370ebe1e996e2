"""Learning from a replay buffer, for every off-policy agent: what it takes in, how often it learns, what goes back.

An update takes a rollout in and then makes `replay_ratio` gradient steps for each of its environment steps, all in one
scan. Each draws a sample, learns from it, and writes the new priorities back with the handles of the sample. Nothing is
learned before `learning_starts`, by a select of the parameters and not by a branch: a branch under `vmap` becomes a
select of both its results, the whole buffer included.
"""

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rlkit import replay
from rlkit.agents.common import exploration, normalization
from rlkit.agents.common.config import Learning, Replay
from rlkit.agents.common.normalization import Normalizer
from rlkit.agents.common.optimizer import Descent
from rlkit.ops.schedules import schedule
from rlkit.ops.windows import n_step_window
from rlkit.spaces import Space
from rlkit.types import Agent, Array, Buffer, ConfigError, Key, PyTree, Sample, Scalar, Transition

# (state, sample, due, learning_rate, key) -> state, priority [B], metrics; `due` [] bool: the target network is.
GradientStep = Callable[[Any, Sample, Array, Array, Key], tuple[Any, Array, dict[str, Array]]]


class Memory(struct.PyTreeNode):
    """What an off-policy agent has seen. Every agent's State holds one as `replay`."""

    buffer: PyTree
    num_steps: Array  # [] uint32, environment steps so far; it stays at 2^32 - 1
    since_target: Array  # [] int32, environment steps since the target network was last due


class State(struct.PyTreeNode):
    """Everything that learning carries from update to update."""

    hyper: Any
    params: PyTree
    target_params: PyTree
    opt_state: PyTree
    normalizer: Normalizer
    replay: Memory


class Batch(NamedTuple):
    """What a loss is computed from: n-step transitions, leaves [B, ...]."""

    obs: PyTree
    action: PyTree
    reward: Array  # [B] the sum of n rewards, discounted
    discount: Array  # [B] what the value of next_obs counts, γ^n; 0 where the world ended
    next_obs: PyTree
    weight: Array  # [B] importance weight, 0 where nothing was drawn


def buffer(config: Replay) -> Buffer:
    """The buffer of transitions, or of windows for n-step returns, that a config describes."""
    settings = {"length": config.n_step, "store_obs_once": config.store_obs_once}
    if config.replay == "prioritized":
        return replay.prioritized(config.capacity, config.batch_size, alpha=config.alpha, **settings)
    return replay.uniform(config.capacity, config.batch_size, **settings)


def init(
    parts: Any,
    hyper: Any,
    example: Transition,
    num_envs: int,
    params: PyTree,
    tracked: PyTree,
    kind: type[State] = State,
    **others: Any,
) -> Any:
    """A state that has learned nothing.

    Args:
      parts, hyper, example, num_envs: as for an agent's `init`.
      params: the network's parameters.
      tracked: those of them that the target network follows.
      kind: which State, and `others` its fields beyond the common ones, or in their place.
    """
    hyper = jax.tree.map(lambda x: jnp.array(x, jnp.float32), hyper)  # copies, so that the state can be donated
    obs, zero = parts.config.normalize_obs, jnp.zeros((), jnp.uint32)
    common = {
        "hyper": hyper,
        "params": params,
        "target_params": jax.tree.map(jnp.array, tracked),  # an array in two places cannot be donated
        "opt_state": Descent.of(hyper, 0.0).init(params),
        "normalizer": normalization.init(parts.obs_space, example, num_envs, obs=obs, reward=False),
        "replay": Memory(parts.buffer.init(example, num_envs), zero, zero.astype(jnp.int32)),
    }
    return kind(**common | others)


def check(config: Learning, rows: int, num_envs: int, num_steps: int) -> None:
    """Raise a ConfigError where a rollout of this size does not fit the buffer or the number of gradient steps.

    `rows` is how many steps of one environment an item of the buffer spans.
    """
    gradient_steps(config, num_envs * num_steps)
    if config.capacity % num_envs:
        near = max(config.capacity // num_envs, 1) * num_envs
        raise ConfigError(f"capacity={config.capacity} must be a multiple of num_envs = {num_envs}; try {near}")
    least = max(num_steps, rows) * num_envs
    if config.capacity < least:
        raise ConfigError(
            f"capacity={config.capacity} must be at least {least}, for rollouts of {num_steps} steps, and items of "
            f"{rows}, of {num_envs} environments; try {least}"
        )


def gradient_steps(config: Learning, num_steps: int) -> int:
    """How many gradient steps follow so many environment steps. Raises ConfigError where it is no whole number."""
    count = max(1, round(config.replay_ratio * num_steps))
    near = count / num_steps
    if near != config.replay_ratio:  # so 1/3 is a third: the ratio is the float that is nearest to it
        raise ConfigError(
            f"replay_ratio={config.replay_ratio:g} times num_envs * num_steps = {num_steps} must be a whole number; "
            f"try {near!r}, which is {Fraction(count, num_steps)}"
        )
    return count


def add(buffer: Buffer, state: Any, rollout: Transition) -> Any:
    """The state with a rollout [T, N, ...] in its buffer."""
    return state.replace(replay=state.replay.replace(buffer=buffer.add(state.replay.buffer, rollout)))


def update(
    config: Learning,
    buffer: Buffer,
    obs_space: Space,
    step: GradientStep,
    state: Any,
    rollout: Transition,
    key: Key,
) -> tuple[Any, dict[str, Array]]:
    """Take a rollout [T, N, ...] in and learn; the metrics are means over the gradient steps.

    Observation statistics stand still throughout, and take the rollout in at the end.
    """
    length, num_envs = rollout.reward.shape
    state, metrics = learn(config, buffer, step, add(buffer, state, rollout), key, length * num_envs)
    return take_in(obs_space, state, rollout), metrics


def take_in(obs_space: Space, state: Any, rollout: Transition) -> Any:
    """The state with a rollout [T, N, ...] in its observation statistics."""
    return state.replace(normalizer=normalization.take_in(state.normalizer, obs_space, rollout, state.hyper.gamma))


def learn(
    config: Learning, buffer: Buffer, step: GradientStep, state: Any, key: Key, rollout_steps: int
) -> tuple[Any, dict[str, Array]]:
    """Make the gradient steps that follow `rollout_steps` environment steps, from what is in the buffer."""
    count = gradient_steps(config, rollout_steps)
    before = state.replay.num_steps.astype(jnp.float32)  # so that the last steps of a schedule still count
    rate = schedule(config.learning_rate_schedule, before / state.hyper.schedule_steps)
    learning_rate = state.hyper.learning_rate * rate
    memory = state.replay.replace(num_steps=exploration.count(state.replay.num_steps, rollout_steps))
    learning = (memory.num_steps >= np.uint32(config.learning_starts)) & (buffer.size(memory.buffer) > 0)
    if hasattr(memory.buffer, "beta"):
        progress = jnp.clip(memory.num_steps.astype(jnp.float32) / state.hyper.schedule_steps, 0.0, 1.0)
        beta = state.hyper.beta + progress * (state.hyper.beta_end - state.hyper.beta)
        memory = memory.replace(buffer=memory.buffer.replace(beta=beta))
    state = state.replace(replay=memory)
    elapsed = np.diff(np.arange(count + 1) * rollout_steps // count).astype(np.int32)  # steps that fall to each

    def body(state: Any, inputs: tuple[Key, Array]) -> tuple[Any, dict[str, Array]]:
        key, elapsed = inputs
        sample_key, step_key = jax.random.split(key)
        memory, stored = state.replay, state.replay.buffer
        sample = buffer.sample(stored, sample_key)
        since = memory.since_target + elapsed
        due = since >= config.target_every if config.target_every else jnp.array(True)
        state = state.replace(replay=())
        learned, priority, metrics = step(state, sample, due, learning_rate, step_key)
        state = jax.tree.map(lambda new, old: jnp.where(learning, new, old), learned, state)
        # The weights are asked for so that they are read before the priorities are written: where nothing says so, XLA
        # copies what both touch, a tree over the whole buffer, at every step.
        priority = jnp.where(learning & (sample.weight >= 0), priority, jnp.nan)
        memory = memory.replace(
            buffer=buffer.update(stored, sample.index, priority),
            since_target=since % config.target_every if config.target_every else since,
        )
        return state.replace(replay=memory), jax.tree.map(lambda x: jnp.where(learning, x, 0.0), metrics)

    state, metrics = jax.lax.scan(body, state, (jax.random.split(key, count), jnp.asarray(elapsed)))
    metrics = jax.tree.map(jnp.mean, metrics)
    return state, metrics | {"learning_rate": learning_rate, "buffer_size": buffer.size(state.replay.buffer)}


def batch_of(sample: Sample, gamma: Scalar) -> Batch:
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


def target_update(params: PyTree, target_params: PyTree, due: Array, tau: Scalar) -> PyTree:
    """The target's parameters, moved by a share `tau` towards the new ones where an update is due."""
    return jax.tree.map(lambda new, old: jnp.where(due, (1.0 - tau) * old + tau * new, old), params, target_params)


def gradient_step(
    loss: Callable[..., tuple[Array, tuple[Array, dict[str, Array]]]],
    tracked: Callable[[PyTree], PyTree],
    batch_of: Callable[[Sample, Scalar], Any],
    parts: Any,
    state: Any,
    sample: Sample,
    due: Array,
    learning_rate: Array,
    key: Key,
) -> tuple[Any, Array, dict[str, Array]]:
    """Lower a loss (parts, params, state, batch, key) -> loss [], (priority [B], metrics) on one sample.

    The batch is `batch_of(sample, gamma)`. The target network follows `tracked(params)` where it is `due`. Returns the
    state, the priorities and the metrics.
    """
    batch = batch_of(sample, state.hyper.gamma)
    grads, (priority, metrics) = jax.grad(partial(loss, parts), has_aux=True)(state.params, state, batch, key)
    params, opt_state, norm = Descent.of(state.hyper, learning_rate).step(state.params, state.opt_state, grads)
    target_params = target_update(tracked(params), state.target_params, due, state.hyper.tau)
    state = state.replace(params=params, opt_state=opt_state, target_params=target_params)
    return state, priority, metrics | {"grad_norm": norm}


def _load(buffer: Buffer, obs_space: Space, state: Any, rollout: Transition) -> Any:
    return take_in(obs_space, add(buffer, state, rollout), rollout)


def agent(
    parts: Any,
    init: Callable[..., Any],
    actor: Callable[..., Any],
    act: Callable[..., Any],
    policy: Callable[..., Any],
    *,
    loss: Any = None,
    tracked: Callable[[PyTree], PyTree] = lambda params: params,
    step: Callable[..., tuple[Any, Array, dict[str, Array]]] | None = None,
    batch_of: Callable[[Sample, Scalar], Any] = batch_of,
    rows: int,
    memory: PyTree = (),
    memories: Callable[[int], PyTree] | None = None,
) -> Agent:
    """The functions of an off-policy agent, bound to their surroundings.

    Args:
      parts: what each function takes first; it has a `config`, a `buffer` and an `obs_space`.
      init, actor, act, policy: as `Agent` says.
      loss, tracked, batch_of: of `gradient_step`, for an agent that takes one step of descent for each sample; or else
      step: (parts, state, sample, due, learning_rate, key) -> state, priority [B], metrics.
      rows: how many steps of one environment an item of the buffer spans.
      memory, memories: as `Agent` says.
    """
    config, buffer = parts.config, parts.buffer
    bound = partial(step, parts) if step else partial(gradient_step, loss, tracked, batch_of, parts)
    return Agent(
        init=partial(init, parts),
        actor=partial(actor, parts),
        act=partial(act, parts),
        policy=partial(policy, parts),
        update=partial(update, config, buffer, parts.obs_space, bound),
        memory=memory,
        memories=memories,
        check=partial(check, config, rows),
        add=partial(_load, buffer, parts.obs_space),
        learn=partial(learn, config, buffer, bound),
    )
