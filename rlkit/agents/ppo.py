"""Proximal policy optimization (Schulman et al. 2017), for every action space, feed-forward or recurrent.

One update maximizes, over several epochs of minibatches of a rollout,

    E[ min(r A, clip(r, 1 - eps, 1 + eps) A) ] - vf_coef E[(V - R)^2] / 2 + ent_coef H - kl_coef KL(old, new)

with r = pi(a|o) / pi_old(a|o), A the generalized advantage estimate, and R = A + V_old.

Where it departs from the paper, each by a field: the advantages are normalized (Andrychowicz et al. 2021), the value loss
may be clipped, the clip may be asymmetric (Yu et al. 2025) or dual (Ye et al. 2020), the epochs may stop early at a KL
divergence, the KL coefficient adapts (section 4 of the paper). Old log-probs, values and next values are computed
in chunks under the parameters before the update. Time limits are bootstrapped from the true final observation.
"""

from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from annotated_types import Interval
from flax import struct
from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from rlkit.agents import checks, normalization
from rlkit.agents.normalization import Normalizer, normalize_obs
from rlkit.networks import actor_critic, policies
from rlkit.networks.features import action_mask
from rlkit.networks.recurrent import unroll
from rlkit.ops import losses
from rlkit.ops.chunked import chunked_map
from rlkit.ops.permutation import permute
from rlkit.ops.returns import gae
from rlkit.ops.schedules import Schedule, schedule
from rlkit.ops.statistics import explained_variance
from rlkit.types import Agent, Array, Box, ConfigError, Key, Network, PyTree, Scalar, Space, Transition

_NORMAL = Interval(ge=-20.0, le=10.0)


class Config(BaseModel):
    """What shapes the program. Static and hashable."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)

    torso: Literal["auto", "mlp", "conv"] = Field("auto", description="auto takes conv for one image [H, W, C]")
    hidden_sizes: tuple[PositiveInt, ...] = Field((64, 64), description="dense layers of a torso")
    channels: tuple[PositiveInt, ...] = Field((16,), description="3x3 filters of each convolution")
    activation: Literal["tanh", "relu", "silu", "gelu", "elu"] = "tanh"
    layer_norm: bool = False
    shared_torso: bool = Field(False, description="one torso for policy and value instead of two")
    recurrent: Literal["none", "gru", "lstm"] = "none"
    memory_size: PositiveInt = Field(64, description="units of the recurrent core")
    compute_dtype: Literal["float32", "bfloat16"] = Field("float32", description="of the torsos; losses stay float32")

    squash: bool = Field(False, description="tanh normal instead of a clipped normal, for a Box")
    log_std_init: Annotated[float, _NORMAL] = Field(0.0, description="log standard deviation at the start, for a Box")
    gsde: bool = Field(False, description="state-dependent exploration, held over steps, for a Box")
    gsde_steps: int = Field(0, ge=0, description="steps until its noise is drawn anew; 0 holds it for the episode")

    num_epochs: PositiveInt = 4
    num_minibatches: PositiveInt = 4
    chunk_size: PositiveInt | None = Field(4096, description="rows at once before the epochs; null for all")
    old_log_prob: Literal["recompute", "collected"] = Field("recompute", description="collected: when data is older")
    recompute_advantage: bool = Field(False, description="estimate the advantages anew in each epoch")
    normalize_advantage: Literal["minibatch", "batch", "none"] = "minibatch"
    kl_penalty: bool = Field(False, description="add kl_coef * KL(old, new) to the loss")
    normalize_obs: bool = False
    normalize_reward: bool = Field(False, description="divide rewards by the deviation of the discounted return")
    learning_rate_schedule: Schedule = "constant"
    clip_schedule: Schedule = "constant"


class Hyper(struct.PyTreeNode):
    """What a vmap may sweep: float32 scalars. Infinity switches a term off."""

    learning_rate: Annotated[Scalar, Interval(ge=0.0)] = 3e-4
    gamma: Annotated[Scalar, Interval(ge=0.0, le=1.0), "discount per step"] = 0.99
    gae_lambda: Annotated[Scalar, Interval(ge=0.0, le=1.0)] = 0.95
    clip_eps: Annotated[Scalar, Interval(gt=0.0)] = 0.2
    clip_eps_high: Annotated[Scalar, Interval(gt=0.0), "the clip above 1; infinity: as clip_eps"] = jnp.inf
    dual_clip: Annotated[Scalar, Interval(gt=1.0), "caps the loss of bad actions at -dual_clip * A"] = jnp.inf
    vf_clip_eps: Annotated[Scalar, Interval(gt=0.0), "how far the value may move before its loss is clipped"] = jnp.inf
    vf_coef: Annotated[Scalar, Interval(ge=0.0)] = 0.5
    ent_coef: Annotated[Scalar, Interval(ge=0.0)] = 0.0
    max_grad_norm: Annotated[Scalar, Interval(gt=0.0), "global norm"] = 0.5
    target_kl: Annotated[Scalar, Interval(ge=0.0), "an update ends at 1.5 times this KL divergence"] = jnp.inf
    kl_coef: Annotated[Scalar, Interval(ge=0.0), "of the KL penalty, at the start"] = 1.0
    kl_target: Annotated[Scalar, Interval(gt=0.0), "what kl_coef adapts to; infinity: it stays"] = jnp.inf
    adam_eps: Annotated[Scalar, Interval(gt=0.0)] = 1e-5
    schedule_steps: Annotated[Scalar, Interval(gt=0.0), "environment steps that the schedules last"] = jnp.inf


class State(struct.PyTreeNode):
    """Everything that learning carries from update to update."""

    hyper: Hyper
    params: PyTree
    opt_state: PyTree
    normalizer: Normalizer
    kl_coef: Array  # [] float32
    env_steps: Array  # [] float32, environment steps learned from so far


class Actor(NamedTuple):
    """What acting needs."""

    params: PyTree
    obs_stats: PyTree


class Memory(NamedTuple):
    """What one environment's policy remembers within an episode."""

    core: PyTree  # of a recurrent network
    noise: PyTree = ()  # gSDE: (standard normal [F, D], its age in steps [] int32)


