"""Twin delayed deep deterministic policy gradient, TD3 (Fujimoto et al. 2018), for bounded boxes.

A gradient step minimizes, over transitions drawn from a replay buffer,

    critics  E[ w (Q_k(o, a) - y)^2 / 2 ],  y = r + γ^n min_k Q_target_k(o', clip(μ_target(o') + clip(ε, -c, c), -1, 1))
    policy   E[ -Q_1(o, μ(o)) ],  at every `policy_delay`-th step, when the targets are updated as well

with actions in [-1, 1]. It explores with normal noise, correlated from step to step by `noise_correlation`. One critic,
no delay and no target noise are DDPG (Lillicrap et al. 2016). With `behavior_cloning` the policy also imitates the data
and minimizes E[ -λ Q_1(o, μ(o)) + (μ(o) - a)^2 ], λ = bc_alpha / mean |Q_1| (Fujimoto and Gu 2021, eq. 5), to learn
from a dataset alone. Time limits are bootstrapped from the true final observation.
"""

from functools import partial
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Interval
from flax import struct
from pydantic import Field

from rlkit import _mesh
from rlkit.agents.common import exploration, normalization, off_policy, q_critics, validation
from rlkit.agents.common.config import Count, QCriticConfig
from rlkit.agents.common.hyper import ActorCriticHyper, FiniteNonNegative, FinitePositive, as_arrays
from rlkit.agents.common.normalization import Normalizer, normalize_obs
from rlkit.agents.common.off_policy import Batch, ReplayState, Schedules
from rlkit.agents.common.optimizer import Optimizer, mean_gradient
from rlkit.agents.common.q_critics import Static
from rlkit.spaces import Space
from rlkit.types import Agent, Array, Key, PyTree, Sample, Scalar, Transition


class Config(QCriticConfig):
    """Static settings."""

    policy_delay: Count = Field(2, description="gradient steps of the critics for each of the policy")
    behavior_cloning: bool = Field(False, description="imitate the data too, to learn from a dataset alone")


class Hyper(ActorCriticHyper):
    """Traced float32 scalars, which a vmap may sweep. Infinity switches a term off. Noise is of actions in [-1, 1]."""

    exploration_noise: Annotated[FiniteNonNegative, "deviation of the acting noise"] = 0.1
    noise_correlation: Annotated[Scalar, Interval(ge=0.0, lt=1.0), "of the acting noise with the last step's"] = 0.0
    target_noise: Annotated[FiniteNonNegative, "deviation of the target's noise"] = 0.2
    target_noise_clip: Annotated[Scalar, Interval(ge=0.0), "bound of the target's noise"] = 0.5
    bc_alpha: Annotated[FinitePositive, "weight of the values against imitation"] = 2.5


class State(struct.PyTreeNode):
    """Everything that learning carries from update to update."""

    hyper: Hyper
    params: PyTree  # of the policy and the critics
    target_params: PyTree  # of both
    opt_state: PyTree  # of both, apart
    normalizer: Normalizer
    replay: ReplayState
    policy_metrics: dict[str, Array]  # [], of the policy's last step; zeros before the first
    since_policy: Array  # [] int32, gradient steps since the policy's last
    target_pending: Array  # [] bool, true where a target update waits for the policy's next step


class Actor(NamedTuple):
    """Parameters and statistics for acting."""

    params: PyTree  # of the policy
    obs_stats: PyTree
    warming_up: Array  # [] bool, true while actions are drawn uniformly
    noise: Scalar  # [], the deviation of the acting noise
    correlation: Scalar  # []


def policy_action(static: Static, params: PyTree, obs_stats: PyTree, obs: PyTree) -> Array:
    """The policy's actions [..., D] in [-1, 1]."""
    return jnp.tanh(static.networks.policy.apply(params, normalize_obs(static.obs_space, obs_stats, obs)))


