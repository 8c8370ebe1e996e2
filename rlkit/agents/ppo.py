"""Proximal policy optimization (Schulman et al. 2017), for every action space, feed-forward or recurrent.

One update maximizes, over several epochs of minibatches of a rollout,

    E[ min(r A, clip(r, 1 - eps, 1 + eps) A) ] - vf_coef E[(V - R)^2] / 2 + ent_coef H - kl_coef KL(old, new)

with r = pi(a|o) / pi_old(a|o), A the generalized advantage estimate, and R = A + V_old.

Where it departs from the paper, each by a field: the advantages are normalized (Andrychowicz et al. 2021), the value
loss may be clipped, the clip may be asymmetric (Yu et al. 2025) or dual (Ye et al. 2020), the epochs may stop early at
a KL divergence, the KL coefficient adapts (section 4 of the paper). Old log-probs, values and next values are computed
in chunks under the parameters before the update. Time limits are bootstrapped from the true final observation.
"""

from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from annotated_types import Interval
from flax import struct
from pydantic import Field, PositiveInt

from rlkit.agents.common import action_distributions, config, minibatches, normalization, policy_evaluation, validation
from rlkit.agents.common.normalization import Normalizer
from rlkit.agents.common.optimizer import Descent
from rlkit.agents.common.policy_evaluation import Actor, Evaluated, Policy
from rlkit.networks import actor_critic as actor_critic_network
from rlkit.ops import losses
from rlkit.ops.returns import gae
from rlkit.ops.schedules import Schedule, schedule
from rlkit.ops.statistics import explained_variance
from rlkit.spaces import Box, Space
from rlkit.types import Agent, Array, Key, PyTree, Scalar, Transition


class Config(config.Torso):
    """What shapes the program. Static and hashable."""

    activation: config.Activation = "tanh"
    shared_torso: bool = Field(False, description="one torso for policy and value instead of two")
    recurrent: Literal["none", "gru", "lstm"] = "none"
    memory_size: PositiveInt = Field(64, description="units of the recurrent core")

    squash: bool = Field(False, description="tanh normal instead of a clipped normal, for a Box")
    log_std_init: Annotated[float, Interval(ge=-20.0, le=2.0)] = Field(
        0.0, description="log standard deviation at the start, for a Box"
    )
    gsde: bool = Field(False, description="state-dependent exploration, held over steps, for a Box")
    gsde_steps: int = Field(0, ge=0, description="steps until its noise is drawn anew; 0 holds it for the episode")

    num_epochs: PositiveInt = 4
    num_minibatches: PositiveInt = 4
    chunk_size: PositiveInt | None = Field(8192, description="rows that pass the network at once; null for all")
    old_log_prob: Literal["recompute", "collected"] = Field("recompute", description="collected: when data is older")
    recompute_advantage: bool = Field(False, description="estimate the advantages anew in each epoch")
    normalize_advantage: Literal["minibatch", "batch", "none"] = "minibatch"
    kl_penalty: bool = Field(False, description="add kl_coef * KL(old, new) to the loss")
    normalize_reward: bool = Field(False, description="divide rewards by the deviation of the discounted return")
    learning_rate_schedule: Schedule = "constant"
    clip_schedule: Schedule = "constant"


class Hyper(struct.PyTreeNode):
    """What a vmap may sweep: float32 scalars. Infinity switches a term off, but for `clip_eps_high`."""

    learning_rate: Annotated[Scalar, Interval(ge=0.0)] = 3e-4
    gamma: Annotated[Scalar, Interval(ge=0.0, le=1.0), "discount per step"] = 0.99
    gae_lambda: Annotated[Scalar, Interval(ge=0.0, le=1.0)] = 0.95
    clip_eps: Annotated[Scalar, Interval(gt=0.0)] = 0.2
    clip_eps_high: Annotated[Scalar, Interval(gt=0.0), "the clip above 1; infinity: as clip_eps"] = jnp.inf
    dual_clip: Annotated[Scalar, Interval(gt=1.0), "caps the loss of bad actions at -dual_clip * A"] = jnp.inf
    vf_clip_eps: Annotated[Scalar, Interval(gt=0.0), "the value may move so far before its loss is clipped"] = jnp.inf
    vf_coef: Annotated[Scalar, Interval(ge=0.0)] = 0.5
    ent_coef: Annotated[Scalar, Interval(ge=0.0)] = 0.0
    max_grad_norm: Annotated[Scalar, Interval(gt=0.0), "global norm"] = 0.5
    target_kl: Annotated[Scalar, Interval(ge=0.0), "an update ends at 1.5 times this KL divergence"] = jnp.inf
    kl_coef: Annotated[Scalar, Interval(ge=0.0), "of the KL penalty, at the start"] = 1.0
    kl_target: Annotated[Scalar, Interval(gt=0.0), "the KL of an update that kl_coef adapts to; infinity: it stays"] = (
        jnp.inf
    )
    adam_eps: Annotated[Scalar, Interval(gt=0.0)] = 1e-5
    schedule_steps: Annotated[Scalar, Interval(gt=0.0), "environment steps that the schedules last"] = jnp.inf


