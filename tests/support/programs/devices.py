"""Agents, runs and comparisons for programs on simulated devices, over which environments and batches are divided."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh

from rlkit import envs, training

N = 8  # environments
SGD = {"hidden_sizes": (8,), "optimizer": "sgd"}
OFF_POLICY = SGD | {"capacity": 512, "batch_size": 16, "learning_starts": 16, "replay_ratio": 0.0625}


def mesh(devices):
    return Mesh(np.array(jax.devices()[:devices]), ("data",), axis_types=(AxisType.Auto,))


def close(a, b, name, **tolerance):
    """Compare two trees, with keys as numbers."""
    paths, structure = jax.tree_util.tree_flatten_with_path(b)
    assert jax.tree.structure(a) == structure, name
    for x, (path, y) in zip(jax.tree.leaves(a), paths, strict=True):
        if jnp.issubdtype(y.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        message = f"{name} {jax.tree_util.keystr(path)}"
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), err_msg=message, **tolerance)


def make(module, name, settings, axis_name=None, networks=None, num_envs=N, **sizes):
    env, params = envs.make(name)
    config = module.Config(**settings)
    spaces = env.observation_space(params), env.action_space(params)
    agent = module.make(config, *spaces, networks, axis_name=axis_name)
    return agent, training.make(agent, env, params, num_envs=num_envs, num_steps=8, **sizes)


def run(pair, hyper, steps):
    state, all_metrics = jax.jit(pair.init)(hyper, jax.random.key(0)), []
    step = jax.jit(pair.step, donate_argnums=0)
    for _ in range(steps):
        state, metrics = step(state)
        all_metrics.append(metrics)
    return state, all_metrics


def main(programs):
    """Run the programs that the command line names, on 8 devices."""
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_disable_most_optimizations", True)
    assert jax.device_count() == 8, jax.devices()
    for name in sys.argv[1:]:
        programs[name]()
        print("agrees:", name, flush=True)
