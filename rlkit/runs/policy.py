"""A trained policy from a run directory, ready to act."""

from pathlib import Path
from typing import Any, NamedTuple

import jax

from rlkit.hosts.placeholder import HostEnv
from rlkit.runs import files
from rlkit.runs.checkpoints import checkpoint
from rlkit.runs.config.run_config import RunConfig, load_config, read
from rlkit.runs.programs.host_program import HostProgram
from rlkit.runs.programs.host_program import program as make_program
from rlkit.runs.programs.jax_program import Program
from rlkit.types import ConfigError, Env, Key, PyTree


class Policy(NamedTuple):
    """A policy, what it acts with, and the environment that it was trained in."""

    policy: Any  # (actor, memory, obs, key) -> memory, action, extras; pure, for one observation
    actor: PyTree  # parameters and statistics
    memory: PyTree  # the policy's memory at the start of an episode
    env: Env | HostEnv  # the latter only knows its spaces
    params: Any  # of the environment
    config: RunConfig
    step: int  # environment steps learned from

    def act(self, obs: PyTree, key: Key, memory: PyTree = None) -> tuple[PyTree, PyTree]:
        """One greedy action for one observation: -> action, memory. Pass the memory back at the next step."""
        memory, action, _ = self.policy(self.actor, self.memory if memory is None else memory, obs, key)
        return action, memory


def load(run: str | Path, *, seed: int | None = None, step: int | None = None, env: str | None = None) -> Policy:
    """The policy of a run, ready to act.

        agent = rlkit.load("runs/ppo-cartpole")
        obs, state = agent.env.reset(jax.random.key(0), agent.params)
        action, memory = agent.act(obs, jax.random.key(1))

    Args:
      run: a run directory.
      seed: which seed's policy, where the run has several; None for the first.
      step: of the checkpoint; None for the newest whole one.
      env: the run's environment once more, where it is code of one's own, `module:Class`.

    Raises:
      ConfigError: there is no such run, checkpoint or seed.
    """
    program, state, step = load_state(files.open_run(run), step, env)
    program.close()
    settings = program.config.run
    first, seeds = settings.seed, range(settings.seed, settings.seed + settings.num_seeds)
    if seed is not None and seed not in seeds:
        raise ConfigError(f"seed={seed!r} must be one of the run's, {first} to {seeds[-1]}; try {first}")
    if program.batched:
        index = (seed if seed is not None else first) - first
        state = jax.tree.map(lambda x: x[index], state)
    return Policy(
        policy=jax.jit(program.agent.policy),
        actor=program.agent.actor(state.agent),
        memory=program.agent.memory,
        env=program.env,
        params=program.params,
        config=program.config,
        step=step,
    )


def stored(run: Path, env: str | None = None) -> RunConfig:
    """The config of a run. `env` names its environment again, where that is code of one's own.

    Raises:
      ConfigError: it is needed and not given, or it is another one than the run was made with.
    """
    path = run / files.CONFIG
    named = read(path).get("env")
    if env is not None and env != named:
        raise ConfigError(f"env={env!r} must be that of run={str(run)!r}, {named!r}; leave it out or give that one")
    return load_config(path, {} if env is None else {"env": env})


def load_state(run: Path, step: int | None = None, env: str | None = None) -> tuple[Program | HostProgram, PyTree, int]:
    """The program of a run, the state of a checkpoint of it, and its step. `env` as in `stored`."""
    program = make_program(stored(run, env), streams(run))
    state, step, _ = checkpoint.restore(run, program.template, step)
    return program, state, step


def streams(run: Path) -> int | None:
    """How many streams the dataset has that a run learns from; None where it has none, or no checkpoint says so."""
    found = checkpoint.remembered(run).get("streams")
    return found if type(found) is int and 0 < found < 2**31 else None
