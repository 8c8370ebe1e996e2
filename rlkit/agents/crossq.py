"""CrossQ (Bhatt et al. 2024), for bounded boxes: SAC without target networks, with batch renormalization.

All critics estimate the values of the data's actions and of the next actions in one pass in training mode, over the
joint batch [(o, a); (o', a')], so that the moments by which both are normalized are those of both. A gradient step
minimizes the sum of three losses over transitions drawn from a replay buffer, each by its own parameters:

    critics      E[ w (Q_k(o, a) - y)^2 / 2 ],  y = r + γ^n (min_k Q_k(o', a') - α log π(a'|o')),  a' ~ π(o')
    policy       E[ α log π(a|o) - min_k Q_k(o, a) ],  a ~ π(o)
    temperature  as in SAC

No gradient flows through y. `networks.BatchRenorm` stands before the first dense layer and after each activation, in
the critics and in the policy. Each network is in training mode in its own loss alone; otherwise the running moments
normalize. A policy that the critics' loss or acting evaluates is therefore as it is in deployment.

Departures from the paper: critics of 1,024 units instead of 2,048, with a quarter of the weights, so that a run on a
CPU is possible; the temperature's Adam has the same `adam_b1`; learning starts after 1,000 steps instead of 5,000. The
next observation of a terminal state, whose value is not used, is replaced by the observation itself. Convolutions have
no norms. The other departures of `sac` apply as well.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from annotated_types import Interval
from pydantic import Field

from rlkit.agents import sac
from rlkit.agents.base import Unused
from rlkit.agents.common import batches, off_policy, q_critics, soft_critic, validation
from rlkit.agents.common.batches import Batch
from rlkit.agents.common.config import Count, InCritics, Width
from rlkit.agents.common.hyper import FiniteNonNegative
from rlkit.agents.common.q_critics import Static
from rlkit.agents.common.soft_critic import State
from rlkit.networks.norms.batch_renorm import BatchRenorm
from rlkit.spaces import Space
from rlkit.types import Agent, Array, Key, PyTree, Scalar, Transition

_NoEffect = Unused(agent="crossq")  # keys of SAC's targets


class Config(sac.SoftConfig):
    critic_hidden_sizes: Annotated[tuple[Width, ...], InCritics] = Field(
        default=(1024, 1024), description="dense layers of each critic"
    )
    policy_every: Count = Field(
        default=3, description="gradient steps of the critics for each of the policy and the temperature"
    )
    target_every: Annotated[Count | None, _NoEffect] = None


class Hyper(sac.Hyper):
    """Traced float32 scalars, which a vmap may sweep. Infinity switches a term off."""

    learning_rate: FiniteNonNegative = 1e-3
    tau: Annotated[Scalar | None, Interval(gt=0.0, le=1.0), _NoEffect] = None
    adam_b1: Annotated[
        Scalar,
        Interval(ge=0.0, lt=1.0),
        "decay of Adam's mean gradient",
        Unused(optimizer=lambda optimizer: optimizer not in ("adam", "adamw", "radam")),
    ] = 0.5


def critic_loss(static: Static, params: dict[str, PyTree], state: State, batch: Batch, key: Key) -> tuple[Array, tuple]:
    """The loss [] of the critics; their statistics, the priorities [B], and metrics."""
    networks, obs_stats = static.networks, state.normalizer.obs
    ends = batch.discount == 0

    def following(now: Array, after: Array) -> Array:
        return jnp.where(ends.reshape(-1, *(1,) * (now.ndim - 1)), now, after)

    next_obs = jax.tree.map(following, batch.obs, batch.next_obs)
    policy = state.params["policy"], state.stats["policy"]
    dist, _ = q_critics.distribution(networks, policy, obs_stats, next_obs)
    raw = dist.sample_pre_tanh(key)
    action = jnp.concatenate([q_critics.normalize_action(networks, batch.action), dist.squash(raw)])
    obs = jax.tree.map(lambda *pair: jnp.concatenate(pair), batch.obs, next_obs)
    critics, noise = (params["critics"], state.stats["critics"]), jax.random.fold_in(key, 0)
    joint, stats = q_critics.q_values(networks, critics, obs_stats, obs, action, train=True, key=noise)
    q, next_q = jnp.split(joint, 2, axis=1)  # [K, B] each
    least = soft_critic.subset_of_critics(static.config, next_q, jax.random.fold_in(key, 1)).min(0)
    bonus = -jnp.exp(state.params["log_temperature"]) * dist.log_prob_pre_tanh(raw)
    target = jax.lax.stop_gradient(batches.bootstrapped(batch, least + bonus))
    loss, priority = q_critics.td_loss(q, target, batch.weight)
    return loss, (stats, priority, {"critic_loss": loss})


policy_loss = sac.policy_loss
gradient_step = partial(soft_critic.gradient_step, critic_loss=critic_loss, policy_loss=policy_loss)
update = partial(off_policy.update, gradient_step)
supports = q_critics.is_bounded_box


def init(static: Static, hyper: Hyper, key: Key, example: Transition, num_envs: int) -> State:
    """The state before learning, without targets; `example` is one step without batch axes."""
    return soft_critic.init(static, hyper, key, example, num_envs).replace(target_params=(), target_stats=())


def make(
    config: Config,
    obs_space: Space,
    action_space: Space,
    networks: Mapping[str, Any] | None = None,
    *,
    axis_name: str | None = None,
) -> Agent:
    """CrossQ for these spaces.

    Arguments and errors are those of `sac.make`, but the action space is a Box with finite bounds. A user's networks
    bring norms of their own.

    Raises:
      ConfigError: as `sac.make`.
    """
    needed = "a Box action space of floats with finite bounds"
    validation.check_action_space(Config, config, action_space, supported=supports(action_space), needed=needed)
    renorm = partial(BatchRenorm, axis_name=axis_name)
    return soft_critic.make(
        config, obs_space, action_space, networks, gradient_step, init_state=init, make_norm=renorm, axis_name=axis_name
    )
