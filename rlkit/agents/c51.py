"""Categorical deep Q-learning, C51 (Bellemare et al. 2017): DQN with a distribution of returns on fixed atoms.

The network gives the probabilities p_i(o, a) of the return Z(o, a) at the atoms. A gradient step minimizes, over
transitions drawn from a replay buffer, the cross-entropy to the target's distribution (algorithm 1)

    E[ -w Σ_i m_i log p_i(o, a) ],   m = the probabilities of r + γ^n Z_target(o', a*), projected onto the atoms

where a* maximizes the mean of the online network's Z. The fields are those of `dqn`; with all of them on it is
Rainbow (Hessel et al. 2018), whose priorities are the KL divergences of the distributions from the targets: the
cross-entropies without the targets' own entropies.

Departures from the papers: by default the online network selects a* (`double: false` leaves it to the target network,
as Bellemare et al. do), and the target network follows instead of being copied. Rainbow's noisy layers are those of the
heads alone. Many environments may collect at once, and time limits are bootstrapped from the true final observation, as
in `dqn`.
"""

from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Interval
from pydantic import Field, model_validator

from rlkit.agents import dqn
from rlkit.agents.common import exploration, off_policy, q_learning
from rlkit.agents.common.batches import Batch
from rlkit.agents.common.config import InNetwork, QLearningConfig
from rlkit.agents.common.hyper import EpsilonHyper, OffPolicyHyper, Positive
from rlkit.agents.common.off_policy import State
from rlkit.agents.common.q_learning import Static
from rlkit.networks.features import action_mask
from rlkit.ops._arrays import pick
from rlkit.ops.distributional import categorical_cross_entropy, categorical_target
from rlkit.spaces import Space
from rlkit.types import Agent, Array, Key, PyTree

Return = Annotated[float, Interval(ge=-1e12, le=1e12)]  # float32 arithmetic on atoms does not overflow


class Config(QLearningConfig):
    double: bool = True
    dueling: Annotated[bool, InNetwork] = False
    noisy: bool = Field(default=False, description="learned noise in the heads explores, and epsilon is off")
    num_atoms: Annotated[int, Interval(ge=2, le=2**20)] = Field(
        default=51, description="of the distribution of returns"
    )
    v_min: Return = Field(default=-10.0, description="the return at the lowest atom")
    v_max: Return = Field(default=10.0, description="the return at the highest atom")

    @model_validator(mode="after")
    def _ordered(self) -> "Config":
        if not self.v_min < self.v_max:
            raise ValueError(f"v_min={self.v_min:g} must be below v_max={self.v_max:g}; the returns lie between them")
        return self

    @property
    def atoms(self) -> np.ndarray:
        """The returns [num_atoms] float32 that the distributions lie on."""
        return np.linspace(self.v_min, self.v_max, self.num_atoms, dtype=np.float32)


class Hyper(OffPolicyHyper, EpsilonHyper):
    """Traced float32 scalars, which a vmap may sweep. Infinity switches a term off."""

    max_grad_norm: Positive = 10.0


def mean_returns(static: Static, logits: Array) -> Array:
    """The means [..., A] of the distributions with logits [..., A, M]."""
    return jax.nn.softmax(logits, axis=-1) @ static.config.atoms


def loss(static: Static, params: PyTree, state: State, batch: Batch, key: Key) -> tuple[Array, tuple]:
    """The loss [] of a batch; the network's statistics, the batch's priorities [B], and metrics."""
    apply, atoms = partial(q_learning.apply, static, obs_stats=state.normalizer.obs), static.config.atoms
    key, next_key, select_key = jax.random.split(key, 3)
    logits, stats = apply((params, state.stats), obs=batch.obs, key=key, train=True)
    next_logits, _ = apply((state.target_params, state.target_stats), obs=batch.next_obs, key=next_key)
    selecting = next_logits
    if static.config.double:
        selecting, _ = apply((params, state.stats), obs=batch.next_obs, key=select_key)
    next_q = exploration.mask_illegal(mean_returns(static, selecting), action_mask(batch.next_obs))
    target = categorical_target(batch.reward, batch.discount, next_logits, jax.lax.stop_gradient(next_q), atoms)
    cross_entropy = categorical_cross_entropy(logits, batch.action, target)
    total = jnp.mean(batch.weight * cross_entropy)
    target_entropy = -jnp.sum(jax.scipy.special.xlogy(target, target), axis=-1)
    priority = jnp.maximum(jax.lax.stop_gradient(cross_entropy) - target_entropy, 0.0)
    q = jnp.mean(pick(mean_returns(static, logits), batch.action))
    return total, (stats, priority, {"loss": total, "q": q, "priority": priority.mean()})


init, supports = dqn.init, dqn.supports
act, policy = (partial(function, values=mean_returns) for function in (dqn.act, dqn.policy))
gradient_step = partial(dqn.gradient_step, loss=loss)
update = partial(off_policy.update, gradient_step)


def make(
    config: Config, obs_space: Space, action_space: Space, networks: Any = None, *, axis_name: str | None = None
) -> Agent:
    """C51 for these spaces.

    Arguments and errors are those of `dqn.make`, but a network returns logits [..., A, num_atoms].
    """
    static = q_learning.static(Config, config, obs_space, action_space, networks, "num_atoms", axis_name)
    return q_learning.agent(static, init=init, act=act, policy=policy, gradient_step=gradient_step)
