"""Categorical deep Q-learning, C51 (Bellemare et al. 2017): DQN with a distribution of returns on fixed atoms.

A gradient step minimizes the cross-entropy of the distribution Z(o, a) to the target's, r + γ^n Z_target(o', a*),
projected onto the atoms (algorithm 1); a* maximizes the mean. The fields are those of `dqn`; with all of them on it is
Rainbow (Hessel et al. 2018), whose priorities are the KL divergences of the distributions from the targets: the
cross-entropies without the targets' own entropies. Rainbow's noisy layers are those of the heads alone here, as in
`dqn`.
"""

from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Interval
from flax import struct
from pydantic import Field, model_validator

from rlkit.agents.common import exploration, normalization, off_policy, q_learning
from rlkit.agents.common.config import OffPolicyConfig, TorsoConfig
from rlkit.agents.common.hyper import EpsilonHyper, OffPolicyHyper, Positive, as_arrays
from rlkit.agents.common.normalization import Normalizer
from rlkit.agents.common.off_policy import Batch, ReplayState, Schedules
from rlkit.agents.common.optimizer import Optimizer, mean_gradient
from rlkit.agents.common.q_learning import Actor, Static
from rlkit.networks.features import action_mask
from rlkit.ops._arrays import pick
from rlkit.ops.distributional import categorical_cross_entropy, categorical_target
from rlkit.spaces import Discrete, Space
from rlkit.types import Agent, Array, Key, PyTree, Sample, Transition

Return = Annotated[float, Interval(ge=-1e12, le=1e12)]  # float32 arithmetic on atoms does not overflow


class Config(OffPolicyConfig, TorsoConfig):
    """Static settings."""

    double: bool = True
    dueling: bool = False
    noisy: bool = Field(False, description="learned noise in the heads explores, and epsilon is off")
    num_atoms: Annotated[int, Interval(ge=2, le=2**20)] = Field(51, description="of the distribution of returns")
    v_min: Return = Field(-10.0, description="the return at the lowest atom")
    v_max: Return = Field(10.0, description="the return at the highest atom")

    @model_validator(mode="after")
    def _ordered(self) -> "Config":
        if not self.v_min < self.v_max:
            raise ValueError(f"v_min={self.v_min:g} must be below v_max={self.v_max:g}; the returns lie between them")
        return self

    @property
    def atoms(self) -> np.ndarray:
        """The returns [num_atoms] float32 that the distributions lie on."""
        return np.linspace(self.v_min, self.v_max, self.num_atoms, dtype=np.float32)


class Hyper(OffPolicyHyper, EpsilonHyper):
    """Traced float32 scalars, which a vmap may sweep. Infinity switches a term off."""

    max_grad_norm: Positive = 10.0


class State(struct.PyTreeNode):
    """Everything that learning carries from update to update."""

    hyper: Hyper
    params: PyTree
    target_params: PyTree
    opt_state: PyTree
    normalizer: Normalizer
    replay: ReplayState


def mean_returns(static: Static, logits: Array) -> Array:
    """The means [..., A] of the distributions with logits [..., A, M]."""
    return jax.nn.softmax(logits, axis=-1) @ static.config.atoms


def loss(static: Static, params: PyTree, state: State, batch: Batch, key: Key) -> tuple[Array, tuple[Array, dict]]:
    """The loss [] of a batch, its priorities [B], and its metrics."""
    obs_stats, atoms = state.normalizer.obs, static.config.atoms
    key, next_key, select_key = jax.random.split(key, 3)
    logits = q_learning.apply(static, params, obs_stats, batch.obs, key)
    next_logits = q_learning.apply(static, state.target_params, obs_stats, batch.next_obs, next_key)
    selecting = next_logits
    if static.config.double:
        selecting = q_learning.apply(static, params, obs_stats, batch.next_obs, select_key)
    next_q = exploration.mask_illegal(mean_returns(static, selecting), action_mask(batch.next_obs))
    target = categorical_target(batch.reward, batch.discount, next_logits, jax.lax.stop_gradient(next_q), atoms)
    cross_entropy = categorical_cross_entropy(logits, batch.action, target)
    total = jnp.mean(batch.weight * cross_entropy)
    target_entropy = -jnp.sum(jax.scipy.special.xlogy(target, target), axis=-1)
    priority = jnp.maximum(jax.lax.stop_gradient(cross_entropy) - target_entropy, 0.0)
    q = jnp.mean(pick(mean_returns(static, logits), batch.action))
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
    q = mean_returns(static, q_learning.apply(static, actor.params, actor.obs_stats, obs, noise_key))
    action = exploration.epsilon_greedy(explore_key, static.action_space, q, action_mask(obs), actor.epsilon)
    return memory, action, ()


def policy(static: Static, actor: Actor, memory: tuple, obs: PyTree, key: Key) -> tuple[tuple, Array, tuple]:
    """One step for one observation: the action of the largest mean, without noise. The key is not used."""
    q = mean_returns(static, q_learning.apply(static, actor.params, actor.obs_stats, obs))
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
    """C51 for these spaces.

    Args:
      config: the static settings.
      obs_space, action_space: an environment's spaces.
      network: as for `dqn.make`, with logits [..., A, num_atoms]; None for the one that `config` describes.
      axis_name: of a mesh axis, see `training.data_parallel`; None for one device.

    Raises:
      ConfigError: the action space is not Discrete, or a setting does not fit.
    """
    static = q_learning.static("c51", config, obs_space, action_space, network, "num_atoms", axis_name)
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
    ("Probe-ObservationAction", {"num_atoms": 11, "store_obs_once": True}),
)
