"""What runs that learn from a dataset alone do with it."""

from typing import Any

import jax
import jax.numpy as jnp

from rlkit.runs.datasets import Dataset
from rlkit.types import Agent, ConfigError, Env, PyTree

_ROWS = 1 << 16  # steps that go to a buffer at a time


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
