"""Deep Q-learning (Mnih et al. 2015) with the parts of Rainbow (Hessel et al. 2018), each by a field.

A gradient step lowers, over transitions drawn from a replay buffer,

    E[ w huber( r + γ^n Q_target(o', argmax_a Q(o', a)) - Q(o, a) ) ]

`double` selects the next action by the online network as above (van Hasselt et al. 2016), or else the target one.
`dueling` splits the head (Wang et al. 2016), `n_step` sums rewards before the bootstrap, `replay: prioritized` draws by
|TD error| with importance weights w (Schaul et al. 2016), `noisy` explores by learned noise (Fortunato et al. 2018).

Where it departs from the papers: it may collect from many environments at once and then makes `replay_ratio` gradient
steps for each step; Adam in place of RMSProp; a target network that is copied, or that follows (`tau`); noise in the
layers of the heads alone. Time limits are bootstrapped from the true final observation. Distributional agents (`c51`,
`qrdqn`) are this one with another `Head`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rlkit.agents.common import config, exploration, off_policy, validation
from rlkit.agents.common.normalization import normalize_obs
from rlkit.agents.common.off_policy import Batch, State
from rlkit.networks import q_network
from rlkit.networks.features import action_mask
from rlkit.ops import losses
from rlkit.ops._arrays import pick
from rlkit.spaces import Discrete, Space
from rlkit.types import Agent, Array, Buffer, Key, Network, PyTree, Transition


class Config(config.Replay, config.Torso):
    """What shapes the program. Static and hashable."""

    double: bool = True
    dueling: bool = False
    noisy: bool = False


class Hyper(config.LearningHyper, config.EpsilonHyper):
    """What a vmap may sweep: float32 scalars. Infinity switches a term off."""

    huber_delta: config.Positive = 1.0
    max_grad_norm: config.Positive = 10.0


class Actor(NamedTuple):
    """What acting needs."""

    params: PyTree
    obs_stats: PyTree
    epsilon: Array  # [], the probability of a random action


class Head(NamedTuple):
    """What the network says of an action: how it becomes a value, and how it is learned.

    outputs: numbers for each action; None for one.
    values: output [..., A] or [..., A, M] -> Q [..., A].
    loss: (hyper, output, batch, next_output, next_selector [B, A]) -> loss [B], priority [B]. The largest entry of the
      selector is the next action.
    """

    outputs: int | None
    values: Callable[[Array], Array]
    loss: Callable[..., tuple[Array, Array]]


class Parts(NamedTuple):
    """The static surroundings of the functions below."""

    config: Any
    obs_space: Space
    action_space: Discrete
    network: Network
    head: Head
    buffer: Buffer


def td_loss(hyper: Hyper, output: Array, batch: Batch, next_output: Array, next_selector: Array) -> tuple[Array, Array]:
    """The Huber loss of the TD errors, and their sizes as priorities."""
    error = losses.double_q_learning(output, batch.action, batch.reward, batch.discount, next_output, next_selector)
    return losses.huber(error, hyper.huber_delta), jax.lax.stop_gradient(jnp.abs(error))


VALUE = Head(outputs=None, values=lambda output: output, loss=td_loss)


def apply(parts: Parts, params: PyTree, obs_stats: PyTree, obs: PyTree, key: Key | None) -> Array:
    """The network on observations [...], in float32; with `key`, a noisy one's noise."""
    noise = (key,) if parts.config.noisy else ()
    output = parts.network.apply(params, normalize_obs(parts.obs_space, obs_stats, obs), *noise)
    return output.astype(jnp.promote_types(output.dtype, jnp.float32))


def loss(parts: Parts, params: PyTree, state: State, batch: Batch, key: Key) -> tuple[Array, tuple[Array, dict]]:
    """The loss [] of a batch, its priorities [B], and its metrics."""
    config, head, hyper, stats = parts.config, parts.head, state.hyper, state.normalizer.obs
    key, next_key, select_key = jax.random.split(key, 3)
    output = apply(parts, params, stats, batch.obs, key)
    next_output = apply(parts, state.target_params, stats, batch.next_obs, next_key)
    chooser = apply(parts, params, stats, batch.next_obs, select_key) if config.double else next_output
    selector = exploration.legal(head.values(chooser), action_mask(batch.next_obs))
    per_item, priority = head.loss(hyper, output, batch, next_output, jax.lax.stop_gradient(selector))
    total = jnp.mean(batch.weight * per_item)
    q = jnp.mean(pick(head.values(output), batch.action))
    return total, (priority, {"loss": total, "q": q, "priority": priority.mean()})


def init(parts: Parts, hyper: Hyper, key: Key, example: Transition, num_envs: int) -> State:
    """A state that has learned nothing; `example` is one step without batch axes."""
    params = parts.network.init(key, example.obs)
    return off_policy.init(parts, hyper, example, num_envs, params, params)


def actor(parts: Parts, state: State) -> Actor:
    """What acting needs of the state."""
    epsilon = exploration.epsilon(state.hyper, state.replay.num_steps)
    if parts.config.noisy:
        epsilon = jnp.zeros(())
    return Actor(state.params, state.normalizer.obs, epsilon)


def act(parts: Parts, actor: Actor, memory: tuple, obs: PyTree, key: Key) -> tuple[tuple, Array, tuple]:
    """One exploring step for one observation: a random action with probability epsilon, or by noisy weights."""
    noise_key, explore_key = jax.random.split(key)
    q = parts.head.values(apply(parts, actor.params, actor.obs_stats, obs, noise_key))
    return memory, exploration.epsilon_greedy(explore_key, parts.action_space, q, action_mask(obs), actor.epsilon), ()


def policy(parts: Parts, actor: Actor, memory: tuple, obs: PyTree, key: Key) -> tuple[tuple, Array, tuple]:
    """One step for one observation: the action of the largest value, without noise. The key is not used."""
    q = parts.head.values(apply(parts, actor.params, actor.obs_stats, obs, None))
    return memory, exploration.greedy(parts.action_space, q, action_mask(obs)), ()


def make(config: Config, obs_space: Space, action_space: Space, network: Any = None) -> Agent:
    """DQN for these spaces.

    Args:
      config: the static settings.
      obs_space, action_space: an environment's spaces.
      network: anything with `init(key, obs) -> params` and `apply(params, obs) -> Q [..., A]`, as attributes or as a
        pair; None for the network that `config` describes.

    Raises:
      ConfigError: the action space is not Discrete, or a setting does not fit.
    """
    return with_head("dqn", config, VALUE, obs_space, action_space, network)


def with_head(name: str, config: Any, head: Head, obs_space: Space, action_space: Space, network: Any) -> Agent:
    """The agent called `name` that learns by a head; see `make`."""
    space = exploration.discrete(action_space, name)
    validation.fits_network(config, obs_space)
    if network is None:
        described = config.model_dump(include=set(q_network.SETTINGS))
        network = q_network.q_network(obs_space=obs_space, num_actions=space.n, outputs=head.outputs, **described)
    else:
        network = validation.own_network(network, noisy=config.noisy)
    parts = Parts(config, obs_space, space, network, head, off_policy.buffer(config))
    return off_policy.agent(parts, init, actor, act, policy, loss=loss, rows=config.n_step)
