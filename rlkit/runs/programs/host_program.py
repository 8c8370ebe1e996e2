"""Programs whose environments are outside of JAX, in worker processes.

An iteration collects a rollout, then updates the agent with it. There are three kinds. With `overlap`, the workers step
rollout k + 1 with the parameters from before update k while update k runs: rollouts are one update late, and PPO's old
log-probs are those of the parameters that acted. A replaying agent that learns after every step makes an update and
acts in one compiled call. Before a replaying agent starts to learn, the rollouts of many updates are stored together.

A resumed run begins new episodes. A run may be divided over the devices of the mesh axis `data`: one device acts for
all environments, rollouts are divided by environment, and agents that learn after every step act in a call of its own.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh

from rlkit import agents
from rlkit.agents.common.config import OffPolicyConfig
from rlkit.hosts import devices
from rlkit.hosts.collect import Collected, Collector
from rlkit.hosts.pool import derive
from rlkit.runs.config.run_config import RunConfig
from rlkit.runs.devices import mesh_of_data
from rlkit.runs.devices.memory import num_bytes_on_all, tree_num_bytes
from rlkit.runs.programs.agent import make_agent
from rlkit.runs.programs.agreement import agreed, caught
from rlkit.runs.programs.environments import HostEnvironments
from rlkit.runs.programs.finite import name_non_finite
from rlkit.runs.programs.host_devices import HostDevices
from rlkit.runs.programs.host_update import HeldSteps, HostUpdates, Iterations, Updated, first_state
from rlkit.runs.programs.protocol import Chunk
from rlkit.runs.programs.state import join, split
from rlkit.spaces import Space, shape_of
from rlkit.training import Evaluation, TrainState, mesh, processes
from rlkit.training.data_parallel import data_parallel_agent
from rlkit.types import Agent, Array, PyTree

_RESUMED = 2**32 - 2  # folded into the seeds of resumed runs
_WAIT_STEPS, _WAIT_BYTES = 256, 1 << 24  # of each environment, and of all observations, that are stored together


def updates_before_learning(config: RunConfig, agent: Agent, obs_space: Space) -> int:
    """Return the number of updates that are made together before learning starts; 0 where each is made by itself.

    The updates of a metric line are divided into as few equal parts as possible; what is left over is made one by one.
    """
    if agent.wait is None or not isinstance(config.agent, OffPolicyConfig):
        return 0
    run, capacity = config.run, config.agent.capacity
    num_bytes = config.steps_per_update * 2 * tree_num_bytes(shape_of(obs_space))
    steps = min(_WAIT_STEPS, capacity // run.num_envs // 2)
    most = min(steps // run.num_steps, _WAIT_BYTES // num_bytes)
    if most < 1:
        return 0
    parts = -(-config.updates_per_line // most)
    count = config.updates_per_line // parts
    return count if count > 1 and count * config.steps_per_update < config.agent.learning_starts else 0


class HostProgram(Iterations):
    """A `Program` for an environment outside of JAX. Making one starts the worker processes.

    Args:
      config: a validated config of one seed.
      like: a program of that config with another seed, whose compiled functions this one uses; None to compile.

    Raises:
      ConfigError: the environment cannot be made, breaks its contract, or does not fit the agent or the batch.
      HostError: the environment fails when it is made.
    """

    def __init__(self, config: RunConfig, like: "HostProgram | None" = None):
        super().__init__()
        self.next_rollout: Collected | Exception | None = None  # collected during an update, or its failure
        self.acted: tuple[PyTree, PyTree, PyTree] | None = None  # memory, actions, extras for the newest observations
        self.restarts = 0  # of workers, until the last update
        run, module = config.run, agents.get(config.run.agent)
        devices.prepare()
        data_mesh = mesh_of_data(run.devices, run.num_seeds)
        self.devices = HostDevices(data_mesh, run.num_envs)
        self.num_devices = self.num_shards = self.devices.number
        self.device, why = devices.acting(() if data_mesh is None else data_mesh.local_devices)
        off_policy = isinstance(config.agent, OffPolicyConfig)
        after_each_step = off_policy and run.num_steps == 1
        wanted = (off_policy and not after_each_step) if run.overlap is None else run.overlap
        self.overlap = wanted and why is None
        self.note = f"overlap is off: {why}" if wanted and why is not None else None
        if after_each_step and not self.overlap and data_mesh is None:
            self.device = jax.devices()[0]  # an update and acting are one call
        if self.overlap and hasattr(config.agent, "old_log_prob"):  # to recompute it takes the parameters that acted
            config = replace(config, agent=config.agent.model_copy(update={"old_log_prob": "collected"}))
        self.config, self.params = config, None
        self.batched, self.seeds = False, np.array([run.seed], np.int32)
        self.background = ThreadPoolExecutor(1, "rlkit-update")
        self.environments = HostEnvironments(config, self.device, self, self.devices.envs)
        self.pool, self.env = self.environments.pool, self.environments.env
        self.eval_env = self.environments.eval_env
        self.rollouts = self.environments.rollouts
        try:
            spaces = self.env.obs, self.env.action
            self.like = like
            self.agent: Agent = (
                make_agent(config, *spaces, environments=self.environments) if like is None else like.agent
            )
            self.agent.check(run.num_envs, run.num_steps)
            self.learner = self._learner(self.devices)
            self.wait_count = updates_before_learning(config, self.agent, spaces[0])
        except BaseException:
            self.close()
            raise
        self.hyper = module.Hyper(**{name: jnp.array(value) for name, value in config.hyper_arrays.items()})
        self.hold = self.agent.add is not None

    def check(self) -> None:
        agreed(caught(self.environments.check))

    def close(self) -> None:
        self.environments.close()
        self.background.shutdown(cancel_futures=True)

    def init(self, seed: Array, hyper: PyTree, learner: Agent | None = None) -> TrainState:
        """Return the state of a seed before the first update; it is that of another learner where one is given."""
        key, learner = jax.random.split(jax.random.key(seed))[0], learner or self.learner
        return first_state(self.agent, self.env, self.config.run.num_envs, self.hold, hyper, key, learner)

    def _learner(self, on: HostDevices) -> Agent:
        if on.mesh is None:
            return self.agent
        agent = make_agent(self.config, self.env.obs, self.env.action, mesh.DATA, environments=self.environments)
        agent.check(self.config.run.num_envs, self.config.run.num_steps, on.number)
        return data_parallel_agent(agent, on.mesh, mesh.DATA, check_vma=False)

    @cached_property
    def template(self) -> PyTree:
        state = jax.eval_shape(self.init, self.seeds[0], self.hyper)
        if self.devices.mesh is None:
            return state
        places = self.devices.state(state.agent)
        divided = jax.tree.map(lambda x, at: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at), state.agent, places)
        return state.replace(agent=divided)

    def template_of(self, num_shards: int) -> PyTree:
        """Shapes and dtypes of the state of this run, divided over another number of devices."""
        data_mesh = AbstractMesh((num_shards,), (mesh.DATA,)) if num_shards > 1 else None
        learner = self._learner(HostDevices(data_mesh, self.config.run.num_envs))
        shapes = jax.eval_shape(partial(self.init, learner=learner), self.seeds[0], self.hyper)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), shapes)  # without the abstract mesh

    @property
    def num_bytes(self) -> int:
        """Bytes of the state twice, but of the buffer once as an update takes it over, and of three rollouts."""
        state = self.template
        obs = tree_num_bytes(shape_of(self.env.obs))
        held = partial(num_bytes_on_all, number=self.num_devices)
        replay = held(split(state.agent)[1])
        return 2 * held(state) - replay + 3 * self.config.steps_per_update * (2 * obs + 32)

    def start(self) -> PyTree:
        everywhere: Any = self.devices.everywhere
        places = None if everywhere is None else TrainState(self._places, everywhere, everywhere, everywhere)
        state = jax.jit(self.init, out_shardings=places)(self.seeds[0], self.hyper)
        own = self.devices.local_copy((state.envs, state.key, state.step))
        return state.replace(**dict(zip(("envs", "key", "step"), own, strict=True)))

    def export(self, state: PyTree) -> PyTree:
        """Return the state; the parts of several processes as whole arrays."""
        envs = state.envs.replace(steps=self.devices.gather(state.envs.steps))
        return processes.gather(state.replace(envs=envs))

    @cached_property
    def collector(self) -> Collector:
        """The collector of rollouts, compiled."""
        actor = jax.eval_shape(self.agent.actor, self.template.agent)
        zero_actor = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), actor)
        num_steps = self.config.run.num_steps
        max_steps = self.wait_count * num_steps
        settings = {"num_steps": num_steps, "device": self.device, "hold": self.hold, "max_steps": max_steps}
        collector = Collector(self.agent, self.pool, **settings, total_envs=self.config.run.num_envs)
        if self.like is not None:
            collector.act = self.like.collector.act
        collector.compile(zero_actor, jax.random.key(0))
        return collector

    def compile(self) -> None:
        """Compile acting and learning; without this call, the first `advance` does."""
        _ = self.collector, self.updates

    @cached_property
    def updates(self) -> HostUpdates:
        """The compiled functions of the iterations."""
        if self.like is not None:
            return self.like.updates
        settings = {"in_one_call": self.in_one_call, "wait_steps": self.wait_count * self.config.run.num_steps}
        return HostUpdates(self.agent, self.learner, self.devices, self.template, self.collector, **settings)

    def begin(self, state: PyTree) -> None:
        """Reset the environments, after the steps that a checkpoint held back."""
        self.begun = True
        update, seed = int(state.step), self.config.run.seed
        held = jax.tree.map(np.asarray, state.envs.steps if bool(state.envs.there) else ())
        held = jax.tree.map(lambda x: x[self.collector.own], held)
        seed = derive(seed, _RESUMED, update) if update else seed
        agreed(caught(lambda: self.collector.begin(seed, held)))

    def advance(self, state: PyTree, count: np.int32) -> Chunk:
        chunk = super().advance(self._place(state), count)
        return chunk._replace(metrics=self.devices.gather_metrics(chunk.metrics))

    def _place(self, state: PyTree) -> PyTree:
        """The state with that of the agent on the devices, where it is not there yet."""
        if self.devices.mesh is None:
            return state
        return state.replace(agent=processes.place(state.agent, self._places))

    @cached_property
    def _places(self) -> PyTree:
        return self.devices.state(self.template.agent)

    @property
    def in_one_call(self) -> bool:
        """True where an update and the acting after it are one call."""
        return self.hold and self.config.run.num_steps == 1 and not self.overlap and self.devices.mesh is None

    def iterate(self, state: PyTree, most: int) -> tuple[PyTree, list[dict[str, Any]], bool]:
        """Make one update, or at most `most` before learning starts.

        Returns the state, the metrics of each update, and true where the last one is finite.
        """
        self.before = state
        if self.wait_count <= most and self.next_rollout is None and self._waits(int(state.step)):
            return self._collect_only(state)
        state, row, finite = self._together(state) if self.in_one_call else self._in_turn(state)
        return state, [row], finite

    def _waits(self, step: int) -> bool:
        """True where the next updates are before learning starts, and may be made together."""
        last = step + self.wait_count
        return last > step and last * self.config.steps_per_update < self.config.agent.learning_starts

    def _collect_only(self, state: TrainState) -> tuple[TrainState, list[dict[str, Any]], bool]:
        """The updates of a wait, in which rollouts are only stored."""
        begin = time.perf_counter()
        rollout_key, _, next_key = self.updates.keys(state.key)
        num_steps, count = self.config.run.num_steps, self.wait_count
        uniform = self.updates.uniform
        if uniform is None:
            actor, key = self.collector.place((self.updates.actor(state.agent), rollout_key))
            choose: Callable[[int], tuple[PyTree, PyTree]] = partial(self.collector.explore, actor, key)
        else:
            actions: Any = None

            def draw(number: int) -> tuple[PyTree, PyTree]:
                nonlocal actions
                part, index = divmod(number, count * num_steps + 1)
                if index == 0:
                    actions = np.asarray(uniform(jax.random.fold_in(rollout_key, part) if part else rollout_key))
                return actions[index], ()

            choose = draw

        rollout = agreed(caught(lambda: self.collector.run(choose, count * num_steps)))
        self.acted = None  # it was for an earlier observation
        agent, metrics = self.updates.wait(state.agent, rollout.transitions)
        seconds = time.perf_counter() - begin
        means = self.devices.gather(rollout.transitions.reward, axis=1).reshape(count, -1).mean(1)
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
            self.next_rollout = caught(lambda: self.collector.collect(actor, rollout_key))
            collect_seconds += getattr(self.next_rollout, "seconds", 0.0)
        rollout = agreed(self.next_rollout)
        rest, replay = split(state.agent)
        learning = self.background.submit(self.updates.update, replay, rest, rollout.transitions, update_key)
        self.next_rollout = None
        if self.overlap and (after := int(state.step) + 1) < self.config.num_updates and not self._waits(after):
            self.next_rollout = caught(lambda: self.collector.collect(actor, self.updates.keys(next_key)[0]))
            collect_seconds += getattr(self.next_rollout, "seconds", 0.0)
        return self._finish(state, rollout, learning.result(), next_key, collect_seconds, begin)

    def _finish(
        self, state: TrainState, rollout: Collected, updated: Updated, key: Any, collect_seconds: float, begin: float
    ) -> tuple[TrainState, dict[str, Any], bool]:
        """The state, the metrics and whether all is finite, after an update of an iteration that began at `begin`."""
        after = self._state(state, updated.agent, rollout, key, 1)
        if not updated.finite:
            self.non_finite = name_non_finite(self.agent, updated.metrics)
            # The update has taken the replay buffer over, so it stays as it is after the update, and so do the steps
            # that are held back from it: those of before are in it already.
            agent = join(split(state.agent)[0], split(after.agent)[1])
            self.before = state.replace(agent=agent, envs=after.envs)
        seconds = time.perf_counter() - begin
        row = self._row(updated.metrics, rollout, seconds, collect_seconds, updated.seconds)
        return after, row, updated.finite

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
            "successes": rollout.successes[steps].copy(),
            "update_seconds": update_seconds,
            "envs_idle": max(0.0, 1.0 - collect_seconds / seconds),
            "learner_idle": max(0.0, 1.0 - update_seconds / seconds),
            "env_restarts": restarts,
        }

    def _state(self, before: TrainState, agent: PyTree, rollout: Collected, key: Any, updates: int) -> TrainState:
        step: Any = np.int32(int(before.step) + updates)
        there: Any = np.bool_(self.hold)
        return TrainState(agent, HeldSteps(rollout.held, there), key, step)

    def evaluate(self, state: PyTree) -> Evaluation:
        """Play greedy episodes, as `HostEnvironments.evaluate` does; leaves [N, E]."""
        actor_of, policy = self._eval_functions
        actor, seed = self.devices.local_copy(actor_of(self._place(state).agent)), self.config.run.seed
        # Each process plays the same episodes.
        return processes.agree(
            agreed(caught(lambda: self.environments.evaluate(self.agent, policy, actor, seed, self.on_progress)))
        )

    @cached_property
    def _eval_functions(self) -> tuple[Callable[[PyTree], PyTree], Callable[..., Any]]:
        if self.like is not None:
            return self.like._eval_functions
        return jax.jit(self.agent.actor, out_shardings=self.devices.everywhere), jax.jit(
            jax.vmap(self.agent.policy, (None, 0, 0, 0))
        )
