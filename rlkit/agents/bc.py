"""Behavior cloning, BC (Pomerleau 1991): supervised learning of a dataset's actions, the baseline of offline learning.

A gradient step minimizes the negative log-likelihood of the data's actions over transitions drawn from a replay buffer:

    policy   E[ -w log π(a|o) ]

The policy is that of `iql`: in a bounded box a normal whose mean is squashed into it and whose deviation, of at least
e^-5, does not depend on the observation, so that its mode minimizes the squared error weighted by the precision of each
dimension; in a discrete space it is categorical. Rewards are not read, and there are no critics.

Departures from the paper, which learned to steer from units of discretized angles: a likelihood whose deviation is
learned, where many minimize the plain squared error; observations are normalized by default; prioritized replay, by a
field, draws by the negative log-likelihood.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
from annotated_types import Interval
from pydantic import Field

from rlkit.agents import iql
from rlkit.agents.base import Unused, as_arrays
from rlkit.agents.common import action_distributions, batches, off_policy, q_critics, validation
from rlkit.agents.common.batches import Batch
from rlkit.agents.common.config import Count, EncoderConfig, OffPolicyConfig, Width
from rlkit.agents.common.hyper import OffPolicyHyper, Share
from rlkit.agents.common.off_policy import Schedules
from rlkit.agents.common.optimizer import Optimizer, mean_gradient
from rlkit.agents.common.q_critics import Static
from rlkit.spaces import Discrete, Space
from rlkit.types import Agent, Array, Key, PyTree, Sample, Scalar, Transition

_NoEffect = Unused(agent="bc")  # keys of the loop of off-policy agents that has targets


class Config(OffPolicyConfig, EncoderConfig):
    networks: ClassVar[tuple[str, ...]] = ("policy",)

    hidden_sizes: tuple[Width, ...] = Field(default=(256, 256), description="dense layers of an encoder")
    batch_size: Count = Field(default=256, description="items of a gradient step")
    normalize_obs: bool = True
    learning_starts: Annotated[int, Interval(ge=0, lt=2**32)] = Field(
        default=0, description="environment steps before the first gradient step"
    )
    target_every: Annotated[Count | None, _NoEffect] = None
    n_step: Annotated[Count, _NoEffect] = 1


class Hyper(OffPolicyHyper):
    """Traced float32 scalars, which a vmap may sweep. Infinity switches a term off."""

    gamma: Annotated[Share, _NoEffect] = 0.99
    tau: Annotated[Scalar | None, Interval(gt=0.0, le=1.0), _NoEffect] = None


State = off_policy.State  # params: of the policy; no targets


def loss(static: Static, params: PyTree, state: State, batch: Batch, key: Key) -> tuple[Array, tuple]:
    """The loss []; the networks' statistics, the priorities [B], and metrics. The key draws the network's noise."""
    variables, space = (params["policy"], state.stats["policy"]), static.networks.action_space
    dist, stats = iql.distribution(static, variables, state.normalizer.obs, batch.obs, train=True, key=key)
    action = q_critics.normalize_action(static.networks, batch.action)
    nll = -action_distributions.log_prob(dist, action)
    policy_loss = jnp.mean(batch.weight * nll)
    mode = action_distributions.mode(dist)
    error = mode != action if isinstance(space, Discrete) else jnp.abs(mode - action)
    metrics = {"policy_loss": policy_loss, "action_error": jnp.mean(error, dtype=jnp.float32)}
    return policy_loss, (state.stats | {"policy": stats}, jax.lax.stop_gradient(jnp.maximum(nll, 0.0)), metrics)


def gradient_step(
    static: Static, state: State, sample: Sample, schedules: Schedules, key: Key
) -> tuple[State, Array, dict[str, Array]]:
    """One step of descent on a sample of the buffer. Returns the state, the priorities [B] and the metrics."""
    batch = batches.n_step_batch(sample, state.hyper.gamma)
    gradient, (stats, priority, metrics) = mean_gradient(loss, static, state.params, state, batch, key)
    optimizer = Optimizer.of(static.config, state.hyper, schedules.learning_rate)
    params, opt_state, grad_norm = optimizer.step(state.params, state.opt_state, gradient)
    state = state.replace(params=params, stats=stats, opt_state=opt_state)
    return state, priority, metrics | {"grad_norm": grad_norm}


def init(static: Static, hyper: Hyper, key: Key, example: Transition, num_envs: int) -> State:
    """The state before learning; `example` is one step without batch axes."""
    variables, no_target = q_critics.init(static.networks, key, example.obs), ((), ())
    return off_policy.init(static, as_arrays(hyper, static.config, num_envs), example, num_envs, variables, no_target)


update = partial(off_policy.update, gradient_step)
supports = iql.supports


def make(
    config: Config,
    obs_space: Space,
    action_space: Space,
    networks: Mapping[str, Any] | None = None,
    *,
    axis_name: str | None = None,
) -> Agent:
    """BC for these spaces.

    Arguments and errors are those of `sac.make`. `networks` may have a `policy` alone.
    """
    needed = "a Discrete action space or a Box of floats with finite bounds"
    validation.check_action_space(Config, config, action_space, supported=supports(action_space), needed=needed)
    built = q_critics.make(
        config,
        obs_space,
        action_space,
        networks,
        spread="constant",
        log_std_min=iql.LOG_STD_MIN,
        has_critics=False,
        axis_name=axis_name,
    )
    static = Static(config, built, off_policy.buffer(config, axis_name), axis_name)
    return off_policy.agent(
        static,
        init=init,
        actor=iql.actor,
        act=iql.act,
        policy=iql.policy,
        gradient_step=gradient_step,
        finite=("policy_loss", "grad_norm"),
    )
