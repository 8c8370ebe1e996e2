"""Gumbel AlphaZero (Danihelka et al. 2022): a tree search over the rules of a game improves a policy and its value.

Acting searches from the state of the game with `num_simulations` steps of its rules, `types.Model`: by sequential
halving with Gumbel noise at the root, and below it by the actions whose visits lag most behind the improved policy
(sections 3 to 5 of the paper). The search returns an action and the improved policy π'. An update minimizes, over
minibatches of a rollout,

    E[ -Σ_a π'(a|o_t) log π(a|o_t) ] + vf_coef E[ (v(o_t) - G_t)^2 ],  G_t = r_t + d_t G_{t+1}

Rewards, values and returns are of the player to move. So d_t is γ where the same player moves next, -γ where the other
one does, and 0 at the end of a game. One network has the policy and the value. A game for one player is a special case.

The search is that of DeepMind's mctx (`pip install 'rlkit-jax[mctx]'`). Its completed Q-values keep their scale with
`squash_value`, so that moves of equal value stay equally probable; otherwise they are rescaled to [0, 1] in each node,
as in the paper. Departures from the paper: each rollout is learned from once it is collected, as in pgx's AlphaZero, in
place of a replay buffer; a game that a time limit or the end of a rollout cuts is bootstrapped from the network's value
of its true next observation.
"""

import importlib
from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Interval
from pydantic import Field

from rlkit import _mesh
from rlkit.agents.base import as_arrays
from rlkit.agents.common import exploration, minibatches, normalization, user_networks, validation
from rlkit.agents.common.config import Count, EncoderConfig, MinibatchConfig
from rlkit.agents.common.hyper import FiniteNonNegative, OptimizerHyper, Share
from rlkit.agents.common.minibatches import MetricRows
from rlkit.agents.common.normalization import Normalizer, normalize_obs
from rlkit.agents.common.optimizer import Optimizer
from rlkit.networks import views
from rlkit.networks.features import action_mask
from rlkit.networks.heads import actor_critic
from rlkit.ops.chunked import chunked_map
from rlkit.spaces import Discrete, Space, shape_of
from rlkit.types import Agent, Array, ConfigError, Key, Model, Network, PyTree, Scalar, StateNode, Transition


class Config(MinibatchConfig, EncoderConfig):
    num_epochs: Count = 1
    num_simulations: Annotated[int, Interval(ge=1, le=2**16)] = Field(
        default=32, description="steps of the rules in the search for one action"
    )
    max_num_considered_actions: Annotated[int, Interval(ge=1, le=2**16)] = Field(
        default=16, description="actions that the search compares at its root"
    )
    evaluate_with_search: bool = Field(
        default=True, description="false: evaluations play the most probable legal action of the network"
    )
    squash_value: bool = Field(
        default=True,
        description="tanh of the value, for games whose returns are from -1 to 1; false for other rewards",
    )


class Hyper(OptimizerHyper):
    """Traced float32 scalars, which a vmap may sweep. Infinity switches a term off."""

    learning_rate: FiniteNonNegative = 1e-3
    gamma: Annotated[Share, "discount per step"] = 1.0
    vf_coef: FiniteNonNegative = 1.0


class State(StateNode):
    """Everything that learning carries from update to update."""

    hyper: Hyper
    params: PyTree
    stats: PyTree  # of the network; () where it has none
    opt_state: PyTree
    normalizer: Normalizer
    num_steps: Array  # [] uint32, environment steps so far; it stays at 2^32 - 1


class Static(NamedTuple):
    """Arguments that `make` binds."""

    config: Config
    obs_space: Space
    action_space: Discrete
    network: Network  # apply -> (logits, value)
    model: Model
    axis_name: str | None = None  # of the mesh axis over which environments are divided


class Actor(NamedTuple):
    """Parameters and statistics for acting."""

    params: PyTree
    stats: PyTree
    obs_stats: PyTree
    gamma: Scalar  # []


class Learner(NamedTuple):
    """State that the minibatches of an update change."""

    params: PyTree
    stats: PyTree
    opt_state: PyTree


class Extras(NamedTuple):
    """Outputs of acting that learning needs."""

    action_weights: Array  # [A], the improved policy


class Batch(NamedTuple):
    """Rows of a rollout with their targets, leaves [B, ...]."""

    obs: PyTree
    action_weights: Array
    target: Array  # of the value