class State(struct.PyTreeNode):
    """Everything that learning carries from update to update."""

    hyper: Hyper
    params: PyTree
    opt_state: PyTree
    normalizer: Normalizer
    kl_coef: Array  # [] float32
    num_updates: Array  # [] int32, rollouts learned from so far


class Parts(NamedTuple):
    """The static surroundings of the functions below."""

    config: Config
    policy: Policy


class Batch(NamedTuple):
    """What the loss is computed from: leaves [B, ...], or [T, B, ...] for a recurrent network."""

    obs: PyTree
    action: Array  # raw, as policy_evaluation.raw_action says
    start: Array  # bool, whether an episode begins here
    old_log_prob: Array
    old_value: Array
    old_dist: PyTree  # of raw actions before the update, where the KL penalty needs it
    advantage: Array
    target: Array  # of the value


METRICS: tuple[str, ...] = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "loss", "grad_norm")


class Rates(NamedTuple):
    """What the schedules have come to, [] each."""

    learning_rate: Array
    clip: Array  # the share of the clips


class Learner(NamedTuple):
    """What the minibatches of an update change."""

    params: PyTree
    opt_state: PyTree
    stopped: Array  # [] bool, whether target_kl has ended this update


def loss(
    parts: Parts, params: PyTree, state: State, batch: Batch, core: PyTree, clip: Array
) -> tuple[Array, dict[str, Array]]:
    """The loss [] of a minibatch, and its metrics.

    `core` [B, ...] is a recurrent network's memory before the first row, `clip` [] the schedule's share of the clip.
    """
    config, policy, hyper = parts.config, parts.policy, state.hyper
    actor = Actor(params, state.normalizer.obs)
    output, value, _ = policy_evaluation.apply_along(policy, actor, batch.obs, batch.start, core)
    dist = policy_evaluation.distribution(policy, output, batch.obs)
    log_prob = action_distributions.log_prob(dist, batch.action)
    low, high = (jnp.where(jnp.isinf(eps), eps, clip * eps) for eps in (hyper.clip_eps, hyper.clip_eps_high))
    high = jnp.where(jnp.isinf(high), low, high)
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
    if config.kl_penalty:
        metrics["kl"] = action_distributions.kl(batch.old_dist, dist).mean()
        total = total + state.kl_coef * metrics["kl"]
    return total, metrics | {"loss": total}


def init(parts: Parts, hyper: Hyper, key: Key, example: Transition, num_envs: int) -> State:
    """A state that has learned nothing; `example` is one step without batch axes."""
    config, policy = parts
    hyper = jax.tree.map(lambda x: jnp.array(x, jnp.float32), hyper)  # copies, so that the state can be donated
    params = policy.network.init(key, example.obs, *((policy.network.memory,) if policy.recurrent else ()))
    return State(
        hyper=hyper,
        params=params,
        opt_state=Descent.of(hyper, 0.0).init(params),
        normalizer=normalization.init(
            policy.obs_space, example, num_envs, obs=config.normalize_obs, reward=config.normalize_reward
        ),
        kl_coef=jnp.array(hyper.kl_coef),
        num_updates=jnp.zeros((), jnp.int32),
    )


def actor(state: State) -> Actor:
    """What acting needs of the state."""
    return Actor(state.params, state.normalizer.obs)


def scheduled(config: Config, state: State, rollout_size: int) -> Rates:
    """The rates of an update, which takes in a rollout of so many environment steps."""
    progress = state.num_updates.astype(jnp.float32) * rollout_size / state.hyper.schedule_steps
    learning_rate = state.hyper.learning_rate * schedule(config.learning_rate_schedule, progress)
    return Rates(learning_rate, schedule(config.clip_schedule, progress))


