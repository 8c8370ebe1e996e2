"""The state of a run whose environments are outside of JAX, the loop over its updates, and the compiled updates."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rlkit import _cpu, hosts
from rlkit.hosts.collect import Collector, NotFinite, act, act_shapes
from rlkit.hosts.failure import Failure
from rlkit.hosts.placeholder import HostEnv
from rlkit.hosts.processes import Interrupted
from rlkit.runs.programs.finite import update_is_finite
from rlkit.runs.programs.host_devices import HostDevices
from rlkit.runs.programs.protocol import Chunk
from rlkit.runs.programs.state import join, split
from rlkit.spaces import zeros
from rlkit.training import TrainState
from rlkit.types import Agent, Array, ConfigError, Key, PyTree, Transition


class HeldSteps(struct.PyTreeNode):
    """The last step of each environment, which the collector of a replaying agent holds back until the next rollout.

    Only then is it known whether a failing worker has ended the episode with it. Checkpoints hold the field names.
    """

    steps: PyTree  # Transition, leaves [N, ...]; () for an agent that does not replay
    there: Array  # [] bool, False before the first rollout


@_cpu.straight_line_keys
def first_state(
    agent: Agent, env: HostEnv, num_envs: int, hold: bool, hyper: PyTree, key: Key, learner: Agent | None = None
) -> TrainState:
    """Return the TrainState before the first update.

    Args:
      agent, env: the agent, and the spaces of its environment.
      num_envs: N, environments or streams of a dataset.
      hold: True where the collector holds steps back.
      hyper: the agent's Hyper.
      key: of the agent's parameters and of the run.
      learner: the agent whose state it is, where another one than `agent` learns.
    """
    agent_key, run_key = jax.random.split(key)
    obs, action = zeros(env.obs), zeros(env.action)
    reward, flag = jnp.zeros((), jnp.float32), jnp.zeros((), bool)
    example = Transition(obs, action, reward, flag, flag, obs)
    state = (learner or agent).init(hyper, agent_key, example, num_envs)
    steps: PyTree = ()
    if hold:
        extras = act_shapes(agent, env.obs, agent.actor(state), num_envs)[2]
        steps = jax.tree.map(lambda x: jnp.zeros((num_envs, *x.shape), x.dtype), example)._replace(
            extras=jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), extras)
        )
    return TrainState(state, HeldSteps(steps, jnp.zeros((), bool)), run_key, jnp.zeros((), jnp.int32))


class Iterations(ABC):
    """Updates in environments outside of JAX, one after another: the base of the programs of one and of many seeds."""

    most_updates: int | None = None
    num_streams: int | None = None
    pool: hosts.Pool | hosts.VectorPool

    def __init__(self) -> None:
        self.should_stop: Callable[[], bool] = lambda: False
        self.on_failure: Callable[[Failure], None] = lambda failure: None
        self.on_progress: Callable[[str], None] = lambda text: None
        self.failure: Exception | None = None  # of the environments, to be raised by the next `advance`
        self.begun = False  # True once the environments have been reset
        self.non_finite = "a quantity"  # of the last update that was not finite
        self.before: PyTree = None  # the state before that update

    @abstractmethod
    def compile(self) -> None: ...

    @abstractmethod
    def begin(self, state: PyTree) -> None: ...

    @abstractmethod
    def iterate(self, state: PyTree, most: int) -> tuple[PyTree, list[dict[str, Any]], bool]: ...

    def advance(self, state: PyTree, count: np.int32) -> Chunk:
        """Make `count` updates, or fewer where one is not finite or where `should_stop()`.

        The replay buffer of the state is donated; everything else outlives the call.
        """
        self.compile()
        if self.failure is not None:
            raise self.failure
        if not self.begun:
            self.begin(state)
        rows: list[dict[str, Any]] = []
        finite = True
        several = jax.process_count() > 1  # they agree on the end while they collect
        while finite and len(rows) < count and (several or not self.should_stop()):
            try:
                state, new_rows, finite = self.iterate(state, int(count) - len(rows))
            except Interrupted:
                break
            except NotFinite as error:
                self.non_finite, finite = f"env={self.pool.name!r}: {error}", False
                new_rows = [(rows or [{}])[-1]]
            except (hosts.HostError, ConfigError) as error:
                if not rows:
                    raise
                self.failure = error
                break  # the updates so far are returned first; the next call raises
            rows += new_rows
        metrics: Any = {name: np.stack([np.asarray(row[name]) for row in rows]) for name in (rows or [{}])[0]}
        num_updates: Any = np.int32(len(rows))
        is_finite: Any = np.bool_(finite)
        return Chunk(state, num_updates, is_finite, metrics)

    def state_before_last(self, state: PyTree, chunk: Chunk) -> PyTree:
        return self.before

    def name_non_finite(self, before: PyTree, chunk: Chunk) -> str:
        return self.non_finite

    def compile_evaluation(self) -> None:  # noqa: B027
        """Do nothing: the first evaluation compiles acting."""


class Updated(NamedTuple):
    """Result of an update, after the device has finished it."""

    agent: PyTree  # the agent's state
    metrics: dict[str, Any]  # arrays
    finite: bool  # True where metrics and actor are finite
    seconds: float


class HostUpdates:
    """Functions of an agent's state, compiled once for all seeds of a run. They take the replay buffer over.

    Args:
      agent: the agent, as it acts.
      learner: the agent, as it learns on the devices.
      devices: of the run.
      template: shapes and dtypes of the TrainState.
      collector: of rollouts, compiled.
      in_one_call: True for `update_and_act`, False for `update`.
      wait_steps: steps of each environment that `wait` stores; 0 for no `wait`.
    """

    def __init__(
        self,
        agent: Agent,
        learner: Agent,
        devices: HostDevices,
        template: TrainState,
        collector: Collector,
        *,
        in_one_call: bool,
        wait_steps: int,
    ):
        def update(replay: PyTree, rest: PyTree, rollout: Transition, key: Key) -> tuple[PyTree, dict, Array]:
            state, metrics = learner.update(join(rest, replay), rollout, key)
            finite = update_is_finite(agent, state, metrics)
            return state, metrics | {"reward_mean": rollout.reward.mean()}, finite

        def update_and_act(
            replay: PyTree, rest: PyTree, rollout: Transition, key: Key, memory: PyTree, ended: Array, obs: PyTree
        ) -> tuple[tuple[PyTree, dict, Array], Key, tuple[PyTree, PyTree, PyTree]]:
            _, update_key, next_key = jax.random.split(key, 3)
            updated = update(replay, rest, rollout, update_key)
            rollout_key, *_ = jax.random.split(next_key, 3)
            acted = act(agent, agent.actor(updated[0]), memory, ended, obs, rollout_key, jnp.uint32(0))
            return updated, next_key, acted

        def wait(replay: PyTree, rest: PyTree, rollout: Transition) -> tuple[PyTree, dict]:
            assert learner.wait is not None
            return learner.wait(join(rest, replay), rollout)

        self._devices, agent_places = devices, devices.state(template.agent)
        (rest, replay), rollout, key = split(template.agent), collector.shapes(), template.key
        actor = jax.jit(agent.actor, out_shardings=devices.everywhere).lower(template.agent).compile()
        self.actor: Callable[[PyTree], PyTree] = lambda state: devices.local_copy(actor(state))
        self.keys = jax.jit(lambda key: tuple(jax.random.split(key, 3))).lower(key).compile()
        if in_one_call:
            obs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), rollout.obs)
            collected = collector.memory, collector.ended, obs
            self._update_and_act = compiled(update_and_act, replay, rest, rollout, key, *collected)
        else:
            divided = replay, rest, *devices.shapes(rollout, key)
            self._update = compiled(update, *divided, places=(agent_places, devices.everywhere, devices.everywhere))
        self.uniform: Callable[[Key], Any] | None = None  # actions [K + 1, N, ...] for the K steps of `wait`
        if wait_steps:
            rollout = collector.shapes(wait_steps)
            divided = replay, rest, *devices.shapes(rollout, key)
            self._wait = compiled(wait, *divided[:3], places=(agent_places, devices.everywhere))
            shapes = jax.eval_shape(update, *divided)[1]
            self._zeros = {name: np.zeros(x.shape, x.dtype) for name, x in shapes.items()}
            if (one := agent.uniform) is not None:
                shape, own = (wait_steps + 1, collector.total_envs), collector.own
                uniform = jax.jit(lambda key: jax.vmap(jax.vmap(one))(jax.random.split(key, shape)[:, own]))
                self.uniform = uniform.lower(key).compile()

    def update(self, replay: PyTree, rest: PyTree, rollout: Transition, key: Key) -> Updated:
        """Make one update with a rollout [T, N, ...], to its end."""
        begin = time.perf_counter()
        agent, metrics, finite = self._update(replay, rest, *self._devices.place(rollout, key))
        metrics, finite = jax.device_get((metrics, finite))
        jax.block_until_ready(agent)
        return Updated(agent, metrics, bool(finite), time.perf_counter() - begin)

    def update_and_act(
        self, state: TrainState, rollout: Transition, collector: Collector
    ) -> tuple[Updated, Key, tuple[PyTree, PyTree, PyTree]]:
        """Make one update and act, in one call.

        Such calls follow each other without anything between them but a step of the environments. Metrics stay on the
        device: to fetch ten of them one by one takes as long as a step of a simple environment.

        Args:
          state: before the update.
          rollout: [1, N, ...].
          collector: after the rollout.

        Returns:
          The result of the update, the next key, and memory, actions and extras [N, ...] for the newest observations.
        """
        begin = time.perf_counter()
        rest, replay = split(state.agent)
        (agent, metrics, finite), key, acted = self._update_and_act(
            replay, rest, rollout, state.key, collector.memory, collector.ended, collector.obs
        )
        finite = bool(finite)  # waits for the device
        return Updated(agent, metrics, finite, time.perf_counter() - begin), key, acted

    def wait(self, agent: PyTree, rollout: Transition) -> tuple[PyTree, dict[str, Any]]:
        """Store a rollout before learning starts: the agent's state, and the metrics; zeros for those of learning."""
        rest, replay = split(agent)
        agent, metrics = self._wait(replay, rest, self._devices.place_rollout(rollout))
        return agent, self._zeros | jax.device_get(metrics)


def compiled(function: Callable, *arguments: PyTree, places: Any = None) -> Callable[..., Any]:
    """Return a function compiled for arguments of these shapes; the first one, the replay buffer, is donated.

    `places` are the shardings of its results; None for the compiler's choice.
    """
    straight = _cpu.straight_line_keys(function)
    return jax.jit(straight, donate_argnums=0, out_shardings=places).lower(*arguments).compile()
