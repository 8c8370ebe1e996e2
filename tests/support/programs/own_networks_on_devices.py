"""Networks of the user's own that keep statistics, trained with two seeds on one device and on two."""

import sys
import tempfile
from pathlib import Path

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
from devices import close
from flax import nnx

from rlkit import runs
from rlkit.types import Network

CONFIG = {
    "agent": "ppo",
    "env": "CartPole-v1",
    "num_envs": 4,
    "num_steps": 8,
    "total_steps": 64,
    "num_minibatches": 1,
    "num_epochs": 1,
    "eval_episodes": 2,
    "num_seeds": 2,
}


class Linen(nn.Module):
    @nn.compact
    def __call__(self, obs, train=False):
        x = nn.tanh(nn.BatchNorm(use_running_average=not train)(nn.Dense(8)(obs)))
        return nn.Dense(2)(x), nn.Dense(1)(x)[..., 0]


class NNX(nnx.Module):
    def __init__(self, rngs):
        self.dense, self.norm = nnx.Linear(4, 8, rngs=rngs), nnx.BatchNorm(8, rngs=rngs)
        self.policy, self.value = nnx.Linear(8, 2, rngs=rngs), nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, obs):
        x = nnx.tanh(self.norm(self.dense(obs)))
        return self.policy(x), self.value(x)[..., 0]


class Equinox(eqx.Module):
    dense: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    policy: eqx.nn.Linear
    value: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 3)
        self.dense, self.norm = eqx.nn.Linear(4, 8, key=keys[0]), eqx.nn.BatchNorm(8, "batch", mode="ema")
        self.policy, self.value = eqx.nn.Linear(8, 2, key=keys[1]), eqx.nn.Linear(8, 1, key=keys[2])

    def __call__(self, obs, state):
        x, state = self.norm(self.dense(obs), state)
        x = jnp.tanh(x)
        return (self.policy(x), self.value(x)[0]), state


def functions(obs_space, action_space):
    """A pair of functions with a count of its calls in training."""

    def init(key, obs):
        return {"w": jax.random.normal(key, (4, 3))}, {"calls": jnp.zeros((), jnp.int32)}

    def apply(params, stats, obs, train=False, key=None):
        out = obs @ params["w"]
        return (out[..., :2], out[..., 2]), {"calls": stats["calls"] + 1} if train else stats

    return Network(init, apply)


MAKE = {
    "linen": lambda obs_space, action_space: Linen(),
    "nnx": lambda obs_space, action_space: NNX,
    "equinox": lambda obs_space, action_space: Equinox,
    "functions": functions,
}


def main():
    jax.config.update("jax_num_cpu_devices", 2)
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:]:
            values = CONFIG | {"network": MAKE[name]}
            one, two = (
                runs.train(values | {"devices": count}, out=Path(folder) / f"{name}{count}", show=False).state.agent
                for count in (1, 2)
            )
            close(two.stats, one.stats, name, rtol=1e-4, atol=1e-5)
            close(two.params, one.params, name, rtol=1e-4, atol=1e-5)
            print("agrees:", name, flush=True)


if __name__ == "__main__":
    main()
