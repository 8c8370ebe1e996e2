"""Categorical deep Q-learning, C51 (Bellemare et al. 2017): DQN that learns the distribution of returns on fixed atoms.

A gradient step lowers the cross-entropy of the distribution of Q(o, a) to the target's, r + γ^n Z_target(o', a*),
projected onto the atoms (algorithm 1). Everything else is `dqn`, whose fields it has; with all of them on it is Rainbow
(Hessel et al. 2018), whose priorities are the KL divergences of the targets from the distributions: the cross-entropies
without the targets' own entropies. Rainbow's noisy layers are those of the heads alone here, as `dqn` says.
"""

from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Interval
from pydantic import Field, model_validator

from rlkit.agents import dqn
from rlkit.agents.common import config
from rlkit.agents.common.off_policy import Batch
from rlkit.agents.dqn import Head
from rlkit.ops.distributional import categorical_cross_entropy, categorical_target
from rlkit.spaces import Space
from rlkit.types import Agent, Array


class Config(dqn.Config):
    """What shapes the program. Static and hashable."""

    num_atoms: Annotated[int, Interval(ge=2)] = Field(51, description="of the distribution of returns")
    v_min: float = Field(-10.0, description="the return at the lowest atom")
    v_max: float = Field(10.0, description="the return at the highest atom")

    @model_validator(mode="after")
    def _ordered(self) -> "Config":
        if not self.v_min < self.v_max:
            raise ValueError(f"v_min={self.v_min:g} must be below v_max={self.v_max:g}; the returns lie between them")
        return self

    @property
    def atoms(self) -> np.ndarray:
        """The returns [num_atoms] float32 that the distributions lie on."""
        return np.linspace(self.v_min, self.v_max, self.num_atoms, dtype=np.float32)


class Hyper(config.LearningHyper, config.EpsilonHyper):
    """What a vmap may sweep: float32 scalars. Infinity switches a term off."""

    max_grad_norm: config.Positive = 10.0


def values(atoms: np.ndarray, logits: Array) -> Array:
    """The mean returns [..., A] of logits [..., A, M]."""
    return jax.nn.softmax(logits, axis=-1) @ atoms


def loss(
    atoms: np.ndarray, hyper: Hyper, logits: Array, batch: Batch, next_logits: Array, next_selector: Array
) -> tuple[Array, Array]:
    """The cross-entropies, and the KL divergences as priorities."""
    target = categorical_target(batch.reward, batch.discount, next_logits, next_selector, atoms)
    loss = categorical_cross_entropy(logits, batch.action, target)
    entropy = -jnp.sum(jax.scipy.special.xlogy(target, target), axis=-1)
    return loss, jnp.maximum(jax.lax.stop_gradient(loss) - entropy, 0.0)


def make(config: Config, obs_space: Space, action_space: Space, network: Any = None) -> Agent:
    """C51 for these spaces.

    Args:
      config: the static settings.
      obs_space, action_space: an environment's spaces.
      network: as for `dqn.make`, with logits [..., A, num_atoms]; None for the one that `config` describes.

    Raises:
      ConfigError: the action space is not Discrete, or a setting does not fit.
    """
    head = Head(config.num_atoms, partial(values, config.atoms), partial(loss, config.atoms))
    return dqn.with_head("c51", config, head, obs_space, action_space, network)
