"""Random rollouts with ends, datasets of them, and their comparison to the bit."""

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.runs import datasets
from rlkit.types import Transition


def rollout(num_rows, num_envs, *, seed=0, first=0, end=0.2):
    """[T, N, ...] arrays whose every step tells its row and environment; nested, six dtypes."""
    random = np.random.default_rng([seed, first])
    row, env = np.meshgrid(first + np.arange(num_rows), np.arange(num_envs), indexing="ij")
    terminated, truncated = random.random((2, num_rows, num_envs)) < end / 2
    half = random.normal(size=(num_rows, num_envs)).astype(jnp.bfloat16)
    obs = {"place": np.stack([row, env], -1).astype(np.int32), "more": [half, np.zeros((num_rows, num_envs, 0, 2))]}
    pixels = np.repeat(row[..., None] % 256, 3, -1).astype(np.uint8)
    after = {"place": obs["place"] + np.array([1, 0], np.int32), "more": obs["more"]}
    return Transition(obs, pixels, row.astype(np.float32), terminated, truncated, after, (None, {"x": row % 7 == 0}))


def example(steps):
    return jax.tree.map(lambda x: x[0, 0], steps)


def write(folder, steps, num_rows=None, **options):
    total, num_envs = steps.reward.shape
    with datasets.writer(folder, example(steps), num_envs, **options) as w:
        for first in range(0, total, num_rows or total):
            w.add(jax.tree.map(lambda x, i=first: x[i : i + (num_rows or total)], steps))
    return datasets.load(folder)


def raw(tree):
    return [(x.dtype, x.shape, np.asarray(x).tobytes()) for x in jax.tree.leaves(tree)]


def same(a, b):
    return jax.tree.structure(a) == jax.tree.structure(b) and raw(a) == raw(b)