def estimate(
    parts: Parts, state: State, params: PyTree, rollout: Transition, core: PyTree
) -> tuple[Evaluated, Array, Array]:
    """What the network under `params` says of a rollout, the advantages and the value targets, all [T, N]."""
    config, hyper = parts.config, state.hyper
    says = policy_evaluation.evaluate(
        parts.policy,
        Actor(params, state.normalizer.obs),
        rollout,
        core,
        config.chunk_size,
        keep_dist=config.kl_penalty,
    )
    advantage = gae(
        normalization.scale_reward(state.normalizer, rollout.reward),
        says.value,
        says.next_value,
        rollout.terminated,
        rollout.truncated,
        gamma=hyper.gamma,
        gae_lambda=hyper.gae_lambda,
    )
    target = advantage + says.value
    if config.normalize_advantage == "batch":
        advantage = losses.normalize_advantage(advantage)
    return says, advantage, target


def prepare(parts: Parts, state: State, rollout: Transition) -> Batch:
    """What an update learns from, leaves [T, N, ...], under the parameters before it."""
    old, advantage, target = estimate(parts, state, state.params, rollout, rollout.extras.core)
    done = rollout.terminated | rollout.truncated
    return Batch(
        obs=rollout.obs,
        action=policy_evaluation.raw_action(parts.policy, rollout),
        start=jnp.concatenate([jnp.zeros_like(done[:1]), done[:-1]]),
        old_log_prob=old.log_prob if parts.config.old_log_prob == "recompute" else rollout.extras.log_prob,
        old_value=old.value,
        old_dist=old.dist,
        advantage=advantage,
        target=target,
    )


def estimate_anew(parts: Parts, state: State, params: PyTree, rollout: Transition, batch: Batch) -> Batch:
    """The batch with the advantages and targets that the network under `params` gives."""
    _, advantage, target = estimate(parts, state, params, rollout, memories(parts, state, params, rollout, batch))
    return batch._replace(advantage=advantage, target=target)


def memories(parts: Parts, state: State, params: PyTree, rollout: Transition, batch: Batch) -> PyTree:
    """A recurrent network's memory before each step [T, N, ...], as `params` make it from that before the first."""
    if not parts.policy.recurrent:
        return rollout.extras.core
    first = jax.tree.map(lambda x: x[0], rollout.extras.core)
    now = Actor(params, state.normalizer.obs)
    return policy_evaluation.apply_along(parts.policy, now, batch.obs, batch.start, first)[2]


def gradient_step(
    parts: Parts, state: State, rates: Rates, learner: Learner, batch: Batch, core: PyTree
) -> tuple[Learner, tuple[dict[str, Array], Array]]:
    """Descend on one minibatch, unless its KL divergence exceeds 1.5 target_kl: then nothing changes any more.

    Returns the learner, the metrics, and whether they count (they do up to the minibatch that stopped the update). A
    recurrent network's minibatch is never cut into chunks.
    """
    config = parts.config
    if config.normalize_advantage == "minibatch":
        batch = batch._replace(advantage=losses.normalize_advantage(batch.advantage))
    grads, metrics = minibatches.gradient(
        lambda params, batch: loss(parts, params, state, batch, core, rates.clip),
        learner.params,
        batch,
        None if parts.policy.recurrent else config.chunk_size,
    )
    stopped = learner.stopped | (metrics["approx_kl"] > 1.5 * state.hyper.target_kl)
    descent = Descent.of(state.hyper, rates.learning_rate)
    params, opt_state, norm = descent.step(learner.params, learner.opt_state, grads, unless=stopped)
    return Learner(params, opt_state, stopped), (metrics | {"grad_norm": norm}, ~learner.stopped)


def learn(
    parts: Parts, state: State, rates: Rates, rollout: Transition, batch: Batch, key: Key
) -> tuple[Learner, dict[str, Array]]:
    """All epochs of an update; the metrics are means over the minibatches, up to the one that stopped it."""
    config, policy = parts
    first_core = jax.tree.map(lambda x: x[0], rollout.extras.core)
    names = (*METRICS, "kl") if config.kl_penalty else METRICS

    def epoch(learner: Learner, orders: Array):
        data = estimate_anew(parts, state, learner.params, rollout, batch) if config.recompute_advantage else batch
        data = data if policy.recurrent else minibatches.flat(data)

        def step(learner: Learner, rows: Array):
            taken = jax.tree.map(lambda x: x[:, rows], data) if policy.recurrent else minibatches.take(data, rows)
            core = minibatches.take(first_core, rows)
            return gradient_step(parts, state, rates, learner, taken, core)

        return minibatches.descend(step, learner, orders, names)

    learner = Learner(state.params, state.opt_state, jnp.zeros((), bool))
    rows = rollout.reward.shape[1] if policy.recurrent else rollout.reward.size
    orders = minibatches.shuffled(key, config.num_epochs, config.num_minibatches, rows)
    if config.recompute_advantage:
        learner, found = jax.lax.scan(epoch, learner, orders)
    else:  # the same in one loop, which is less to compile than one within another
        learner, found = epoch(learner, orders.reshape(-1, orders.shape[-1]))
    return learner, minibatches.means(names, *found)


