"""Arrays for the tests of losses."""

import jax
import jax.numpy as jnp
import numpy as np


def finite(*trees) -> bool:
    return all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(trees))


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)
