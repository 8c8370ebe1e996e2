"""Twin delayed deep deterministic policy gradient, TD3 (Fujimoto et al. 2018), for bounded boxes.

A gradient step minimizes, over transitions drawn from a replay buffer,

    critics  E[ w (Q_k(o, a) - y)^2 / 2 ],  y = r + γ^n min_k Q_target_k(o', clip(μ_target(o') + clip(ε, -c, c), -1, 1))
    policy   E[ -Q_1(o, μ(o)) ],  at every `policy_delay`-th step, when the targets are updated as well

with actions in [-1, 1]. It explores with normal noise, correlated from step to step by `noise_correlation`. One critic,
no delay and no target noise are DDPG (Lillicrap et al. 2016). With `behavior_cloning` the policy also imitates the data
and minimizes E[ -λ Q_1(o, μ(o)) + (μ(o) - a)^2 ], λ = bc_alpha / mean |Q_1| (Fujimoto and Gu 2021, eq. 5), to learn
from a dataset alone.

Departures from the paper: many environments may collect at once, followed by `replay_ratio` gradient steps for each of
their steps; correlated acting noise, n-step targets and prioritized replay by the critics' mean |TD error|, each by a
field; by default the learning rate, the sizes of the layers and of the batch of the authors' later code (3e-4, 256 and
256 units, 256; in the paper 1e-3, 400 and 300, 100). Time limits are bootstrapped from the true final observation.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Interval
from pydantic import Field

from rlkit import _mesh
from rlkit.agents.base import as_arrays
from rlkit.agents.base.keys import Unused
from rlkit.agents.common import batches, exploration, off_policy, q_critics, validation
from rlkit.agents.common.batches import Batch
from rlkit.agents.common.config import Count, QCriticConfig
from rlkit.agents.common.hyper import ActorCriticHyper, FiniteNonNegative, FinitePositive, Positive
from rlkit.agents.common.normalization import normalize_obs
from rlkit.agents.common.off_policy import Schedules
from rlkit.agents.common.optimizer import Optimizer, mean_gradient
from rlkit.agents.common.q_critics import Static, Variables
from rlkit.spaces import Space
from rlkit.types import Agent, Array, Key, PyTree, Sample, Scalar, Transition


class Config(QCriticConfig):
    policy_delay: Count = Field(default=2, description="gradient steps of the critics for each of the policy")
    behavior_cloning: bool = Field(default=False, description="imitate the data too, to learn from a dataset alone")


class Hyper(ActorCriticHyper):
    """Traced float32 scalars, which a vmap may sweep. Infinity switches a term off. Noise is of actions in [-1, 1]."""

    max_grad_norm: Annotated[Positive, "norm of the policy's and of the critics' gradient, each"] = jnp.inf
    exploration_noise: Annotated[FiniteNonNegative, "deviation of the acting noise"] = 0.1
    noise_correlation: Annotated[
        Scalar, Interval(ge=0.0, lt=1.0), "of the acting noise with the last step's", Unused(exploration_noise=0.0)
    ] = 0.0
    target_noise: Annotated[FiniteNonNegative, "deviation of the target's noise"] = 0.2
    target_noise_clip: Annotated[Scalar, Interval(ge=0.0), "bound of the target's noise", Unused(target_noise=0.0)] = (
        0.5
    )
    bc_alpha: Annotated[FinitePositive, "weight of the values against imitation", Unused(behavior_cloning=False)] = 2.5


class State(off_policy.State):
    """Parameters, targets and the optimizer's states of the policy and of the critics, and the delay of the policy."""

    policy_metrics: dict[str, Array]  # [], of the policy's last step; zeros before the first
    since_policy: Array  # [] int32, gradient steps since the policy's last
    target_pending: Array  # [] bool, true where a target update waits for the policy's next step


class Actor(NamedTuple):
    """Parameters and statistics for acting."""

    params: PyTree  # of the policy
    stats: PyTree  # of the policy
    obs_stats: PyTree
    warming_up: Array  # [] bool, true while actions are drawn uniformly
    noise: Scalar  # [], the deviation of the acting noise
    correlation: Scalar  # []


def policy_action(
    static: Static, variables: Variables, obs_stats: PyTree, obs: PyTree, **training: Any
) -> tuple[Array, PyTree]:
    """The policy's actions [..., D] in [-1, 1], and its statistics; `training` as for `Network.apply`."""
    obs = normalize_obs(obs_stats, obs)
    loc, stats = static.networks.policy.apply(*variables, obs, **training)
    return jnp.tanh(loc), stats


