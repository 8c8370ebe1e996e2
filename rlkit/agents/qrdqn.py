"""Quantile-regression deep Q-learning, QR-DQN (Dabney et al. 2018): DQN with quantiles of the returns.

The network gives the quantiles z_i(o, a) of the return at the midpoints τ_i of M equal shares of [0, 1]. A gradient
step minimizes, over transitions drawn from a replay buffer, the quantile Huber loss (equation 10)

    E[ w Σ_i mean_j |τ_i - 1[u_ij < 0]| huber(u_ij) ],   u_ij = r + γ^n z_target_j(o', a*) - z_i(o, a)

where a* maximizes the mean of the online network's quantiles. The fields are those of `dqn`.

Departures from the paper: by default the online network selects a* (`double: false` leaves it to the target network, as
in the paper), M is 51 instead of 200, and the target network follows instead of being copied; n-step targets, dueling
and noisy heads, and prioritized replay by the loss of a transition, each by a field. Many environments may collect at
once, and time limits are bootstrapped from the true final observation, as in `dqn`.
"""

from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from pydantic import Field

from rlkit.agents import dqn
from rlkit.agents.common import exploration, off_policy, q_learning
from rlkit.agents.common.batches import Batch
from rlkit.agents.common.config import InNetwork, QLearningConfig, Width
from rlkit.agents.common.hyper import EpsilonHyper, OffPolicyHyper, Positive
from rlkit.agents.common.off_policy import State
from rlkit.agents.common.q_learning import Static
from rlkit.networks.features import action_mask
from rlkit.ops._arrays import pick
from rlkit.ops.distributional import quantile_q_learning
from rlkit.spaces import Space
from rlkit.types import Agent, Array, Key, PyTree


class Config(QLearningConfig):
    double: bool = True
    dueling: Annotated[bool, InNetwork] = False
    noisy: bool = Field(default=False, description="learned noise in the heads explores, and epsilon is off")
    num_quantiles: Width = Field(default=51, description="of the distribution of returns")


class Hyper(OffPolicyHyper, EpsilonHyper):
    """Traced float32 scalars, which a vmap may sweep. Infinity switches a term off."""

    huber_delta: Annotated[Positive, "kappa of the paper"] = 1.0
    max_grad_norm: Positive = 10.0


def mean_returns(static: Static, quantiles: Array) -> Array:
    """The means [..., A] of the distributions with quantiles [..., A, M]."""
    return quantiles.mean(-1)


def loss(static: Static, params: PyTree, state: State, batch: Batch, key: Key) -> tuple[Array, tuple]:
    """The loss [] of a batch; the network's statistics, the batch's priorities [B], and metrics."""
    apply = partial(q_learning.apply, static, obs_stats=state.normalizer.obs)
    key, next_key, select_key = jax.random.split(key, 3)
    quantiles, stats = apply((params, state.stats), obs=batch.obs, key=key, train=True)  # [B, A, M]
    next_quantiles, _ = apply((state.target_params, state.target_stats), obs=batch.next_obs, key=next_key)
    selecting = next_quantiles
    if static.config.double:
        selecting, _ = apply((params, state.stats), obs=batch.next_obs, key=select_key)
    next_q = exploration.mask_illegal(selecting.mean(-1), action_mask(batch.next_obs))
    count = quantiles.shape[-1]
    per_item = quantile_q_learning(
        jnp.swapaxes(quantiles, -1, -2),
        (jnp.arange(count, dtype=jnp.float32) + 0.5) / count,
        batch.action,
        batch.reward,
        batch.discount,
        jnp.swapaxes(next_quantiles, -1, -2),
        jax.lax.stop_gradient(next_q)[..., None, :],
        kappa=state.hyper.huber_delta,
    )
    total = jnp.mean(batch.weight * per_item)
    priority = jax.lax.stop_gradient(per_item)
    q = jnp.mean(pick(quantiles.mean(-1), batch.action))
    return total, (stats, priority, {"loss": total, "q": q, "priority": priority.mean()})


init, supports = dqn.init, dqn.supports
act, policy = (partial(function, values=mean_returns) for function in (dqn.act, dqn.policy))
gradient_step = partial(dqn.gradient_step, loss=loss)
update = partial(off_policy.update, gradient_step)


def make(
    config: Config, obs_space: Space, action_space: Space, networks: Any = None, *, axis_name: str | None = None
) -> Agent:
    """QR-DQN for these spaces.

    Arguments and errors are those of `dqn.make`, but a network returns quantiles [..., A, num_quantiles].
    """
    static = q_learning.static(Config, config, obs_space, action_space, networks, "num_quantiles", axis_name)
    return q_learning.agent(static, init=init, act=act, policy=policy, gradient_step=gradient_step)
