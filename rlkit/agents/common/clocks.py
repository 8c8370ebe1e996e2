"""Counts of environment steps in an off-policy update, and what follows from them: schedules and the target's clock."""

import math
from typing import Any, ClassVar

import jax.numpy as jnp

from rlkit._mesh import vary_like
from rlkit.agents.base.keys import LearningRate, marked
from rlkit.agents.common import exploration
from rlkit.agents.common.config import OffPolicyConfig
from rlkit.agents.common.optimizer import Optimizer
from rlkit.types import Array, PyTree, StateNode


class ReplayState(StateNode):
    """Replay buffer and counts of environment steps; the field `replay` of every off-policy agent's State."""

    by_device: ClassVar = ("buffer",)

    buffer: PyTree
    num_steps: Array  # [] uint32, environment steps so far; it stays at 2^32 - 1
    since_target: Array  # [] int32, environment steps since the last update of the target network


def target_clock(config: OffPolicyConfig, state: Any, elapsed: Array) -> tuple[Any, Array]:
    """The state `elapsed` environment steps later, and [] bool, true where the target network is due."""
    since = state.replay.since_target + elapsed
    update_target = since >= config.target_every if config.target_every else jnp.array(True)
    return state.replace(replay=state.replay.replace(since_target=since_target(config, since))), update_target


def learning_rates(config: OffPolicyConfig, state: Any, num_steps: int) -> dict[str, Array]:
    """The learning rates [] by their fields in Hyper; the warm-up begins with the first gradient step."""
    before = state.replay.num_steps.astype(jnp.float32)
    waited = max(math.ceil(config.learning_starts / num_steps) - 1, 0) * num_steps  # before the first that learns
    learned = jnp.maximum(before + float(num_steps - waited), 0.0)
    return {
        name: Optimizer.scheduled_rate(config, state.hyper, before, learned, getattr(state.hyper, name))
        for name in marked(type(state.hyper), LearningRate)
    }


def since_target(config: OffPolicyConfig, since: Array) -> Array:
    """The environment steps since the last update of the target network, after one that was due."""
    return since % config.target_every if config.target_every else since


def advance(state: Any, num_steps: int) -> ReplayState:
    """The replay state after `num_steps` more environment steps, with the importance exponent β that follows."""
    replay = state.replay.replace(num_steps=exploration.add_steps(state.replay.num_steps, num_steps))
    if not hasattr(replay.buffer, "beta"):
        return replay
    hyper = state.hyper
    progress = jnp.clip(replay.num_steps.astype(jnp.float32) / hyper.schedule_steps, 0.0, 1.0)
    beta = hyper.beta + progress * (hyper.beta_end - hyper.beta)
    return replay.replace(buffer=replay.buffer.replace(beta=vary_like(beta, replay.buffer.beta)))
