"""Implicit Q-learning, IQL (Kostrikov et al. 2022), to learn from a dataset alone; it can go on with an environment.

A gradient step minimizes the sum of three losses over transitions drawn from a replay buffer, each by its own
parameters:

    value    E[ |τ - 1(u < 0)| u^2 ],  u = min_k Q_target_k(o, a) - V(o)     (expectile regression, eq. 5)
    critics  E[ w (Q_k(o, a) - r - γ^n V(o'))^2 / 2 ]                        (eq. 6)
    policy   E[ -min(exp(β u), 100) log π(a|o) ]                             (advantage-weighted regression, eq. 7)

so that no action outside of the data is ever evaluated. The policy of a bounded box is a normal whose mean is squashed
into it and whose deviation, of at least e^-5, does not depend on the observation; that of a discrete space is
categorical. Time limits are bootstrapped from the true final observation.
"""

from functools import partial
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from annotated_types import Interval
from flax import struct
from pydantic import Field

from rlkit.agents.common import action_distributions, normalization, off_policy, q_critics, validation
from rlkit.agents.common.config import QCriticConfig
from rlkit.agents.common.hyper import FiniteNonNegative, OffPolicyHyper, as_arrays
from rlkit.agents.common.normalization import Normalizer, normalize_obs
from rlkit.agents.common.off_policy import Batch, ReplayState, Schedules
from rlkit.agents.common.optimizer import Optimizer, mean_gradient
from rlkit.agents.common.q_critics import Static
from rlkit.networks.features import action_mask
from rlkit.ops.distributions import DiagNormal
from rlkit.spaces import Discrete, Space
from rlkit.types import Agent, Array, Key, PyTree, Sample, Scalar, Transition

MAX_WEIGHT = 100.0  # of a transition in the policy's loss
LOG_STD_MIN = -5.0  # as in the authors' code: below it, the likelihood of data that repeat themselves is unbounded


class Config(QCriticConfig):
    """Static settings."""

    normalize_obs: bool = True
    learning_starts: Annotated[int, Interval(ge=0, lt=2**32)] = Field(
        0, description="environment steps before the first gradient step"
    )


class Hyper(OffPolicyHyper):
    """Traced float32 scalars, which a vmap may sweep. Infinity switches a term off."""

    expectile: Annotated[Scalar, Interval(gt=0.0, lt=1.0), "of the values; 0.5 is their mean"] = 0.7
    advantage_weight: Annotated[
        FiniteNonNegative, "β: 0 imitates the data, more prefers actions of larger advantage"
    ] = 3.0


class State(struct.PyTreeNode):
    """Everything that learning carries from update to update."""

    hyper: Hyper
    params: PyTree  # of the policy, the critics and the value
    target_params: PyTree  # of the critics
    opt_state: PyTree
    normalizer: Normalizer
    replay: ReplayState


class Actor(NamedTuple):
    """Parameters and statistics for acting."""

    params: PyTree  # of the policy
    obs_stats: PyTree


def distribution(static: Static, params: PyTree, obs_stats: PyTree, obs: PyTree) -> action_distributions.Distribution:
    """The policy's distribution of normalized actions for observations [...]."""
    output = static.networks.policy.apply(params, normalize_obs(static.obs_space, obs_stats, obs))
    space = static.networks.action_space
    if isinstance(space, Discrete):
        return action_distributions.distribution(space, output, action_mask(obs), squash=False)
    loc, log_std = output
    return DiagNormal(jnp.tanh(loc), jnp.exp(log_std))


def loss(static: Static, params: PyTree, state: State, batch: Batch, key: Key) -> tuple[Array, tuple[Array, dict]]:
    """The sum [] of the three losses, no two of which share a gradient, the priorities [B], and metrics.

    The key is not used.
    """
    hyper, obs_stats, networks, stop = state.hyper, state.normalizer.obs, static.networks, jax.lax.stop_gradient
    action = q_critics.normalize_action(networks, batch.action)
    obs, next_obs = (normalize_obs(static.obs_space, obs_stats, x) for x in (batch.obs, batch.next_obs))
    q = q_critics.q_values(networks, state.target_params, obs_stats, batch.obs, action).min(0)
    advantage = q - networks.value.apply(params["value"], obs)[0]
    asymmetry = jnp.where(advantage < 0, 1.0 - hyper.expectile, hyper.expectile)
    value_loss = jnp.mean(batch.weight * asymmetry * jnp.square(advantage))

    target = off_policy.bootstrapped(batch, stop(networks.value.apply(params["value"], next_obs)[0]))
    td_error = q_critics.q_values(networks, params["critics"], obs_stats, batch.obs, action) - target[None]
    critic_loss = jnp.mean(batch.weight * jnp.sum(jnp.square(td_error), axis=0)) / 2

    preference = jnp.minimum(jnp.exp(jnp.minimum(hyper.advantage_weight * stop(advantage), 10.0)), MAX_WEIGHT)
    dist = distribution(static, params["policy"], obs_stats, batch.obs)
    policy_loss = -jnp.mean(batch.weight * preference * action_distributions.log_prob(dist, action))
    metrics = {
        "value_loss": value_loss,
        "critic_loss": critic_loss,
        "policy_loss": policy_loss,
        "q": jnp.mean(q),
        "advantage": jnp.mean(advantage),
    }
    priority = stop(jnp.mean(jnp.abs(td_error), axis=0))
    return value_loss + critic_loss + policy_loss, (priority, metrics)