def critic_loss(
    static: Static, params: PyTree, state: State, batch: Batch, key: Key
) -> tuple[Array, tuple[Array, dict]]:
    """The critics' loss [], the priorities [B], and metrics."""
    hyper, obs_stats, networks = state.hyper, state.normalizer.obs, static.networks
    next_action = policy_action(static, state.target_params["policy"], obs_stats, batch.next_obs)
    noise = hyper.target_noise * jax.random.normal(key, next_action.shape, next_action.dtype)
    noise = jnp.clip(noise, -hyper.target_noise_clip, hyper.target_noise_clip)
    next_action = jnp.clip(next_action + noise, -1.0, 1.0)
    next_q = q_critics.q_values(networks, state.target_params["critics"], obs_stats, batch.next_obs, next_action)
    target = jax.lax.stop_gradient(off_policy.bootstrapped(batch, next_q.min(0)))
    action = q_critics.normalize_action(networks, batch.action)
    td_error = q_critics.q_values(networks, params, obs_stats, batch.obs, action) - target[None]
    loss = jnp.mean(batch.weight * jnp.sum(jnp.square(td_error), axis=0)) / 2
    return loss, (jax.lax.stop_gradient(jnp.mean(jnp.abs(td_error), axis=0)), {"critic_loss": loss})


def policy_loss(
    static: Static, params: PyTree, critic_params: PyTree, state: State, batch: Batch
) -> tuple[Array, dict[str, Array]]:
    """The policy's loss [], and metrics."""
    obs_stats = state.normalizer.obs
    action = policy_action(static, params, obs_stats, batch.obs)
    q = q_critics.q_values(static.networks, critic_params, obs_stats, batch.obs, action)[0]
    loss = -jnp.mean(q)
    if static.config.behavior_cloning:
        size = _mesh.mean(jax.lax.stop_gradient(jnp.mean(jnp.abs(q))), static.axis_name)
        scale = state.hyper.bc_alpha / jnp.maximum(size, 1e-6)
        data_action = q_critics.normalize_action(static.networks, batch.action)
        loss = scale * loss + jnp.mean(jnp.square(action - data_action))
    return loss, {"policy_loss": loss, "q": jnp.mean(q)}


def gradient_step(
    static: Static, state: State, sample: Sample, schedules: Schedules, key: Key
) -> tuple[State, Array, dict[str, Array]]:
    """One step of descent on a sample; every `policy_delay`-th updates the policy, and the targets if that is due.

    Returns the state, the priorities [B] and the metrics.
    """
    batch = off_policy.n_step_batch(sample, state.hyper.gamma)
    policy_optimizer, critic_optimizer = q_critics.optimizers(static.config, state.hyper, schedules)

    gradient, (priority, metrics) = mean_gradient(critic_loss, static, state.params["critics"], state, batch, key)
    critics, critics_opt, grad_norm = critic_optimizer.step(
        state.params["critics"], state.opt_state["critics"], gradient
    )

    def policy_step(params: PyTree, opt_state: PyTree, _) -> tuple[PyTree, PyTree, dict[str, Array]]:
        gradient, metrics = mean_gradient(policy_loss, static, params, critics, state, batch)
        params, opt_state, _ = policy_optimizer.step(params, opt_state, gradient)
        return params, opt_state, metrics

    update_policy = state.since_policy + 1 >= static.config.policy_delay
    before = state.params["policy"], state.opt_state["policy"], state.policy_metrics
    policy_params, policy_opt, policy_metrics = jax.lax.cond(
        update_policy, policy_step, lambda *unchanged: unchanged, *before
    )

    params = {"policy": policy_params, "critics": critics}
    update_target = schedules.update_target | state.target_pending
    state = state.replace(
        params=params,
        opt_state={"policy": policy_opt, "critics": critics_opt},
        target_params=off_policy.target_update(
            params, state.target_params, state.hyper.tau, when=update_target & update_policy
        ),
        policy_metrics=policy_metrics,
        since_policy=jnp.where(update_policy, 0, state.since_policy + 1),
        target_pending=update_target & ~update_policy,
    )
    return state, priority, metrics | policy_metrics | {"grad_norm": grad_norm}


