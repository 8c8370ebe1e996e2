"""rejax's DQN and PQN in a process of their own, for minatar.py."""

import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common.trainer import PACKAGES
from common.workers import serve

# As in configs/dqn/breakout_minatar.yaml and configs/pqn/breakout_minatar.yaml, where rejax has the setting.
SETTINGS: dict[str, dict[str, Any]] = {
    "dqn": {
        "num_envs": 16,
        "num_epochs": 4,
        "batch_size": 64,
        "buffer_size": 100_000,
        "fill_buffer": 5000,
        "target_update_freq": 16,
        "polyak": 0.98,
        "learning_rate": 5e-4,
        "gamma": 0.99,
        "exploration_fraction": 0.1,
        "eps_end": 0.02,
        "max_grad_norm": 10.0,
    },
    "pqn": {
        "num_envs": 64,
        "num_steps": 32,
        "num_epochs": 2,
        "num_minibatches": 16,
        "td_lambda": 0.65,
        "learning_rate": 5e-4,
        "gamma": 0.99,
        "exploration_fraction": 0.1,
        "eps_end": 0.05,
        "max_grad_norm": 10.0,
    },
}


class Trainer:
    def train(self, algorithm: str, env: str, steps: int, every: int, episodes: int, seed: int) -> dict[str, Any]:
        import jax
        import rejax
        from rejax.evaluate import evaluate

        made = getattr(rejax, algorithm.upper()).create(
            env=env, total_timesteps=steps, eval_freq=every, skip_initial_evaluation=True, **SETTINGS[algorithm]
        )

        def greedy(algorithm: Any, state: Any, key: Any) -> Any:
            act = algorithm.make_act(state)
            # its own evaluation, with an end for episodes that have none
            returns = evaluate(act, key, algorithm.env, algorithm.env_params, episodes, 10_000)[1]
            return state.global_step, returns.mean()

        made = made.replace(eval_callback=greedy)
        begin = time.perf_counter()
        _, (at, returns) = jax.block_until_ready(jax.jit(made.train)(jax.random.key(seed)))
        points = [[int(step), float(value)] for step, value in zip(at, returns, strict=True)]
        return {"points": points, "seconds": time.perf_counter() - begin}


if __name__ == "__main__":
    serve(Trainer(), PACKAGES)
