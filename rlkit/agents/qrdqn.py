"""Quantile-regression deep Q-learning, QR-DQN (Dabney et al. 2018): DQN that learns quantiles of the returns.

A gradient step lowers the quantile Huber loss between the quantiles of Q(o, a), at the midpoints of M equal shares, and
those of r + γ^n Z_target(o', a*) (equation 10). Everything else is `dqn`, whose fields it has.
"""

from typing import Annotated, Any

import jax
import jax.numpy as jnp
from annotated_types import Interval
from pydantic import Field

from rlkit.agents import dqn
from rlkit.agents.common.off_policy import Batch
from rlkit.agents.dqn import Head
from rlkit.ops.distributional import quantile_q_learning
from rlkit.spaces import Space
from rlkit.types import Agent, Array


class Config(dqn.Config):
    """What shapes the program. Static and hashable."""

    num_quantiles: Annotated[int, Interval(ge=1)] = Field(51, description="of the distribution of returns")


Hyper = dqn.Hyper  # huber_delta is the paper's kappa


def values(quantiles: Array) -> Array:
    """The mean returns [..., A] of quantiles [..., A, M]."""
    return jnp.mean(quantiles, axis=-1)


def loss(
    hyper: Hyper, quantiles: Array, batch: Batch, next_quantiles: Array, next_selector: Array
) -> tuple[Array, Array]:
    """The quantile losses, which are the priorities too."""
    count = quantiles.shape[-1]
    loss = quantile_q_learning(
        jnp.swapaxes(quantiles, -1, -2),
        (jnp.arange(count, dtype=jnp.float32) + 0.5) / count,
        batch.action,
        batch.reward,
        batch.discount,
        jnp.swapaxes(next_quantiles, -1, -2),
        next_selector[..., None, :],
        kappa=hyper.huber_delta,
    )
    return loss, jax.lax.stop_gradient(loss)


def make(config: Config, obs_space: Space, action_space: Space, network: Any = None) -> Agent:
    """QR-DQN for these spaces.

    Args:
      config: the static settings.
      obs_space, action_space: an environment's spaces.
      network: as for `dqn.make`, with quantiles [..., A, num_quantiles]; None for the one that `config` describes.

    Raises:
      ConfigError: the action space is not Discrete, or a setting does not fit.
    """
    head = Head(config.num_quantiles, values, loss)
    return dqn.with_head("qrdqn", config, head, obs_space, action_space, network)
