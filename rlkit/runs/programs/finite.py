"""Quantities that must stay finite during training."""

import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.runs.config.run_config import RunConfig
from rlkit.training.rollout import EnvsState
from rlkit.types import Agent, Array, PyTree

_HUGE_REWARD = 1e6  # mean absolute reward of a step from which losses are likely to overflow


def declared(agent: Agent, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics that an agent declares as finite."""
    return {name: metrics[name] for name in agent.finite}


def floats(tree: PyTree) -> list[Array]:
    """Return the leaves of a tree that hold floating-point numbers."""
    return [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]


def all_finite(tree: PyTree) -> Array:
    """Return [] bool, True where all numbers of all leaves are finite."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


def watched(agent: Agent, state: PyTree, metrics: dict[str, Array]) -> dict[str, PyTree]:
    """Quantities that must stay finite, by the names that errors give them."""
    quantities: dict[str, PyTree] = {**declared(agent, metrics), "params": floats(agent.actor(state.agent))}
    if isinstance(state.envs, EnvsState):
        rewards = [state.envs.episode_return, jnp.where(metrics["lengths"] > 0, metrics["returns"], 0.0)]
        quantities |= {"observations": floats(state.envs.obs), "rewards": rewards}
    return quantities


def update_is_finite(agent: Agent, state: PyTree, metrics: Mapping[str, Any]) -> Array:
    """Return [] bool, True where the declared metrics and the actor are finite after an update."""
    return all_finite([*declared(agent, metrics).values(), *floats(agent.actor(state))])


def name_non_finite(agent: Agent, metrics: Mapping[str, Any]) -> str:
    """Return the name of the first declared metric that is not finite; "params" where all are."""
    for name, value in declared(agent, metrics).items():
        if not np.isfinite(value).all():
            return name
    return "params"


def largest_reward(metrics: Mapping[str, Any]) -> float:
    """Return the largest |reward_mean| of a chunk's updates and seeds; 0 for one without rewards, as of a dataset."""
    means = np.abs(np.asarray(metrics.get("reward_mean", 0.0), np.float64))
    return float(np.max(means, initial=0.0, where=~np.isnan(means)))


def remedy(quantity: str, config: RunConfig, reward: float) -> str:
    """Return the likely cause of a quantity that is not finite, with a remedy that the run has not taken already.

    Args:
      quantity: named as by a program's `name_non_finite`.
      config: of the run.
      reward: `largest_reward` of its last updates.
    """
    is_observation = re.match(r"(env='.*': )?obs", quantity)  # of environments in JAX or outside of it
    if reward > _HUGE_REWARD and not is_observation:
        return f"rewards are the likely cause, with a mean of {reward:.3g} in size: {_smaller_rewards(config)}"
    if " of environment " in quantity or quantity.startswith(("observations", "rewards")):
        checked = "" if config.run.env_check else ", and train with env_check: true"
        return f"it came from the environment: look for a bug in its reset and step{checked}"
    return "a smaller learning_rate or max_grad_norm may help"


def _smaller_rewards(config: RunConfig) -> str:
    """The remedies for huge rewards that the agent and the environment of a config have."""
    env = config.run.env
    remedies = ["normalize_reward: true"] if getattr(config.agent, "normalize_reward", None) is False else []
    if not env.startswith(("ale:", "envpool:")):  # those take no wrappers
        remedies.append('wrappers: ["clip_reward:-1,1"] or ["scale_reward:FACTOR"]')
    return "; or ".join(remedies) or "scale them in the environment"