class Extras(NamedTuple):
    """What `update` wants back from `act`."""

    raw: PyTree  # [D] the action before clipping or tanh, for a Box; else ()
    log_prob: Array  # []
    core: PyTree  # a recurrent network's memory before the step


class Minibatch(NamedTuple):
    """What the loss is computed from: leaves [B, ...], or [T, B, ...] for a recurrent network."""

    obs: PyTree
    action: Array  # raw
    old_log_prob: Array
    old_value: Array
    old_policy: PyTree  # what the network returned before the update, where the KL penalty needs it
    advantage: Array
    target: Array
    start: Array  # bool, whether an episode begins here


class Parts(NamedTuple):
    """The static surroundings of every function below."""

    config: Config
    obs_space: Space
    action_space: Space
    network: Network

    @property
    def recurrent(self) -> bool:
        return bool(jax.tree.leaves(self.network.memory))

    def distribution(self, output: PyTree, obs: PyTree) -> policies.Distribution:
        return policies.distribution(self.action_space, output, action_mask(obs), squash=self.config.squash)


def apply(parts: Parts, params: PyTree, obs_stats: PyTree, obs: PyTree, core: PyTree) -> tuple[PyTree, Array, PyTree]:
    """The network on observations [...]: what its policy head returned, the value [...] float32, the next memory."""
    obs = normalize_obs(parts.obs_space, obs_stats, obs)
    policy, value, *rest = parts.network.apply(params, obs, *((core,) if parts.recurrent else ()))
    policy, value = jax.tree.map(lambda x: x.astype(jnp.promote_types(x.dtype, jnp.float32)), (policy, value))
    return policy, value, (rest[0] if rest else ())


def apply_along(parts: Parts, params: PyTree, obs_stats: PyTree, obs: PyTree, start: Array, core: PyTree):
    """`apply` on a batch [B, ...], or for a recurrent network along [T, B, ...] from the memory `core` [B, ...].

    Returns the policy head's output, the values, and a recurrent network's memory before each row.
    """
    if not parts.recurrent:
        return apply(parts, params, obs_stats, obs, ())

    def step(core, obs):
        output, value, after = apply(parts, params, obs_stats, obs, core)
        return after, (output, value)

    (output, value), memories = unroll(step, parts.network.memory, core, obs, start)
    return output, value, memories


