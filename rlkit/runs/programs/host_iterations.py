"""Iterations of a run whose environments are outside of JAX: collect a rollout, then update the agent with it.

There are three kinds. With `overlap`, the workers step rollout k + 1 with the parameters from before update k while
update k runs. A replaying agent that learns after every step makes an update and acts in one compiled call. And before
a replaying agent starts to learn, the rollouts of many updates are collected and stored together.
"""

import time
from concurrent.futures import Executor
from typing import Any

import jax
import numpy as np

from rlkit import hosts
from rlkit.hosts.collect import Collected, Collector, NotFinite
from rlkit.hosts.processes import Interrupted
from rlkit.runs.config.run_config import RunConfig
from rlkit.runs.devices.memory import tree_num_bytes
from rlkit.runs.programs.finite import name_non_finite
from rlkit.runs.programs.host_chunks import HostChunks
from rlkit.runs.programs.host_state import HeldSteps
from rlkit.runs.programs.host_update import HostUpdates, Updated
from rlkit.runs.programs.replay_state import join, split
from rlkit.spaces import Space, shape_of
from rlkit.training import TrainState
from rlkit.types import Agent, ConfigError, PyTree

_WAIT_STEPS, _WAIT_BYTES = 256, 1 << 24  # of each environment, and of all observations, that are stored together


