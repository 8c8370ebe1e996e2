"""Deep Q-learning (Mnih et al. 2015) with the parts of Rainbow (Hessel et al. 2018), each by a field.

A gradient step minimizes, over transitions drawn from a replay buffer,

    E[ w huber( r + γ^n Q_target(o', argmax_a Q(o', a)) - Q(o, a) ) ]

`double` selects the next action by the online network as above (van Hasselt et al. 2016), or else by the target one.
`dueling` splits the head (Wang et al. 2016), `n_step` sums rewards before the bootstrap, `replay: prioritized` draws by
|TD error| with importance weights w (Schaul et al. 2016), `noisy` explores by learned noise (Fortunato et al. 2018).
`random_shift` learns from images o and o' that are each moved by a few pixels (Kostrikov et al. 2021).

Departures from the papers: many environments may collect at once, followed by `replay_ratio` gradient steps for each of
their steps; Adam in place of RMSProp; a target network that is copied, or that follows (`tau`); noise in the layers of
the heads alone. Time limits are bootstrapped from the true final observation.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from pydantic import Field

from rlkit.agents.base import as_arrays
from rlkit.agents.common import batches, exploration, off_policy, q_learning
from rlkit.agents.common.batches import Batch
from rlkit.agents.common.config import InNetwork, QLearningConfig
from rlkit.agents.common.hyper import EpsilonHyper, OffPolicyHyper, Positive
from rlkit.agents.common.off_policy import Schedules
from rlkit.agents.common.optimizer import Optimizer, mean_gradient
from rlkit.agents.common.q_learning import Actor, Static
from rlkit.networks.features import action_mask
from rlkit.ops import losses
from rlkit.ops._arrays import pick
from rlkit.spaces import Discrete, Space
from rlkit.types import Agent, Array, Key, PyTree, Sample, Transition


class Config(QLearningConfig):
    double: bool = True
    dueling: Annotated[bool, InNetwork] = False
    noisy: bool = Field(default=False, description="learned noise in the heads explores, and epsilon is off")


class Hyper(OffPolicyHyper, EpsilonHyper):
    """Traced float32 scalars, which a vmap may sweep. Infinity switches a term off."""

    huber_delta: Positive = 1.0
    max_grad_norm: Positive = 10.0


State = off_policy.State


def values(static: Static, outputs: Array) -> Array:
    """Q [..., A] from the outputs of the network."""
    return outputs


def loss(static: Static, params: PyTree, state: State, batch: Batch, key: Key) -> tuple[Array, tuple]:
    """The loss [] of a batch; the network's statistics, the batch's priorities [B], and metrics."""
    apply = partial(q_learning.apply, static, obs_stats=state.normalizer.obs)
    key, next_key, select_key = jax.random.split(key, 3)
    q, stats = apply((params, state.stats), obs=batch.obs, key=key, train=True)
    next_q, _ = apply((state.target_params, state.target_stats), obs=batch.next_obs, key=next_key)
    selector = next_q
    if static.config.double:
        selector, _ = apply((params, state.stats), obs=batch.next_obs, key=select_key)
    selector = jax.lax.stop_gradient(exploration.mask_illegal(selector, action_mask(batch.next_obs)))
    td_error = losses.double_q_learning(q, batch.action, batch.reward, batch.discount, next_q, selector)
    total = jnp.mean(batch.weight * losses.huber(td_error, state.hyper.huber_delta))
    priority = jax.lax.stop_gradient(jnp.abs(td_error))
    metrics = {"loss": total, "q": jnp.mean(pick(q, batch.action)), "priority": priority.mean()}
    return total, (stats, priority, metrics)


def gradient_step(
    static: Static, state: State, sample: Sample, schedules: Schedules, key: Key, *, loss: Callable = loss
) -> tuple[State, Array, dict[str, Array]]:
    """One step of descent on a sample of the buffer. Returns the state, the priorities [B] and the metrics."""
    batch = batches.n_step_batch(sample, state.hyper.gamma)
    gradient, (stats, priority, metrics) = mean_gradient(loss, static, state.params, state, batch, key)
    optimizer = Optimizer.of(static.config, state.hyper, schedules.learning_rate)
    params, opt_state, grad_norm = optimizer.step(state.params, state.opt_state, gradient)
    state = off_policy.update_target(state, params, stats, when=schedules.update_target)
    state = state.replace(params=params, stats=stats, opt_state=opt_state)
    return state, priority, metrics | {"grad_norm": grad_norm}


def init(static: Static, hyper: Hyper, key: Key, example: Transition, num_envs: int) -> State:
    """The state before learning; `example` is one step without batch axes."""
    hyper = as_arrays(hyper, static.config, num_envs)
    return off_policy.init(static, hyper, example, num_envs, static.network.init(key, example.obs))


def act(
    static: Static, actor: Actor, memory: tuple, obs: PyTree, key: Key, *, values: Callable = values
) -> tuple[tuple, Array, tuple]:
    """One exploring step for one observation: a random action with probability epsilon, or by noisy weights."""
    noise_key, explore_key = jax.random.split(key)
    q = values(static, q_learning.apply(static, actor[:2], actor.obs_stats, obs, noise_key)[0])
    action = exploration.epsilon_greedy(explore_key, static.action_space, q, action_mask(obs), actor.epsilon)
    return memory, action, ()


def policy(
    static: Static, actor: Actor, memory: tuple, obs: PyTree, key: Key, *, values: Callable = values
) -> tuple[tuple, Array, tuple]:
    """One step for one observation: the action of the largest value, without noise. The key is not used."""
    q = values(static, q_learning.apply(static, actor[:2], actor.obs_stats, obs)[0])
    return memory, exploration.greedy(static.action_space, q, action_mask(obs)), ()


update = partial(off_policy.update, gradient_step)


def supports(action_space: Space) -> bool:
    """True for the action spaces that the agent can act in."""
    return isinstance(action_space, Discrete)


def make(
    config: Config, obs_space: Space, action_space: Space, networks: Any = None, *, axis_name: str | None = None
) -> Agent:
    """DQN for these spaces.

    Args:
      config: the static settings.
      obs_space, action_space: an environment's spaces.
      networks: a network from observations to Q [..., A], in any form of `networks.as_network`; None for the one that
        `config` describes.
      axis_name: of a mesh axis, see `training.data_parallel`; None for one device.

    Raises:
      ConfigError: the action space is not Discrete, or a setting does not fit.
    """
    static = q_learning.static(Config, config, obs_space, action_space, networks, None, axis_name)
    return q_learning.agent(static, init=init, act=act, policy=policy, gradient_step=gradient_step)
