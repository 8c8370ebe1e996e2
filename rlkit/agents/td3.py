"""Twin delayed deep deterministic policy gradient, TD3 (Fujimoto et al. 2018), for bounded boxes.

A gradient step lowers, over transitions drawn from a replay buffer,

    critics  E[ w (Q_k(o, a) - y)^2 / 2 ],  y = r + γ^n min_k Q_target_k(o', clip(μ_target(o') + clip(ε, -c, c), -1, 1))
    policy   E[ -Q_1(o, μ(o)) ],  at every `policy_delay`-th step, when the targets move as well

with actions in [-1, 1]. It explores with normal noise, which `noise_correlation` carries from step to step. One
critic, no delay and no target noise are DDPG (Lillicrap et al. 2016). With `behavior_cloning` the policy also imitates
the data and lowers E[ -λ Q_1(o, μ(o)) + (μ(o) - a)^2 ], λ = bc_alpha / mean |Q_1| (Fujimoto and Gu 2021, eq. 5), to
learn from a dataset alone. Time limits are bootstrapped from the true final observation.
"""

from functools import partial
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Interval
from pydantic import Field, PositiveInt

from rlkit.agents.common import config, exploration, off_policy, q_critics
from rlkit.agents.common.normalization import normalize_obs
from rlkit.agents.common.off_policy import Batch
from rlkit.agents.common.optimizer import Descent
from rlkit.agents.common.q_critics import Parts
from rlkit.spaces import Space
from rlkit.types import Agent, Array, Key, PyTree, Sample, Scalar, Transition


class Config(config.Control):
    """What shapes the program. Static and hashable."""

    policy_delay: PositiveInt = Field(2, description="gradient steps of the critics for each of the policy")
    behavior_cloning: bool = Field(False, description="imitate the data too, to learn from a dataset alone")


class Hyper(config.LearningHyper):
    """What a vmap may sweep: float32 scalars. Infinity switches a term off. Noise is in units of actions in [-1, 1]."""

    exploration_noise: Annotated[Scalar, Interval(ge=0.0), "deviation of the acting noise"] = 0.1
    noise_correlation: Annotated[Scalar, Interval(ge=0.0, lt=1.0), "of the acting noise with the last step's"] = 0.0
    target_noise: Annotated[Scalar, Interval(ge=0.0), "deviation of the target's noise"] = 0.2
    target_noise_clip: Annotated[Scalar, Interval(ge=0.0), "at most so far"] = 0.5
    bc_alpha: Annotated[config.Positive, "weight of the values against imitation"] = 2.5


class State(off_policy.State):
    """Everything that learning carries from update to update. `params` are of the policy and the critics."""

    since_policy: Array  # [] int32, gradient steps since the policy's last
    target_due: Array  # [] bool, whether the targets were due between two steps of the policy, and still are


class Actor(NamedTuple):
    """What acting needs."""

    params: PyTree  # of the policy
    obs_stats: PyTree
    warming: Array  # [] bool, whether actions are still drawn uniformly
    noise: Array  # [], the deviation of the acting noise
    correlation: Array  # []


def choose(parts: Parts, params: PyTree, stats: PyTree, obs: PyTree) -> Array:
    """The policy's actions [..., D] in [-1, 1]."""
    return jnp.tanh(parts.networks.policy.apply(params, normalize_obs(parts.obs_space, stats, obs)))


def critic_loss(parts: Parts, params: PyTree, state: State, batch: Batch, key: Key) -> tuple[Array, tuple[Array, dict]]:
    """The critics' loss [], the priorities [B], and metrics."""
    hyper, stats = state.hyper, state.normalizer.obs
    next_action = choose(parts, state.target_params["policy"], stats, batch.next_obs)
    noise = hyper.target_noise * jax.random.normal(key, next_action.shape, next_action.dtype)
    noise = jnp.clip(noise, -hyper.target_noise_clip, hyper.target_noise_clip)
    next_action = jnp.clip(next_action + noise, -1.0, 1.0)
    next_q = q_critics.rate(parts.networks, state.target_params["critics"], stats, batch.next_obs, next_action).min(0)
    target = batch.reward + jnp.where(batch.discount == 0, 0.0, batch.discount * next_q)
    action = q_critics.seen(parts.networks, batch.action)
    error = q_critics.rate(parts.networks, params, stats, batch.obs, action) - jax.lax.stop_gradient(target)[None]
    loss = jnp.mean(batch.weight * jnp.sum(jnp.square(error), axis=0)) / 2
    return loss, (jax.lax.stop_gradient(jnp.mean(jnp.abs(error), axis=0)), {"critic_loss": loss})


