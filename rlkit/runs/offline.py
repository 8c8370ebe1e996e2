"""Runs that learn from a dataset alone, and the datasets that a trained policy leaves."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlkit import training
from rlkit.runs import dataset_files
from rlkit.runs.datasets import Dataset
from rlkit.types import Agent, ConfigError, Env, PyTree, Transition

_ROWS = 1 << 16  # steps that go to a buffer at a time, or are collected at a time


def check(config: Any, dataset: Dataset, agent: Agent, env: Env, params: Any) -> None:
    """Raise a ConfigError where a dataset does not fit the agent, its buffer, or the environment's spaces."""
    name, source = config.run.agent, config.run.dataset
    if agent.learn is None:
        raise ConfigError(f"dataset={source!r} is nothing for agent={name!r}, which has no buffer; use iql or td3_bc")
    if config.agent.capacity < dataset.size:
        raise ConfigError(
            f"capacity={config.agent.capacity} must hold the {dataset.size} steps of dataset={source!r}; "
            f"try {dataset.size}"
        )
    if config.agent.capacity % dataset.num_envs:
        near = -(-config.agent.capacity // dataset.num_envs) * dataset.num_envs
        raise ConfigError(
            f"capacity={config.agent.capacity} must be a multiple of the {dataset.num_envs} streams of "
            f"dataset={source!r}; try {near}"
        )
    key = jax.eval_shape(lambda: jax.random.key(0))
    for field, space in (("obs", env.observation_space(params)), ("action", env.action_space(params))):
        expected = jax.eval_shape(space.sample, key)
        found = jax.tree.map(lambda x: x[0, 0], getattr(dataset.steps, field))
        if _says(expected) != _says(found):
            raise ConfigError(
                f"dataset={source!r} must hold {field} of {_says(expected)}, as {config.run.env} has, and it holds "
                f"{_says(found)}; collect it from this environment"
            )


def _says(tree: PyTree) -> str:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    parts = [f"{jax.tree_util.keystr(path)} {leaf.dtype}{list(leaf.shape)}".strip() for path, leaf in leaves]
    return ", ".join(parts)


def fill(agent: Agent, state: PyTree, dataset: Dataset, *, batched: bool) -> PyTree:
    """An agent's state, or those of several seeds, with all of a dataset in its buffer."""
    assert agent.add is not None
    add = jax.jit(jax.vmap(agent.add, (0, None)) if batched else agent.add, donate_argnums=0)
    for rows in dataset.chunks(max(_ROWS // dataset.num_envs, 1)):
        try:
            state = add(state, jax.tree.map(jnp.asarray, rows._replace(extras=())))
        except ValueError as error:
            raise ConfigError(
                f"a dataset does not fit this agent, which wants more than transitions: {error}"
            ) from None
    return state


def collect(
    run: str | Path,
    num_steps: int,
    out: str | Path | None = None,
    *,
    num_envs: int = 16,
    greedy: bool = False,
    checkpoint: int | None = None,
    seed: int = 0,
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

    Returns:
      The folder.

    Raises:
      ConfigError: there is no such run or checkpoint, a number is out of range, or the folder exists.
    """
    from rlkit.runs import files
    from rlkit.runs.policy import load_state

    for name, value in (("steps", num_steps), ("num_envs", num_envs)):
        if value < 1:
            raise ConfigError(f"{name}={value} must be at least 1")
    path = files.open_run(run)
    program, state, step = load_state(path, checkpoint)
    if program.batched:
        state = jax.tree.map(lambda x: x[0], state)
    agent = program.agent._replace(act=program.agent.policy) if greedy else program.agent
    actor = program.agent.actor(state.agent)
    envs_key, key = jax.random.split(jax.random.key(seed))
    rows = -(-num_steps // num_envs)
    length = min(rows, max(_ROWS // num_envs, 1))

    @jax.jit
    def advance(envs: PyTree, key: Any) -> tuple[PyTree, Transition]:
        envs, rollout, _ = training.rollout(agent, program.env, program.params, actor, envs, key, length)
        return envs, rollout._replace(extras=())

    envs = jax.jit(lambda key: training.reset(agent, program.env, program.params, key, num_envs))(envs_key)
    folder = Path(out) if out is not None else path / "dataset"
    shapes = jax.eval_shape(advance, envs, key)[1]
    example = jax.tree.map(lambda x: np.zeros(x.shape[2:], x.dtype), shapes)
    about: dict[str, Any] = {"env": program.config.run.env, "agent": program.config.run.agent, "step": step}
    with dataset_files.writer(folder, example, num_envs, extra=about | {"greedy": greedy, "seed": seed}) as writer:
        for first in range(0, rows, length):
            envs, rollout = jax.device_get(advance(envs, jax.random.fold_in(key, first)))
            left = min(length, rows - first)
            writer.add(jax.tree.map(lambda x, left=left: x[:left], rollout))
    return folder