def apply(
    static: Static, actor: Actor, obs: PyTree, *, train: bool = False, key: Key | None = None
) -> tuple[Array, Array, PyTree]:
    """The logits [..., A] of observations [...], the least float for illegal actions; values [...]; statistics."""
    obs = views.actor_obs(obs)
    (logits, value), stats = static.network.apply(
        actor.params, actor.stats, normalize_obs(actor.obs_stats, obs), train=train, key=key
    )
    if (mask := action_mask(obs)) is not None:
        logits = jnp.where(mask, logits, jnp.finfo(logits.dtype).min)
    return logits, jnp.tanh(value) if static.config.squash_value else value, stats


def search(static: Static, actor: Actor, obs: PyTree, key: Key, *, gumbel_scale: float) -> tuple[Array, Array]:
    """The actions [...] that searches from observations [...] choose, and the improved policies [..., A]."""
    mctx, config, model = _mctx(), static.config, static.model
    logits, value, _ = apply(static, actor, obs)
    batch = value.shape
    # mctx takes one batch axis, of B trees: one tree for one observation, of which vmap makes many.
    logits, value, obs = jax.tree.map(lambda x: x.reshape(-1, *x.shape[len(batch) :]), (logits, value, obs))
    root = mctx.RootFnOutput(prior_logits=logits, value=value, embedding=jax.vmap(model.state)(obs))
    mask = action_mask(obs)

    def step(actor: Actor, key: Key, action: Array, state: PyTree) -> tuple[Any, PyTree]:
        """A step of the rules from the nodes [B] of B trees."""
        keys = jax.random.split(jax.random.wrap_key_data(key, impl=impl), action.shape[0])
        state, obs, reward, discount = jax.vmap(model.step)(keys, state, action)
        logits, value, _ = apply(static, actor, obs)
        value = jnp.where(discount == 0, 0.0, value)
        discount = actor.gamma * discount
        return mctx.RecurrentFnOutput(reward=reward, discount=discount, prior_logits=logits, value=value), state

    # As its data, as a loop that vmap makes of mctx's own would select among keys that are used up.
    data, impl = jax.random.key_data(key), jax.random.key_impl(key)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # as mctx needs them
        found = mctx.gumbel_muzero_policy(
            actor,
            data,
            root,
            step,
            config.num_simulations,
            invalid_actions=None if mask is None else ~mask,
            qtransform=partial(mctx.qtransform_completed_by_mix_value, rescale_values=not config.squash_value),
            max_num_considered_actions=config.max_num_considered_actions,
            gumbel_scale=gumbel_scale,
        )
    action = found.action.reshape(batch).astype(shape_of(static.action_space).dtype)
    return action, found.action_weights.reshape(*batch, -1)


def loss(
    static: Static, params: PyTree, stats: PyTree, state: State, batch: Batch, key: Key
) -> tuple[Array, tuple[PyTree, dict[str, Array]]]:
    """The loss [] of a minibatch; the network's statistics, and metrics."""
    actor = Actor(params, stats, state.normalizer.obs, state.hyper.gamma)
    logits, value, stats = apply(static, actor, batch.obs, train=True, key=key)
    log_prob = jax.nn.log_softmax(logits)
    # A select and not a product alone, as the log-probs of illegal actions may be infinite.
    terms = jnp.where(batch.action_weights > 0, batch.action_weights * log_prob, 0.0)
    metrics = {"policy_loss": -jnp.mean(terms.sum(-1)), "value_loss": jnp.mean(jnp.square(value - batch.target))}
    metrics["loss"] = metrics["policy_loss"] + state.hyper.vf_coef * metrics["value_loss"]
    metrics["value"] = jnp.mean(value)
    return metrics["loss"], (stats, metrics)


def gradient_step(
    static: Static, state: State, optimizer: Optimizer, learner: Learner, batch: Batch, key: Key
) -> tuple[Learner, dict[str, Array]]:
    """One step of descent on a minibatch: the learner after it, and the metrics."""
    gradient_of = minibatches.gradient(
        lambda params, rows, key: loss(static, params, learner.stats, state, rows, key),
        minibatches.num_chunks(static.config, learner.stats, batch),
        static.axis_name,
    )
    gradient, (stats, metrics) = gradient_of(learner.params, batch, key)
    params, opt_state, grad_norm = optimizer.step(learner.params, learner.opt_state, gradient)
    return Learner(params, stats, opt_state), metrics | {"grad_norm": grad_norm}


