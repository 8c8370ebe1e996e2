"""Distributions of every kind with random parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlkit.ops.distributions import Categorical, DiagNormal, MultiDiscrete, TanhNormal

KEY = jax.random.key(0)
NVEC = (2, 3, 4)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def finite(*trees) -> bool:
    return all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(trees))


def example(name: str, seed: int = 0, batch: tuple[int, ...] = (3,), dtype=np.float32):
    """A distribution of each kind, with random parameters."""
    a, b = (normal(*batch, 9, seed=seed + i).astype(dtype) for i in (0, 1))
    return {
        "Categorical": lambda: Categorical(a),
        "MultiDiscrete": lambda: MultiDiscrete(a, NVEC),
        "DiagNormal": lambda: DiagNormal(a[..., :2], np.exp(b[..., :2])),
        "TanhNormal": lambda: TanhNormal(a[..., :2], np.exp(b[..., :2]), dtype(-2.0), np.array([1.0, 3.0], dtype)),
    }[name]()


every_kind = pytest.mark.parametrize("name", ["Categorical", "MultiDiscrete", "DiagNormal", "TanhNormal"])