def next_action_and_value(static: Static, state: State, next_obs: PyTree, key: Key) -> tuple[Array, Array]:
    """The target policy's noisy actions [B, D] in [-1, 1], and their values [B] by the target critics."""
    hyper, obs_stats = state.hyper, state.normalizer.obs
    target_policy, target_critics = ((state.target_params[x], state.target_stats[x]) for x in ("policy", "critics"))
    action, _ = policy_action(static, target_policy, obs_stats, next_obs)
    noise = hyper.target_noise * jax.random.normal(key, action.shape, action.dtype)
    noise = jnp.clip(noise, -hyper.target_noise_clip, hyper.target_noise_clip)
    action = jnp.clip(action + noise, -1.0, 1.0)
    q, _ = q_critics.q_values(static.networks, target_critics, obs_stats, next_obs, action)
    return action, q.min(0)


def critic_loss(static: Static, params: PyTree, state: State, batch: Batch, key: Key) -> tuple[Array, tuple]:
    """The critics' loss []; their statistics, the priorities [B], and metrics."""
    _, next_value = next_action_and_value(static, state, batch.next_obs, key)
    return value_loss(static, params, state, batch, next_value, key)


def value_loss(
    static: Static, params: PyTree, state: State, batch: Batch, next_value: Array, key: Key
) -> tuple[Array, tuple]:
    """The critics' loss [] by the values [B] of the next observations; and the rest of `critic_loss`."""
    obs_stats, networks = state.normalizer.obs, static.networks
    target = jax.lax.stop_gradient(batches.bootstrapped(batch, next_value))
    action = q_critics.normalize_action(networks, batch.action)
    critics, noise_key = (params, state.stats["critics"]), jax.random.fold_in(key, 0)
    q, stats = q_critics.q_values(networks, critics, obs_stats, batch.obs, action, train=True, key=noise_key)
    loss, priority = q_critics.td_loss(q, target, batch.weight)
    return loss, (stats, priority, {"critic_loss": loss})


def policy_loss(
    static: Static, params: PyTree, critics: Variables, state: State, batch: Batch, key: Key
) -> tuple[Array, tuple[PyTree, dict[str, Array]]]:
    """The policy's loss []; its statistics, and metrics."""
    obs_stats, policy = state.normalizer.obs, (params, state.stats["policy"])
    action, stats = policy_action(static, policy, obs_stats, batch.obs, train=True, key=key)
    networks = static.networks._replace(critics=static.networks.first_critic)
    q = q_critics.q_values(networks, critics, obs_stats, batch.obs, action)[0][0]
    loss = -jnp.mean(q)
    if static.config.behavior_cloning:
        size = _mesh.mean(jax.lax.stop_gradient(jnp.mean(jnp.abs(q))), static.axis_name)
        scale = state.hyper.bc_alpha / jnp.maximum(size, 1e-6)
        data_action = q_critics.normalize_action(static.networks, batch.action)
        loss = scale * loss + jnp.mean(jnp.square(action - data_action))
    return loss, (stats, {"policy_loss": loss, "q": jnp.mean(q)})


class Losses(NamedTuple):
    """The parts of a gradient step in which TD3 and its variants differ."""

    batch: Callable[[Sample, Scalar], Any] = batches.n_step_batch
    critic: Callable[..., tuple[Array, tuple]] = critic_loss
    policy: Callable[..., tuple[Array, tuple[PyTree, dict[str, Array]]]] = policy_loss


LOSSES = Losses()


def gradient_step(
    static: Static, state: State, sample: Sample, schedules: Schedules, key: Key, *, losses: Losses = LOSSES
) -> tuple[State, Array, dict[str, Array]]:
    """One step of descent on a sample; every `policy_delay`-th updates the policy, and the targets if that is due.

    Returns the state, the priorities [B] and the metrics.
    """
    batch = losses.batch(sample, state.hyper.gamma)
    policy_optimizer, critic_optimizer = q_critics.optimizers(static.config, state.hyper, schedules)

    arguments = state.params["critics"], state, batch, key
    gradient, (critic_stats, priority, metrics) = mean_gradient(losses.critic, static, *arguments)
    critics, critics_opt, grad_norm = critic_optimizer.step(
        state.params["critics"], state.opt_state["critics"], gradient
    )

    def policy_step(params: PyTree, opt_state: PyTree, stats: PyTree, _: Any) -> tuple[PyTree, ...]:
        arguments: Any = params, (critics, critic_stats), state, batch, jax.random.fold_in(key, 1)
        gradient, (stats, metrics) = mean_gradient(losses.policy, static, *arguments)
        params, opt_state, _ = policy_optimizer.step(params, opt_state, gradient)
        return params, opt_state, stats, metrics

    update_policy = state.since_policy + 1 >= static.config.policy_delay
    before = state.params["policy"], state.opt_state["policy"], state.stats["policy"], state.policy_metrics
    policy_params, policy_opt, policy_stats, policy_metrics = jax.lax.cond(
        update_policy, policy_step, lambda *unchanged: unchanged, *before
    )

    params = {"policy": policy_params, "critics": critics}
    stats = {"policy": policy_stats, "critics": critic_stats}
    update_target = schedules.update_target | state.target_pending
    state = off_policy.update_target(state, params, stats, when=update_target & update_policy)
    state = state.replace(
        params=params,
        stats=stats,
        opt_state={"policy": policy_opt, "critics": critics_opt},
        policy_metrics=policy_metrics,
        since_policy=jnp.where(update_policy, 0, state.since_policy + 1),
        target_pending=update_target & ~update_policy,
    )
    return state, priority, metrics | policy_metrics | {"grad_norm": grad_norm}


