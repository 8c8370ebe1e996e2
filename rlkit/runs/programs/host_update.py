"""The update of an agent with rollouts of environments outside of JAX, compiled."""

import time
from collections.abc import Callable
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
    """Compiled updates of an agent's state, whose replay buffer they take over.

    Before learning starts, the gradient steps of an off-policy agent change nothing. Another program, without them,
    makes those updates, with the same results.

    Args:
      agent: the agent.
      template: shapes and dtypes of the TrainState.
      rollout: shapes and dtypes of a rollout [T, N, ...].
      learning_starts: environment steps before the first gradient step; 0 for an on-policy agent.
    """

    def __init__(self, agent: Agent, template: TrainState, rollout: Transition, learning_starts: int):
        self.agent, self.learning_starts, self.num_steps = agent, learning_starts, rollout.reward.size
        rest, replay = split(template.agent)
        self._shapes = replay, rest, rollout, template.key
        self._update = self._compile(agent.update)
        self._store_only = self._compile(self._store) if self.num_steps < learning_starts else None

    def _compile(self, update: Callable[..., tuple[PyTree, dict[str, Array]]]) -> Callable[..., Any]:
        """Compile (state, rollout, key) -> state, metrics, with a check of the results."""

        @_cpu.straight_line_keys
        def checked(replay: PyTree, rest: PyTree, rollout: Transition, key: Key) -> tuple[PyTree, dict, Array]:
            state, metrics = update(join(rest, replay), rollout, key)
            return state, metrics, update_is_finite(metrics, self.agent.actor(state))

        return jax.jit(checked, donate_argnums=0).lower(*self._shapes).compile()

    def _store(self, state: PyTree, rollout: Transition, key: Key) -> tuple[PyTree, dict[str, Array]]:
        """The update of an off-policy agent before learning starts."""
        assert self.agent.add is not None
        assert self.agent.learn is not None
        return self.agent.learn(self.agent.add(state, rollout), key, self.num_steps, skip_gradient_steps=True)

    def __call__(self, replay: PyTree, rest: PyTree, rollout: Transition, key: Key) -> Updated:
        """Make one update, to its end. The replay buffer is donated."""
        begin = time.perf_counter()
        update = self._update
        if self._store_only is not None and int(replay.num_steps) + self.num_steps < self.learning_starts:
            update = self._store_only
        agent, metrics, finite = update(replay, rest, rollout, key)
        metrics, finite = jax.device_get((metrics, finite))
        jax.block_until_ready(agent)
        return Updated(agent, metrics, bool(finite), time.perf_counter() - begin)
