"""Proximal policy optimization (Schulman et al. 2017), feed-forward or recurrent, for Discrete, MultiDiscrete and Box.

One update maximizes, over several epochs of minibatches of a rollout,

    E[ min(r A, clip(r, 1 - eps, 1 + eps) A) ] - vf_coef E[(V - R)^2] / 2 + ent_coef H - kl_coef KL(old, new)

with r = pi(a|o) / pi_old(a|o), A the generalized advantage estimate, and R = A + V_old.

In a Dict or Tuple of these spaces, pi is a product of independent distributions over one network, one for each part:
log-probs, entropies and KL divergences are sums over the parts.

Departures from the paper, each by a field: the advantages are normalized (Andrychowicz et al. 2021), the value loss may
be clipped, the clip may be asymmetric (Yu et al. 2025) or dual (Ye et al. 2020), the epochs may stop early at a KL
divergence, the KL coefficient adapts (section 4 of the paper), a bonus for what was rarely seen has advantages of its
own (`common/curiosity/rnd.py`). Old log-probs, values and next values are computed in
chunks under the parameters before the update. Time limits are bootstrapped from the true final observation.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
from annotated_types import Interval
from pydantic import Field

from rlkit import _mesh
from rlkit.agents.base import Task, as_arrays, mistakes
from rlkit.agents.base.keys import StartOnly, Unused
from rlkit.agents.common import action_distributions, minibatches, normalization, policy_evaluation
from rlkit.agents.common.config import (
    Activation,
    EncoderConfig,
    GaussianPolicyConfig,
    InNetwork,
    MemoryConfig,
    MinibatchConfig,
    Width,
)
from rlkit.agents.common.curiosity import rnd
from rlkit.agents.common.hyper import FiniteNonNegative, FinitePositive, OptimizerHyper, Share, value_or
from rlkit.agents.common.minibatches import MetricRows
from rlkit.agents.common.normalization import Normalizer
from rlkit.agents.common.optimizer import Optimizer
from rlkit.agents.common.policy_evaluation import Actor, Evaluated, Policy
from rlkit.networks import views
from rlkit.networks.encoders.combine import has_large_image
from rlkit.ops import losses
from rlkit.ops.returns import gae
from rlkit.ops.schedules import Schedule, schedule
from rlkit.ops.statistics import explained_variance
from rlkit.spaces import Space
from rlkit.types import Agent, Array, ConfigError, Key, PyTree, Scalar, StateNode, Transition


class Config(MinibatchConfig, GaussianPolicyConfig, MemoryConfig, EncoderConfig):
    hidden_sizes: tuple[Width, ...] | None = Field(
        default=None,
        description="dense layers of an encoder; null: [512] for images from 36 pixels a side on, and else [64, 64]",
    )
    activation: Activation | None = Field(
        default=None, description="null: relu for images from 36 pixels a side on, and else tanh"
    )
    shared_torso: Annotated[bool | None, InNetwork] = Field(
        default=None,
        description="one encoder for policy and value instead of two; null: for images from 36 pixels a side on",
    )
    squash: bool = Field(default=False, description="tanh normal instead of a clipped normal, for a Box")
    old_log_prob: Literal["recompute", "collected"] = Field(
        default="recompute", description="collected: when data is older"
    )
    recompute_advantage: Annotated[bool, Unused(num_epochs=1)] = Field(
        default=False, description="estimate the advantages anew in each epoch"
    )
    normalize_advantage: Literal["minibatch", "batch", "none"] = "minibatch"
    kl_penalty: bool = Field(default=False, description="add kl_coef * KL(old, new) to the loss")
    normalize_reward: bool = Field(
        default=False, description="divide rewards by the deviation of the discounted return"
    )
    exploration_bonus: Annotated[float, Interval(ge=0.0, lt=jnp.inf)] = Field(
        default=0.0,
        description="weight of the advantages of a bonus for observations that were rarely seen (random network "
        "distillation), beside those of the rewards; 0: no bonus",
    )
    clip_schedule: Schedule = "constant"

    def for_observations(self, space: Space) -> Self:
        """The config with the networks of an observation, where it leaves them open.

        Large images have the encoder of DQN (Mnih et al. 2015), which policy and value share, as in A3C (Mnih et al.
        2016).
        """
        large = has_large_image(space, self)
        chosen = {
            "hidden_sizes": (512,) if large else (64, 64),
            "activation": "relu" if large else "tanh",
            "shared_torso": large and not views.has_privileged(space),
        }
        return self.model_copy(update={name: x for name, x in chosen.items() if getattr(self, name) is None})

    @classmethod
    def run_defaults(cls, task: Task) -> dict[str, Any]:
        values = super().run_defaults(task)
        if task.images:  # of games, whose rewards are clipped or small
            return values | {"ent_coef": 0.01, "learning_rate": 1e-3 if task.in_jax else 2.5e-4}
        return values | {"normalize_obs": True, "normalize_reward": True}

    def check_hyper(self, hyper: Mapping[str, float | None]) -> None:
        super().check_hyper(hyper)
        if not self.kl_penalty and (target := hyper.get("kl_target", jnp.inf)) != jnp.inf:
            raise ConfigError(
                f"kl_target={target:g} needs kl_penalty=True, and it is False; set it, or set target_kl, at which an "
                "update ends early"
            )


class Hyper(OptimizerHyper):
    """Traced float32 scalars, which a vmap may sweep. Infinity switches a term off."""

    gamma: Annotated[Scalar, Interval(ge=0.0, le=1.0), "discount per step"] = 0.99
    gae_lambda: Annotated[Scalar, Interval(ge=0.0, le=1.0)] = 0.95
    clip_eps: Annotated[Scalar, Interval(gt=0.0)] = 0.2
    clip_eps_high: Annotated[Scalar | None, Interval(gt=0.0), "the clip above 1; null: clip_eps"] = None
    dual_clip: Annotated[Scalar, Interval(gt=1.0), "caps the loss of bad actions at -dual_clip * A"] = jnp.inf
    vf_clip_eps: Annotated[Scalar, Interval(gt=0.0), "the value may move so far before its loss is clipped"] = jnp.inf
    vf_coef: FiniteNonNegative = 0.5
    ent_coef: FiniteNonNegative = 0.0
    max_grad_norm: Annotated[Scalar, Interval(gt=0.0), "global norm"] = 0.5
    target_kl: Annotated[Scalar, Interval(ge=0.0), "an update ends at 1.5 times this KL divergence"] = jnp.inf
    kl_coef: Annotated[FiniteNonNegative, "of the KL penalty, at the start", StartOnly, Unused(kl_penalty=False)] = 1.0
    bonus_gamma: Annotated[Share, "discount per step of the exploration bonus", Unused(exploration_bonus=0.0)] = 0.99
    kl_target: Annotated[Scalar, Interval(gt=0.0), "the KL of an update towards which kl_coef adapts"] = jnp.inf
    adam_eps: Annotated[FinitePositive, "of rmsprop too"] = 1e-5


class State(StateNode):
    """Everything that learning carries from update to update."""

    hyper: Hyper
    params: PyTree
    stats: PyTree  # of the network; () where it has none
    opt_state: PyTree
    normalizer: Normalizer
    kl_coef: Array  # [] float32
    num_updates: Array  # [] int32, rollouts learned from so far
    bonus: PyTree  # of `rnd`; () without exploration_bonus


class Static(NamedTuple):
    """Arguments that `make` binds."""

    config: Config
    policy: Policy
    axis_name: str | None = None  # of the mesh axis over which environments are divided
    bonus: rnd.Static | None = None  # None without exploration_bonus

    @property
    def obs_space(self) -> Space:
        return self.policy.obs_space

    @property
    def action_space(self) -> Space:
        return self.policy.action_space


class Batch(NamedTuple):
    """Rows of a rollout with their advantages: leaves [B, ...], or [T, B, ...] for a recurrent network."""

    obs: PyTree
    action: PyTree  # raw, see policy_evaluation.raw_action
    start: Array  # bool, whether an episode begins here
    old_log_prob: Array
    old_value: Array
    old_dist: PyTree  # of raw actions before the update, where the KL penalty needs it
    advantage: Array
    target: Array  # of the value


class Learner(NamedTuple):
    """State that the minibatches of an update change."""

    params: PyTree
    stats: PyTree
    opt_state: PyTree
    begun: Array  # [] bool, whether this update has learned from a minibatch
    stopped: Array  # [] bool, whether target_kl has ended this update


def loss(
    static: Static, params: PyTree, stats: PyTree, state: State, batch: Batch, core: PyTree, clip: Array, key: Key
) -> tuple[Array, tuple[PyTree, dict[str, Array]]]:
    """The loss [] of a minibatch; the network's statistics, and metrics.

    `core` [B, ...] is a recurrent network's memory before the first row, `clip` [] the schedule's factor of the clip.
    """
    hyper, actor = state.hyper, Actor(params, stats, state.normalizer.obs)
    output, value, stats = policy_evaluation.apply_in_training(static.policy, actor, batch.obs, batch.start, core, key)
    dist = policy_evaluation.distribution(static.policy, output, batch.obs)
    log_prob = action_distributions.log_prob(dist, batch.action)
    limits = hyper.clip_eps, value_or(hyper.clip_eps_high, hyper.clip_eps)
    low, high = (jnp.where(jnp.isinf(eps), eps, clip * eps) for eps in limits)
    surrogate = losses.ppo_clip(
        log_prob, batch.old_log_prob, batch.advantage, clip_eps=(low, high), dual_clip=hyper.dual_clip
    )
    value_loss = losses.clipped_value_loss(value, batch.old_value, batch.target, clip_eps=hyper.vf_clip_eps)
    log_ratio = log_prob - batch.old_log_prob
    metrics = {
        "policy_loss": surrogate.mean(),
        "value_loss": value_loss.mean(),
        "entropy": dist.entropy().mean(),
        "approx_kl": losses.kl_approx(jax.lax.stop_gradient(log_prob), batch.old_log_prob).mean(),
        "clip_fraction": ((log_ratio > jnp.log1p(high)) | (log_ratio < jnp.log1p(-low))).mean(dtype=jnp.float32),
    }
    total = metrics["policy_loss"] + hyper.vf_coef * metrics["value_loss"] - hyper.ent_coef * metrics["entropy"]
    if static.config.kl_penalty:
        metrics["kl"] = action_distributions.kl(batch.old_dist, dist).mean()
        total = total + state.kl_coef * metrics["kl"]
    return total, (stats, metrics | {"loss": total})


def gradient_step(
    static: Static,
    state: State,
    optimizer: Optimizer,
    clip: Array,
    learner: Learner,
    batch: Batch,
    core: PyTree,
    key: Key,
) -> tuple[Learner, tuple[dict[str, Array], Array]]:
    """One step of descent on a minibatch; none from the first one on whose KL divergence exceeds 1.5 target_kl.

    The first minibatch of an update is never skipped: with batch statistics or dropout, a loss sees another policy than
    acting did, and where their KL divergence exceeds the limit, every update would otherwise change nothing.

    Returns the learner, the metrics, and whether they count (they do up to the minibatch that stopped the update). The
    minibatch of a network with a memory or with statistics is never cut into chunks.
    """
    if static.config.normalize_advantage == "minibatch":
        batch = batch._replace(advantage=losses.normalize_advantage(batch.advantage, axis_name=static.axis_name))
    chunks = 1 if static.policy.recurrent else minibatches.num_chunks(static.config, learner.stats, batch)
    gradient_of = minibatches.gradient(
        lambda params, rows, key: loss(static, params, learner.stats, state, rows, core, clip, key),
        chunks,
        static.axis_name,
    )
    gradient, (stats, metrics) = gradient_of(learner.params, batch, key)
    stopped = learner.stopped | (learner.begun & (metrics["approx_kl"] > 1.5 * state.hyper.target_kl))
    params, opt_state, grad_norm = optimizer.step(learner.params, learner.opt_state, gradient, skip=stopped)
    stats = jax.tree.map(lambda new, old: jnp.where(stopped, old, new), stats, learner.stats)
    after = Learner(params, stats, opt_state, begun=jnp.ones_like(stopped), stopped=stopped)
    return after, (metrics | {"grad_norm": grad_norm}, ~learner.stopped)


def init(static: Static, hyper: Hyper, key: Key, example: Transition, num_envs: int) -> State:
    """The state before learning; `example` is one step without batch axes."""
    (config, policy, axis_name, bonus), hyper = static, as_arrays(hyper, static.config, num_envs)
    statistics = {"obs": config.normalize_obs, "reward": config.normalize_reward, "image_axes": config.image_axes}
    params, stats = policy.network.init(key, example.obs, *((policy.network.memory,) if policy.recurrent else ()))
    state = State(
        hyper=hyper,
        params=params,
        stats=stats,
        opt_state=Optimizer.of(config, hyper, hyper.learning_rate).init(params),
        normalizer=normalization.init(policy.obs_space, example, num_envs, axis_name, **statistics),
        kl_coef=jnp.array(hyper.kl_coef),
        num_updates=jnp.zeros((), jnp.int32),
        bonus=rnd.init(bonus, hyper, jax.random.fold_in(key, 1), example, num_envs) if bonus else (),
    )
    return _mesh.vary_like(state, without=axis_name)


def actor(state: State) -> Actor:
    """Parameters and statistics for acting."""
    return Actor(state.params, state.stats, state.normalizer.obs)


def estimate(
    static: Static, state: State, actor: Actor, rollout: Transition, core: PyTree | None = None
) -> tuple[Evaluated, Array, Array]:
    """The network's outputs for a rollout, the advantages and the value targets, all [T, N].

    `core` is a recurrent network's memory before each step [T, N, ...]; None for that which the actor makes from the
    one before the first step.
    """
    config = static.config
    core = policy_evaluation.memories(static.policy, actor, rollout) if core is None else core
    evaluated = policy_evaluation.evaluate(
        static.policy, actor, rollout, core, config.chunk_size, keep_dist=config.kl_penalty
    )
    advantage = gae(
        normalization.scale_reward(state.normalizer, rollout.reward),
        evaluated.value,
        evaluated.next_value,
        rollout.terminated,
        rollout.truncated,
        gamma=state.hyper.gamma,
        gae_lambda=state.hyper.gae_lambda,
    )
    target = advantage + evaluated.value
    if config.exploration_bonus:
        advantage = advantage + config.exploration_bonus * rollout.extras.intrinsic
    if config.normalize_advantage == "batch":
        advantage = losses.normalize_advantage(advantage, axis_name=static.axis_name)
    return evaluated, advantage, target


def prepare(static: Static, state: State, rollout: Transition) -> Batch:
    """The batch of an update, leaves [T, N, ...], under the parameters before it."""
    old, advantage, target = estimate(static, state, actor(state), rollout, rollout.extras.core)
    return Batch(
        obs=rollout.obs,
        action=policy_evaluation.raw_action(static.policy, rollout),
        start=policy_evaluation.episode_starts(rollout),
        old_log_prob=old.log_prob if static.config.old_log_prob == "recompute" else rollout.extras.log_prob,
        old_value=old.value,
        old_dist=old.dist,
        advantage=advantage,
        target=target,
    )


def learn(
    static: Static, state: State, learning_rate: Array, clip: Array, rollout: Transition, batch: Batch, key: Key
) -> tuple[Learner, dict[str, Array]]:
    """All epochs of an update; the metrics are means over the minibatches, up to the one that stopped it."""
    config, policy, axis_name, _ = static
    optimizer = Optimizer.of(config, state.hyper, learning_rate)
    first_core = jax.tree.map(lambda x: x[0], rollout.extras.core)
    flat = (lambda batch: batch) if policy.recurrent else minibatches.flat

    def step(data: Batch, learner: Learner, inputs: tuple[Array, Key]) -> tuple[Learner, MetricRows]:
        rows, key = inputs
        part = jax.tree.map(lambda x: x[:, rows], data) if policy.recurrent else minibatches.take(data, rows)
        core = minibatches.take(first_core, rows)
        learner, (metrics, counts) = gradient_step(static, state, optimizer, clip, learner, part, core, key)
        return learner, MetricRows.of(metrics, counts)

    def epoch(learner: Learner, inputs: tuple[Array, Key]) -> tuple[Learner, MetricRows]:
        orders, key = inputs
        now = Actor(learner.params, learner.stats, state.normalizer.obs)
        _, advantage, target = estimate(static, state, now, rollout)
        data = flat(batch._replace(advantage=advantage, target=target))
        keys = minibatches.noise_keys(key, config.num_minibatches, axis_name)
        return jax.lax.scan(partial(step, data), learner, (orders, keys))

    rows = rollout.reward.shape[1] if policy.recurrent else rollout.reward.size
    orders = minibatches.shuffled(key, config.num_epochs, config.num_minibatches, rows, axis_name)
    learner = Learner(state.params, state.stats, state.opt_state, jnp.zeros((), bool), jnp.zeros((), bool))
    learner = _mesh.vary_like(learner, orders, without=axis_name)
    if config.recompute_advantage:
        keys = jax.random.split(jax.random.fold_in(key, 2), config.num_epochs)
        learner, metrics = jax.lax.scan(epoch, learner, (orders, keys))
    else:  # all epochs in one loop instead of one within another
        orders = orders.reshape(-1, orders.shape[-1])
        keys = minibatches.noise_keys(key, len(orders), axis_name)
        learner, metrics = jax.lax.scan(partial(step, flat(batch)), learner, (orders, keys))
    return learner, metrics.means()


def adapt_kl_coef(
    static: Static, state: State, learner: Learner, rollout: Transition, batch: Batch
) -> tuple[Array, dict[str, Array]]:
    """The next kl_coef, by the KL divergence of the whole update and not the mean over its minibatches, and metrics."""
    if not static.config.kl_penalty:
        return state.kl_coef, {}
    actor = Actor(learner.params, learner.stats, state.normalizer.obs)
    now = estimate(static, state, actor, rollout)[0]
    update_kl = _mesh.mean(action_distributions.kl(batch.old_dist, now.dist).mean(), static.axis_name)
    adapted = losses.adaptive_kl_coef(state.kl_coef, update_kl, target_kl=state.hyper.kl_target)
    kl_coef = jnp.where(jnp.isinf(state.hyper.kl_target), state.kl_coef, adapted)
    return kl_coef, {"update_kl": update_kl, "kl_coef": kl_coef}


def update(static: Static, state: State, rollout: Transition, key: Key) -> tuple[State, dict[str, Array]]:
    """Learn from one rollout [T, N, ...]; the metrics are means over the minibatches, see `learn`."""
    (config, policy, axis_name, bonus), devices = static, _mesh.size(static.axis_name)
    num_steps, num_envs = rollout.reward.shape[0], rollout.reward.shape[1] * devices
    config.check_rollout(num_envs, num_steps, devices, sequences=policy.recurrent)
    before = state.num_updates.astype(jnp.float32) * (num_steps * num_envs)
    learning_rate = Optimizer.scheduled_rate(config, state.hyper, before, before + num_steps * num_envs)
    clip = schedule(config.clip_schedule, before / state.hyper.schedule_steps)  # type: ignore[operator]
    bonus_metrics = {}
    if bonus:
        hyper, bonus_key = state.hyper, jax.random.fold_in(key, 3)
        after, rollout, bonus_metrics = rnd.update(bonus, hyper, learning_rate, state.bonus, rollout, bonus_key)
        state = state.replace(bonus=after)
    batch = prepare(static, state, rollout)
    learner, metrics = learn(static, state, learning_rate, clip, rollout, batch, key)
    metrics |= bonus_metrics | Optimizer.rate_metric(config, learning_rate)
    metrics["explained_variance"] = explained_variance(batch.old_value, batch.target, axis_name=axis_name)
    kl_coef, kl_metrics = adapt_kl_coef(static, state, learner, rollout, batch)
    state = state.replace(
        params=learner.params,
        stats=learner.stats,
        opt_state=learner.opt_state,
        normalizer=normalization.update(state.normalizer, rollout, state.hyper.gamma, axis_name),
        kl_coef=kl_coef,
        num_updates=state.num_updates + 1,
    )
    return state, metrics | kl_metrics


supports = action_distributions.supports  # every action space with a distribution


def make(
    config: Config, obs_space: Space, action_space: Space, networks: Any = None, *, axis_name: str | None = None
) -> Agent:
    """PPO for these spaces.

    Args:
      config: the static settings.
      obs_space, action_space: an environment's spaces.
      networks: a network from observations to `(policy, value)`, in any form of `networks.as_network`; None for that
        of `config`. `policy` is the logits [..., A] (for MultiDiscrete all of them joined), or `(loc, log_std)`, both
        [..., D], for a Box; for a Dict or a Tuple it is a dict or a tuple of these. `value` is [...]. A network with a
        memory is recurrent. A dict of `policy` and `value` has a network of each; then the value has the observation's
        leaf `privileged`.
      axis_name: of a mesh axis, see `training.data_parallel`; None for one device.

    Raises:
      ConfigError: PPO cannot act in this action space, or a setting does not fit it.
    """
    mistakes.check_config(Config, config)
    config = config.for_observations(obs_space)
    policy = policy_evaluation.make(Config, config, obs_space, action_space, networks, axis_name)
    config = minibatches.with_chunk_size(config, policy.network, obs_space)
    bonus = rnd.make(config, obs_space, axis_name) if config.exploration_bonus else None
    static = Static(config, policy, axis_name, bonus)
    return Agent(
        init=partial(init, static),
        actor=actor,
        act=partial(policy_evaluation.act, static.policy),
        policy=partial(policy_evaluation.act_greedily, static.policy),
        update=partial(update, static),
        memory=policy_evaluation.start_memory(static.policy),
        check=partial(config.check_rollout, sequences=policy.recurrent),
        static=static,
        axis_name=axis_name,
        finite=("policy_loss", "value_loss", "loss", "grad_norm", *(rnd.LOSSES if bonus else ())),
        trained=("params", "stats", "normalizer.obs", "normalizer.returns"),
    )
