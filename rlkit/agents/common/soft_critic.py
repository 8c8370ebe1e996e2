"""Functions that soft actor-critics share: SAC, TQC and CrossQ are made of them, each with its own losses.

A gradient step minimizes a loss of the critics, and every `policy_every`-th one a loss of the policy and of
log_temperature as well, each by its own parameters. Acting samples the policy; evaluation takes its mode.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rlkit import _mesh
from rlkit.agents.base import as_arrays
from rlkit.agents.common import action_distributions, batches, exploration, off_policy, q_critics, validation
from rlkit.agents.common.batches import Batch
from rlkit.agents.common.config import QCriticConfig
from rlkit.agents.common.hyper import ActorCriticHyper
from rlkit.agents.common.normalization import normalize_obs
from rlkit.agents.common.off_policy import Schedules
from rlkit.agents.common.optimizer import Optimizer, mean_gradient
from rlkit.agents.common.q_critics import Static, Variables
from rlkit.ops.distributions import Categorical, TanhNormal
from rlkit.spaces import Box, Space
from rlkit.types import Agent, Array, ConfigError, Key, PyTree, Sample, Transition


class State(off_policy.State):
    """Parameters and optimizers of the policy, the critics and log_temperature []; targets of the critics."""

    policy_metrics: dict[str, Array]  # [], of the policy's last step; zeros before the first
    since_policy: Array  # [] int32, gradient steps since the policy's last


Loss = Callable[..., tuple[Array, tuple]]  # (static, params, state, batch, key) -> loss [], (statistics, others)
CRITICS, POLICY = ("critics",), ("policy", "log_temperature")  # parameters of the two losses


class Actor(NamedTuple):
    """Parameters and statistics for acting."""

    params: PyTree  # of the policy
    stats: PyTree  # of the policy
    obs_stats: PyTree
    warming_up: Array  # [] bool, true while actions are drawn uniformly


class PolicyEstimate(NamedTuple):
    """Value and entropy of a policy at observations [...]: of one sampled action, exact in a discrete space."""

    value: Array  # [...] E[min_k Q_k(o, a)], or what another function makes of the critics' outputs
    entropy: Array  # [...] nats
    stats: PyTree  # of the policy


def subset_of_critics(config: Any, outputs: Array, key: Key) -> Array:
    """The outputs [K, ...] of all critics, or those of a random `target_subset` of them."""
    if config.target_subset is None:
        return outputs
    return outputs[jax.random.choice(key, outputs.shape[0], (config.target_subset,), replace=False)]


def estimate(
    static: Static,
    policy: Variables,
    critics: Variables,
    obs_stats: PyTree,
    obs: PyTree,
    key: Key,
    *,
    combine: Callable[[Array], Array],
    train: bool = False,
    noise: Key | None = None,
) -> PolicyEstimate:
    """Value and entropy of a policy under critics that do not train.

    `key` draws the action and the critics' dropout, `noise` that of the policy's layers. `combine` makes a value of the
    outputs of all critics [K, ...].
    """
    networks = static.networks
    dropout_key = jax.random.fold_in(key, 2) if static.config.critic_dropout else None
    dist, stats = q_critics.distribution(networks, policy, obs_stats, obs, train=train, key=noise)
    if isinstance(dist, Categorical):
        q = combine(networks.critics.apply(*critics, normalize_obs(obs_stats, obs), key=dropout_key)[0])
        return PolicyEstimate(jnp.sum(dist.probs * q, axis=-1), dist.entropy(), stats)
    assert isinstance(dist, TanhNormal)
    raw = dist.sample_pre_tanh(key)
    q = q_critics.q_values(networks, critics, obs_stats, obs, dist.squash(raw), key=dropout_key)[0]
    return PolicyEstimate(combine(q), -dist.log_prob_pre_tanh(raw), stats)


def next_estimate(
    static: Static, state: State, batch: Batch, key: Key, *, combine: Callable[[Array], Array]
) -> tuple[Array, Array]:
    """The value at the next observations and α times the entropy [B].

    `combine` makes the value of the outputs of the target critics, or of a subset of them; see `estimate`.
    """
    subset_key = jax.random.fold_in(key, 1)
    policy = state.params["policy"], state.stats["policy"]
    critics = state.target_params, state.target_stats
    after = estimate(
        static,
        policy,
        critics,
        state.normalizer.obs,
        batch.next_obs,
        key,
        combine=lambda outputs: combine(subset_of_critics(static.config, outputs, subset_key)),
    )
    return after.value, jnp.exp(state.params["log_temperature"]) * after.entropy


def data_values(static: Static, params: PyTree, state: State, batch: Batch, key: Key) -> tuple[Array, PyTree]:
    """The outputs [K, B, ...] of the critics that train, for the batch's actions, and their statistics."""
    action = q_critics.normalize_action(static.networks, batch.action)
    critics, noise = (params, state.stats["critics"]), jax.random.fold_in(key, 0)
    obs_stats = state.normalizer.obs
    return q_critics.q_values(static.networks, critics, obs_stats, batch.obs, action, train=True, key=noise)


