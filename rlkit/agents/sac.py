"""Soft actor-critic (Haarnoja et al. 2018b), for bounded boxes and for discrete spaces (Christodoulou 2019).

A gradient step minimizes the sum of three losses over transitions drawn from a replay buffer, each by its own
parameters:

    critics      E[ w (Q_k(o, a) - y)^2 / 2 ],  y = r + γ^n (min_k Q_target_k(o', a') - α log π(a'|o')),  a' ~ π(o')
    policy       E[ α log π(a|o) - min_k Q_k(o, a) ],  a ~ π(o)
    temperature  E[ log α (H - H_target) ],  H = -log π(a|o)

In a discrete space the expectations over actions are sums, and H_target is a share of the log of the number of legal
actions; in a box it is a number for each dimension, of actions in [-1, 1]; `target_entropy_total` replaces either.
Departures from the papers: in discrete spaces a target of 0.7 of the greatest entropy, where Christodoulou has 0.98; a
loss of the temperature in log α; n-step targets, prioritized replay by the critics' mean |TD error| and state-dependent
exploration (Raffin et al. 2021), each by a field. Time limits are bootstrapped from the true final observation.

Randomized ensembled double Q-learning, REDQ (Chen et al. 2021), is SAC with many critics and many gradient steps. Its
targets take the least of a random subset of the target critics, drawn anew at each gradient step, and its policy
maximizes the mean of all critics: `num_critics: 10`, `target_subset: 2`, `actor_q: mean`, `replay_ratio: 20` and
`policy_every: 20`, which updates the policy and the temperature once for 20 steps of the critics.

DroQ (Hiraoka et al. 2022) has two critics with dropout and layer norms instead: `critic_dropout: 0.01`,
`layer_norm: true`, which is of the policy as well here, and the last three keys of REDQ. Dropout is active in the
targets and in the policy's loss too.

With `recurrent: gru`, or another memory, the policy and the critics remember the observations of an episode and learn
from sequences of steps (Ni et al. 2022); `agents.common.recurrent.sequences` states their losses. `batch_size` counts
the rows that are learned from then.

With `random_shift: 4` all three losses are of images o and o' that are each moved by up to four pixels, as in DrQ
(Kostrikov et al. 2021). DrQ averages targets and losses over two shifts of each image; here it is one.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from annotated_types import Interval
from pydantic import Field

from rlkit.agents.base.keys import LearningRate, StartOnly, Unused
from rlkit.agents.common import batches, off_policy, q_critics, soft_critic, validation
from rlkit.agents.common.batches import Batch
from rlkit.agents.common.config import (
    Count,
    GaussianPolicyConfig,
    InCritics,
    MemoryConfig,
    QCriticConfig,
)
from rlkit.agents.common.hyper import ActorCriticHyper, FinitePositive, OwnPartsHaveIt, OwnRate, Positive, value_or
from rlkit.agents.common.q_critics import Static
from rlkit.agents.common.recurrent import sequences
from rlkit.agents.common.soft_critic import State
from rlkit.networks.features import action_mask
from rlkit.spaces import Box, Discrete, Space
from rlkit.types import Agent, Array, ConfigError, Key, PyTree, Scalar


class SoftConfig(GaussianPolicyConfig, QCriticConfig):
    """Static: SAC and its variants without a memory."""

    gsde_log_std: ClassVar[float] = -3.0

    target_subset: Count | None = Field(
        default=None, description="critics of a target, a random draw of each gradient step; null: all of num_critics"
    )
    actor_q: Literal["min", "mean"] = Field(
        default="min", description="of the critics' values of an action, which the policy maximizes"
    )
    policy_every: Count = Field(
        default=1, description="gradient steps of the critics for each of the policy and the temperature"
    )
    critic_dropout: Annotated[float, InCritics] = Field(
        default=0.0, ge=0.0, lt=1.0, description="share of a dense layer's outputs, of the critics while they learn"
    )
    learn_temperature: bool = Field(default=True, description="towards the target entropy; false keeps the start value")


class Config(MemoryConfig, SoftConfig):
    """Static: SAC and its variants with a memory or without."""

    burn_in: Annotated[int, Unused(recurrent="none")] = Field(
        default=8, ge=0, lt=2**31, description="rows of a sequence that only warm the memory up"
    )
    unroll_len: Annotated[Count, Unused(recurrent="none")] = Field(
        default=16,
        description="rows of a sequence that are learned from: batch_size / unroll_len sequences for a gradient step",
    )

    @property
    def item_length(self) -> int:
        return self.n_step if self.recurrent == "none" else self.burn_in + self.unroll_len

    def check_batch_size(self, devices: int = 1) -> None:
        rows = self.unroll_len * devices
        if self.recurrent != "none" and self.batch_size % rows:
            of = f"unroll_len={self.unroll_len}" + (f" times {devices} devices" if devices > 1 else "")
            raise ConfigError(
                f"batch_size={self.batch_size} must be a multiple of {of}, as it counts the rows that are learned "
                f"from; try {max(1, round(self.batch_size / rows)) * rows}"
            )
        super().check_batch_size(devices)


class Hyper(ActorCriticHyper):
    """Traced float32 scalars, which a vmap may sweep. Infinity switches a term off."""

    max_grad_norm: Annotated[Positive, "norm of the gradient of the policy, the critics and the temperature, each"] = (
        jnp.inf
    )
    temperature: Annotated[FinitePositive, "weight of the entropy at the start", StartOnly] = 1.0
    temperature_learning_rate: Annotated[
        OwnRate, "null: learning_rate", LearningRate, OwnPartsHaveIt, Unused(learn_temperature=False)
    ] = None
    target_entropy: Annotated[
        Scalar,
        Interval(gt=-jnp.inf, lt=jnp.inf),
        "nats for each dimension of a Box, of actions in [-1, 1]",
        Unused(action_space=Discrete, target_entropy_total=float, learn_temperature=False),
    ] = -1.0
    target_entropy_total: Annotated[
        Scalar | None,
        Interval(gt=-jnp.inf, lt=jnp.inf),
        "nats of a whole action; null: by the two others",
        Unused(learn_temperature=False),
    ] = None
    target_entropy_share: Annotated[
        Scalar,
        Interval(ge=0.0, le=1.0),
        "of the log of the number of legal actions, in a discrete space",
        Unused(action_space=Box, target_entropy_total=float, learn_temperature=False),
    ] = 0.7


def target_entropy(static: Static, hyper: Hyper, obs: PyTree) -> Array:
    """The entropy, in nats, towards which the temperature adapts: [], or [...] where actions are masked."""
    if isinstance(static.networks.action_space, Box):
        target = jnp.asarray(hyper.target_entropy) * static.networks.size
    else:
        mask = action_mask(obs)
        legal = jnp.float32(static.networks.size) if mask is None else jnp.sum(mask, axis=-1, dtype=jnp.float32)
        target = hyper.target_entropy_share * jnp.log(jnp.maximum(legal, 1.0))
    return jnp.asarray(value_or(hyper.target_entropy_total, target))


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

    An agent with a memory gives `ahead`, in place of `static` for the networks at the next observations, and
    `bootstrapped`, which computes the targets [B] from the batch and the values [B] of its next observations.
    """
    value, bonus = soft_critic.next_estimate(ahead or static, state, batch, key, combine=lambda q: q.min(0))
    target = jax.lax.stop_gradient(bootstrapped(batch, value + bonus))
    q, stats = soft_critic.data_values(static, params["critics"], state, batch, key)
    loss, priority = q_critics.td_loss(q, target, batch.weight)
    return loss, (stats, priority, {"critic_loss": loss})


