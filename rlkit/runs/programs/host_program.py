"""Programs whose environments are outside of JAX, in worker processes.

With `overlap`, rollouts are one update late, and PPO's old log-probs are those of the parameters that acted. A run that
is resumed begins new episodes.
"""

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
from rlkit.agents.common.config import OffPolicyConfig
from rlkit.hosts import devices, registry, validation
from rlkit.hosts.collect import Collector, NotFinite
from rlkit.hosts.evaluate import play
from rlkit.hosts.placeholder import HostEnv
from rlkit.hosts.pool import derive
from rlkit.hosts.spaces import starts
from rlkit.runs.config.errors import plain_value
from rlkit.runs.config.own_networks import make_agent
from rlkit.runs.config.run_config import RunConfig
from rlkit.runs.config.settings import Task
from rlkit.runs.devices.memory import tree_num_bytes
from rlkit.runs.programs import eval_env, host_state
from rlkit.runs.programs.host_iterations import HostIterations, updates_before_learning
from rlkit.runs.programs.host_update import HostUpdates
from rlkit.runs.programs.protocol import Rollouts
from rlkit.runs.programs.replay_state import split
from rlkit.spaces import shape_of
from rlkit.training import Evaluation, TrainState
from rlkit.types import Agent, Array, ConfigError, PyTree, Transition

_EVALUATION, _RESUMED = 2**32 - 1, 2**32 - 2  # folded into the seeds of evaluations and of resumed runs


