"""Truncated quantile critics, TQC (Kuznetsov et al. 2020), for bounded boxes: SAC with quantiles of the returns.

Each of K critics gives the quantiles z_k,m(o, a) of the return at the midpoints τ_m of M equal shares of [0, 1]. At the
next observation the K M quantiles of all target critics are sorted, and the greatest K d of them are dropped, as they
overestimate most. A gradient step minimizes the sum of three losses over transitions drawn from a replay buffer, each
by its own parameters:

    critics      E[ w Σ_k mean_m mean_i |τ_m - 1[u < 0]| huber(u) ],  u = y_i - z_k,m(o, a)
                 y_i = r + γ^n (z_(i)(o', a') - α log π(a'|o')),  i <= K (M - d),  a' ~ π(o')
    policy       E[ α log π(a|o) - mean_k,m z_k,m(o, a) ],  a ~ π(o)
    temperature  as in SAC

with actions in [-1, 1]. The fields `num_quantiles` M and `drop_quantiles` d are its own, and the others those of `sac`.

Departures from the paper: K is 2 instead of 5, as in Stable-Baselines3; the critics' losses are added up instead of
averaged; the loss of the temperature is one in log α. Prioritized replay draws by the critics' mean |TD error| of the
means of their quantiles, and the target's mean is that of the kept ones. The other departures of `sac` apply as well.

With `recurrent: gru`, or another memory, TQC learns from sequences of steps, as `sac` does. The n-step return of each
kept quantile stops at the episode's end, and the priority of a sequence is the mean of those of its rows.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from pydantic import Field

from rlkit.agents import sac
from rlkit.agents.common import batches, off_policy, q_critics, soft_critic, validation
from rlkit.agents.common.batches import Batch
from rlkit.agents.common.config import NumCritics, Width
from rlkit.agents.common.q_critics import Static
from rlkit.agents.common.recurrent import sequences
from rlkit.agents.common.soft_critic import State
from rlkit.ops.distributional import quantile_huber
from rlkit.spaces import Space
from rlkit.types import Agent, Array, ConfigError, Key, PyTree


class Config(sac.Config):
    num_critics: NumCritics = Field(default=2, description="each with num_quantiles of its own")
    actor_q: Literal["min", "mean"] = Field(
        default="mean", description="of the critics' means of an action, which the policy maximizes"
    )
    num_quantiles: Width = Field(default=25, description="of the distribution of returns, of each critic")
    drop_quantiles: int = Field(
        default=2, ge=0, lt=2**20, description="for each critic, the greatest ones of all target critics together"
    )


Hyper = sac.Hyper


def truncate(quantiles: Array, drop: int) -> Array:
    """The quantiles [K, ..., M] of all critics without the greatest K * drop, ascending: [..., K * (M - drop)]."""
    count, *_, num_quantiles = quantiles.shape
    pooled = jnp.moveaxis(quantiles, 0, -1)
    pooled = pooled.reshape(*pooled.shape[:-2], count * num_quantiles)
    return -jax.lax.top_k(-pooled, count * (num_quantiles - drop))[0]


def mean_returns(quantiles: Array) -> Array:
    """The means [K, ...] of the quantiles [K, ..., M] of each critic."""
    return quantiles.mean(-1)


def critic_loss(
    static: Static,
    params: dict[str, PyTree],
    state: State,
    batch: Batch,
    key: Key,
    *,
    ahead: Static | None = None,
    bootstrapped: Callable[[Batch, Array], Array] = batches.bootstrapped,
) -> tuple[Array, tuple]:
    """The loss [] of the critics; their statistics, the priorities [B], and metrics.

    `ahead` and `bootstrapped` are those of `sac.critic_loss`; with a memory [B] is [U, B].
    """
    kept = partial(truncate, drop=static.config.drop_quantiles)
    value, bonus = soft_critic.next_estimate(ahead or static, state, batch, key, combine=kept)  # [B, N], [B]
    target = jax.vmap(partial(bootstrapped, batch), -1, -1)(value + bonus[..., None])
    target = jax.lax.stop_gradient(target)
    quantiles, stats = soft_critic.data_values(static, params["critics"], state, batch, key)  # [K, B, M]
    count = quantiles.shape[-1]
    tau = (jnp.arange(count, dtype=jnp.float32) + 0.5) / count
    of_critics = jax.vmap(lambda own: quantile_huber(own, tau, target))(quantiles) / count
    td_error = quantiles.mean(-1) - target.mean(-1)[None]
    priority = jax.lax.stop_gradient(jnp.mean(jnp.abs(td_error), axis=0))
    loss = jnp.mean(batch.weight * of_critics.sum(0))
    return loss, (stats, priority, {"critic_loss": loss})


policy_loss = partial(sac.policy_loss, values=mean_returns)
gradient_step = partial(soft_critic.gradient_step, critic_loss=critic_loss, policy_loss=policy_loss)
update = partial(off_policy.update, gradient_step)
supports = q_critics.is_bounded_box


def make(
    config: Config,
    obs_space: Space,
    action_space: Space,
    networks: Mapping[str, Any] | None = None,
    *,
    axis_name: str | None = None,
) -> Agent:
    """TQC for these spaces.

    Arguments and errors are those of `sac.make`, but the action space is a Box with finite bounds, and critics map
    observations and actions [..., D] in [-1, 1] to quantiles [num_critics, ..., num_quantiles].

    Raises:
      ConfigError: as `sac.make`, or `drop_quantiles` leaves no quantile of a critic.
    """
    needed = "a Box action space of floats with finite bounds"
    validation.check_action_space(Config, config, action_space, supported=supports(action_space), needed=needed)
    if config.drop_quantiles >= config.num_quantiles:
        raise ConfigError(
            f"drop_quantiles={config.drop_quantiles} must be less than num_quantiles={config.num_quantiles}, so that a "
            f"target keeps some; try {min(2, config.num_quantiles - 1)}"
        )
    settings: Any = {"outputs": config.num_quantiles, "axis_name": axis_name}
    if config.recurrent != "none":
        return sequences.make(config, obs_space, action_space, networks, critic_loss, policy_loss, **settings)
    return soft_critic.make(config, obs_space, action_space, networks, gradient_step, **settings)