def adapt(
    parts: Parts, state: State, learner: Learner, rollout: Transition, batch: Batch
) -> tuple[Array, dict[str, Array]]:
    """The next kl_coef, by how far the whole update went and not by the mean on the way, and its metrics."""
    if not parts.config.kl_penalty:
        return state.kl_coef, {}
    now, _, _ = estimate(parts, state, learner.params, rollout, memories(parts, state, learner.params, rollout, batch))
    moved = action_distributions.kl(batch.old_dist, now.dist).mean()
    target_kl = state.hyper.kl_target
    adapted = losses.adaptive_kl_coef(state.kl_coef, moved, target_kl=target_kl)
    kl_coef = jnp.where(jnp.isinf(target_kl), state.kl_coef, adapted)
    return kl_coef, {"update_kl": moved, "kl_coef": kl_coef}


def update(parts: Parts, state: State, rollout: Transition, key: Key) -> tuple[State, dict[str, Array]]:
    """Learn from one rollout [T, N, ...].

    The metrics are means over the minibatches, up to the one that stopped the update.
    """
    num_steps, num_envs = rollout.reward.shape
    check(parts, num_envs, num_steps)
    rates = scheduled(parts.config, state, num_steps * num_envs)
    batch = prepare(parts, state, rollout)
    learner, metrics = learn(parts, state, rates, rollout, batch, key)
    metrics["learning_rate"] = rates.learning_rate
    metrics["explained_variance"] = explained_variance(batch.old_value.reshape(-1), batch.target.reshape(-1))
    kl_coef, moved = adapt(parts, state, learner, rollout, batch)
    state = state.replace(
        params=learner.params,
        opt_state=learner.opt_state,
        normalizer=normalization.take_in(state.normalizer, parts.policy.obs_space, rollout, state.hyper.gamma),
        kl_coef=kl_coef,
        num_updates=state.num_updates + 1,
    )
    return state, metrics | moved


def check(parts: Parts, num_envs: int, num_steps: int) -> None:
    """Raise a ConfigError where a rollout of this size cannot be divided into minibatches."""
    if parts.policy.recurrent:
        validation.divides("num_minibatches", parts.config.num_minibatches, "num_envs", num_envs)
    else:
        validation.divides(
            "num_minibatches", parts.config.num_minibatches, "num_envs * num_steps", num_envs * num_steps
        )


def make(config: Config, obs_space: Space, action_space: Space, network: Any = None) -> Agent:
    """PPO for these spaces.

    Args:
      config: the static settings.
      obs_space, action_space: an environment's spaces.
      network: anything with `init(key, obs) -> params` and `apply(params, obs) -> (policy, value)`, as attributes or as
        a pair; None for the network that `config` describes. `policy` is the logits [..., A] (for MultiDiscrete all of
        them joined), or `(loc, log_std)`, both [..., D], for a Box; `value` is [...]. A `Network` with a memory is
        recurrent.

    Raises:
      ConfigError: PPO cannot act in this action space, or a setting does not fit it.
    """
    action_space = action_distributions.supported(action_space, "ppo")
    for field in ("squash", "gsde"):
        if getattr(config, field):
            validation.needs_box(field, action_space, bounded=field == "squash")
    validation.fits_network(config, obs_space)
    validation.gsde_has_features(config)
    if network is None:
        described = config.model_dump(include=set(actor_critic_network.SETTINGS))
        network = actor_critic_network.actor_critic(
            obs_space=obs_space,
            policy_size=action_distributions.policy_size(action_space),
            real_valued=isinstance(action_space, Box),
            **described,
        )
    else:
        network = validation.own_network(network, gsde=config.gsde, recurrent=config.recurrent)
    policy = Policy(obs_space, action_space, network, config.squash, config.gsde, config.gsde_steps)
    parts = Parts(config, policy)
    features = config.memory_size if config.recurrent != "none" else sum(config.hidden_sizes[-1:])
    return Agent(
        init=partial(init, parts),
        actor=actor,
        act=partial(policy_evaluation.act, policy),
        policy=partial(policy_evaluation.act_greedily, policy),
        update=partial(update, parts),
        memory=policy_evaluation.start_memory(policy, features),
        check=partial(check, parts),
    )