def loss(parts: Parts, params: PyTree, state: State, batch: Minibatch, core: PyTree, clip: Array):
    """The loss [] of a minibatch, and its metrics; `core` is a recurrent network's memory before the first row."""
    hyper, config = state.hyper, parts.config
    policy, value, _ = apply_along(parts, params, state.normalizer.obs, batch.obs, batch.start, core)
    dist = parts.distribution(policy, batch.obs)
    log_prob = policies.log_prob(dist, batch.action)
    advantage = batch.advantage
    if config.normalize_advantage == "minibatch":
        advantage = losses.normalize_advantage(advantage)
    high = jnp.where(jnp.isinf(hyper.clip_eps_high), hyper.clip_eps, hyper.clip_eps_high)
    policy_loss = losses.ppo_clip(
        log_prob,
        batch.old_log_prob,
        advantage,
        clip_eps=(clip * hyper.clip_eps, clip * high),
        dual_clip=hyper.dual_clip,
    ).mean()
    value_loss = losses.clipped_value_loss(value, batch.old_value, batch.target, clip_eps=hyper.vf_clip_eps).mean()
    entropy = dist.entropy().mean()
    kl = losses.kl_approx(log_prob, batch.old_log_prob).mean()
    total = policy_loss + hyper.vf_coef * value_loss - hyper.ent_coef * entropy
    if config.kl_penalty:
        kl = parts.distribution(batch.old_policy, batch.obs).kl(dist).mean()
        total = total + state.kl_coef * kl
    ratio = jnp.exp(log_prob - batch.old_log_prob)
    clipped = (ratio < 1 - clip * hyper.clip_eps) | (ratio > 1 + clip * high)
    return total, {
        "loss": total,
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "approx_kl": kl,
        "clip_fraction": clipped.mean(dtype=jnp.float32),
    }


def init(parts: Parts, hyper: Hyper, key: Key, example: Transition, num_envs: int) -> State:
    """A state that has learned nothing; `example` is one step without batch axes."""
    config = parts.config
    hyper = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), hyper)
    params = parts.network.init(key, example.obs, *((parts.network.memory,) if parts.recurrent else ()))
    return State(
        hyper=hyper,
        params=params,
        opt_state=optimizer(hyper, hyper.learning_rate).init(params),
        normalizer=normalization.init(
            parts.obs_space, example, num_envs, obs=config.normalize_obs, reward=config.normalize_reward
        ),
        kl_coef=hyper.kl_coef + 0.0,  # a buffer of its own, so that the state can be donated
        env_steps=jnp.zeros((), jnp.float32),
    )


def optimizer(hyper: Hyper, learning_rate: Array) -> optax.GradientTransformation:
    return optax.chain(
        optax.clip_by_global_norm(hyper.max_grad_norm),
        optax.scale_by_adam(eps=hyper.adam_eps),
        optax.scale(-learning_rate),
    )


def actor(state: State) -> Actor:
    return Actor(state.params, state.normalizer.obs)


def act(parts: Parts, actor: Actor, memory: Memory, obs: PyTree, key: Key) -> tuple[Memory, PyTree, Extras]:
    """One exploring step for one observation."""
    config, space = parts.config, parts.action_space
    action_key, noise_key = jax.random.split(key)
    output, _, core = apply(parts, actor.params, actor.obs_stats, obs, memory.core)
    dist = parts.distribution(output, obs)
    noise = memory.noise
    if config.gsde:
        matrix, age = noise
        matrix = jnp.where(age == 0, policies.gsde_noise(noise_key, *matrix.shape), matrix)
        raw = policies.gsde_sample(output, matrix)
        age = age + 1
        noise = matrix, (age % config.gsde_steps if config.gsde_steps else age)
    else:
        raw = policies.sample(dist, action_key)
    log_prob = policies.log_prob(dist, raw)
    extras = Extras(raw if isinstance(space, Box) else (), log_prob, memory.core)
    return Memory(core, noise), policies.action(space, raw, squash=config.squash), extras


def policy(parts: Parts, actor: Actor, memory: Memory, obs: PyTree, key: Key) -> tuple[Memory, PyTree, tuple]:
    """One greedy step for one observation: the mode of the policy. The key is not used."""
    output, _, core = apply(parts, actor.params, actor.obs_stats, obs, memory.core)
    raw = policies.mode(parts.distribution(output, obs))
    return Memory(core, memory.noise), policies.action(parts.action_space, raw, squash=parts.config.squash), ()


def raw_action(parts: Parts, rollout: Transition) -> Array:
    return rollout.extras.raw if isinstance(parts.action_space, Box) else rollout.action


