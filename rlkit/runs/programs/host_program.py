"""Runs in environments outside of JAX: the same surface as `program.Program`, around worker processes.

With `overlap`, the workers step rollout k + 1 with the parameters from before update k while update k runs. One update
late, the log-probs are those of acting, so that PPO's ratio is right. A run that is resumed begins new episodes.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rlkit import _cpu, agents, hosts
from rlkit.hosts import devices, registry, validation
from rlkit.hosts.collect import Collected, Collector, NotFinite, act_shapes
from rlkit.hosts.evaluate import play
from rlkit.hosts.placeholder import HostEnv
from rlkit.hosts.pool import derive
from rlkit.hosts.processes import Interrupted
from rlkit.runs.config.run_config import RunConfig
from rlkit.runs.programs.jax_program import Chunk, Program
from rlkit.runs.programs.parts import join, split
from rlkit.spaces import zeros
from rlkit.training import Evaluation, TrainState
from rlkit.types import Agent, Array, ConfigError, Key, PyTree, Transition

_EVALUATION, _RESUMED = 2**32 - 1, 2**32 - 2  # what tells the seeds of these from those of training


class Held(struct.PyTreeNode):
    """What the collector of a replaying agent holds back between two rollouts."""

    steps: PyTree  # Transition, leaves [N, ...]; () for an agent that does not replay
    there: Array  # [] bool, false before the first rollout


def program(config: RunConfig, streams: int | None = None) -> "Program | HostProgram":
    """The program of a config, whichever kind its environment needs; `streams` as for `program.Program`."""
    if not hosts.is_host(config.run.env):
        return Program(config, streams)
    if config.run.dataset is None:
        return HostProgram(config)
    from rlkit.runs.programs.offline_host_program import OfflineHostProgram

    return OfflineHostProgram(config, streams)


class HostProgram:
    """What `program.Program` is, for an environment outside of JAX. Building one starts the worker processes.

    Raises:
      ConfigError: the environment cannot be made, breaks its contract, or does not fit the agent or the batch.
      HostError: the environment fails when it is made.
    """

    def __init__(self, config: RunConfig):
        run, module = config.run, agents.get(config.run.agent)
        for field, wrong in (("num_seeds", run.num_seeds > 1), ("wrappers", run.wrappers)):
            if wrong:
                remedy = "start one run for each" if field == "num_seeds" else "leave it out"
                raise ConfigError(
                    f"{field}={wrong and getattr(run, field)!r} does not go with env={run.env!r}; {remedy}"
                )
        devices.prepare()
        self.device, why = devices.acting()
        self.overlap = run.overlap and why is None
        self.note = f"overlap is off: {why}" if run.overlap and why is not None else None
        if self.overlap and getattr(config.agent, "old_log_prob", None) == "recompute":
            config = replace(config, agent=config.agent.model_copy(update={"old_log_prob": "collected"}))
        self.config, self.params, self.dataset = config, None, None
        self.batched, self.seeds = False, np.array([run.seed], np.int32)
        self.stop: Callable[[], bool] = lambda: False
        self.pool = self.new_pool(run.num_envs)
        try:
            spaces = self.pool.observation_space, self.pool.action_space
            self.env = HostEnv(run.env, *spaces)
            self.agent: Agent = module.make(config.agent, *spaces)
            self.streams = self._streams()
        except BaseException:
            self.pool.close()
            raise
        self.hyper = module.Hyper(**{name: np.float32(value) for name, value in config.hyper.items()})
        self.hold = self.agent.add is not None
        self.eval_pool: hosts.Pool | hosts.VectorPool | None = None
        self.background = ThreadPoolExecutor(1, "rlkit-update")
        self.begun = False
        self.ahead: Collected | Exception | None = None
        self.reason, self.before = "a quantity", None

    def _streams(self) -> int:
        """N, how many streams of transitions the agent learns from. Raises ConfigError where they do not fit it."""
        self.agent.check(self.config.run.num_envs, self.config.run.num_steps)
        return self.config.run.num_envs

    def new_pool(self, num_envs: int) -> hosts.Pool | hosts.VectorPool:
        run = self.config.run
        made = registry.pool(
            run.env,
            {name: list(value) if isinstance(value, tuple) else value for name, value in run.env_kwargs.items()},
            num_envs=num_envs,
            backend=run.backend,
            seed=run.seed,
            num_workers=run.num_workers,
            timeout=run.env_timeout,
            restarts=run.env_restarts,
        )
        made.watch(lambda: self.stop())
        return made

    def close(self) -> None:
        """End all workers."""
        self.pool.close()
        if self.eval_pool is not None:
            self.eval_pool.close()
        self.background.shutdown(cancel_futures=True)

    def check(self) -> None:
        """Take a few steps and look at their values. Raises ConfigError where the contract is broken."""
        validation.check(self.pool, self.config.run.seed)
        self.pool.restarted = 0  # the budget is for the run

    def _init(self, seed: Array, hyper: PyTree) -> TrainState:
        return self._init_from_key(jax.random.split(jax.random.key(seed))[0], hyper)

    @_cpu.straight_line_keys
    def _init_from_key(self, key: Key, hyper: PyTree) -> TrainState:
        agent_key, run_key = jax.random.split(key)
        num_envs = self.streams
        obs, action = zeros(self.env.obs), zeros(self.env.action)
        reward, flag = jnp.zeros((), jnp.float32), jnp.zeros((), bool)
        example = Transition(obs, action, reward, flag, flag, obs)
        state = self.agent.init(hyper, agent_key, example, num_envs)
        steps: PyTree = ()
        if self.hold:
            extras = act_shapes(self.agent, self.env.obs, self.agent.actor(state), num_envs)[2]
            steps = jax.tree.map(lambda x: jnp.zeros((num_envs, *x.shape), x.dtype), example)._replace(
                extras=jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), extras)
            )
        return TrainState(state, Held(steps, jnp.zeros((), bool)), run_key, jnp.zeros((), jnp.int32))

    @cached_property
    def template(self) -> PyTree:
        """The shapes and dtypes of the state, for `checkpoint.restore`."""
        return jax.eval_shape(self._init, self.seeds[0], self.hyper)

    def start(self) -> PyTree:
        """The state before the first update."""
        return jax.jit(self._init)(self.seeds[0], self.hyper)

    @cached_property
    def collector(self) -> Collector:
        """What fills the rollouts, compiled."""
        run = self.config.run
        made = Collector(self.agent, self.pool, num_steps=run.num_steps, device=self.device, hold=self.hold)
        actor = jax.eval_shape(self.agent.actor, self.template.agent)
        made.compile(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), actor), jax.random.key(0))
        return made

    @cached_property
    def advance(self) -> Callable[[PyTree, np.int32], Chunk]:
        """(state, count) -> Chunk: `count` updates, or fewer: up to what is not finite, or until `stop` says so.

        The replay buffer of the state is donated; everything else outlives the call.
        """
        steps, (rest, replay) = self.collector.shapes(), split(self.template.agent)
        update = jax.jit(self._update, donate_argnums=0).lower(replay, rest, steps, self.template.key).compile()
        self._compiled = update
        self._actor = jax.jit(self.agent.actor).lower(self.template.agent).compile()
        self._keys = jax.jit(lambda key: tuple(jax.random.split(key, 3))).lower(self.template.key).compile()
        return self._advance

    @_cpu.straight_line_keys
    def _update(self, replay: PyTree, rest: PyTree, rollout: Transition, key: Key) -> tuple[PyTree, dict, Array]:
        state, metrics = self.agent.update(join(rest, replay), rollout, key)
        return state, metrics, self._finite(state, metrics)

    def _finite(self, state: PyTree, metrics: dict[str, Array]) -> Array:
        """Whether losses, gradients and what acts are finite, [] bool."""
        checked = [x for name, x in metrics.items() if "loss" in name or "grad" in name]
        checked += [x for x in jax.tree.leaves(self.agent.actor(state)) if jnp.issubdtype(x.dtype, jnp.floating)]
        return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in checked]))

    def _quantity(self, metrics: dict[str, Any]) -> str:
        """The name of what is not finite after an update."""
        for name, value in metrics.items():
            if ("loss" in name or "grad" in name) and not np.isfinite(value).all():
                return name
        return "params"

    def _advance(self, state: PyTree, count: np.int32) -> Chunk:
        if not self.begun:
            self._begin(state)
        rows: list[dict[str, Any]] = []
        finite = True
        while finite and len(rows) < count and not self.stop():
            self.before = state
            try:
                state, row, finite = self._one(state)
            except Interrupted:
                break
            except NotFinite as error:
                self.reason, finite, row = str(error), False, (rows or [{}])[-1]
            except (hosts.HostError, ConfigError) as error:
                if not rows:
                    raise
                self.ahead = error
                break  # what was learned is handed over first; the next call raises
            rows.append(row)
        metrics: Any = {name: np.stack([np.asarray(row[name]) for row in rows]) for name in (rows or [{}])[0]}
        done: Any = np.int32(len(rows))
        well: Any = np.bool_(finite)
        return Chunk(state, done, well, metrics)

    def _begin(self, state: PyTree) -> None:
        self.begun = True
        update, seed = int(state.step), self.config.run.seed
        held = state.envs.steps if bool(state.envs.there) else ()
        self.collector.begin(derive(seed, _RESUMED, update) if update else seed, jax.tree.map(np.asarray, held))

    def _one(self, state: PyTree) -> tuple[PyTree, dict[str, Any], bool]:
        """One update, and with overlap the next rollout meanwhile."""
        begin = time.perf_counter()
        rollout_key, update_key, next_key = self._keys(state.key)
        actor = self.collector.place(self._actor(state.agent))  # a copy: the update may take the state's arrays
        stepping = 0.0
        if self.ahead is None:
            self.ahead = self.collector.collect(actor, rollout_key)
            stepping += self.ahead.seconds
        rollout = self.ahead
        if isinstance(rollout, Exception):
            raise rollout
        rest, replay = split(state.agent)
        learning = self.background.submit(self._learn, replay, rest, rollout.transitions, update_key)
        self.ahead = None
        if self.overlap and int(state.step) + 1 < self.config.num_updates:
            try:
                self.ahead = self.collector.collect(actor, self._keys(next_key)[0])
                stepping += self.ahead.seconds
            except (NotFinite, Interrupted, hosts.HostError, ConfigError) as error:
                self.ahead = error
        agent, metrics, finite, updating = learning.result()
        if not finite:
            self.reason = self._quantity(metrics)
            self.before = state.replace(agent=join(rest, split(agent)[1]))
        wall = time.perf_counter() - begin
        row = {
            **metrics,
            "returns": rollout.returns.copy(),
            "lengths": rollout.lengths.copy(),
            "update_seconds": updating,
            "envs_idle": max(0.0, 1.0 - stepping / wall),
            "learner_idle": max(0.0, 1.0 - updating / wall),
            "env_restarts": self.pool.restarted,
        }
        count: Any = np.int32(int(state.step) + 1)
        there: Any = np.bool_(self.hold)
        return TrainState(agent, Held(rollout.held, there), next_key, count), row, finite

    def _learn(self, replay: PyTree, rest: PyTree, rollout: Transition, key: Key) -> tuple[PyTree, dict, bool, float]:
        begin = time.perf_counter()
        agent, metrics, finite = self._compiled(replay, rest, rollout, key)
        metrics, finite = jax.device_get((metrics, finite))
        jax.block_until_ready(agent)
        return agent, metrics, bool(finite), time.perf_counter() - begin

    def before_last(self, state: PyTree, chunk: Chunk) -> PyTree:
        """The state before the last update of a chunk."""
        return self.before

    def blame(self, before: PyTree, chunk: Chunk) -> str:
        """What was not finite in the last update."""
        return self.reason

    @cached_property
    def evaluate(self) -> Callable[[PyTree], Evaluation]:
        """state -> whole greedy episodes, at least `eval_episodes`, as many in each environment, leaves [N, E].

        The same seeds every time, so that evaluations differ by what was learned.
        """
        run = self.config.run
        num_envs = min(run.num_envs, run.eval_episodes)
        policy = jax.jit(jax.vmap(self.agent.policy, (None, 0, 0, 0)))
        actor_of = jax.jit(self.agent.actor)

        def evaluate(state: PyTree) -> Evaluation:
            if self.eval_pool is None:
                self.eval_pool = self.new_pool(num_envs)
            seed = derive(run.seed, _EVALUATION)
            actor = jax.device_put(actor_of(state.agent), self.device)
            episodes = -(-run.eval_episodes // num_envs)
            return play(self.agent, policy, self.eval_pool, actor, seed=seed, episodes_per_env=episodes)

        return evaluate
