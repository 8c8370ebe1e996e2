"""Shared by the tests of runs: a tiny config, one folder of compiled programs, and comparisons of two runs."""

import hashlib
import os
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

from rlkit.runs import metrics

SMALL = {
    "agent": "ppo",
    "env": "CartPole-v1",
    "env_kwargs": {"max_steps_in_episode": 20},
    "num_envs": 4,
    "num_steps": 8,
    "total_steps": 320,
    "num_epochs": 1,
    "num_minibatches": 1,
    "hidden_sizes": [8],
    "normalize_obs": True,
    "eval_episodes": 4,
    "checkpoint_every": 96,
    "keep_checkpoints": 10,
}
THREE = SMALL | {"num_seeds": 3, "total_steps": 96, "seed": 5}


@contextmanager
def shared_compilations():
    """Programs of equal shapes, also small ones, are compiled once and kept in the folder of the tests' session."""
    wanted = {
        "jax_compilation_cache_dir": os.environ["RLKIT_TEST_PROGRAMS"],
        "jax_persistent_cache_min_compile_time_secs": 0.0,
    }
    before = {name: getattr(jax.config, name) for name in wanted}
    for name, value in wanted.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


def digest(state):
    total = hashlib.sha256()
    for leaf in jax.tree.leaves(state):
        leaf = jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        total.update(np.asarray(leaf).tobytes())
    return total.hexdigest()


def without_clock(run):
    return [{k: v for k, v in line.items() if k not in ("seconds", "steps_per_second")} for line in metrics.read(run)]