def init(static: Static, hyper: Hyper, key: Key, example: Transition, num_envs: int) -> State:
    """The state before learning; `example` is one step without batch axes."""
    config = static.config
    example = example._replace(obs=views.actor_obs(example.obs))
    params, stats = static.network.init(key, example.obs)
    statistics = {"obs": config.normalize_obs, "image_axes": config.image_axes}
    state = State(
        hyper=as_arrays(hyper, config, num_envs),
        params=params,
        stats=stats,
        opt_state=Optimizer.of(config, hyper, hyper.learning_rate).init(params),
        normalizer=normalization.init(static.obs_space, example, num_envs, **statistics),
        num_steps=jnp.zeros((), jnp.uint32),
    )
    return _mesh.vary_like(state, without=static.axis_name)


def actor(state: State) -> Actor:
    """Parameters and statistics for acting."""
    return Actor(state.params, state.stats, state.normalizer.obs, state.hyper.gamma)


def act(static: Static, actor: Actor, memory: tuple, obs: PyTree, key: Key) -> tuple[tuple, Array, Extras]:
    """One exploring step for one observation: the action of a search with Gumbel noise."""
    action, weights = search(static, actor, obs, key, gumbel_scale=1.0)
    return memory, action, Extras(weights)


def policy(static: Static, actor: Actor, memory: tuple, obs: PyTree, key: Key) -> tuple[tuple, Array, tuple]:
    """One step for observations [...]: the action of a search without noise, or the network's most probable one.

    It is the latter as well for observations without the state of the game, as those of an exported policy.
    """
    if static.config.evaluate_with_search and not views.lacks_game_state(static.obs_space, obs):
        return memory, search(static, actor, obs, key, gumbel_scale=0.0)[0], ()
    logits, _, _ = apply(static, actor, obs)
    return memory, exploration.greedy(static.action_space, logits, action_mask(obs)), ()


def alternating_returns(
    reward: Array, next_value: Array, discount: Array, terminated: Array, truncated: Array
) -> Array:
    """Returns of the player to move, G_t = r_t + d_t G_{t+1}, with v(o_{t+1}) for G_{t+1} where an episode is cut.

    Args:
      reward: [T, ...] float32, of the player who moved.
      next_value: [T, ...] float32, v(o_{t+1}), for the player to move there; it may be NaN at terminal states.
      discount: [T, ...] float32, d_t: negative where o_{t+1} is another player's.
      terminated: [T, ...] bool, where the discount counts as 0.
      truncated: [T, ...] bool, where a time limit ended the episode. The last row is cut as well.

    Returns:
      [T, ...] float32.
    """

    def step(following: Array, row: tuple[Array, ...]) -> tuple[Array, Array]:
        reward, next_value, discount, terminated, truncated = row
        following = jnp.where(truncated, next_value, following)
        total = jnp.where(terminated, reward, reward + discount * following)
        return total, total

    rows = reward, next_value, discount, terminated, truncated
    return jax.lax.scan(step, _mesh.vary_like(next_value[-1], rows), rows, reverse=True)[1]


def targets(static: Static, state: State, rollout: Transition) -> Array:
    """The value targets [T, N] of a rollout, its next values computed in chunks of rows."""
    value_of = partial(apply, static, actor(state))
    flat = minibatches.flat(views.actor_obs(rollout.next_obs))
    next_value = chunked_map(lambda obs: value_of(obs)[1], flat, static.config.chunk_size)
    player, next_player = (jax.vmap(jax.vmap(static.model.player))(obs) for obs in (rollout.obs, rollout.next_obs))
    discount = state.hyper.gamma * jnp.where(player == next_player, 1.0, -1.0)
    next_value = next_value.reshape(rollout.reward.shape)
    return alternating_returns(rollout.reward, next_value, discount, rollout.terminated, rollout.truncated)


