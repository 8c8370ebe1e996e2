"""Runs that several processes train together, or one with as many devices: `FOLDER CASE NUMBER [PORT INDEX]`."""

import os
import sys
from pathlib import Path

import jax
import pytest

import rlkit
from rlkit import runs

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
from conftest import set_if_known

PPO = {"agent": "ppo", "env": "CartPole-v1", "num_envs": 8, "num_steps": 8, "total_steps": 512, "log_every": 128}
DQN = {"agent": "dqn", "env": "CartPole-v1", "num_envs": 4, "num_steps": 4, "total_steps": 640, "log_every": 160} | {
    "replay": "prioritized",
    "capacity": 320,
    "learning_starts": 64,
    "batch_size": 32,
    "hidden_sizes": [16],
}
SAC = {"agent": "sac", "env": "Pendulum-v1", "num_envs": 4, "num_steps": 4, "total_steps": 160, "log_every": 80} | {
    "capacity": 320,
    "learning_starts": 64,
    "batch_size": 32,
    "hidden_sizes": [16],
}
GYMNASIUM = {"env": "gymnasium:CartPole-v1", "num_envs": 4, "num_workers": 1, "overlap": False}
COMMON = {"eval_episodes": 2, "eval_every": 160, "keep_best": True, "checkpoint_every": 160}
CONFIGS = {
    "two": {
        "ppo_seeds": PPO | COMMON | {"num_seeds": 3},  # which two devices do not divide
        "dqn_data": DQN | COMMON | {"devices": "all"},
    },
    "four": {"dqn_seeds": DQN | COMMON | {"num_seeds": 4}, "sac_data": SAC | COMMON | {"devices": "all"}},
    "hosts": {
        "ppo_hosts": PPO | COMMON | GYMNASIUM | {"devices": "all"},
        "dqn_hosts": DQN | COMMON | GYMNASIUM | {"devices": "all"},
    },
}
RESUMED = {"two": "dqn_data", "hosts": "dqn_hosts"}


def main(folder: Path, case: str, number: int, port: int | None = None, index: int = 0) -> None:
    """Train the configs of a case, then resume one, in `number` processes, or in one with as many devices."""
    if port is None:
        rlkit.use_cpu_cores(number)
    else:
        rlkit.use_cpu_cores(1)
        jax.distributed.initialize(f"127.0.0.1:{port}", number, index, coordinator_bind_address=f"127.0.0.1:{port}")
    set_if_known("jax_compilation_cache_dir", os.environ.get("RLKIT_TEST_PROGRAMS"))
    for name, config in CONFIGS[case].items():
        trained = runs.train(config, out=folder / name, show=False)
        assert trained.run == folder / name
        assert trained.evaluation is not None
    if case in RESUMED:
        runs.resume(folder / RESUMED[case], overrides={"total_steps": 2 * DQN["total_steps"]}, show=False)
    if case == "two":
        own = iter([False, index == 0, False])  # of the first process, this ends the run
        config = CONFIGS["two"]["ppo_seeds"]
        trained = runs.train(config, lambda line, state: next(own), out=folder / "stopped", show=False)
        assert trained.state.step.tolist() == [4, 4, 4], trained.state.step
    for refused, field in (
        (PPO | {"num_envs": 9, "devices": "all"}, "num_envs=9"),
        (PPO | GYMNASIUM | {"num_seeds": 2}, "num_seeds=2 with env='gymnasium:CartPole-v1' needs one process"),
        (PPO | {"devices": 1, "num_seeds": 2}, "devices=1 must be auto"),
    ):
        if port is not None:
            with pytest.raises(rlkit.ConfigError, match=field):
                runs.train(refused, out=folder / "refused", show=False)
    print("done", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:]))
