"""Quantities that must stay finite during training."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.types import Array, PyTree


def losses_and_gradients(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics that are losses or norms of gradients."""
    return {name: value for name, value in metrics.items() if "loss" in name or "grad" in name}


def floats(tree: PyTree) -> list[Array]:
    """Return the leaves of a tree that hold floating-point numbers."""
    return [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]


def all_finite(tree: PyTree) -> Array:
    """Return [] bool, True where all numbers of all leaves are finite."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


def update_is_finite(metrics: Mapping[str, Any], actor: PyTree) -> Array:
    """Return [] bool, True where losses, gradients and the actor are finite after an update."""
    return all_finite([*losses_and_gradients(metrics).values(), *floats(actor)])


def name_non_finite(metrics: Mapping[str, Any]) -> str:
    """Return the name of the first loss or gradient that is not finite; "params" where all are."""
    for name, value in losses_and_gradients(metrics).items():
        if not np.isfinite(value).all():
            return name
    return "params"


def remedy(quantity: str) -> str:
    """Return a remedy for a quantity that is not finite, named as by a program's `name_non_finite`."""
    if " of environment " in quantity or quantity.startswith(("observations", "rewards")):
        return "it came from the environment: look for a bug in its reset and step, and train with env_check: true"
    return "a smaller learning_rate or max_grad_norm may help"