def update(static: Static, state: State, rollout: Transition, key: Key) -> tuple[State, dict[str, Array]]:
    """Learn from one rollout [T, N, ...]; the metrics are means over the minibatches."""
    config, hyper, axis_name = static.config, state.hyper, static.axis_name
    devices = _mesh.size(axis_name)
    num_steps, num_envs = rollout.reward.shape[0], rollout.reward.shape[1] * devices
    config.check_rollout(num_envs, num_steps, devices)
    before = state.num_steps.astype(jnp.float32)
    rate = Optimizer.scheduled_rate(config, hyper, before, before + num_steps * num_envs)
    optimizer = Optimizer.of(config, hyper, rate)
    obs = views.actor_obs(rollout.obs)
    data = minibatches.flat(Batch(obs, rollout.extras.action_weights, targets(static, state, rollout)))

    def step(learner: Learner, inputs: tuple[Array, Key]) -> tuple[Learner, MetricRows]:
        rows, key = inputs
        learner, metrics = gradient_step(static, state, optimizer, learner, minibatches.take(data, rows), key)
        return learner, MetricRows.of(metrics)

    orders = minibatches.shuffled(key, config.num_epochs, config.num_minibatches, rollout.reward.size, axis_name)
    orders = orders.reshape(-1, orders.shape[-1])  # all epochs in one loop instead of one within another
    keys = minibatches.noise_keys(key, len(orders), axis_name)
    learner = _mesh.vary_like(Learner(state.params, state.stats, state.opt_state), orders, without=axis_name)
    learner, metrics = jax.lax.scan(step, learner, (orders, keys))
    state = state.replace(
        **learner._asdict(),
        normalizer=normalization.update(state.normalizer, rollout._replace(obs=obs), hyper.gamma, axis_name),
        num_steps=exploration.add_steps(state.num_steps, num_steps * num_envs),
    )
    return state, metrics.means() | Optimizer.rate_metric(config, rate)


def supports(action_space: Space) -> bool:
    """True for the action spaces that the agent can act in."""
    return isinstance(action_space, Discrete)


def make(
    config: Config,
    obs_space: Space,
    action_space: Space,
    networks: Any = None,
    *,
    axis_name: str | None = None,
    model: Model | None = None,
) -> Agent:
    """Gumbel AlphaZero for these spaces.

    Args:
      config: the static settings.
      obs_space, action_space: an environment's spaces.
      networks: a network from observations to `(logits [..., A], value [...])`, in any form of `networks.as_network`;
        None for that of `config`. With `squash_value`, the tanh is taken of its value.
      axis_name: of a mesh axis, see `training.data_parallel`; None for one device.
      model: the rules of the game, such as `env.game_model(params)` of pgx.

    Raises:
      ConfigError: the action space is not Discrete, there is no model or no mctx, or a setting does not fit.
    """
    validation.check_action_space(
        Config, config, action_space, supported=supports(action_space), needed="a Discrete action space"
    )
    assert isinstance(action_space, Discrete)
    if model is None:
        raise ConfigError(
            "agent='alphazero' plans with the rules of a game, and this environment has none; use one with rules, such "
            "as env: pgx:tic_tac_toe with env_kwargs: {opponent: none}, or give make a model"
        )
    _mctx()
    seen = views.actor_space(obs_space)
    validation.check_encoder(config, seen, action_space)
    if networks is None:
        others = {"recurrent": "none", "memory_size": 1, "memory_layers": 1, "log_std_init": 0.0, "gsde": False}
        described = config.model_dump(include=set(actor_critic.SETTINGS)) | others | {"shared_torso": True}
        network = actor_critic.actor_critic(obs_space=seen, action_space=action_space, **described)
    else:
        sizes = np.array([action_space.n]), np.array([], int)
        network = user_networks.checked(networks, seen, "(logits, value)", sizes, axis_name=axis_name)
    config = minibatches.with_chunk_size(config, network, seen)
    static = Static(config, obs_space, action_space, network, model, axis_name)
    return Agent(
        init=partial(init, static),
        actor=actor,
        act=partial(act, static),
        policy=partial(policy, static),
        update=partial(update, static),
        check=config.check_rollout,
        static=static,
        axis_name=axis_name,
        finite=("policy_loss", "value_loss", "loss", "grad_norm"),
        trained=("params", "stats", "normalizer.obs"),
    )


def _mctx() -> Any:
    """The library of the search. Raises ConfigError where it cannot be imported."""
    try:
        return importlib.import_module("mctx")
    except ImportError as error:
        problem = "is not installed" if error.name == "mctx" else f"cannot be imported ({error})"
        raise ConfigError(f"agent='alphazero' needs mctx, which {problem}; pip install 'rlkit-jax[mctx]'") from error