class HostProgram(HostIterations):
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
        run, module = config.run, agents.get(config.run.agent)
        devices.prepare()
        self.device, why = devices.acting()
        off_policy = isinstance(config.agent, OffPolicyConfig)
        after_each_step = off_policy and run.num_steps == 1
        wanted = (off_policy and not after_each_step) if run.overlap is None else run.overlap
        self.overlap = wanted and why is None
        self.note = f"overlap is off: {why}" if wanted and why is not None else None
        if after_each_step and not self.overlap:
            self.device = jax.devices()[0]  # an update and acting are one call
        if self.overlap and hasattr(config.agent, "old_log_prob"):  # to recompute it takes the parameters that acted
            config = replace(config, agent=config.agent.model_copy(update={"old_log_prob": "collected"}))
        self.config, self.params = config, None
        self.batched, self.seeds = False, np.array([run.seed], np.int32)
        self.background = ThreadPoolExecutor(1, "rlkit-update")
        self.pool = self._new_pool(run.num_envs)
        self.eval_pool: hosts.Pool | hosts.VectorPool | None = None
        try:
            spaces = self.pool.observation_space, self.pool.action_space
            obs_tree, action_tree = self.pool.obs_tree, self.pool.action_tree
            self.env = HostEnv(run.env, *spaces, starts(obs_tree), starts(action_tree), action_tree)
            self.like = like
            self.agent: Agent = make_agent(config, *spaces) if like is None else like.agent
            self._check_agent()
            self.wait_count = updates_before_learning(config, self.agent, spaces[0])
            if run.eval_task != run.task and run.eval_episodes:
                pool = self._make_eval_pool()
                eval_env.check_spaces(run, spaces, (pool.observation_space, pool.action_space))
        except BaseException:
            self.close()
            raise
        self.hyper = module.Hyper(**{name: jnp.array(value) for name, value in config.hyper_arrays.items()})
        self.hold = self.agent.add is not None

    def _check_agent(self) -> None:
        """Raise ConfigError where the batch does not fit the agent."""
        self.agent.check(self.config.run.num_envs, self.config.run.num_steps)

    def _make_eval_pool(self) -> hosts.Pool | hosts.VectorPool:
        """The pool of evaluations, which is made when it is first needed."""
        run = self.config.run
        if self.eval_pool is None:
            self.eval_pool = self._new_pool(min(run.num_envs, run.eval_episodes), self.config.eval_task)
        return self.eval_pool

    def _new_pool(self, num_envs: int, task: Task | None = None) -> hosts.Pool | hosts.VectorPool:
        """A pool of the run's environment, or of another one; it stops waiting for workers where the run shall stop."""
        run = self.config.run
        env, kwargs, wrappers = task or self.config.task
        common = {"backend": run.backend, "seed": run.seed, "num_workers": run.num_workers, "wrappers": wrappers}
        limits = {"timeout": run.env_timeout, "restarts": run.env_restarts}
        pool = registry.pool(env, plain_value(kwargs), num_envs=num_envs, **common, **limits)
        pool.watch(lambda: self.should_stop(), lambda failure: self.on_failure(failure))
        return pool

    def close(self) -> None:
        self.pool.close()
        if self.eval_pool is not None:
            self.eval_pool.close()
        self.background.shutdown(cancel_futures=True)

    def check(self) -> None:
        """Take a few steps and check their values. Raises ConfigError where the environment breaks its contract."""
        validation.check(self.pool, self.config.run.seed)
        self.pool.restarted = 0  # restarts during this check do not count for the run

    def init(self, seed: Array, hyper: PyTree) -> TrainState:
        """Return the state of a seed before the first update."""
        num_envs = self.num_streams or self.config.run.num_envs
        key = jax.random.split(jax.random.key(seed))[0]
        return host_state.init(self.agent, self.env, num_envs, self.hold, key, hyper)

    @cached_property
    def template(self) -> PyTree:
        return jax.eval_shape(self.init, self.seeds[0], self.hyper)

    @property
    def num_bytes(self) -> int:
        """Bytes of the state twice, but of the buffer once as an update takes it over, and of three rollouts."""
        state = self.template
        obs = tree_num_bytes(shape_of(self.env.obs))
        replay = tree_num_bytes(split(state.agent)[1])
        return 2 * tree_num_bytes(state) - replay + 3 * self.config.steps_per_update * (2 * obs + 32)

    def start(self) -> PyTree:
        return jax.jit(self.init)(self.seeds[0], self.hyper)

    def export(self, state: PyTree) -> PyTree:
        """Return the state itself."""
        return state

    @cached_property
    def collector(self) -> Collector:
        """The collector of rollouts, compiled."""
        actor = jax.eval_shape(self.agent.actor, self.template.agent)
        zero_actor = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), actor)
        num_steps = self.config.run.num_steps
        max_steps = self.wait_count * num_steps
        return self._collector(self.agent, self.pool, num_steps, zero_actor, hold=self.hold, max_steps=max_steps)

    def _collector(
        self, agent: Agent, pool: Any, num_steps: int, actor: PyTree, *, hold: bool, max_steps: int | None = None
    ) -> Collector:
        """A compiled collector of rollouts of `num_steps` steps of each environment."""
        collector = Collector(agent, pool, num_steps=num_steps, device=self.device, hold=hold, max_steps=max_steps)
        if self.like is not None and agent is self.agent:
            collector.act = self.like.collector.act
        collector.compile(actor, jax.random.key(0))
        return collector

    def compile(self) -> None:
        """Compile acting and learning; without this call, the first `advance` does."""
        _ = self.collector, self.updates

    @cached_property
    def updates(self) -> HostUpdates:
        """The compiled functions of the iterations."""
        if self.like is not None:
            return self.like.updates
        wait_steps = self.wait_count * self.config.run.num_steps
        return HostUpdates(
            self.agent, self.template, self.collector, in_one_call=self.in_one_call, wait_steps=wait_steps
        )

    def begin(self, state: PyTree) -> None:
        """Reset the environments, after the steps that a checkpoint held back."""
        self.begun = True
        update, seed = int(state.step), self.config.run.seed
        held = state.envs.steps if bool(state.envs.there) else ()
        self.collector.begin(derive(seed, _RESUMED, update) if update else seed, jax.tree.map(np.asarray, held))

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
        limit = (run.eval_max_steps or 1_000_000) * episodes
        settings = {"seed": seed, "episodes_per_env": episodes, "max_steps": limit}
        return play(self.agent, policy, pool, actor, **settings, on_progress=self.on_progress)

    @cached_property
    def _eval_functions(self) -> tuple[Callable[[PyTree], PyTree], Callable[..., Any]]:
        if self.like is not None:
            return self.like._eval_functions
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
