"""The environments of a run, in JAX or in worker processes: they are checked, evaluate policies and give rollouts."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cached_property
from itertools import count
from typing import Any

import jax

from rlkit import envs, hosts, training
from rlkit.hosts import goals as host_goals
from rlkit.hosts import registry, validation
from rlkit.hosts.collect import Collector, NotFinite
from rlkit.hosts.evaluate import play
from rlkit.hosts.placeholder import HostEnv
from rlkit.hosts.pool import derive
from rlkit.hosts.spaces import starts
from rlkit.hosts.worker import wrapper_names
from rlkit.runs.config.errors import plain_value, show_value
from rlkit.runs.config.run_config import RunConfig
from rlkit.runs.config.settings import Settings, Task
from rlkit.runs.programs import goals
from rlkit.runs.programs.protocol import Program, Rollouts
from rlkit.training import Evaluation
from rlkit.types import Agent, Array, ConfigError, Env, Model, PyTree, Transition, num_players

_EVALUATION = 2**32 - 1  # folded into the seeds of evaluations outside of JAX


def check_spaces(run: Settings, trained: tuple[Any, Any], evaluated: tuple[Any, Any]) -> None:
    """Raise ConfigError unless the spaces (of observations, of actions) of `env` and `eval_env` agree."""
    for kind, one, other in zip(("observation", "action"), trained, evaluated, strict=True):
        if one != other:
            raise ConfigError(
                f"eval_env={run.eval_task.env!r} must have the {kind} space of env={run.env!r}, {one}, and it has "
                f"{other}; choose another, or other eval_env_kwargs and eval_wrappers"
            )


class JaxEnvironments:
    """Environments in JAX, for training and for evaluations.

    Raises:
      ConfigError: they cannot be made, or their spaces differ.
    """

    def __init__(self, config: RunConfig):
        def make(task: Task) -> tuple[Env, Any]:
            env, params = envs.make(task.env, **task.kwargs)
            return envs.wrap(env, task.wrappers), params

        def spaces(env: Env, params: Any) -> tuple[Any, Any]:
            return env.observation_space(params), env.action_space(params)

        self.config, self.run = config, config.run
        self.env, self.params = trained = make(config.task)
        self.eval_env, self.eval_params = trained if self.run.eval_task == self.run.task else make(config.eval_task)
        check_spaces(self.run, spaces(*trained), spaces(self.eval_env, self.eval_params))

    def check(self) -> None:
        """Raise ConfigError where the environment breaks its contract."""
        goal_reward = self.goal_reward if goals.are_of_environment(self.config) else None
        key = jax.random.key(self.run.seed)
        envs.check(self.env, self.params, key, name=self.run.env, goal_reward=goal_reward)

    @property
    def goal_reward(self) -> Callable[..., Any] | None:
        """The environment's rewards of goals, see `goals`; None where it has none."""
        return goals.in_jax(self.env, self.params)

    def model(self) -> Model | None:
        """The rules of the game for agents that plan, `game_model(params)` of the outermost wrapper that has one.

        Raises:
          ConfigError: a wrapper changes observations, actions or rewards, so that the game's rules do not fit them.
        """
        env, found = self.env, None
        while env is not None and found is None:
            found, env = getattr(env, "game_model", None), getattr(env, "env", None)
        if found is None or (model := found(self.params)) is None:
            return None
        for wrapper in self.run.wrappers:
            if wrapper.partition(":")[0] != "time_limit" and not wrapper_names.is_own(wrapper):
                raise ConfigError(
                    f"wrapper {show_value(wrapper)} changes observations, actions or rewards, and then the rules of "
                    "the game are not known for planning; leave it out"
                )
        return model

    def close(self) -> None:
        """Do nothing: there are no workers."""

    def evaluate(self, agent: Agent, actor: PyTree, seed: Array) -> Evaluation:
        """Play one greedy episode in each of `eval_episodes` environments, as a pure function.

        Leaves are [E, 1], or [E * P, 1] of an environment with P players.

        The key depends on the seed alone: the episodes start in the same states every time, so that evaluations differ
        only by the policy.
        """
        # By default it cuts the episodes of environments without a time limit.
        limit = min(2 * int(getattr(self.eval_params, "max_steps_in_episode", 500_000)), 2**31 - 1)
        streams = self.run.eval_episodes * num_players(self.eval_env)
        sizes = {"num_envs": streams, "max_steps": self.run.eval_max_steps or limit}
        key = jax.random.split(jax.random.key(seed))[1]
        return training.evaluate(agent, self.eval_env, self.eval_params, actor, key, **sizes)

    @contextmanager
    def rollouts(self, agent: Agent, actor: PyTree, *, num_envs: int, num_steps: int, seed: int) -> Iterator[Rollouts]:
        """Collect transitions of `agent.act` in new environments, as `Program.rollouts` describes."""
        envs_key, key = jax.random.split(jax.random.key(seed))

        @jax.jit
        def advance(envs: PyTree, key: Any) -> tuple[PyTree, Transition]:
            envs, rollout, _ = training.rollout(agent, self.env, self.params, actor, envs, key, num_steps)
            return envs, rollout._replace(extras=())

        def generate(envs: PyTree) -> Iterator[Transition]:
            for first in count(0, num_steps):
                envs, rollout = jax.device_get(advance(envs, jax.random.fold_in(key, first)))
                yield rollout

        start = jax.jit(lambda key: training.reset(agent, self.env, self.params, key, num_envs))(envs_key)
        yield Rollouts(jax.eval_shape(advance, start, key)[1], generate(start))