def init(static: Static, hyper: Hyper, key: Key, example: Transition, num_envs: int) -> State:
    """The state before learning; `example` is one step without batch axes."""
    hyper, variables = as_arrays(hyper, static.config, num_envs), q_critics.init(static.networks, key, example.obs)
    state = off_policy.init(static, hyper, example, num_envs, variables)
    optimizer = Optimizer.of(static.config, hyper, hyper.learning_rate)
    state = State(
        **(vars(state) | {"opt_state": {name: optimizer.init(part) for name, part in state.params.items()}}),  # type: ignore[arg-type]
        policy_metrics={name: jnp.zeros((), jnp.float32) for name in ("policy_loss", "q")},
        since_policy=jnp.zeros((), jnp.int32),
        target_pending=jnp.zeros((), bool),
    )
    return _mesh.vary_like(state, without=static.axis_name)


def actor(static: Static, state: State) -> Actor:
    """Parameters and statistics for acting."""
    warming_up = state.replay.num_steps < jnp.uint32(static.config.learning_starts)
    hyper = state.hyper
    policy = state.params["policy"], state.stats["policy"], state.normalizer.obs
    return Actor(*policy, warming_up, hyper.exploration_noise, hyper.noise_correlation)


def act(static: Static, actor: Actor, memory: Array, obs: PyTree, key: Key) -> tuple[Array, Array, tuple]:
    """One exploring step for one observation; uniform until learning starts. The memory [D] is the last noise."""
    noise_key, uniform_key = jax.random.split(key)
    fresh = jax.random.normal(noise_key, memory.shape, memory.dtype)
    rho = actor.correlation  # from a standard normal start, as every episode's, the noise stays standard normal
    memory = jnp.where(jnp.all(memory == 0), fresh, rho * memory + jnp.sqrt(1.0 - jnp.square(rho)) * fresh)
    action = policy_action(static, actor[:2], actor.obs_stats, obs)[0] + actor.noise * memory
    action = q_critics.denormalize_action(static.networks, jnp.clip(action, -1.0, 1.0))
    space = static.networks.action_space
    return memory, exploration.uniform_while(actor.warming_up, space, uniform_key, action), ()  # type: ignore[arg-type]


def policy(static: Static, actor: Actor, memory: Array, obs: PyTree, key: Key) -> tuple[Array, Array, tuple]:
    """One step for one observation, without noise. The key is not used."""
    action, _ = policy_action(static, actor[:2], actor.obs_stats, obs)
    return memory, q_critics.denormalize_action(static.networks, action), ()


update = partial(off_policy.update, gradient_step)


def supports(action_space: Space) -> bool:
    """True for the action spaces that the agent can act in."""
    return q_critics.is_bounded_box(action_space)


def make(
    config: Config,
    obs_space: Space,
    action_space: Space,
    networks: Mapping[str, Any] | None = None,
    *,
    config_class: type = Config,
    losses: Losses = LOSSES,
    axis_name: str | None = None,
) -> Agent:
    """TD3 for these spaces.

    Arguments and errors are those of `sac.make`, but a policy maps observations to [..., D], whose tanh is the action.
    `config_class` is the Config of a variant, and `losses` are those of a variant.
    """
    needed = "a Box action space of floats with finite bounds"
    validation.check_action_space(config_class, config, action_space, supported=supports(action_space), needed=needed)
    built = q_critics.make(config, obs_space, action_space, networks, spread="none", axis_name=axis_name)
    static = Static(config, built, off_policy.buffer(config, axis_name), axis_name)
    return off_policy.agent(
        static,
        init=init,
        actor=actor,
        act=act,
        policy=policy,
        gradient_step=partial(gradient_step, losses=losses),
        finite=("critic_loss", "policy_loss", "grad_norm"),
        memory=np.zeros((built.size,), np.float32),
        uniform=action_space.sample,  # type: ignore[union-attr]
    )
