"""The updates of an agent with rollouts of environments outside of JAX, compiled."""

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlkit import _cpu
from rlkit.hosts.collect import Collector, act
from rlkit.runs.programs.finite import update_is_finite
from rlkit.runs.programs.replay_state import join, split
from rlkit.training import TrainState
from rlkit.types import Agent, Array, Key, PyTree, Transition


class Updated(NamedTuple):
    """Result of an update, after the device has finished it."""

    agent: PyTree  # the agent's state
    metrics: dict[str, Any]  # arrays
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
        rest, replay = split(template.agent)
        update = _cpu.straight_line_keys(_update(agent))
        self._update = jax.jit(update, donate_argnums=0).lower(replay, rest, rollout, template.key).compile()

    def __call__(self, replay: PyTree, rest: PyTree, rollout: Transition, key: Key) -> Updated:
        """Make one update, to its end. The replay buffer is donated."""
        begin = time.perf_counter()
        agent, metrics, finite = self._update(replay, rest, rollout, key)
        metrics, finite = jax.device_get((metrics, finite))
        jax.block_until_ready(agent)
        return Updated(agent, metrics, bool(finite), time.perf_counter() - begin)


class UpdateAndAct:
    """A compiled update with a rollout of one step, and the first acting after it, in one call.

    Such calls follow each other without anything between them but a step of the environments. Metrics stay on the
    device: to fetch ten of them one by one takes as long as a step of a simple environment.

    Args:
      agent, template: as for `HostUpdate`.
      collector: of rollouts of one step, compiled.
    """

    def __init__(self, agent: Agent, template: TrainState, collector: Collector):
        update = _update(agent)

        @_cpu.straight_line_keys
        def update_and_act(
            replay: PyTree, rest: PyTree, rollout: Transition, key: Key, memory: PyTree, ended: Array, obs: PyTree
        ) -> tuple[tuple[PyTree, dict, Array], Key, tuple[PyTree, PyTree, PyTree]]:
            _, update_key, next_key = jax.random.split(key, 3)
            updated = update(replay, rest, rollout, update_key)
            rollout_key, *_ = jax.random.split(next_key, 3)
            acted = act(agent, agent.actor(updated[0]), memory, ended, obs, rollout_key, jnp.uint32(0))
            return updated, next_key, acted

        rest, replay = split(template.agent)
        rollout = collector.shapes()
        obs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), rollout.obs)
        arguments = replay, rest, rollout, template.key, collector.memory, collector.ended, obs
        self._update_and_act = jax.jit(update_and_act, donate_argnums=0).lower(*arguments).compile()

    def __call__(
        self, state: TrainState, rollout: Transition, memory: PyTree, ended: np.ndarray, obs: PyTree
    ) -> tuple[Updated, Key, tuple[PyTree, PyTree, PyTree]]:
        """Make one update and act; the replay buffer of the state is donated.

        Args:
          state: before the update.
          rollout: [1, N, ...].
          memory, ended, obs: [N, ...], of the collector after the rollout.

        Returns:
          The result of the update, the next key, and memory, actions and extras [N, ...] for `obs`.
        """
        begin = time.perf_counter()
        rest, replay = split(state.agent)
        (agent, metrics, finite), key, acted = self._update_and_act(
            replay, rest, rollout, state.key, memory, ended, obs
        )
        finite = bool(finite)  # waits for the device
        return Updated(agent, metrics, finite, time.perf_counter() - begin), key, acted


class Wait:
    """Several updates before an agent starts to learn, in one compiled call: their rollouts are only stored.

    Args:
      agent: one that replays.
      template: as for `HostUpdate`.
      rollout: shapes and dtypes of the rollouts of all these updates, one after another.
    """

    def __init__(self, agent: Agent, template: TrainState, rollout: Transition):
        def wait(replay: PyTree, rest: PyTree, rollout: Transition) -> tuple[PyTree, dict]:
            assert agent.wait is not None
            return agent.wait(join(rest, replay), rollout)

        def metrics(replay: PyTree, rest: PyTree, rollout: Transition, key: Key) -> dict:
            return _update(agent)(replay, rest, rollout, key)[1]

        rest, replay = split(template.agent)
        self._wait = jax.jit(wait, donate_argnums=0).lower(replay, rest, rollout).compile()
        shapes = jax.eval_shape(metrics, replay, rest, rollout, template.key)
        self._zeros = {name: np.zeros(x.shape, x.dtype) for name, x in shapes.items()}

    def __call__(self, agent: PyTree, rollout: Transition) -> tuple[PyTree, dict[str, Any]]:
        """Return the agent's state, whose replay buffer is donated, and the metrics; zeros for those of learning."""
        rest, replay = split(agent)
        agent, metrics = self._wait(replay, rest, rollout)
        return agent, self._zeros | jax.device_get(metrics)


def _update(agent: Agent):
    """A function (replay, rest, rollout, key) -> the agent's state, metrics, and [] bool, true where all is finite."""

    def update(replay: PyTree, rest: PyTree, rollout: Transition, key: Key) -> tuple[PyTree, dict, Array]:
        state, metrics = agent.update(join(rest, replay), rollout, key)
        finite = update_is_finite(agent, state, metrics)
        return state, metrics | {"reward_mean": rollout.reward.mean()}, finite

    return update
