"""The update of an agent with rollouts of environments outside of JAX, compiled."""

import time
from typing import Any, NamedTuple

import jax

from rlkit import _cpu
from rlkit.runs.programs.finite import update_is_finite
from rlkit.runs.programs.replay_state import join, split
from rlkit.training import TrainState
from rlkit.types import Agent, Array, Key, PyTree, Transition


class Updated(NamedTuple):
    """Result of an update, after the device has finished it."""

    agent: PyTree  # the agent's state
    metrics: dict[str, Any]  # NumPy arrays
    finite: bool  # True where metrics and actor are finite
    seconds: float


class HostUpdate:
    """A compiled update of an agent's state, whose replay buffer it takes over.

    Args:
      agent: the agent.
      template: shapes and dtypes of the TrainState.
      rollout: shapes and dtypes of a rollout [T, N, ...].
    """

    def __init__(self, agent: Agent, template: TrainState, rollout: Transition):
        @_cpu.straight_line_keys
        def update(replay: PyTree, rest: PyTree, rollout: Transition, key: Key) -> tuple[PyTree, dict, Array]:
            state, metrics = agent.update(join(rest, replay), rollout, key)
            finite = update_is_finite(metrics, agent.actor(state))
            return state, metrics | {"reward_mean": rollout.reward.mean()}, finite

        rest, replay = split(template.agent)
        self._update = jax.jit(update, donate_argnums=0).lower(replay, rest, rollout, template.key).compile()

    def __call__(self, replay: PyTree, rest: PyTree, rollout: Transition, key: Key) -> Updated:
        """Make one update, to its end. The replay buffer is donated."""
        begin = time.perf_counter()
        agent, metrics, finite = self._update(replay, rest, rollout, key)
        metrics, finite = jax.device_get((metrics, finite))
        jax.block_until_ready(agent)
        return Updated(agent, metrics, bool(finite), time.perf_counter() - begin)
