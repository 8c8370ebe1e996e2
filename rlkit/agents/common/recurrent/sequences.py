"""Soft actor-critics with a memory, from sequences (Ni et al. 2022): the losses of SAC and TQC for rows of sequences.

The policy and the critics have a recurrent core each, which remembers the observations of an episode. They learn from
sequences of consecutive steps, which may run across episode ends, as R2D2 does (Kapturowski et al. 2019): the memories
start as they were stored when the sequence was acted, are warmed up over `burn_in` rows without a gradient, and are
reset where an episode starts. A gradient step minimizes the sum of three losses over the `unroll_len` rows after those,
each by its own parameters. They are those of an agent without a memory, here SAC's:

    critics      E[ w (Q_k(m_t, o_t, a_t) - y_t)^2 / 2 ]
                 y_t = r_t + γ (min_k Q_target_k(n_t+1, o_t+1, a') - α log π(a'|p_t+1, o_t+1)),  a' ~ π(p_t+1, o_t+1)
    policy       E[ α log π(a|p_t, o_t) - min_k Q_k(m_t, o_t, a) ],  a ~ π(p_t, o_t)
    temperature  as in SAC

with the memories m of the critics, n of the target critics and p of the policy before a row. The gradients of the
critics and of the policy go through their own memories along the rows. With `n_step` above 1 the returns stop at every
episode end, and those of a sequence's last rows end with it. Time limits are bootstrapped from the true final
observation, evaluated with the memory after the last step. The priority of a sequence is its mean |TD error|.

Departures from the paper: the networks see the last action and reward only with the wrapper `previous_action_reward`,
and sequences start with stored memories, where the paper's start with zeros. All critics share an encoder and a core.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.agents.common import off_policy, q_critics, soft_critic, user_networks, validation
from rlkit.agents.common.normalization import normalize_obs
from rlkit.agents.common.policy_evaluation import episode_starts
from rlkit.agents.common.q_critics import Static, Variables
from rlkit.agents.common.soft_critic import State
from rlkit.networks.cores.recurrent import along
from rlkit.networks.encoders import combine
from rlkit.networks.heads import actor_critic, memory_critics
from rlkit.ops.returns import n_step_returns
from rlkit.spaces import Box, Space
from rlkit.types import Agent, Array, ConfigError, Key, Network, PyTree, Sample, Transition


class Memory(NamedTuple):
    """Memories of one environment within an episode, of the policy and of the critics."""

    policy: PyTree
    critics: PyTree


class Actor(NamedTuple):
    """Parameters and statistics for acting, of the policy and of the critics, whose memory is stored as well."""

    params: dict[str, PyTree]
    stats: dict[str, PyTree]
    obs_stats: PyTree
    warming_up: Array  # [] bool, true while actions are drawn uniformly


class Rows(NamedTuple):
    """The rows [U, B, ...] of sequences that are learned from, with memories that have no gradient."""

    obs: PyTree
    action: PyTree
    reward: Array
    terminated: Array
    truncated: Array
    next_obs: PyTree
    start: Array  # [U, B] bool, true where an episode starts
    weight: Array  # [U, B] importance weights, 0 where nothing was drawn
    before: dict[str, PyTree]  # memories before each row, after a reset: of "policy" and "critics"
    after: dict[str, PyTree]  # memories after each row, before any reset: of "policy" and "target"


def rows(static: Static, state: State, sample: Sample) -> Rows:
    """The rows to learn from, of sequences [B, L, ...] whose memories are computed anew from the first stored one."""
    networks, config = static.networks, static.config
    item, mask = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (sample.item, sample.mask))  # [L, B, ...]
    start, first = episode_starts(item), jax.tree.map(lambda x: x[0], item.extras)
    variables = {
        "policy": (state.params["policy"], state.stats["policy"]),
        "critics": (state.params["critics"], state.stats["critics"]),
        "target": (state.target_params, state.target_stats),
    }
    obs = normalize_obs(state.normalizer.obs, item.obs)
    inputs = critic_inputs(static, obs, item.action)

    def before(name: str, network: Network, core: PyTree, inputs: tuple[PyTree, ...]) -> PyTree:
        memory = along(with_joined_inputs(network), *variables[name], inputs, start, core)[1]
        return jax.lax.stop_gradient(learned(memory))

    def after(name: str, network: Network, memory: PyTree, inputs: tuple[PyTree, ...]) -> PyTree:
        return jax.lax.stop_gradient(network.apply(*variables[name], *learned(inputs), memory)[0][-1])

    def learned(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda x: x[config.burn_in :], tree)

    of_policy = before("policy", networks.policy, first.policy, (obs,))
    of_critics, of_target = (before(x, networks.critics, first.critics, inputs) for x in ("critics", "target"))
    weight = jnp.where(mask, sample.weight, 0.0)
    return Rows(
        *learned((item.obs, item.action, item.reward, item.terminated, item.truncated, item.next_obs)),
        *learned((start, weight)),
        before={"policy": of_policy, "critics": of_critics},
        after={
            "policy": after("policy", networks.policy, of_policy, (obs,)),
            "target": after("target", networks.critics, of_target, inputs),
        },
    )


def critic_inputs(static: Static, obs: PyTree, action: PyTree) -> tuple[PyTree, ...]:
    """The inputs of the critics apart from a memory: normalized observations, and in a Box the actions in [-1, 1]."""
    box = isinstance(static.networks.action_space, Box)
    return (obs, q_critics.normalize_action(static.networks, action)) if box else (obs,)


def with_joined_inputs(network: Network) -> Network:
    """The network, whose functions have a tuple of all inputs in place of an observation, as `along` needs it."""

    def apply(params: PyTree, stats: PyTree, inputs: tuple, memory: PyTree, **training: Any) -> tuple[Any, PyTree]:
        return network.apply(params, stats, *inputs, memory, **training)

    def encode(params: PyTree, stats: PyTree, inputs: tuple, **training: Any) -> tuple[Any, PyTree]:
        assert network.parts is not None
        return network.parts.encode(params, stats, *inputs, **training)

    return network._replace(apply=apply, parts=network.parts and network.parts._replace(encode=encode))


def remembering(network: Network, memory: PyTree) -> Network:
    """A network without a memory of its own: that of inputs [...] with the memory before them [...]."""

    def apply(params: PyTree, stats: PyTree, *inputs: PyTree, **training: Any) -> tuple[Any, PyTree]:
        (*outputs, _), stats = network.apply(params, stats, *inputs, memory, **training)
        return outputs[0] if len(outputs) == 1 else tuple(outputs), stats

    return Network(network.init, apply)


def sequential(network: Network, memory: PyTree, start: Array, *, axis: int = 0) -> Network:
    """A network without a memory of its own: that of rows [U, B, ...], with the memory [B, ...] before the first.

    `axis` is that of the rows in its outputs: 1 for critics, [K, U, B, ...].
    """

    def apply(params: PyTree, stats: PyTree, *inputs: PyTree, **training: Any) -> tuple[Any, PyTree]:
        outputs, _, stats = along(with_joined_inputs(network), params, stats, inputs, start, memory, **training)
        if network.parts is None:  # it is applied to one row after another
            outputs = jax.tree.map(lambda x: jnp.moveaxis(x, 0, axis), outputs)
        return outputs, stats

    return Network(network.init, apply)


def with_networks(static: Static, **networks: Network) -> Static:
    """The static arguments with other networks, `policy` or `critics` or both."""
    return static._replace(networks=static.networks._replace(**networks))


def critic_loss(
    loss: soft_critic.Loss, static: Static, params: dict[str, PyTree], state: State, rows: Rows, key: Key
) -> tuple[Array, tuple]:
    """The loss [] of the critics; their statistics, the priorities [B], and metrics.

    `loss` computes them for networks without a memory: it is `sac.critic_loss` or `tqc.critic_loss`.
    """
    policy, critics = static.networks.policy, static.networks.critics
    ahead = with_networks(
        static, policy=remembering(policy, rows.after["policy"]), critics=remembering(critics, rows.after["target"])
    )
    first = jax.tree.map(lambda x: x[0], rows.before["critics"])
    now = with_networks(static, critics=sequential(critics, first, rows.start, axis=1))

    def returns(rows: Rows, next_value: Array) -> Array:
        flags, settings = (rows.terminated, rows.truncated), {"gamma": state.hyper.gamma, "n": static.config.n_step}
        return n_step_returns(rows.reward, next_value, *flags, **settings)

    total, (stats, priority, metrics) = loss(now, params, state, rows, key, ahead=ahead, bootstrapped=returns)
    return total, (stats, priority.mean(0), metrics)


def policy_loss(
    loss: soft_critic.Loss, static: Static, params: dict[str, PyTree], state: State, rows: Rows, key: Key
) -> tuple[Array, tuple]:
    """The sum [] of the losses of the policy and of log_temperature; the policy's statistics, and metrics.

    `loss` computes them for networks without a memory: it is `sac.policy_loss` or `tqc.policy_loss`.
    """
    first = jax.tree.map(lambda x: x[0], rows.before["policy"])
    now = with_networks(
        static,
        policy=sequential(static.networks.policy, first, rows.start),
        critics=remembering(static.networks.critics, rows.before["critics"]),
    )
    return loss(now, params, state, rows, key)


def start_memory(static: Static) -> Memory:
    """The memories at the start of an episode."""
    return Memory(static.networks.policy.memory, static.networks.critics.memory)


def init(static: Static, hyper: Any, key: Key, example: Transition, num_envs: int) -> State:
    """The state before learning; `example` is one step without batch axes."""
    extras = jax.tree.map(jnp.asarray, start_memory(static))
    return soft_critic.init(static, hyper, key, example._replace(extras=extras), num_envs)


def actor(static: Static, state: State) -> Actor:
    """Parameters and statistics for acting."""
    params = {name: state.params[name] for name in ("policy", "critics")}
    return Actor(params, state.stats, state.normalizer.obs, soft_critic.actor(static, state).warming_up)


def step_of_policy(
    static: Static, actor: Actor, memory: Memory, obs: PyTree
) -> tuple[Static, soft_critic.Actor, Memory]:
    """Arguments of `soft_critic.act` for one observation, with the memory in the policy; and the memories after it."""
    variables: Variables = actor.params["policy"], actor.stats["policy"]
    policy = static.networks.policy
    after = policy.apply(*variables, normalize_obs(actor.obs_stats, obs), memory.policy)[0][-1]
    now = with_networks(static, policy=remembering(policy, memory.policy))
    return now, soft_critic.Actor(*variables, *actor[2:]), memory._replace(policy=after)


def act(static: Static, actor: Actor, memory: Memory, obs: PyTree, key: Key) -> tuple[Memory, Array, Memory]:
    """One exploring step for one observation, as `soft_critic.act`; its extras are the memories before it."""
    now, own, after = step_of_policy(static, actor, memory, obs)
    _, action, _ = soft_critic.act(now, own, (), obs, key)
    inputs = critic_inputs(static, normalize_obs(actor.obs_stats, obs), action)
    variables = actor.params["critics"], actor.stats["critics"]
    of_critics = static.networks.critics.apply(*variables, *inputs, memory.critics)[0][-1]
    return after._replace(critics=of_critics), action, memory


def policy(static: Static, actor: Actor, memory: Memory, obs: PyTree, key: Key) -> tuple[Memory, Array, tuple]:
    """One step for one observation: the mode of the policy. The key is not used."""
    now, own, after = step_of_policy(static, actor, memory, obs)
    return after, soft_critic.policy(now, own, (), obs, key)[1], ()


def make(
    config: Any,
    obs_space: Space,
    action_space: Space,
    networks: Mapping[str, Any] | None,
    loss_of_critics: soft_critic.Loss,
    loss_of_policy: soft_critic.Loss,
    *,
    outputs: int | None = None,
    axis_name: str | None = None,
) -> Agent:
    """An agent with a memory for these spaces.

    The losses are those without a memory; `outputs` is that of `q_critics.make`, and the other arguments are those of
    `sac.make`.

    Raises:
      ConfigError: as `sac.make`, or a setting has no meaning with a memory.
    """
    soft_critic.check_subset(config)
    for name, value, only in (("gsde", config.gsde, False), ("replay", config.replay, "uniform")):
        if value in (True, "hindsight"):
            raise ConfigError(f"{name}={value!r} needs recurrent='none'; use {name}={only!r} with a memory")
    made = make_networks(config, obs_space, action_space, networks, outputs, axis_name)
    num_sequences = config.batch_size // config.unroll_len
    static = Static(config, made, off_policy.sequence_buffer(config, num_sequences, axis_name), axis_name)
    losses = {
        "critic_loss": partial(critic_loss, loss_of_critics),
        "policy_loss": partial(policy_loss, loss_of_policy),
    }
    return off_policy.agent(
        static,
        init=init,
        actor=actor,
        act=act,
        policy=policy,
        gradient_step=partial(soft_critic.gradient_step, **losses, make_batch=rows),
        finite=("critic_loss", "policy_loss", "grad_norm"),
        learn=None,  # datasets hold no memory before each step
        memory=start_memory(static),
    )


def make_networks(
    config: Any,
    obs_space: Space,
    action_space: Any,
    networks: Mapping[str, Any] | None,
    outputs: int | None,
    axis_name: str | None,
) -> q_critics.Networks:
    """The networks of a user, and for those that are not given the ones that `config` describes."""
    given = user_networks.by_name(networks, {"policy", "critics"})
    validation.check_encoder(config, obs_space, action_space)
    box, size = isinstance(action_space, Box), actor_critic.policy_size(action_space)
    width = outputs if box else size
    check = partial(user_networks.checked, memory="needed", axis_name=axis_name)
    described = config.model_dump(include={*combine.SETTINGS, *memory_critics.SETTINGS})
    if "policy" in given:
        form, sizes = ("(loc, log_std)", (np.array([size]),) * 2) if box else ("logits", np.array([size]))
        policy = check(given["policy"], obs_space, form, sizes, field="policy")
    else:
        own: Any = {"size": size, "has_spread": box, "log_std_init": config.initial_log_std}
        policy = memory_critics.memory_policy(obs_space=obs_space, **own, **described)
    if "critics" in given:
        action, sizes = (np.zeros(size, np.float32),) if box else (), np.array([] if width is None else [width], int)
        settings: Any = {"field": "critics", "count": config.num_critics, "privileged": True}
        critics = check(given["critics"], obs_space, "Q", sizes, *action, **settings)
    else:
        own = {"count": config.num_critics, "size": width, "dropout": config.critic_dropout}
        critics = memory_critics.memory_critics(obs_space=obs_space, **own, **described)
    return q_critics.Networks(obs_space, action_space, policy, critics, critics, None)