def n_step_batch(static: Static, state: State, sample: Sample) -> Batch:
    """The n-step transitions of a sample."""
    return batches.n_step_batch(sample, state.hyper.gamma)


def gradient_step(
    static: Static,
    state: State,
    sample: Sample,
    schedules: Schedules,
    key: Key,
    *,
    critic_loss: Loss,
    policy_loss: Loss,
    make_batch: Callable[[Static, State, Sample], Any] = n_step_batch,
) -> tuple[State, Array, dict[str, Array]]:
    """One step of descent on a sample; every `policy_every`-th updates the policy and the temperature as well.

    Both losses are functions (static, params, state, batch, key). Beside its value [] the critics' one has their
    statistics, the priorities [B] and metrics, and the policy's one its statistics and metrics. `make_batch` makes the
    batch of a sample. Returns the state, the priorities [B] and the metrics.
    """
    batch = make_batch(static, state, sample)
    critic_key, policy_key = jax.random.split(key)
    optimizers = part_optimizers(static.config, state.hyper, schedules)

    def descend(loss: Loss, names: tuple[str, ...], params: dict[str, PyTree], opt_state: PyTree, key: Key) -> tuple:
        """The parameters and the optimizers' states of these parts after a step; the squared norm, and the rest."""
        gradient, rest = mean_gradient(loss, static, params, state, batch, key)
        steps = {name: optimizers[name].step(params[name], opt_state[name], gradient[name]) for name in names}
        params, opt_state = ({name: step[i] for name, step in steps.items()} for i in (0, 1))
        return params, opt_state, sum(jnp.square(step[2]) for step in steps.values()), rest

    def part(tree: dict[str, PyTree], names: tuple[str, ...]) -> dict[str, PyTree]:
        return {name: tree[name] for name in names}

    critics, critics_opt, critic_norm, (critic_stats, priority, metrics) = descend(
        critic_loss, CRITICS, part(state.params, CRITICS), part(state.opt_state, CRITICS), critic_key
    )

    def policy_step(params: dict[str, PyTree], opt_state: PyTree, stats: PyTree, _: Any) -> tuple:
        params, opt_state, norm, (stats, metrics) = descend(policy_loss, POLICY, params, opt_state, policy_key)
        return params, opt_state, stats, metrics | {"grad_norm": norm}

    update_policy = state.since_policy + 1 >= static.config.policy_every
    before = part(state.params, POLICY), part(state.opt_state, POLICY), state.stats["policy"], state.policy_metrics
    if static.config.policy_every == 1:
        after = policy_step(*before)
    else:
        after = jax.lax.cond(update_policy, policy_step, lambda *unchanged: unchanged, *before)
    params, opt_state, policy_stats, policy_metrics = after

    state = off_policy.update_target(state, critics["critics"], critic_stats, when=schedules.update_target)
    state = state.replace(
        params=params | critics,
        stats={"policy": policy_stats, "critics": critic_stats},
        opt_state=opt_state | critics_opt,
        policy_metrics=policy_metrics,
        since_policy=jnp.where(update_policy, 0, state.since_policy + 1),
    )
    norm = jnp.sqrt(critic_norm + policy_metrics["grad_norm"])
    return state, priority, metrics | policy_metrics | {"grad_norm": norm}


def part_optimizers(config: QCriticConfig, hyper: ActorCriticHyper, schedules: Schedules) -> dict[str, Optimizer]:
    """The optimizers of the policy, of the critics and of log_temperature, by the names of their parameters."""
    policy, critics = q_critics.optimizers(config, hyper, schedules)
    rate = schedules.group_rates.get("temperature_learning_rate", schedules.learning_rate)
    return {"policy": policy, "critics": critics, "log_temperature": Optimizer.of(config, hyper, rate)}


