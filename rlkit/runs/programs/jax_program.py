"""From a config to the compiled functions of a run: start, advance, evaluate."""

from collections.abc import Callable
from functools import cached_property, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlkit import agents, envs, training
from rlkit.runs import datasets
from rlkit.runs.config.run_config import RunConfig
from rlkit.runs.programs import offline
from rlkit.training.train import step_keys
from rlkit.types import Agent, Array, Key, PyTree


class Chunk(NamedTuple):
    """What some updates gave."""

    state: PyTree  # a TrainState; leaves [S, ...] with several seeds
    count: Array  # [] int32, updates done: fewer than asked for where the last of them gave something not finite
    finite: Array  # [] bool
    metrics: dict[str, Array]  # [K, ...], rows from count on are zeros


class Program:
    """The pure parts of a run, joined as its config says.

    Building one compiles nothing; `start`, `advance` and `evaluate` compile once each, on first use. With `streams`,
    how many a run's dataset has, the dataset is not opened: a checkpoint of the run holds what it needs of it.

    Raises:
      ConfigError: the environment cannot be made, or does not fit the agent or the batch.
    """

    def __init__(self, config: RunConfig, streams: int | None = None):
        run, module = config.run, agents.get(config.run.agent)
        env, self.params = envs.make(run.env, **run.env_kwargs)
        self.env = envs.wrap(env, list(run.wrappers))
        obs_space, action_space = self.env.observation_space(self.params), self.env.action_space(self.params)
        self.config = config
        self.agent: Agent = module.make(config.agent, obs_space, action_space)
        self.dataset = datasets.find(run.dataset) if run.dataset is not None and streams is None else None
        known = streams if run.dataset is not None else None  # whatever a checkpoint says
        self.streams = known if self.dataset is None else self.dataset.num_envs
        self.training = self._training()
        self.hyper = module.Hyper(**{name: np.float32(value) for name, value in config.hyper.items()})
        self.batched = run.num_seeds > 1
        self.seeds = np.arange(run.seed, run.seed + run.num_seeds, dtype=np.int32)  # [S]
        self.stop: Callable[[], bool] = lambda: False  # a chunk of compiled updates ends by itself
        self.note = None

    def _training(self) -> training.Training:
        run, surroundings = self.config.run, (self.agent, self.env, self.params)
        if self.dataset is not None:
            offline.check(self.config, self.dataset, *surroundings)
        if self.streams is None:
            return training.make(*surroundings, num_envs=run.num_envs, num_steps=run.num_steps)
        return training.offline(*surroundings, num_envs=self.streams, num_steps=self.config.steps_per_update)

    def check(self) -> None:
        """Raise ConfigError where the environment breaks its contract."""
        run = self.config.run
        envs.check(self.env, self.params, jax.random.key(run.seed), name=run.env)

    def close(self) -> None:
        """There is nothing to end."""

    def before_last(self, state: PyTree, chunk: Chunk) -> PyTree:
        """The state before the last update of a chunk that began with `state`."""
        # The same compiled program from the same state gives the same numbers; one update less, and all are finite.
        return self.advance(state, np.int32(int(chunk.count) - 1)).state

    def blame(self, before: PyTree, chunk: Chunk) -> str:
        """What was not finite in the last update of a chunk, which began with `before`."""
        return blame(self, before, chunk)

    def _over_seeds(self, function: Callable) -> Callable:
        return jax.vmap(function) if self.batched else function

    def _keys(self, seed: Array) -> tuple[Key, Key]:
        """The keys of one seed's training and of its evaluations."""
        train_key, eval_key = jax.random.split(jax.random.key(seed))
        return train_key, eval_key

    def _init(self, seeds: Array, hyper: PyTree) -> PyTree:
        def one(seed: Array) -> PyTree:
            return self.training.init(hyper, self._keys(seed)[0])

        return self._over_seeds(one)(seeds if self.batched else seeds[0])

    @cached_property
    def template(self) -> PyTree:
        """The shapes and dtypes of the state, for `checkpoint.restore`."""
        return jax.eval_shape(self._init, self.seeds, self.hyper)

    def start(self) -> PyTree:
        """The state before the first update."""
        state = jax.jit(self._init)(self.seeds, self.hyper)  # once a run, so nothing is kept
        if self.dataset is None:
            return state
        return state.replace(agent=offline.fill(self.agent, state.agent, self.dataset, batched=self.batched))

    @cached_property
    def advance(self) -> Callable[[PyTree, np.int32], Chunk]:
        """(state, count) -> Chunk: `count` updates, or fewer where one gives something that is not finite.

        The count is traced, so that one program serves every length up to `config.updates_per_line`. The state is not
        donated: where an update is not finite, the run goes back to before it, and on Ctrl-C nothing is half done.
        """
        step, length = jax.jit(self._over_seeds(self.training.step)), self.config.updates_per_line
        compiled = jax.jit(partial(_advance, step, self.agent.actor, length))
        return compiled.lower(self.template, jax.ShapeDtypeStruct((), jnp.int32)).compile()

    @cached_property
    def evaluate(self) -> Callable[[PyTree], training.Evaluation]:
        """state -> one greedy episode in each of `eval_episodes` environments, leaves [E, 1], or [S, E, 1].

        The key depends on the seed alone: the same starts every time, so that evaluations differ by what was learned.
        """
        limit = 2 * int(getattr(self.params, "max_steps_in_episode", 500_000))  # in case its own never ends an episode

        def one(state: PyTree, seed: Array) -> training.Evaluation:
            key = self._keys(seed)[1]
            actor, episodes = self.agent.actor(state.agent), self.config.run.eval_episodes
            return training.evaluate(self.agent, self.env, self.params, actor, key, num_envs=episodes, max_steps=limit)

        function = jax.jit(lambda state, seeds: self._over_seeds(one)(state, seeds if self.batched else seeds[0]))
        compiled = function.lower(self.template, self.seeds).compile()
        return lambda state: compiled(state, self.seeds)


