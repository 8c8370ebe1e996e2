"""ReBRAC (Tarasov et al. 2023): TD3 with behavior cloning in the policy and in the critics, for a dataset alone.

It is `td3` with penalties on the distance of actions in [-1, 1] from those of the data, summed over dimensions:

    critics  E[ w (Q_k(o, a) - y)^2 / 2 ],  y = r + γ (min_k Q_target_k(o', a~) - critic_bc |a~ - a'|^2)
    policy   E[ actor_bc |μ(o) - a|^2 - λ min_k Q_k(o, μ(o)) ],  λ = 1 / mean |min_k Q_k|

where a~ is the target policy's noisy action at o' and a' is the data's next action, for which a sample has two steps.
Networks have three layers, those of the critics with layer normalization, and batches are large. The two coefficients
are those of HalfCheetah-medium; the paper has others for each dataset, between 0.001 and 0.5.

Departures from the paper: the last step of an episode, which no action follows, is learned from without the penalty;
layer normalization comes before the activation. The departures of `td3` apply as well.
"""

from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from annotated_types import Interval
from pydantic import Field

from rlkit import _mesh
from rlkit.agents import td3
from rlkit.agents.base import Unused
from rlkit.agents.common import batches, off_policy, q_critics
from rlkit.agents.common.config import Count, InCritics, Width
from rlkit.agents.common.hyper import FiniteNonNegative, FinitePositive
from rlkit.agents.common.q_critics import Static, Variables
from rlkit.types import Array, Key, PyTree, Sample, Scalar

State = td3.State
supports = td3.supports
_NoEffect = Unused(agent="rebrac")


class Config(td3.Config):
    hidden_sizes: tuple[Width, ...] = Field(default=(256, 256, 256), description="dense layers of an encoder")
    critic_layer_norm: Annotated[bool, InCritics] = Field(
        default=True, description="after each dense layer of the critics alone"
    )
    batch_size: Count = Field(default=1024, description="items of a gradient step")
    learning_starts: Annotated[int, Interval(ge=0, lt=2**32)] = Field(
        default=0, description="environment steps before the first gradient step"
    )
    behavior_cloning: Annotated[bool, _NoEffect] = False
    n_step: Annotated[Count, _NoEffect] = 1

    @property
    def item_length(self) -> int:
        """Two steps, of which the second has the next action."""
        return 2


class Hyper(td3.Hyper):
    """Traced float32 scalars, which a vmap may sweep. Infinity switches a term off. Noise is of actions in [-1, 1]."""

    actor_bc: Annotated[FiniteNonNegative, "weight of the policy's distance from the data"] = 0.001
    critic_bc: Annotated[FiniteNonNegative, "weight of the next action's distance from the data"] = 0.01
    bc_alpha: Annotated[FinitePositive, _NoEffect] = 2.5


class Batch(NamedTuple):
    """Transitions and the actions that follow them, leaves [B, ...]."""

    transitions: batches.Batch
    next_action: PyTree
    is_followed: Array  # [B] bool, false at an episode's last step


def batch_of(sample: Sample, gamma: Scalar) -> Batch:
    """The transitions and the next actions of a sample of windows [B, 2, ...]."""
    first, second = (jax.tree.map(lambda x, i=i: x[:, i], sample.item) for i in range(2))
    transitions = batches.n_step_batch(sample._replace(item=first, mask=sample.mask[:, 0]), gamma)
    return Batch(transitions, second.action, sample.mask[:, 1])


def critic_loss(static: Static, params: PyTree, state: State, batch: Batch, key: Key) -> tuple[Array, tuple]:
    """The critics' loss []; their statistics, the priorities [B], and metrics."""
    action, value = td3.next_action_and_value(static, state, batch.transitions.next_obs, key)
    distance = jnp.sum(jnp.square(action - q_critics.normalize_action(static.networks, batch.next_action)), axis=-1)
    penalty = jnp.where(batch.is_followed, state.hyper.critic_bc * distance, 0.0)
    return td3.value_loss(static, params, state, batch.transitions, value - penalty, key)


def policy_loss(
    static: Static, params: PyTree, critics: Variables, state: State, batch: Batch, key: Key
) -> tuple[Array, tuple[PyTree, dict[str, Array]]]:
    """The policy's loss []; its statistics, and metrics."""
    obs_stats, policy, obs = state.normalizer.obs, (params, state.stats["policy"]), batch.transitions.obs
    action, stats = td3.policy_action(static, policy, obs_stats, obs, train=True, key=key)
    q = q_critics.q_values(static.networks, critics, obs_stats, obs, action)[0].min(0)
    size = _mesh.mean(jax.lax.stop_gradient(jnp.mean(jnp.abs(q))), static.axis_name)
    data_action = q_critics.normalize_action(static.networks, batch.transitions.action)
    distance = jnp.mean(jnp.sum(jnp.square(action - data_action), axis=-1))
    loss = state.hyper.actor_bc * distance - jnp.mean(q) / jnp.maximum(size, 1e-6)
    return loss, (stats, {"policy_loss": loss, "q": jnp.mean(q)})


_LOSSES = td3.Losses(batch_of, critic_loss, policy_loss)
gradient_step: Any = partial(td3.gradient_step, losses=_LOSSES)
update = partial(off_policy.update, gradient_step)
make = partial(td3.make, config_class=Config, losses=_LOSSES)