def init(static: Static, hyper: Hyper, key: Key, example: Transition, num_envs: int) -> State:
    """The state before learning; `example` is one step without batch axes."""
    params = q_critics.init(static.networks, key, example.obs)
    return State(
        hyper=as_arrays(hyper, static.config, num_envs),
        params=params,
        target_params=jax.tree.map(jnp.array, params),
        opt_state={name: Optimizer.of(static.config, hyper, 0.0).init(part) for name, part in params.items()},
        normalizer=normalization.init(static.obs_space, example, num_envs, obs=static.config.normalize_obs),
        replay=off_policy.init(static.buffer, example, num_envs),
        policy_metrics={name: jnp.zeros((), jnp.float32) for name in ("policy_loss", "q")},
        since_policy=jnp.zeros((), jnp.int32),
        target_pending=jnp.zeros((), bool),
    )


def actor(static: Static, state: State) -> Actor:
    """Parameters and statistics for acting."""
    warming_up = state.replay.num_steps < jnp.uint32(static.config.learning_starts)
    hyper = state.hyper
    return Actor(
        state.params["policy"], state.normalizer.obs, warming_up, hyper.exploration_noise, hyper.noise_correlation
    )


def act(static: Static, actor: Actor, memory: Array, obs: PyTree, key: Key) -> tuple[Array, Array, tuple]:
    """One exploring step for one observation; uniform until learning starts. The memory [D] is the last noise."""
    noise_key, uniform_key = jax.random.split(key)
    fresh = jax.random.normal(noise_key, memory.shape, memory.dtype)
    rho = actor.correlation  # from a standard normal start, as every episode's, the noise stays standard normal
    memory = jnp.where(jnp.all(memory == 0), fresh, rho * memory + jnp.sqrt(1.0 - jnp.square(rho)) * fresh)
    action = policy_action(static, actor.params, actor.obs_stats, obs) + actor.noise * memory
    action = q_critics.denormalize_action(static.networks, jnp.clip(action, -1.0, 1.0))
    space = static.networks.action_space
    return memory, exploration.uniform_while(actor.warming_up, space, uniform_key, action), ()  # type: ignore[arg-type]


def policy(static: Static, actor: Actor, memory: Array, obs: PyTree, key: Key) -> tuple[Array, Array, tuple]:
    """One step for one observation, without noise. The key is not used."""
    action = policy_action(static, actor.params, actor.obs_stats, obs)
    return memory, q_critics.denormalize_action(static.networks, action), ()


def update(static: Static, state: State, rollout: Transition, key: Key) -> tuple[State, dict[str, Array]]:
    """Store a rollout [T, N, ...], then learn from the buffer. Observation statistics change at the end."""
    state = off_policy.store(static, state, rollout)
    state, metrics = off_policy.learn(static, gradient_step, state, key, off_policy.num_steps(static, rollout))
    return off_policy.update_statistics(static, state, rollout), metrics


def supports(action_space: Space) -> bool:
    """True for the action spaces that the agent can act in."""
    return q_critics.is_bounded_box(action_space)


def make(
    config: Config, obs_space: Space, action_space: Space, *, name: str = "td3", axis_name: str | None = None
) -> Agent:
    """TD3 for these spaces.

    Args:
      config: the static settings.
      obs_space, action_space: an environment's spaces.
      name: for errors.
      axis_name: of a mesh axis, see `training.data_parallel`; None for one device.

    Raises:
      ConfigError: the action space is not a Box with finite bounds, or a setting does not fit.
    """
    needed = "a Box action space of floats with finite bounds"
    validation.check_action_space(name, config, action_space, supported=supports(action_space), needed=needed)
    networks = q_critics.make(config, obs_space, action_space, spread="none")
    static = Static(config, networks, off_policy.buffer(config, axis_name), axis_name)
    return Agent(
        init=partial(init, static),
        actor=partial(actor, static),
        act=partial(act, static),
        policy=partial(policy, static),
        update=partial(update, static),
        memory=np.zeros((networks.size,), np.float32),
        check=partial(off_policy.check, config),
        add=partial(off_policy.add, static),
        learn=partial(off_policy.learn, static, gradient_step),
        wait=partial(off_policy.wait, static),
        uniform=action_space.sample,  # type: ignore[union-attr]
        static=static,
        axis_name=axis_name,
    )


EXAMPLES = (("Probe-Continuous", {"n_step": 2}),)  # (environment, settings) that the contract tests run