class HostEnvironments:
    """Environments in worker processes, which are started when this is made; those of evaluations at their first use.

    Args:
      config: of the run.
      device: that acts.
      program: where its `should_stop()`, waiting for workers ends; its `on_failure` is called with their failures.
      envs: those of the run's that this process steps in training; None for all.

    Raises:
      ConfigError: the environment cannot be made, or that of evaluations has other spaces.
      HostError: the environment fails when it is made.
    """

    params = None

    def __init__(self, config: RunConfig, device: Any, program: Program, envs: range | None = None):
        run = config.run
        self.config, self.device, self.program = config, device, program
        envs = envs or range(run.num_envs)
        self.pool = self._new_pool(len(envs), first=envs.start)
        try:
            spaces = self.pool.observation_space, self.pool.action_space
            obs_tree, action_tree = self.pool.obs_tree, self.pool.action_tree
            players = {"num_players": self.pool.num_players, "shared_reward": self.pool.shared_reward}
            self.env = HostEnv(run.env, *spaces, starts(obs_tree), starts(action_tree), action_tree, **players)
            self.eval_env = self.env  # with the same spaces
            # A function that returns one object again, for evaluations too, fails here and not at the first of them.
            alone = len(envs) == 1 and run.backend != "process"
            if (alone or run.eval_task != run.task) and run.eval_episodes:
                check_spaces(run, spaces, (self.eval_pool.observation_space, self.eval_pool.action_space))
                if (found := self.eval_pool.num_players) != self.env.num_players:
                    raise ConfigError(
                        f"eval_env={run.eval_task.env!r} must have the {self.env.num_players} player(s) of "
                        f"env={run.env!r}, and it has {found}; choose another, or other eval_env_kwargs"
                    )
        except BaseException:
            self.close()
            raise

    def _new_pool(self, num_envs: int, task: Task | None = None, first: int = 0) -> hosts.Pool | hosts.VectorPool:
        """A pool of the run's environment, or of another one; it stops waiting for workers where the run shall stop."""
        run = self.config.run
        env, kwargs, wrappers = task or self.config.task
        common = {"backend": run.backend, "seed": run.seed, "num_workers": run.num_workers, "wrappers": wrappers}
        limits = {"timeout": run.env_timeout, "restarts": run.env_restarts, "first": first}
        pool = registry.pool(env, plain_value(kwargs), num_envs=num_envs, **common, **limits)
        program = self.program
        pool.watch(lambda: program.should_stop(), lambda failure: program.on_failure(failure))
        return pool

    @cached_property
    def eval_pool(self) -> hosts.Pool | hosts.VectorPool:
        run, players = self.config.run, self.env.num_players
        return self._new_pool(min(run.num_envs, run.eval_episodes * players), self.config.eval_task)

    def model(self) -> None:
        """None: the rules of an environment in a worker process are not known."""

    @cached_property
    def goal_reward(self) -> host_goals.HostGoals | None:
        """The environment's rewards of goals, as of `JaxEnvironments`."""
        run, task = self.config.run, self.config.task
        recipe = registry.recipe(run.env, plain_value(task.kwargs))._replace(wrappers=tuple(task.wrappers))
        return host_goals.make(recipe, name=run.env, seed=run.seed)

    def close(self) -> None:
        """End the workers."""
        self.pool.close()
        if (found := vars(self).get("goal_reward")) is not None:
            found.close()
        if "eval_pool" in vars(self):
            self.eval_pool.close()

    def check(self) -> None:
        """Take a few steps and check their values. Raises ConfigError where the environment breaks its contract."""
        found = self.goal_reward if goals.are_of_environment(self.config) else None
        for hint in validation.check(self.pool, self.config.run.seed, None if found is None else found.compare):
            self.program.on_progress(hint)
        self.pool.restarted = 0  # restarts during this check do not count for the run

    def evaluate(
        self, agent: Agent, policy: Callable[..., Any], actor: PyTree, seed: int, on_progress: Callable[[str], None]
    ) -> Evaluation:
        """Play greedy episodes, at least `eval_episodes`, equally many in each environment; leaves [N, E] of players.

        The episodes of a seed are the same every time, so that evaluations differ only by the policy; `policy` is that
        of `hosts.evaluate.play`.
        """
        run, pool = self.config.run, self.eval_pool
        episodes = -(-run.eval_episodes * pool.num_players // pool.num_envs)
        limit = (run.eval_max_steps or 1_000_000) * episodes
        settings = {"seed": derive(seed, _EVALUATION), "episodes_per_env": episodes, "max_steps": limit}
        actor = jax.device_put(actor, self.device)
        return play(agent, policy, pool, actor, **settings, on_progress=on_progress)

    @contextmanager
    def rollouts(self, agent: Agent, actor: PyTree, *, num_envs: int, num_steps: int, seed: int) -> Iterator[Rollouts]:
        """Collect transitions of `agent.act` in new environments, as `Program.rollouts` describes.

        The last step of each environment is held back until it is known whether a failing worker has ended the episode
        with it.
        """
        with closing(self._new_pool(num_envs)) as pool:
            collector = Collector(agent, pool, num_steps=num_steps, device=self.device, hold=True)
            collector.compile(actor, jax.random.key(0))

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
