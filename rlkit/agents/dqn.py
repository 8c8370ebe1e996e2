"""Deep Q-learning (Mnih et al. 2015) with the parts of Rainbow (Hessel et al. 2018), each by a field.

A gradient step minimizes, over transitions drawn from a replay buffer,

    E[ w huber( r + γ^n Q_target(o', argmax_a Q(o', a)) - Q(o, a) ) ]

`double` selects the next action by the online network as above (van Hasselt et al. 2016), or else by the target one.
`dueling` splits the head (Wang et al. 2016), `n_step` sums rewards before the bootstrap, `replay: prioritized` draws by
|TD error| with importance weights w (Schaul et al. 2016), `noisy` explores by learned noise (Fortunato et al. 2018).

Departures from the papers: many environments may collect at once, followed by `replay_ratio` gradient steps for each of
their steps; Adam in place of RMSProp; a target network that is copied, or that follows (`tau`); noise in the layers of
the heads alone. Time limits are bootstrapped from the true final observation.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from pydantic import Field

from rlkit.agents.common import exploration, normalization, off_policy, q_learning
from rlkit.agents.common.config import OffPolicyConfig, TorsoConfig
from rlkit.agents.common.hyper import EpsilonHyper, OffPolicyHyper, Positive, as_arrays
from rlkit.agents.common.normalization import Normalizer
from rlkit.agents.common.off_policy import Batch, ReplayState, Schedules
from rlkit.agents.common.optimizer import Optimizer, mean_gradient
from rlkit.agents.common.q_learning import Actor, Static
from rlkit.networks.features import action_mask
from rlkit.ops import losses
from rlkit.ops._arrays import pick
from rlkit.spaces import Discrete, Space
from rlkit.types import Agent, Array, Key, PyTree, Sample, Transition


class Config(OffPolicyConfig, TorsoConfig):
    """Static settings."""

    double: bool = True
    dueling: bool = False
    noisy: bool = Field(False, description="learned noise in the heads explores, and epsilon is off")


class Hyper(OffPolicyHyper, EpsilonHyper):
    """Traced float32 scalars, which a vmap may sweep. Infinity switches a term off."""

    huber_delta: Positive = 1.0
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
    q = q_learning.apply(static, params, obs_stats, batch.obs, key)
    next_q = q_learning.apply(static, state.target_params, obs_stats, batch.next_obs, next_key)
    selector = next_q
    if static.config.double:
        selector = q_learning.apply(static, params, obs_stats, batch.next_obs, select_key)
    selector = jax.lax.stop_gradient(exploration.mask_illegal(selector, action_mask(batch.next_obs)))
    td_error = losses.double_q_learning(q, batch.action, batch.reward, batch.discount, next_q, selector)
    total = jnp.mean(batch.weight * losses.huber(td_error, state.hyper.huber_delta))
    priority = jax.lax.stop_gradient(jnp.abs(td_error))
    metrics = {"loss": total, "q": jnp.mean(pick(q, batch.action)), "priority": priority.mean()}
    return total, (priority, metrics)


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
    q = q_learning.apply(static, actor.params, actor.obs_stats, obs, noise_key)
    action = exploration.epsilon_greedy(explore_key, static.action_space, q, action_mask(obs), actor.epsilon)
    return memory, action, ()


def policy(static: Static, actor: Actor, memory: tuple, obs: PyTree, key: Key) -> tuple[tuple, Array, tuple]:
    """One step for one observation: the action of the largest value, without noise. The key is not used."""
    q = q_learning.apply(static, actor.params, actor.obs_stats, obs)
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
    """DQN for these spaces.

    Args:
      config: the static settings.
      obs_space, action_space: an environment's spaces.
      network: anything with `init(key, obs) -> params` and `apply(params, obs) -> Q [..., A]`, as attributes or as a
        pair; None for the network that `config` describes.
      axis_name: of a mesh axis, see `training.data_parallel`; None for one device.

    Raises:
      ConfigError: the action space is not Discrete, or a setting does not fit.
    """
    static = q_learning.static("dqn", config, obs_space, action_space, network, None, axis_name)
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
    ("Probe-ObservationAction", {"normalize_obs": True, "target_every": 10}),
    ("Probe-MaskedAction", {"replay": "prioritized", "n_step": 3, "noisy": True, "dueling": True}),
)
