"""One library's off-policy agents in a process of its own, for run.py: `python worker.py rlkit|rejax`.

Its protocol is that of ppo/worker.py, with {"compile": [task, iterations]}. An iteration is one step of all
environments and the gradient steps that follow it, as in rejax.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common.trainer import PACKAGES, Train, Trainer
from common.workers import serve

HIDDEN, CAPACITY, STARTS, TAU, LEARNING_RATE, GAMMA = (64, 64), 100_000, 1000, 0.01, 1e-3, 0.99


class Task(NamedTuple):
    """Settings that both libraries train with."""

    agent: str
    env: str
    num_envs: int
    gradient_steps: int  # of an iteration
    batch_size: int


TASKS = {
    "DQN on CartPole-v1": Task("dqn", "CartPole-v1", 8, 2, 128),
    "SAC on Pendulum-v1": Task("sac", "Pendulum-v1", 4, 4, 256),
}


def rlkit(name: str, iterations: int) -> tuple[Train, Callable[[Any], int]]:
    import jax

    from rlkit import agents, envs, training

    task = TASKS[name]
    module = agents.get(task.agent)
    env, params = envs.make(task.env)
    config = module.Config(
        hidden_sizes=HIDDEN,
        capacity=CAPACITY,
        batch_size=task.batch_size,
        replay_ratio=task.gradient_steps / task.num_envs,
        learning_starts=STARTS,
        target_every=task.num_envs,
    )
    agent = module.make(config, env.observation_space(params), env.action_space(params))
    hyper = module.Hyper(learning_rate=LEARNING_RATE, gamma=GAMMA, tau=TAU)
    init, step = training.make(agent, env, params, num_envs=task.num_envs, num_steps=1)

    def train(key):
        def update(state, _):
            return step(state)[0], None

        return jax.lax.scan(update, init(hyper, key), None, iterations)[0]

    return train, lambda out: int(out.agent.replay.num_steps)


def rejax(name: str, iterations: int) -> tuple[Train, Callable[[Any], int]]:
    import rejax as library

    task = TASKS[name]
    algorithm = getattr(library, task.agent.upper())
    steps = task.num_envs * iterations
    made = algorithm.create(
        env=task.env,
        num_envs=task.num_envs,
        num_epochs=task.gradient_steps,
        batch_size=task.batch_size,
        buffer_size=CAPACITY,
        fill_buffer=STARTS,
        target_update_freq=task.num_envs,
        polyak=1 - TAU,
        learning_rate=LEARNING_RATE,
        gamma=GAMMA,
        max_grad_norm=10.0 if task.agent == "dqn" else float("inf"),
        total_timesteps=steps,
        eval_freq=steps,
        skip_initial_evaluation=True,
        agent_kwargs={"activation": "relu"},  # its layers are HIDDEN by default
    ).replace(eval_callback=lambda algorithm, state, key: ())  # its greedy episodes are no part of training
    return lambda key: algorithm.train(made, key), lambda out: int(out[0].global_step)


if __name__ == "__main__":
    serve(Trainer({"rlkit": rlkit, "rejax": rejax}[sys.argv[1]]), PACKAGES)