class Evaluated(NamedTuple):
    """What the network says of a rollout, all [T, N, ...]."""

    log_prob: Array
    value: Array
    next_value: Array
    policy: PyTree  # kept where the KL penalty needs it, else ()


def evaluate(parts: Parts, params: PyTree, obs_stats: PyTree, rollout: Transition, core: PyTree) -> Evaluated:
    """A rollout under `params`, in chunks of rows; `core` [T, N, ...] is a recurrent network's memory before each row."""
    shape = rollout.reward.shape

    def rows(batch):
        obs, next_obs, raw, core = batch
        output, value, after = apply(parts, params, obs_stats, obs, core)
        next_value = apply(parts, params, obs_stats, next_obs, after)[1]
        log_prob = policies.log_prob(parts.distribution(output, obs), raw)
        return Evaluated(log_prob, value, next_value, output if parts.config.kl_penalty else ())

    batch = jax.tree.map(
        lambda x: x.reshape(-1, *x.shape[2:]), (rollout.obs, rollout.next_obs, raw_action(parts, rollout), core)
    )
    flat = chunked_map(rows, batch, parts.config.chunk_size)
    return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), flat)


class Learner(NamedTuple):
    """What the minibatches of an update change."""

    params: PyTree
    opt_state: PyTree
    stopped: Array  # [] bool, whether target_kl has ended this update


def minibatch_step(
    parts: Parts, state: State, optimizer, clip: Array, learner: Learner, batch: Minibatch, core: PyTree
):
    """One gradient step, unless the divergence before it exceeds 1.5 target_kl: then nothing changes from here on."""
    (_, metrics), grads = jax.value_and_grad(partial(loss, parts), has_aux=True)(
        learner.params, state, batch, core, clip
    )
    stopped = learner.stopped | (metrics["approx_kl"] > 1.5 * state.hyper.target_kl)
    updates, opt_state = optimizer.update(grads, learner.opt_state)
    params = optax.apply_updates(learner.params, updates)
    params, opt_state = jax.tree.map(
        lambda old, new: jnp.where(stopped, old, new), (learner.params, learner.opt_state), (params, opt_state)
    )
    metrics["grad_norm"] = optax.global_norm(grads)
    return Learner(params, opt_state, stopped), (metrics, ~learner.stopped)


def update(parts: Parts, state: State, rollout: Transition, key: Key) -> tuple[State, dict[str, Array]]:
    """Learn from one rollout [T, N, ...]; metrics are means over the minibatches up to the one that stopped the update."""
    config, hyper, stats = parts.config, state.hyper, state.normalizer.obs
    num_steps, num_envs = rollout.reward.shape
    check(parts, num_envs, num_steps)
    progress = state.env_steps / hyper.schedule_steps
    learning_rate = hyper.learning_rate * schedule(config.learning_rate_schedule, progress)
    clip = schedule(config.clip_schedule, progress)
    step = partial(minibatch_step, parts, state, optimizer(hyper, learning_rate), clip)
    reward = normalization.scale_reward(state.normalizer, rollout.reward)
    done = rollout.terminated | rollout.truncated
    start = jnp.concatenate([jnp.zeros_like(done[:1]), done[:-1]])
    first_core = jax.tree.map(lambda x: x[0], rollout.extras.core)

    def with_advantage(batch: Minibatch, evaluated: Evaluated) -> Minibatch:
        ends = rollout.terminated, rollout.truncated
        advantage = gae(
            reward, evaluated.value, evaluated.next_value, *ends, gamma=hyper.gamma, gae_lambda=hyper.gae_lambda
        )
        target = advantage + evaluated.value
        if config.normalize_advantage == "batch":
            advantage = losses.normalize_advantage(advantage)
        return batch._replace(advantage=advantage, target=target)

    old = evaluate(parts, state.params, stats, rollout, rollout.extras.core)
    batch = Minibatch(
        obs=rollout.obs,
        action=raw_action(parts, rollout),
        old_log_prob=old.log_prob if config.old_log_prob == "recompute" else rollout.extras.log_prob,
        old_value=old.value,
        old_policy=old.policy,
        start=start,
        advantage=(),
        target=(),
    )
    batch = with_advantage(batch, old)
    count = num_envs if parts.recurrent else num_steps * num_envs

    def epoch(learner, key):
        data = batch
        if config.recompute_advantage:
            core = (
                apply_along(parts, learner.params, stats, rollout.obs, start, first_core)[2] if parts.recurrent else ()
            )
            data = with_advantage(batch, evaluate(parts, learner.params, stats, rollout, core))
        if not parts.recurrent:
            data = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), data)

        def minibatch(learner, rows):
            taken = jax.tree.map(lambda x: x[:, rows] if parts.recurrent else x[rows], data)
            return step(learner, taken, jax.tree.map(lambda x: x[rows], first_core))

        order = permute(key, jnp.arange(count), count).reshape(config.num_minibatches, -1)
        return jax.lax.scan(minibatch, learner, order)

    learner = Learner(state.params, state.opt_state, jnp.zeros((), bool))
    learner, (metrics, counted) = jax.lax.scan(epoch, learner, jax.random.split(key, config.num_epochs))
    metrics = jax.tree.map(lambda x: jnp.where(counted, x, 0.0).sum() / counted.sum(dtype=x.dtype), metrics)
    kl_coef = state.kl_coef
    if config.kl_penalty:
        adapted = losses.adaptive_kl_coef(kl_coef, metrics["approx_kl"], target_kl=hyper.kl_target)
        kl_coef = jnp.where(jnp.isinf(hyper.kl_target), kl_coef, adapted)
        metrics["kl_coef"] = kl_coef
    metrics["learning_rate"] = learning_rate
    metrics["explained_variance"] = explained_variance(old.value.reshape(-1), batch.target.reshape(-1))
    return state.replace(
        params=learner.params,
        opt_state=learner.opt_state,
        normalizer=normalization.take_in(state.normalizer, parts.obs_space, rollout, hyper.gamma),
        kl_coef=kl_coef,
        env_steps=state.env_steps + num_steps * num_envs,
    ), metrics