def policy_loss(parts: Parts, params: PyTree, critics: PyTree, state: State, batch: Batch) -> tuple[Array, dict]:
    """The policy's loss [], and metrics."""
    stats = state.normalizer.obs
    action = choose(parts, params, stats, batch.obs)
    q = q_critics.rate(parts.networks, critics, stats, batch.obs, action)[0]
    loss = -jnp.mean(q)
    if parts.config.behavior_cloning:
        scale = state.hyper.bc_alpha / jnp.maximum(jax.lax.stop_gradient(jnp.mean(jnp.abs(q))), 1e-6)
        taken = q_critics.seen(parts.networks, batch.action)
        loss = scale * loss + jnp.mean(jnp.square(action - taken))
    return loss, {"policy_loss": loss, "q": jnp.mean(q)}


def init(parts: Parts, hyper: Hyper, key: Key, example: Transition, num_envs: int) -> State:
    """A state that has learned nothing; `example` is one step without batch axes."""
    params = q_critics.init(parts.networks, key, example.obs)
    return off_policy.init(
        parts,
        hyper,
        example,
        num_envs,
        params,
        params,
        State,
        opt_state={name: Descent.of(hyper, 0.0).init(part) for name, part in params.items()},
        since_policy=jnp.zeros((), jnp.int32),
        target_due=jnp.zeros((), bool),
    )


def actor(parts: Parts, state: State) -> Actor:
    """What acting needs of the state."""
    warming = state.replay.num_steps < jnp.uint32(parts.config.learning_starts)
    hyper = state.hyper
    stats = state.normalizer.obs
    return Actor(state.params["policy"], stats, warming, hyper.exploration_noise, hyper.noise_correlation)


def act(parts: Parts, actor: Actor, memory: Array, obs: PyTree, key: Key) -> tuple[Array, Array, tuple]:
    """One exploring step for one observation; uniform until learning starts. The memory [D] is the last noise."""
    noise_key, warm_key = jax.random.split(key)
    fresh = jax.random.normal(noise_key, memory.shape, memory.dtype)
    rho = actor.correlation  # from a standard normal start, as every episode's, the noise stays standard normal
    memory = jnp.where(jnp.all(memory == 0), fresh, rho * memory + jnp.sqrt(1.0 - jnp.square(rho)) * fresh)
    unit = jnp.clip(choose(parts, actor.params, actor.obs_stats, obs) + actor.noise * memory, -1.0, 1.0)
    action = q_critics.taken(parts.networks, unit)
    return memory, exploration.warm_up(parts.networks.action_space, warm_key, action, actor.warming), ()  # type: ignore[arg-type]


def policy(parts: Parts, actor: Actor, memory: Array, obs: PyTree, key: Key) -> tuple[Array, Array, tuple]:
    """One step for one observation, without noise. The key is not used."""
    return memory, q_critics.taken(parts.networks, choose(parts, actor.params, actor.obs_stats, obs)), ()


def gradient_step(
    parts: Parts, state: State, sample: Sample, due: Array, learning_rate: Array, key: Key
) -> tuple[State, Array, dict[str, Array]]:
    """Learn from one sample; the policy moves at every `policy_delay`-th call, and the targets with it once `due`."""
    batch = off_policy.batch_of(sample, state.hyper.gamma)
    rates, delay = Descent.of(state.hyper, learning_rate), parts.config.policy_delay
    grads, (priority, metrics) = jax.grad(partial(critic_loss, parts), has_aux=True)(
        state.params["critics"], state, batch, key
    )
    critics, critics_opt, norm = rates.step(state.params["critics"], state.opt_state["critics"], grads)
    gradient = jax.grad(partial(policy_loss, parts), has_aux=True)
    grads, policy_metrics = gradient(state.params["policy"], critics, state, batch)
    turn, due = state.since_policy + 1 >= delay, due | state.target_due
    mover, mover_opt, _ = rates.step(state.params["policy"], state.opt_state["policy"], grads, unless=~turn)
    params = {"policy": mover, "critics": critics}
    state = state.replace(
        params=params,
        opt_state={"policy": mover_opt, "critics": critics_opt},
        target_params=off_policy.target_update(params, state.target_params, due & turn, state.hyper.tau),
        since_policy=jnp.where(turn, 0, state.since_policy + 1),
        target_due=due & ~turn,
    )
    return state, priority, metrics | policy_metrics | {"grad_norm": norm}


def make(config: Config, obs_space: Space, action_space: Space, *, name: str = "td3") -> Agent:
    """TD3 for these spaces.

    Args:
      config: the static settings.
      obs_space, action_space: an environment's spaces.
      name: for errors.

    Raises:
      ConfigError: the action space is not a Box with finite bounds, or a setting does not fit.
    """
    networks = q_critics.make(config, obs_space, action_space, name=name, discrete=False, spread="none")
    parts = Parts(config, networks, off_policy.buffer(config))
    return off_policy.agent(
        parts,
        init,
        actor,
        act,
        policy,
        step=gradient_step,
        rows=config.n_step,
        memory=np.zeros((networks.size,), np.float32),
    )