def updates_before_learning(config: RunConfig, agent: Agent, obs_space: Space) -> int:
    """Return the number of updates that are made together before learning starts; 0 where each is made by itself."""
    if agent.wait is None or config.run.dataset is not None:
        return 0
    run, capacity = config.run, config.agent.capacity
    num_bytes = config.steps_per_update * 2 * tree_num_bytes(shape_of(obs_space))
    steps = min(_WAIT_STEPS, capacity // run.num_envs // 2)
    count = min(steps // run.num_steps, _WAIT_BYTES // num_bytes)
    return count if count > 1 and count * config.steps_per_update < config.agent.learning_starts else 0


class HostIterations(HostChunks):
    """The part of a `HostProgram` that collects rollouts and learns from them."""

    agent: Agent
    config: RunConfig
    collector: Collector  # compiled
    updates: HostUpdates
    background: Executor  # runs updates beside the collection of a rollout
    overlap: bool  # True to do that
    wait_count: int  # `updates_before_learning`

    def __init__(self) -> None:
        super().__init__()
        self.next_rollout: Collected | Exception | None = None  # collected during an update, or its failure
        self.acted: tuple[PyTree, PyTree, PyTree] | None = None  # memory, actions, extras for the newest observations
        self.restarts = 0  # of workers, until the last update

    @property
    def in_one_call(self) -> bool:
        """True where an update and the acting after it are one call."""
        return self.agent.add is not None and self.config.run.num_steps == 1 and not self.overlap

    def iterate(self, state: PyTree, most: int) -> tuple[PyTree, list[dict[str, Any]], bool]:
        """Make one update, or several before learning starts, as `HostChunks.iterate` describes."""
        self.before = state
        if 0 < self.wait_count <= most and self.next_rollout is None:
            steps = (int(state.step) + self.wait_count) * self.config.steps_per_update
            if steps < self.config.agent.learning_starts:
                return self._collect_only(state)
        state, row, finite = self._together(state) if self.in_one_call else self._in_turn(state)
        return state, [row], finite

    def _collect_only(self, state: TrainState) -> tuple[TrainState, list[dict[str, Any]], bool]:
        """The updates of a wait, in which rollouts are only stored."""
        begin = time.perf_counter()
        rollout_key, _, next_key = self.updates.keys(state.key)
        num_steps, count = self.config.run.num_steps, self.wait_count
        uniform = self.updates.uniform
        if uniform is None:
            actor, key = self.collector.place((self.updates.actor(state.agent), rollout_key))
            rollout = self.collector.run(lambda number: self.collector.explore(actor, key, number), count * num_steps)
        else:
            actions: Any = None

            def choose(number: int) -> tuple[PyTree, tuple]:
                nonlocal actions
                draw, index = divmod(number, count * num_steps + 1)
                if index == 0:
                    actions = np.asarray(uniform(jax.random.fold_in(rollout_key, draw) if draw else rollout_key))
                return actions[index], ()

            rollout = self.collector.run(choose, count * num_steps)
        self.acted = None  # it was for an earlier observation
        agent, metrics = self.updates.wait(state.agent, rollout.transitions)
        seconds = time.perf_counter() - begin
        means = rollout.transitions.reward.reshape(count, -1).mean(1)
        rows = []
        for index in range(count):
            steps = slice(index * num_steps, (index + 1) * num_steps)
            row = self._row(metrics | {"reward_mean": means[index]}, rollout, seconds, rollout.seconds, 0.0, steps)
            rows.append(row)
        return self._state(state, agent, rollout, next_key, count), rows, True

    def _together(self, state: TrainState) -> tuple[TrainState, dict[str, Any], bool]:
        """A step of the environments, then an update and acting in one call."""
        begin = time.perf_counter()
        acted, self.acted = self.acted, None
        collector = self.collector

        def choose(number: int) -> tuple[PyTree, PyTree]:
            if number == 0 and acted is not None:
                collector.memory, action, extras = acted
                return action, extras
            actor, key = collector.place((self.updates.actor(state.agent), self.updates.keys(state.key)[0]))
            return collector.explore(actor, key, number)

        rollout = collector.run(choose, 1)
        updated, next_key, self.acted = self.updates.update_and_act(state, rollout.transitions, collector)
        return self._finish(state, rollout, updated, next_key, rollout.seconds, begin)

    def _in_turn(self, state: TrainState) -> tuple[TrainState, dict[str, Any], bool]:
        """One rollout and one update, and with overlap the next rollout at the same time."""
        begin = time.perf_counter()
        rollout_key, update_key, next_key = self.updates.keys(state.key)
        actor = self.collector.place(self.updates.actor(state.agent))  # a copy: the update may take the arrays over
        collect_seconds = 0.0
        if self.next_rollout is None:
            self.next_rollout = self.collector.collect(actor, rollout_key)
            collect_seconds += self.next_rollout.seconds
        rollout = self.next_rollout
        if isinstance(rollout, Exception):
            raise rollout
        rest, replay = split(state.agent)
        learning = self.background.submit(self.updates.update, replay, rest, rollout.transitions, update_key)
        self.next_rollout = None
        if self.overlap and int(state.step) + 1 < self.config.num_updates:
            try:
                self.next_rollout = self.collector.collect(actor, self.updates.keys(next_key)[0])
                collect_seconds += self.next_rollout.seconds
            except (NotFinite, Interrupted, hosts.HostError, ConfigError) as error:
                self.next_rollout = error
        return self._finish(state, rollout, learning.result(), next_key, collect_seconds, begin)

    def _finish(
        self, state: TrainState, rollout: Collected, updated: Updated, key: Any, collect_seconds: float, begin: float
    ) -> tuple[TrainState, dict[str, Any], bool]:
        """The state, the metrics and whether all is finite, after an update of an iteration that began at `begin`."""
        after = self._state(state, updated.agent, rollout, key, 1)
        if not updated.finite:
            self._note_not_finite(state, after, updated.metrics)
        seconds = time.perf_counter() - begin
        row = self._row(updated.metrics, rollout, seconds, collect_seconds, updated.seconds)
        return after, row, updated.finite

    def _note_not_finite(self, before: TrainState, after: TrainState, metrics: dict[str, Any]) -> None:
        """Keep the state before an update, and the name of the quantity.

        The update has taken the replay buffer over, so it stays as it is after the update, and so do the steps that are
        held back from it: those of before are in it already.
        """
        self.non_finite = name_non_finite(self.agent, metrics)
        agent = join(split(before.agent)[0], split(after.agent)[1])
        self.before = before.replace(agent=agent, envs=after.envs)

    def _row(
        self,
        metrics: dict[str, Any],
        rollout: Collected,
        seconds: float,
        collect_seconds: float,
        update_seconds: float,
        steps: slice = slice(None),
    ) -> dict[str, Any]:
        """The metrics of an update with those steps of a rollout."""
        restarts, self.restarts = self.pool.restarted - self.restarts, self.pool.restarted
        return {
            **metrics,
            "returns": rollout.returns[steps].copy(),
            "lengths": rollout.lengths[steps].copy(),
            "update_seconds": update_seconds,
            "envs_idle": max(0.0, 1.0 - collect_seconds / seconds),
            "learner_idle": max(0.0, 1.0 - update_seconds / seconds),
            "env_restarts": restarts,
        }

    def _state(self, before: TrainState, agent: PyTree, rollout: Collected, key: Any, updates: int) -> TrainState:
        step: Any = np.int32(int(before.step) + updates)
        there: Any = np.bool_(self.agent.add is not None)
        return TrainState(agent, HeldSteps(rollout.held, there), key, step)
