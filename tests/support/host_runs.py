"""Small configs of runs in environments outside of JAX, and what such a run wrote."""

from pathlib import Path

import yaml

from rlkit.runs import metrics

PPO = {
    "agent": "ppo",
    "env": "host_envs:Target",
    "num_envs": 4,
    "num_steps": 16,
    "total_steps": 1920,
    "hidden_sizes": [16],
    "learning_rate": 0.02,
    "num_minibatches": 2,
    "eval_episodes": 8,
    "num_workers": 2,
}
BRIEF = {  # two updates
    "agent": "ppo",
    "env": "host_envs:Target",
    "num_envs": 2,
    "num_steps": 4,
    "total_steps": 16,
    "hidden_sizes": [4],
    "num_epochs": 1,
    "num_minibatches": 1,
    "eval_episodes": 1,
    "backend": "serial",
}
DQN = {
    "agent": "dqn",
    "env": "host_envs:Target",
    "num_envs": 2,
    "num_steps": 8,
    "total_steps": 1024,
    "hidden_sizes": [16],
    "capacity": 512,
    "batch_size": 16,
    "learning_starts": 64,
    "eval_episodes": 4,
    "backend": "serial",
}


def lines(run):
    return metrics.read(Path(run))


def config(tmp_path, **values):
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(PPO | values))
    return path
