"""Quantile-regression deep Q-learning, QR-DQN (Dabney et al. 2018): DQN with quantiles of the returns.

A gradient step minimizes the quantile Huber loss between the quantiles of Z(o, a), at the midpoints of M equal shares,
and those of r + γ^n Z_target(o', a*) (equation 10); a* maximizes the mean. The fields are those of `dqn`.
"""

from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from flax import struct
from pydantic import Field

from rlkit.agents.common import exploration, normalization, off_policy, q_learning
from rlkit.agents.common.config import OffPolicyConfig, TorsoConfig, Width
from rlkit.agents.common.hyper import EpsilonHyper, OffPolicyHyper, Positive, as_arrays
from rlkit.agents.common.normalization import Normalizer
from rlkit.agents.common.off_policy import Batch, ReplayState, Schedules
from rlkit.agents.common.optimizer import Optimizer, mean_gradient
from rlkit.agents.common.q_learning import Actor, Static
from rlkit.networks.features import action_mask
from rlkit.ops._arrays import pick
from rlkit.ops.distributional import quantile_q_learning
from rlkit.spaces import Discrete, Space
from rlkit.types import Agent, Array, Key, PyTree, Sample, Transition


class Config(OffPolicyConfig, TorsoConfig):
    """Static settings."""

    double: bool = True
    dueling: bool = False
    noisy: bool = Field(False, description="learned noise in the heads explores, and epsilon is off")
    num_quantiles: Width = Field(51, description="of the distribution of returns")


class Hyper(OffPolicyHyper, EpsilonHyper):
    """Traced float32 scalars, which a vmap may sweep. Infinity switches a term off."""

    huber_delta: Annotated[Positive, "kappa of the paper"] = 1.0
    max_grad_norm: Positive = 10.0


class State(struct.PyTreeNode):
    """Everything that learning carries from update to update."""

    hyper: Hyper
    params: PyTree
    target_params: PyTree
    opt_state: PyTree
    normalizer: Normalizer
    replay: ReplayState


def loss(static: Static, params: PyTree, state: State, batch: Batch, key: Key) -> tuple[Array, tuple[Array, dict]]:
    """The loss [] of a batch, its priorities [B], and its metrics."""
    obs_stats = state.normalizer.obs
    key, next_key, select_key = jax.random.split(key, 3)
    quantiles = q_learning.apply(static, params, obs_stats, batch.obs, key)  # [B, A, M]
    next_quantiles = q_learning.apply(static, state.target_params, obs_stats, batch.next_obs, next_key)
    selecting = next_quantiles
    if static.config.double:
        selecting = q_learning.apply(static, params, obs_stats, batch.next_obs, select_key)
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
    return total, (priority, {"loss": total, "q": q, "priority": priority.mean()})


def gradient_step(
    static: Static, state: State, sample: Sample, schedules: Schedules, key: Key
) -> tuple[State, Array, dict[str, Array]]:
    """One step of descent on a sample of the buffer. Returns the state, the priorities [B] and the metrics."""
    batch = off_policy.n_step_batch(sample, state.hyper.gamma)
    gradient, (priority, metrics) = mean_gradient(loss, static, state.params, state, batch, key)
    optimizer = Optimizer.of(static.config, state.hyper, schedules.learning_rate)
    params, opt_state, grad_norm = optimizer.step(state.params, state.opt_state, gradient)
    target_params = off_policy.target_update(params, state.target_params, state.hyper.tau, when=schedules.update_target)
    state = state.replace(params=params, opt_state=opt_state, target_params=target_params)
    return state, priority, metrics | {"grad_norm": grad_norm}


def init(static: Static, hyper: Hyper, key: Key, example: Transition, num_envs: int) -> State:
    """The state before learning; `example` is one step without batch axes."""
    params = static.network.init(key, example.obs)
    return State(
        hyper=as_arrays(hyper, static.config, num_envs),
        params=params,
        target_params=jax.tree.map(jnp.array, params),
        opt_state=Optimizer.of(static.config, hyper, 0.0).init(params),
        normalizer=normalization.init(static.obs_space, example, num_envs, obs=static.config.normalize_obs),
        replay=off_policy.init(static.buffer, example, num_envs),
    )


def act(static: Static, actor: Actor, memory: tuple, obs: PyTree, key: Key) -> tuple[tuple, Array, tuple]:
    """One exploring step for one observation: a random action with probability epsilon, or by noisy weights."""
    noise_key, explore_key = jax.random.split(key)
    q = q_learning.apply(static, actor.params, actor.obs_stats, obs, noise_key).mean(-1)
    action = exploration.epsilon_greedy(explore_key, static.action_space, q, action_mask(obs), actor.epsilon)
    return memory, action, ()


def policy(static: Static, actor: Actor, memory: tuple, obs: PyTree, key: Key) -> tuple[tuple, Array, tuple]:
    """One step for one observation: the action of the largest mean, without noise. The key is not used."""
    q = q_learning.apply(static, actor.params, actor.obs_stats, obs).mean(-1)
    return memory, exploration.greedy(static.action_space, q, action_mask(obs)), ()


def update(static: Static, state: State, rollout: Transition, key: Key) -> tuple[State, dict[str, Array]]:
    """Store a rollout [T, N, ...], then learn from the buffer. Observation statistics change at the end."""
    state = off_policy.store(static, state, rollout)
    state, metrics = off_policy.learn(static, gradient_step, state, key, off_policy.num_steps(static, rollout))
    return off_policy.update_statistics(static, state, rollout), metrics


def supports(action_space: Space) -> bool:
    """True for the action spaces that the agent can act in."""
    return isinstance(action_space, Discrete)


def make(
    config: Config, obs_space: Space, action_space: Space, network: Any = None, *, axis_name: str | None = None
) -> Agent:
    """QR-DQN for these spaces.

    Args:
      config: the static settings.
      obs_space, action_space: an environment's spaces.
      network: as for `dqn.make`, with quantiles [..., A, num_quantiles]; None for the one that `config` describes.
      axis_name: of a mesh axis, see `training.data_parallel`; None for one device.

    Raises:
      ConfigError: the action space is not Discrete, or a setting does not fit.
    """
    static = q_learning.static("qrdqn", config, obs_space, action_space, network, "num_quantiles", axis_name)
    return Agent(
        init=partial(init, static),
        actor=partial(q_learning.actor, static),
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


EXAMPLES = (  # (environment, settings) that the contract tests run
    ("Probe-ObservationAction", {"num_quantiles": 5, "replay": "prioritized"}),
)
