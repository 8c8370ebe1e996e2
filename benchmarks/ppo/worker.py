"""One library's PPO in a process of its own, for run.py: `python worker.py rlkit|bare|rejax`.

The protocol is that of `workers.serve`: {"compile": [num_envs, updates]} and {"run": [seed]} return their seconds, and
a run also the environment steps that the program itself has counted. The libraries need different versions of gymnax,
so each is imported only in its own process.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common.trainer import PACKAGES, Train, Trainer
from common.workers import serve

NUM_STEPS, NUM_EPOCHS, NUM_MINIBATCHES, HIDDEN = 128, 4, 4, (64, 64)
HYPER = {"learning_rate": 1e-3, "gamma": 0.99, "gae_lambda": 0.95, "clip_eps": 0.2, "vf_coef": 0.5, "ent_coef": 0.0}
MAX_GRAD_NORM = 0.5
REJAX_ALWAYS = {"vf_clip_eps": 0.2, "adam_eps": 1e-8}  # fixed in rejax


def rlkit(num_envs: int, updates: int, with_metrics: bool = True) -> tuple[Train, Callable[[Any], int]]:
    import jax
    import jax.numpy as jnp

    from rlkit import envs, training
    from rlkit.agents import ppo

    env, params = envs.make("CartPole-v1")
    config = ppo.Config(hidden_sizes=HIDDEN, activation="tanh", num_epochs=NUM_EPOCHS, num_minibatches=NUM_MINIBATCHES)
    agent = ppo.make(config, env.observation_space(params), env.action_space(params))
    hyper = ppo.Hyper(max_grad_norm=MAX_GRAD_NORM, **HYPER, **REJAX_ALWAYS)
    init, step = training.make(agent, env, params, num_envs=num_envs, num_steps=NUM_STEPS)

    def train(key):
        def update(state, _):
            state, metrics = step(state)
            scalars = [x.astype(jnp.float32) for x in metrics.values() if x.ndim == 0]
            return state, jnp.stack(scalars) if with_metrics else None  # rejax has none

        return jax.lax.scan(update, init(hyper, key), None, updates)

    return train, lambda out: int(out[0].agent.num_updates) * num_envs * NUM_STEPS


def bare(num_envs: int, updates: int) -> tuple[Train, Callable[[Any], int]]:
    """rlkit without metrics: it returns the state at the end, as rejax does."""
    return rlkit(num_envs, updates, with_metrics=False)


def rejax(num_envs: int, updates: int) -> tuple[Train, Callable[[Any], int]]:
    from rejax import PPO

    steps = num_envs * NUM_STEPS * updates
    algorithm = PPO.create(
        env="CartPole-v1",
        num_envs=num_envs,
        num_steps=NUM_STEPS,
        num_epochs=NUM_EPOCHS,
        num_minibatches=NUM_MINIBATCHES,
        total_timesteps=steps,
        eval_freq=steps,
        skip_initial_evaluation=True,
        agent_kwargs={"activation": "tanh", "hidden_layer_sizes": HIDDEN},
        max_grad_norm=MAX_GRAD_NORM,
        **HYPER,
    ).replace(eval_callback=lambda algorithm, state, key: ())  # its greedy episodes are no part of training
    return lambda key: PPO.train(algorithm, key), lambda out: int(out[0].global_step)


def main() -> None:
    serve(Trainer({"rlkit": rlkit, "bare": bare, "rejax": rejax}[sys.argv[1]]), PACKAGES)


if __name__ == "__main__":
    main()
