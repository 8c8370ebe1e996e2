"""Implicit Q-learning, IQL (Kostrikov et al. 2022), to learn from a dataset alone; it can go on with an environment.

A gradient step minimizes the sum of three losses over transitions drawn from a replay buffer, each by its own
parameters:

    value    E[ w |τ - 1(u < 0)| u^2 ],  u = min_k Q_target_k(o, a) - V(o)   (expectile regression, eq. 5)
    critics  E[ w (Q_k(o, a) - r - γ^n V(o'))^2 / 2 ]                        (eq. 6)
    policy   E[ -w min(exp(β u), 100) log π(a|o) ]                           (advantage-weighted regression, eq. 7)

so that no action outside of the data is ever evaluated. The policy of a bounded box is a normal whose mean is squashed
into it and whose deviation, of at least e^-5, does not depend on the observation; that of a discrete space is
categorical.

Departures from the paper: observations are normalized by default, and rewards are not rescaled by the returns of the
dataset; all parameters have one learning rate, constant unless `learning_rate_schedule` is set, where the paper's rate
of the policy falls by a cosine; discrete spaces, and by a field each, n-step targets and prioritized replay by the
critics' mean |TD error|. Time limits are bootstrapped from the true final observation.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
from annotated_types import Interval
from pydantic import Field

from rlkit.agents.base import as_arrays
from rlkit.agents.common import action_distributions, batches, off_policy, q_critics, validation
from rlkit.agents.common.batches import Batch
from rlkit.agents.common.config import QCriticConfig
from rlkit.agents.common.hyper import FiniteNonNegative, OffPolicyHyper
from rlkit.agents.common.normalization import normalize_obs
from rlkit.agents.common.off_policy import Schedules
from rlkit.agents.common.optimizer import Optimizer, mean_gradient
from rlkit.agents.common.policy_evaluation import Actor
from rlkit.agents.common.q_critics import Static, Variables
from rlkit.networks.features import action_mask
from rlkit.ops.distributions import DiagNormal
from rlkit.spaces import Discrete, Space
from rlkit.types import Agent, Array, Key, PyTree, Sample, Scalar, Transition

MAX_WEIGHT = 100.0  # of a transition in the policy's loss
LOG_STD_MIN = -5.0  # as in the authors' code: below it, the likelihood of data that repeat themselves is unbounded


class Config(QCriticConfig):
    networks: ClassVar[tuple[str, ...]] = ("policy", "critics", "value")

    normalize_obs: bool = True
    learning_starts: Annotated[int, Interval(ge=0, lt=2**32)] = Field(
        default=0, description="environment steps before the first gradient step"
    )


class Hyper(OffPolicyHyper):
    """Traced float32 scalars, which a vmap may sweep. Infinity switches a term off."""

    expectile: Annotated[Scalar, Interval(gt=0.0, lt=1.0), "of the values; 0.5 is their mean"] = 0.7
    advantage_weight: Annotated[
        FiniteNonNegative, "β: 0 imitates the data, more prefers actions of larger advantage"
    ] = 3.0


State = off_policy.State  # params: of the policy, the critics and the value; targets of the critics


def distribution(
    static: Static, variables: Variables, obs_stats: PyTree, obs: PyTree, **training: Any
) -> tuple[action_distributions.Distribution, PyTree]:
    """The policy's distribution of normalized actions for observations [...], and its statistics.

    `training` are `train` and `key` of `Network.apply`.
    """
    normalized = normalize_obs(obs_stats, obs)
    output, stats = static.networks.policy.apply(*variables, normalized, **training)
    space = static.networks.action_space
    if isinstance(space, Discrete):
        return action_distributions.distribution(space, output, action_mask(obs), squash=False), stats
    loc, log_std = output
    return DiagNormal(jnp.tanh(loc), jnp.exp(log_std)), stats


def loss(static: Static, params: PyTree, state: State, batch: Batch, key: Key) -> tuple[Array, tuple]:
    """The sum [] of the three losses, no two of which share a gradient; statistics, the priorities [B], and metrics.

    The key draws the networks' noise.
    """
    hyper, obs_stats, networks, stop = state.hyper, state.normalizer.obs, static.networks, jax.lax.stop_gradient
    policy, critics, value = ((params[name], state.stats[name]) for name in ("policy", "critics", "value"))
    policy_key, critic_key, value_key = jax.random.split(key, 3)
    assert networks.value is not None
    action = q_critics.normalize_action(networks, batch.action)
    obs, next_obs = (normalize_obs(obs_stats, x) for x in (batch.obs, batch.next_obs))
    target_critics = state.target_params, state.target_stats
    q = q_critics.q_values(networks, target_critics, obs_stats, batch.obs, action)[0].min(0)
    now, value_stats = networks.value.apply(*value, obs, train=True, key=value_key)
    advantage = q - now
    asymmetry = jnp.where(advantage < 0, 1.0 - hyper.expectile, hyper.expectile)
    value_loss = jnp.mean(batch.weight * asymmetry * jnp.square(advantage))

    target = batches.bootstrapped(batch, stop(networks.value.apply(*value, next_obs)[0]))
    q_now, critic_stats = q_critics.q_values(
        networks, critics, obs_stats, batch.obs, action, train=True, key=critic_key
    )
    critic_loss, priority = q_critics.td_loss(q_now, target, batch.weight)

    preference = jnp.minimum(jnp.exp(jnp.minimum(hyper.advantage_weight * stop(advantage), 10.0)), MAX_WEIGHT)
    dist, policy_stats = distribution(static, policy, obs_stats, batch.obs, train=True, key=policy_key)
    policy_loss = -jnp.mean(batch.weight * preference * action_distributions.log_prob(dist, action))
    metrics = {
        "value_loss": value_loss,
        "critic_loss": critic_loss,
        "policy_loss": policy_loss,
        "q": jnp.mean(q),
        "advantage": jnp.mean(advantage),
    }
    stats = {"policy": policy_stats, "critics": critic_stats, "value": value_stats}
    return value_loss + critic_loss + policy_loss, (stats, priority, metrics)


def gradient_step(
    static: Static, state: State, sample: Sample, schedules: Schedules, key: Key
) -> tuple[State, Array, dict[str, Array]]:
    """One step of descent on a sample of the buffer. Returns the state, the priorities [B] and the metrics."""
    batch = batches.n_step_batch(sample, state.hyper.gamma)
    gradient, (stats, priority, metrics) = mean_gradient(loss, static, state.params, state, batch, key)
    optimizer = Optimizer.of(static.config, state.hyper, schedules.learning_rate)
    params, opt_state, grad_norm = optimizer.step(state.params, state.opt_state, gradient)
    state = off_policy.update_target(state, params["critics"], stats["critics"], when=schedules.update_target)
    state = state.replace(params=params, stats=stats, opt_state=opt_state)
    return state, priority, metrics | {"grad_norm": grad_norm}


def init(static: Static, hyper: Hyper, key: Key, example: Transition, num_envs: int) -> State:
    """The state before learning; `example` is one step without batch axes."""
    key, value_key = jax.random.split(key)
    params, stats = q_critics.init(static.networks, key, example.obs)
    assert static.networks.value is not None
    params["value"], stats["value"] = static.networks.value.init(value_key, example.obs)
    hyper, target = as_arrays(hyper, static.config, num_envs), (params["critics"], stats["critics"])
    return off_policy.init(static, hyper, example, num_envs, (params, stats), target)


def actor(static: Static, state: State) -> Actor:
    """Parameters and statistics for acting."""
    return Actor(state.params["policy"], state.stats["policy"], state.normalizer.obs)


def act(static: Static, actor: Actor, memory: tuple, obs: PyTree, key: Key) -> tuple[tuple, Array, tuple]:
    """One exploring step for one observation: a sample of the policy."""
    dist, _ = distribution(static, actor[:2], actor.obs_stats, obs)
    return memory, q_critics.denormalize_action(static.networks, action_distributions.sample(dist, key)), ()


def policy(static: Static, actor: Actor, memory: tuple, obs: PyTree, key: Key) -> tuple[tuple, Array, tuple]:
    """One step for one observation: the mode of the policy. The key is not used."""
    dist, _ = distribution(static, actor[:2], actor.obs_stats, obs)
    return memory, q_critics.denormalize_action(static.networks, action_distributions.mode(dist)), ()


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
    """IQL for these spaces.

    Arguments and errors are those of `sac.make`. `networks` may have a `value` as well, a function of
    observations to V [...].
    """
    needed = "a Discrete action space or a Box of floats with finite bounds"
    validation.check_action_space(Config, config, action_space, supported=supports(action_space), needed=needed)
    built = q_critics.make(
        config,
        obs_space,
        action_space,
        networks,
        spread="constant",
        log_std_min=LOG_STD_MIN,
        has_value=True,
        axis_name=axis_name,
    )
    static = Static(config, built, off_policy.buffer(config, axis_name), axis_name)
    return off_policy.agent(
        static,
        init=init,
        actor=actor,
        act=act,
        policy=policy,
        gradient_step=gradient_step,
        finite=("value_loss", "critic_loss", "policy_loss", "grad_norm"),
    )