def check(parts: Parts, num_envs: int, num_steps: int) -> None:
    """Raise a ConfigError where a rollout of this size cannot be divided into minibatches."""
    if parts.recurrent:
        checks.divides("num_minibatches", parts.config.num_minibatches, "num_envs", num_envs)
    else:
        checks.divides("num_minibatches", parts.config.num_minibatches, "num_envs * num_steps", num_envs * num_steps)


def make(config: Config, obs_space: Space, action_space: Space, network: Any = None) -> Agent:
    """PPO for these spaces.

    Args:
      config: the static settings.
      obs_space, action_space: an environment's spaces.
      network: anything with `init(key, obs) -> params` and `apply(params, obs) -> (policy, value)`, as attributes or as a
        pair; None for the network that `config` describes. `policy` is the logits [..., A] (for MultiDiscrete all of
        them joined), or `(loc, log_std)`, both [..., D], for a Box; `value` is [...]. A `Network` with a memory is
        recurrent.

    Raises:
      ConfigError: the action space is of a kind that PPO cannot act in, or a setting does not fit it.
    """
    size = policies.policy_size(action_space)
    if not isinstance(action_space, Box) and (config.squash or config.gsde):
        field = "squash" if config.squash else "gsde"
        raise ConfigError(f"{field}=True needs a Box action space, and this one is {action_space}; use False")
    if config.squash:
        checks.squashable(action_space)
    if network is None:
        network = actor_critic(
            obs_space=obs_space,
            policy_size=size,
            real_valued=isinstance(action_space, Box),
            core=config.recurrent,
            dtype=jnp.dtype(config.compute_dtype),
            **{name: getattr(config, name) for name in _NETWORK_FIELDS},
        )
    elif config.gsde:
        raise ConfigError("gsde=True needs the network that Config describes; use False with a network of your own")
    network = Network(*network) if isinstance(network, tuple) else Network(network.init, network.apply)
    parts = Parts(config, obs_space, action_space, network)
    noise = ()
    if config.gsde:
        features = config.memory_size if config.recurrent != "none" else config.hidden_sizes[-1]
        noise = (np.zeros((features, size), np.float32), np.zeros((), np.int32))
    return Agent(
        init=partial(init, parts),
        actor=actor,
        act=partial(act, parts),
        policy=partial(policy, parts),
        update=partial(update, parts),
        memory=Memory(network.memory, noise),
        check=partial(check, parts),
    )


_NETWORK_FIELDS = (
    "torso",
    "hidden_sizes",
    "channels",
    "activation",
    "layer_norm",
    "shared_torso",
    "memory_size",
    "log_std_init",
    "gsde",
)