def _advance(step: Callable, actor: Callable, length: int, state: PyTree, count: Array) -> Chunk:
    """Up to `count` steps, their metrics in buffers of `length` rows."""
    rows = jax.tree.map(lambda x: jnp.zeros((length, *x.shape), x.dtype), jax.eval_shape(step, state)[1])

    def unfinished(chunk: Chunk) -> Array:
        return (chunk.count < count) & chunk.finite

    def body(chunk: Chunk) -> Chunk:
        state, metrics = step(chunk.state)
        rows = jax.tree.map(lambda buffer, x: buffer.at[chunk.count].set(x), chunk.metrics, metrics)
        checked = jax.tree.leaves(_watched(state, metrics, actor))
        return Chunk(state, chunk.count + 1, jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in checked])), rows)

    return jax.lax.while_loop(unfinished, body, Chunk(state, jnp.int32(0), jnp.bool_(True), rows))


def _watched(state: PyTree, metrics: dict[str, Array], actor: Callable) -> dict[str, PyTree]:
    """What must stay finite, by the name that an error gives it."""
    return {
        **{name: value for name, value in metrics.items() if "loss" in name or "grad" in name},
        "params": _floats(actor(state.agent)),
        "observations": _floats(state.envs.obs),
        "rewards": [state.envs.episode_return, jnp.where(metrics["lengths"] > 0, metrics["returns"], 0.0)],
    }


def blame(program: Program, before: PyTree, chunk: Chunk) -> str:
    """What was not finite in the last update of a chunk, with its environment and seed where it has one.

    Args:
      program: what made the chunk.
      before: the TrainState before that update, which is finite.
      chunk: the one that ended with it.
    """

    def again(state: PyTree) -> dict[str, PyTree]:
        actor, run = program.agent.actor(state.agent), program.config.run
        *_, rollout_keys = step_keys(state.key, run.num_steps, run.num_envs)
        seen = training.rollout(
            program.agent, program.env, program.params, actor, state.envs, rollout_keys, run.num_steps
        )
        return {"obs": _floats((seen[1].obs, seen[1].next_obs)), "reward": [seen[1].reward]}

    last = jax.tree.map(lambda x: np.asarray(x[chunk.count - 1]), chunk.metrics)
    rollout = (
        {} if program.config.run.dataset else jax.jit(program._over_seeds(again))(before)
    )  # leaves [T, N, ...], or [S, T, N, ...]
    for name, value in (rollout | _watched(chunk.state, last, program.agent.actor)).items():
        for leaf in jax.tree.leaves(value):
            bad = np.argwhere(~np.isfinite(np.asarray(leaf, np.float64)))
            if not len(bad):
                continue
            *seed, rest = ([bad[0][0]] if program.batched else []) + [bad[0][program.batched :]]
            environment = f" of environment {rest[1]}" if name in rollout else ""
            return name + environment + (f" of seed {program.seeds[seed[0]]}" if seed else "")
    return "a quantity"


def _floats(tree: PyTree) -> list[Array]:
    return [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
