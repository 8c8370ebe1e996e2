"""The datasets that a trained policy leaves."""

from collections.abc import Generator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rlkit import training
from rlkit.hosts.collect import Collector, NotFinite
from rlkit.runs import files
from rlkit.runs.datasets import storage
from rlkit.runs.policy import load_state
from rlkit.runs.programs.host_program import HostProgram
from rlkit.runs.programs.jax_program import Program
from rlkit.spaces import shape_of
from rlkit.types import Agent, ConfigError, PyTree, Transition

_STEPS, _BYTES = 1 << 16, 1 << 28  # that are collected at a time, at most


def collect(
    run: str | Path,
    num_steps: int,
    out: str | Path | None = None,
    *,
    num_envs: int = 16,
    greedy: bool = False,
    checkpoint: int | None = None,
    seed: int = 0,
    env: str | None = None,
) -> Path:
    """Write a dataset of transitions that a run's policy makes.

    Args:
      run: a run directory.
      num_steps: steps of all environments together, rounded up to a multiple of their number.
      out: the dataset's folder; None for RUN/dataset.
      num_envs: environments side by side.
      greedy: whether to act as in evaluation; else it explores as in training.
      checkpoint: the step of the checkpoint to take; None for the newest.
      seed: of the environments and of the exploration. Of a run with several seeds, the first seed's policy acts.
      env: the run's environment once more, where it is code of one's own, `module:Class`.

    Returns:
      The folder.

    Raises:
      ConfigError: there is no such run or checkpoint, a number is out of range, the folder exists or has no plain name,
        or an environment outside of JAX gives a number that is not finite.
      HostError: such an environment fails.
    """
    for name, value in (("steps", num_steps), ("num_envs", num_envs)):
        if value < 1:
            raise ConfigError(f"{name}={value} must be at least 1")
    path = files.open_run(run)
    folder = Path(out) if out is not None else path / "dataset"
    if not files.NAME.fullmatch(folder.name):
        raise ConfigError(f"out={str(out)!r} must end in a name of letters, digits, . _ and -; try offline/first")
    program, state, step = load_state(path, checkpoint, env)
    with closing(program):
        if program.batched:
            state = jax.tree.map(lambda x: x[0], state)
        agent = program.agent._replace(act=program.agent.policy) if greedy else program.agent
        actor = program.agent.actor(state.agent)
        rows = -(-num_steps // num_envs)
        at_once = min(_STEPS, _BYTES // _step_bytes(program))
        length = min(rows, max(at_once // num_envs, 1))
        if isinstance(program, HostProgram):
            made = _on_hosts(program, agent, actor, num_envs, length, seed)
        else:
            made = _in_jax(program, agent, actor, num_envs, length, seed)
        about: dict[str, Any] = {"env": program.config.run.env, "agent": program.config.run.agent, "step": step}
        example = jax.tree.map(lambda x: np.zeros(x.shape[2:], x.dtype), next(made))
        with storage.writer(folder, example, num_envs, extra=about | {"greedy": greedy, "seed": seed}) as writer:
            for first in range(0, rows, length):
                left = min(length, rows - first)
                writer.add(jax.tree.map(lambda x, left=left: x[:left], next(made)))
        made.close()
    return folder


def _step_bytes(program: Program | HostProgram) -> int:
    """What a transition takes: two observations and an action; pictures are large."""
    obs, action = program.env.observation_space(program.params), program.env.action_space(program.params)
    shapes = shape_of(obs), shape_of(obs), shape_of(action)
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shapes))


def _in_jax(
    program: Program, agent: Agent, actor: PyTree, num_envs: int, length: int, seed: int
) -> Generator[Transition, None, None]:
    """The shapes of a rollout [T, N, ...], then one rollout after the other."""
    envs_key, key = jax.random.split(jax.random.key(seed))

    @jax.jit
    def advance(envs: PyTree, key: Any) -> tuple[PyTree, Transition]:
        envs, rollout, _ = training.rollout(agent, program.env, program.params, actor, envs, key, length)
        return envs, rollout._replace(extras=())

    envs = jax.jit(lambda key: training.reset(agent, program.env, program.params, key, num_envs))(envs_key)
    yield jax.eval_shape(advance, envs, key)[1]
    for first in count(0, length):
        envs, rollout = jax.device_get(advance(envs, jax.random.fold_in(key, first)))
        yield rollout


def _on_hosts(
    program: HostProgram, agent: Agent, actor: PyTree, num_envs: int, length: int, seed: int
) -> Generator[Transition, None, None]:
    """As `_in_jax`, in an environment outside of JAX."""
    with closing(program.new_pool(num_envs)) as pool:
        # An episode that a failing worker breaks off is marked, since the last step is held back until that is known.
        collector = Collector(agent, pool, num_steps=length, device=program.device, hold=True)
        collector.compile(actor, jax.random.key(0))
        yield collector.shapes()._replace(extras=())
        collector.begin(seed)
        for first in count(0, length):
            key = jax.random.fold_in(jax.random.key(seed), first)
            try:
                found = collector.collect(actor, key)
            except NotFinite as error:
                raise ConfigError(f"env={pool.name!r}: {error} must be finite in a dataset; mend it") from None
            yield found.transitions._replace(extras=())