def init(static: Static, hyper: Any, key: Key, example: Transition, num_envs: int) -> State:
    """The state before learning; `example` is one step without batch axes."""
    hyper = as_arrays(hyper, static.config, num_envs)
    params, stats = q_critics.init(static.networks, key, example.obs)
    target, params = (params["critics"], stats["critics"]), params | {"log_temperature": jnp.log(hyper.temperature)}
    state = off_policy.init(static, hyper, example, num_envs, (params, stats), target)
    optimizer = Optimizer.of(static.config, hyper, hyper.learning_rate)
    names = "policy_loss", "temperature", "entropy", "q", "grad_norm"
    state = State(
        **(vars(state) | {"opt_state": {name: optimizer.init(part) for name, part in params.items()}}),  # type: ignore[arg-type]
        policy_metrics={name: jnp.zeros((), jnp.float32) for name in names},
        since_policy=jnp.zeros((), jnp.int32),
    )
    return _mesh.vary_like(state, without=static.axis_name)


def actor(static: Static, state: State) -> Actor:
    """Parameters and statistics for acting."""
    warming_up = state.replay.num_steps < jnp.uint32(static.config.learning_starts)
    return Actor(state.params["policy"], state.stats["policy"], state.normalizer.obs, warming_up)


def act(static: Static, actor: Actor, memory: PyTree, obs: PyTree, key: Key) -> tuple[PyTree, Array, tuple]:
    """One exploring step for one observation: a sample of the policy; in a Box uniform until learning starts.

    With gSDE the policy's own noise explores from the beginning: held over steps, it reaches states that independent
    uniform actions do not.
    """
    sample_key, uniform_key = jax.random.split(key)
    space = static.networks.action_space
    if static.config.gsde:
        obs = normalize_obs(actor.obs_stats, obs)
        output, _ = static.networks.policy.apply(*actor[:2], obs)
        raw, memory = exploration.gsde_step(output, memory, static.config.gsde_steps, sample_key)
    else:
        dist, _ = q_critics.distribution(static.networks, actor[:2], actor.obs_stats, obs)
        raw = action_distributions.sample(dist, sample_key)
    action = action_distributions.action(space, raw, squash=True)
    if isinstance(space, Box) and not static.config.gsde:
        action = exploration.uniform_while(actor.warming_up, space, uniform_key, action)
    return memory, action, ()


def policy(static: Static, actor: Actor, memory: PyTree, obs: PyTree, key: Key) -> tuple[PyTree, Array, tuple]:
    """One step for one observation: the mode of the policy. The key is not used."""
    dist, _ = q_critics.distribution(static.networks, actor[:2], actor.obs_stats, obs)
    raw = action_distributions.mode(dist)
    return memory, action_distributions.action(static.networks.action_space, raw, squash=True), ()


def check_subset(config: Any) -> None:
    """Raise a ConfigError where a target is to take the least of more critics than there are."""
    if (config.target_subset or 1) > config.num_critics:
        raise ConfigError(
            f"target_subset={config.target_subset} must be at most num_critics={config.num_critics}, of which it is "
            f"drawn; try {config.num_critics}, or null"
        )


def make(
    config: Any,
    obs_space: Space,
    action_space: Space,
    networks: Mapping[str, Any] | None,
    gradient_step: off_policy.GradientStep,
    *,
    init_state: Callable[..., State] = init,
    axis_name: str | None = None,
    **settings: Any,
) -> Agent:
    """An agent that learns by `gradient_step` from the state of `init_state`; `settings` go to `q_critics.make`.

    The other arguments and the errors are those of `sac.make`, and the action space is one that the agent can act in.
    """
    check_subset(config)
    if config.gsde:
        validation.check_box("gsde", action_space, bounded=True)
        validation.check_gsde(config)
    spread = "features" if config.gsde else "observation"
    built = q_critics.make(config, obs_space, action_space, networks, spread=spread, axis_name=axis_name, **settings)
    static = Static(config, built, off_policy.buffer(config, axis_name), axis_name)
    return off_policy.agent(
        static,
        init=init_state,
        actor=actor,
        act=act,
        policy=policy,
        gradient_step=gradient_step,
        finite=("critic_loss", "policy_loss", "grad_norm"),
        memory=exploration.gsde_start(config.hidden_sizes[-1], built.size) if config.gsde else (),
        uniform=action_space.sample if isinstance(action_space, Box) and not config.gsde else None,
    )