def gradient_step(
    static: Static, state: State, sample: Sample, schedules: Schedules, key: Key
) -> tuple[State, Array, dict[str, Array]]:
    """One step of descent on a sample of the buffer. Returns the state, the priorities [B] and the metrics."""
    batch = off_policy.n_step_batch(sample, state.hyper.gamma)
    gradient, (priority, metrics) = mean_gradient(loss, static, state.params, state, batch, key)
    optimizer = Optimizer.of(static.config, state.hyper, schedules.learning_rate)
    params, opt_state, grad_norm = optimizer.step(state.params, state.opt_state, gradient)
    target_params = off_policy.target_update(
        params["critics"], state.target_params, state.hyper.tau, when=schedules.update_target
    )
    state = state.replace(params=params, opt_state=opt_state, target_params=target_params)
    return state, priority, metrics | {"grad_norm": grad_norm}


def init(static: Static, hyper: Hyper, key: Key, example: Transition, num_envs: int) -> State:
    """The state before learning; `example` is one step without batch axes."""
    key, value_key = jax.random.split(key)
    networks = static.networks
    params = q_critics.init(networks, key, example.obs) | {"value": networks.value.init(value_key, example.obs)}
    return State(
        hyper=as_arrays(hyper, static.config, num_envs),
        params=params,
        target_params=jax.tree.map(jnp.array, params["critics"]),
        opt_state=Optimizer.of(static.config, hyper, 0.0).init(params),
        normalizer=normalization.init(static.obs_space, example, num_envs, obs=static.config.normalize_obs),
        replay=off_policy.init(static.buffer, example, num_envs),
    )


def actor(static: Static, state: State) -> Actor:
    """Parameters and statistics for acting."""
    return Actor(state.params["policy"], state.normalizer.obs)


def act(static: Static, actor: Actor, memory: tuple, obs: PyTree, key: Key) -> tuple[tuple, Array, tuple]:
    """One exploring step for one observation: a sample of the policy."""
    dist = distribution(static, actor.params, actor.obs_stats, obs)
    return memory, q_critics.denormalize_action(static.networks, action_distributions.sample(dist, key)), ()


def policy(static: Static, actor: Actor, memory: tuple, obs: PyTree, key: Key) -> tuple[tuple, Array, tuple]:
    """One step for one observation: the mode of the policy. The key is not used."""
    dist = distribution(static, actor.params, actor.obs_stats, obs)
    return memory, q_critics.denormalize_action(static.networks, action_distributions.mode(dist)), ()


def update(static: Static, state: State, rollout: Transition, key: Key) -> tuple[State, dict[str, Array]]:
    """Store a rollout [T, N, ...], then learn from the buffer. Observation statistics change at the end."""
    state = off_policy.store(static, state, rollout)
    state, metrics = off_policy.learn(static, gradient_step, state, key, off_policy.num_steps(static, rollout))
    return off_policy.update_statistics(static, state, rollout), metrics


def supports(action_space: Space) -> bool:
    """True for the action spaces that the agent can act in."""
    return isinstance(action_space, Discrete) or q_critics.is_bounded_box(action_space)


def make(config: Config, obs_space: Space, action_space: Space, *, axis_name: str | None = None) -> Agent:
    """IQL for these spaces.

    Args:
      config: the static settings.
      obs_space, action_space: an environment's spaces.
      axis_name: of a mesh axis, see `training.data_parallel`; None for one device.

    Raises:
      ConfigError: the action space is neither Discrete nor a Box with finite bounds, or a setting does not fit.
    """
    needed = "a Discrete action space or a Box of floats with finite bounds"
    validation.check_action_space("iql", config, action_space, supported=supports(action_space), needed=needed)
    networks = q_critics.make(config, obs_space, action_space, spread="constant", log_std_min=LOG_STD_MIN)
    static = Static(config, networks, off_policy.buffer(config, axis_name), axis_name)
    return Agent(
        init=partial(init, static),
        actor=partial(actor, static),
        act=partial(act, static),
        policy=partial(policy, static),
        update=partial(update, static),
        check=partial(off_policy.check, config),
        add=partial(off_policy.add, static),
        learn=partial(off_policy.learn, static, gradient_step),
        wait=partial(off_policy.wait, static),
        static=static,
        axis_name=axis_name,
    )


EXAMPLES = (("Probe-Continuous", {}), ("Probe-MaskedAction", {}))  # (environment, settings) of the contract tests
