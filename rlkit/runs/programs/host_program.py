"""Programs whose environments are outside of JAX, in worker processes.

With `overlap`, the workers step rollout k + 1 with the parameters from before update k while update k runs, so that
rollouts are one update late; `Config.for_overlap` makes the agent's settings right for that. A run that is resumed
begins new episodes.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlkit import agents, hosts
from rlkit.hosts import devices, registry, validation
from rlkit.hosts.collect import Collected, Collector, NotFinite
from rlkit.hosts.evaluate import play
from rlkit.hosts.failure import Failure
from rlkit.hosts.placeholder import HostEnv
from rlkit.hosts.pool import derive
from rlkit.hosts.processes import Interrupted
from rlkit.runs.config.run_config import RunConfig
from rlkit.runs.devices.memory import tree_num_bytes
from rlkit.runs.programs import eval_env, host_state
from rlkit.runs.programs.finite import name_non_finite
from rlkit.runs.programs.host_state import HeldSteps
from rlkit.runs.programs.host_update import HostUpdate
from rlkit.runs.programs.protocol import Chunk, Rollouts
from rlkit.runs.programs.replay_state import join, split
from rlkit.spaces import shape_of
from rlkit.training import Evaluation, TrainState
from rlkit.types import Agent, Array, ConfigError, PyTree, Transition

_EVALUATION, _RESUMED = 2**32 - 1, 2**32 - 2  # folded into the seeds of evaluations and of resumed runs


class HostProgram:
    """A `Program` for an environment outside of JAX. Making one starts the worker processes.

    Raises:
      ConfigError: the environment cannot be made, breaks its contract, or does not fit the agent or the batch.
      HostError: the environment fails when it is made.
    """

    num_streams: int | None = None
    num_devices = 1

    def __init__(self, config: RunConfig):
        run, module = config.run, agents.get(config.run.agent)
        if run.num_seeds > 1:
            raise ConfigError(f"num_seeds={run.num_seeds} does not go with env={run.env!r}; start one run for each")
        devices.prepare()
        self.device, why = devices.acting()
        self.overlap = run.overlap and why is None
        self.note = f"overlap is off: {why}" if run.overlap and why is not None else None
        if self.overlap:
            config = replace(config, agent=config.agent.for_overlap())
        self.config, self.params = config, None
        self.batched, self.seeds = False, np.array([run.seed], np.int32)
        self.should_stop: Callable[[], bool] = lambda: False
        self.on_failure: Callable[[Failure], None] = lambda failure: None
        self.pool = self._new_pool(run.num_envs)
        self.eval_pool: hosts.Pool | hosts.VectorPool | None = None
        try:
            spaces = self.pool.observation_space, self.pool.action_space
            self.env = HostEnv(run.env, *spaces)
            self.agent: Agent = module.make(config.agent, *spaces)
            self._check_agent()
            if run.eval_env is not None and run.eval_episodes:
                pool = self._make_eval_pool()
                eval_env.check_spaces(run, spaces, (pool.observation_space, pool.action_space))
        except BaseException:
            self._close_pools()
            raise
        self.hyper = module.Hyper(**{name: np.float32(value) for name, value in config.hyper.items()})
        self.hold = self.agent.add is not None
        self._compiled: Callable[..., Any] | None = None  # the update
        self.restarts = 0  # of workers, until the last update
        self.background = ThreadPoolExecutor(1, "rlkit-update")
        self.begun = False  # True once the environments have been reset
        self.next_rollout: Collected | Exception | None = None  # collected during an update, or its failure
        self.non_finite, self.before = "a quantity", None  # of the last update that was not finite

    def _check_agent(self) -> None:
        """Raise ConfigError where the batch does not fit the agent."""
        self.agent.check(self.config.run.num_envs, self.config.run.num_steps)

    def _make_eval_pool(self) -> hosts.Pool | hosts.VectorPool:
        """The pool of evaluations, which is made when it is first needed."""
        run = self.config.run
        if self.eval_pool is None:
            self.eval_pool = self._new_pool(min(run.num_envs, run.eval_episodes), run.eval_env)
        return self.eval_pool

    def _new_pool(self, num_envs: int, env: str | None = None) -> hosts.Pool | hosts.VectorPool:
        """A pool of the run's environment, or of another one; it stops waiting for workers where the run shall stop."""
        run = self.config.run
        kwargs = {name: list(value) if isinstance(value, tuple) else value for name, value in run.env_kwargs.items()}
        common = {"backend": run.backend, "seed": run.seed, "num_workers": run.num_workers, "wrappers": run.wrappers}
        limits = {"timeout": run.env_timeout, "restarts": run.env_restarts}
        pool = registry.pool(env or run.env, kwargs, num_envs=num_envs, **common, **limits)
        pool.watch(lambda: self.should_stop(), lambda failure: self.on_failure(failure))
        return pool

    def close(self) -> None:
        """End all worker processes."""
        self._close_pools()
        self.background.shutdown(cancel_futures=True)

    def _close_pools(self) -> None:
        self.pool.close()
        if self.eval_pool is not None:
            self.eval_pool.close()

    def check(self) -> None:
        """Take a few steps and check their values. Raises ConfigError where the environment breaks its contract."""
        validation.check(self.pool, self.config.run.seed)
        self.pool.restarted = 0  # restarts during this check do not count for the run

    def _init(self, seed: Array, hyper: PyTree) -> TrainState:
        num_envs = self.num_streams or self.config.run.num_envs
        return host_state.init(self.agent, self.env, num_envs, self.hold, seed, hyper)

    @cached_property
    def template(self) -> PyTree:
        """Shapes and dtypes of the state."""
        return jax.eval_shape(self._init, self.seeds[0], self.hyper)

    @property
    def num_bytes(self) -> int:
        """Bytes of the state twice, but of the buffer once as an update takes it over, and of three rollouts."""
        state = self.template
        obs = tree_num_bytes(shape_of(self.env.obs))
        replay = tree_num_bytes(split(state.agent)[1])
        return 2 * tree_num_bytes(state) - replay + 3 * self.config.steps_per_update * (2 * obs + 32)

    def start(self) -> PyTree:
        """Return the state before the first update."""
        return jax.jit(self._init)(self.seeds[0], self.hyper)

    def export(self, state: PyTree) -> PyTree:
        """Return the state itself."""
        return state

    @cached_property
    def collector(self) -> Collector:
        """The collector of rollouts, compiled."""
        actor = jax.eval_shape(self.agent.actor, self.template.agent)
        zero_actor = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), actor)
        return self._collector(self.agent, self.pool, self.config.run.num_steps, zero_actor, hold=self.hold)

    def _collector(self, agent: Agent, pool: Any, num_steps: int, actor: PyTree, *, hold: bool) -> Collector:
        """A compiled collector of rollouts of `num_steps` steps of each environment."""
        collector = Collector(agent, pool, num_steps=num_steps, device=self.device, hold=hold)
        collector.compile(actor, jax.random.key(0))
        return collector

    def compile(self) -> None:
        """Compile acting and learning; without this call, the first `advance` does."""
        if self._compiled is None:
            self._compiled = HostUpdate(self.agent, self.template, self.collector.shapes())
            self._actor = jax.jit(self.agent.actor).lower(self.template.agent).compile()
            self._keys = jax.jit(lambda key: tuple(jax.random.split(key, 3))).lower(self.template.key).compile()

    def advance(self, state: PyTree, count: np.int32) -> Chunk:
        """Make `count` updates, or fewer where one is not finite or where `should_stop()`.

        The replay buffer of the state is donated; everything else outlives the call.
        """
        self.compile()
        if not self.begun:
            self._begin(state)
        rows: list[dict[str, Any]] = []
        finite = True
        while finite and len(rows) < count and not self.should_stop():
            self.before = state
            try:
                state, row, finite = self._iterate(state)
            except Interrupted:
                break
            except NotFinite as error:
                self.non_finite, finite, row = f"env={self.pool.name!r}: {error}", False, (rows or [{}])[-1]
            except (hosts.HostError, ConfigError) as error:
                if not rows:
                    raise
                self.next_rollout = error
                break  # the updates so far are returned first; the next call raises
            rows.append(row)
        metrics: Any = {name: np.stack([np.asarray(row[name]) for row in rows]) for name in (rows or [{}])[0]}
        num_updates: Any = np.int32(len(rows))
        is_finite: Any = np.bool_(finite)
        return Chunk(state, num_updates, is_finite, metrics)

    def _begin(self, state: PyTree) -> None:
        """Reset the environments, after the steps that a checkpoint held back."""
        self.begun = True
        update, seed = int(state.step), self.config.run.seed
        held = state.envs.steps if bool(state.envs.there) else ()
        self.collector.begin(derive(seed, _RESUMED, update) if update else seed, jax.tree.map(np.asarray, held))

    def _iterate(self, state: PyTree) -> tuple[PyTree, dict[str, Any], bool]:
        """One rollout and one update, and with overlap the next rollout at the same time."""
        begin = time.perf_counter()
        rollout_key, update_key, next_key = self._keys(state.key)
        actor = self.collector.place(self._actor(state.agent))  # a copy: the update may take the state's arrays over
        collect_seconds = 0.0
        if self.next_rollout is None:
            self.next_rollout = self.collector.collect(actor, rollout_key)
            collect_seconds += self.next_rollout.seconds
        rollout = self.next_rollout
        if isinstance(rollout, Exception):
            raise rollout
        rest, replay = split(state.agent)
        assert self._compiled is not None
        learning = self.background.submit(self._compiled, replay, rest, rollout.transitions, update_key)
        self.next_rollout = None
        if self.overlap and int(state.step) + 1 < self.config.num_updates:
            try:
                self.next_rollout = self.collector.collect(actor, self._keys(next_key)[0])
                collect_seconds += self.next_rollout.seconds
            except (NotFinite, Interrupted, hosts.HostError, ConfigError) as error:
                self.next_rollout = error
        agent, metrics, finite, update_seconds = learning.result()
        restarts, self.restarts = self.pool.restarted - self.restarts, self.pool.restarted
        if not finite:
            self.non_finite = name_non_finite(metrics)
            self.before = state.replace(agent=join(rest, split(agent)[1]))
        seconds = time.perf_counter() - begin
        row = {
            **metrics,
            "returns": rollout.returns.copy(),
            "lengths": rollout.lengths.copy(),
            "update_seconds": update_seconds,
            "envs_idle": max(0.0, 1.0 - collect_seconds / seconds),
            "learner_idle": max(0.0, 1.0 - update_seconds / seconds),
            "env_restarts": restarts,
        }
        step: Any = np.int32(int(state.step) + 1)
        there: Any = np.bool_(self.hold)
        return TrainState(agent, HeldSteps(rollout.held, there), next_key, step), row, finite

    def state_before_last(self, state: PyTree, chunk: Chunk) -> PyTree:
        """Return the state before the last update of the last chunk."""
        return self.before

    def name_non_finite(self, before: PyTree, chunk: Chunk) -> str:
        """Name the quantity that was not finite in the last update of the last chunk."""
        return self.non_finite

    def compile_evaluation(self) -> None:
        """Do nothing: acting is compiled in the first evaluation, for its number of environments."""

    def evaluate(self, state: PyTree) -> Evaluation:
        """Play greedy episodes, at least `eval_episodes`, equally many in each environment; leaves [N, E].

        The seeds are the same every time, so that evaluations differ only by the policy.
        """
        run = self.config.run
        pool = self._make_eval_pool()
        seed = derive(run.seed, _EVALUATION)
        actor_of, policy = self._eval_functions
        actor = jax.device_put(actor_of(state.agent), self.device)
        episodes = -(-run.eval_episodes // pool.num_envs)
        return play(self.agent, policy, pool, actor, seed=seed, episodes_per_env=episodes)

    @cached_property
    def _eval_functions(self) -> tuple[Callable[[PyTree], PyTree], Callable[..., Any]]:
        return jax.jit(self.agent.actor), jax.jit(jax.vmap(self.agent.policy, (None, 0, 0, 0)))

    @contextmanager
    def rollouts(self, agent: Agent, actor: PyTree, *, num_envs: int, num_steps: int, seed: int) -> Iterator[Rollouts]:
        """Collect transitions of `agent.act` in new environments, as `Program.rollouts` describes.

        The last step of each environment is held back until it is known whether a failing worker has ended the episode
        with it.
        """
        with closing(self._new_pool(num_envs)) as pool:
            collector = self._collector(agent, pool, num_steps, actor, hold=True)

            def generate() -> Iterator[Transition]:
                collector.begin(seed)
                for first in count(0, num_steps):
                    key = jax.random.fold_in(jax.random.key(seed), first)
                    try:
                        collected = collector.collect(actor, key)
                    except NotFinite as error:
                        raise ConfigError(f"env={pool.name!r}: {error} must be finite in a dataset; mend it") from None
                    yield collected.transitions._replace(extras=())

            yield Rollouts(collector.shapes()._replace(extras=()), generate())