def policy_loss(
    static: Static,
    params: dict[str, PyTree],
    state: State,
    batch: Batch,
    key: Key,
    *,
    values: Callable[[Array], Array] = lambda q: q,
) -> tuple[Array, tuple[PyTree, dict[str, Array]]]:
    """The sum [] of the losses of the policy and of log_temperature; the policy's statistics, and metrics.

    `values` makes Q [K, ...] of the outputs of the critics [K, ...].
    """
    stop, noise = jax.lax.stop_gradient, jax.random.fold_in(key, 0)
    policy, critics = (params["policy"], state.stats["policy"]), (state.params["critics"], state.stats["critics"])
    obs_stats, temperature = state.normalizer.obs, stop(jnp.exp(params["log_temperature"]))
    reduce = {"min": jnp.min, "mean": jnp.mean}[static.config.actor_q]
    now = soft_critic.estimate(
        static,
        policy,
        critics,
        obs_stats,
        batch.obs,
        key,
        combine=lambda outputs: reduce(values(outputs), axis=0),
        train=True,
        noise=noise,
    )
    loss = -jnp.mean(now.value + temperature * now.entropy)
    excess = stop(jnp.mean(now.entropy - target_entropy(static, state.hyper, batch.obs)))
    temperature_loss = params["log_temperature"] * excess if static.config.learn_temperature else jnp.zeros(())
    metrics = {
        "policy_loss": loss,
        "temperature": temperature,
        "entropy": jnp.mean(now.entropy),
        "q": jnp.mean(now.value),
    }
    return loss + temperature_loss, (now.stats, metrics)


gradient_step = partial(soft_critic.gradient_step, critic_loss=critic_loss, policy_loss=policy_loss)
update = partial(off_policy.update, gradient_step)


def supports(action_space: Space) -> bool:
    """True for the action spaces that the agent can act in."""
    return isinstance(action_space, Discrete) or q_critics.is_bounded_box(action_space)


def make(
    config: Config,
    obs_space: Space,
    action_space: Space,
    networks: Mapping[str, Any] | None = None,
    *,
    axis_name: str | None = None,
) -> Agent:
    """SAC for these spaces.

    Args:
      config: the static settings.
      obs_space, action_space: an environment's spaces.
      networks: some of `policy` and `critics`, each in any form of `networks.as_network`; the others are those that
        `config` describes. The policy maps observations to `(loc, log_std)`, both [..., D], or in a discrete space to
        logits [..., A]. The critics map observations and actions [..., D] in [-1, 1] to [num_critics, ...], or in a
        discrete space observations to [num_critics, ..., A]. With `recurrent` both have a memory: they take it last,
        and return the next one after their outputs.
      axis_name: of a mesh axis, see `training.data_parallel`; None for one device.

    Raises:
      ConfigError: the action space is neither Discrete nor a Box with finite bounds, or a setting does not fit.
    """
    needed = "a Discrete action space or a Box of floats with finite bounds"
    validation.check_action_space(Config, config, action_space, supported=supports(action_space), needed=needed)
    if config.recurrent != "none":
        losses = critic_loss, policy_loss
        return sequences.make(config, obs_space, action_space, networks, *losses, axis_name=axis_name)
    return soft_critic.make(config, obs_space, action_space, networks, gradient_step, axis_name=axis_name)
