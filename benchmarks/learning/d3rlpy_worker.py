"""d3rlpy's offline agents in a process of their own, for offline.py."""

import sys
from pathlib import Path
from typing import Any

import d3rlpy
import gymnasium
import numpy as np
import torch
from d3rlpy.models import VectorEncoderFactory
from d3rlpy.preprocessing import StandardObservationScaler

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common.workers import serve

PACKAGES = ("d3rlpy", "torch", "gymnasium", "mujoco", "numpy")


def configured(name: str, keys: dict[str, Any]) -> Any:
    """The config of an agent with the settings that `keys`, those of rlkit's agent, have as well."""
    encoder = VectorEncoderFactory(keys["hidden_sizes"], use_layer_norm=keys["layer_norm"])
    norm = keys.get("critic_layer_norm")
    of_critics = VectorEncoderFactory(keys["hidden_sizes"], use_layer_norm=keys["layer_norm"] if norm is None else norm)
    shared = {"batch_size": keys["batch_size"]}
    if keys["normalize_obs"]:
        shared["observation_scaler"] = StandardObservationScaler()
    if name == "BC":
        config = d3rlpy.algos.BCConfig
        return config(learning_rate=keys["learning_rate"], encoder_factory=encoder, **shared)
    shared |= {"gamma": keys["gamma"], "tau": keys["tau"]}
    shared |= dict.fromkeys(("actor_learning_rate", "critic_learning_rate"), keys["learning_rate"])
    shared |= {"actor_encoder_factory": encoder, "critic_encoder_factory": of_critics}
    if name == "IQL":
        config, own = d3rlpy.algos.IQLConfig, {"expectile": keys["expectile"], "value_encoder_factory": encoder}
        return config(weight_temp=keys["advantage_weight"], **own, **shared)
    config, own = d3rlpy.algos.ReBRACConfig, {"actor_beta": keys["actor_bc"], "critic_beta": keys["critic_bc"]}
    return config(**own, **shared)


class Learner:
    def learn(self, name: str, data: str, env_id: str, keys: dict[str, Any], episodes: int, seed: int) -> float:
        """Learn from the steps in an archive: the mean return of greedy episodes in the environment."""
        d3rlpy.seed(seed)
        torch.set_num_threads(1)  # with networks of this size more threads wait for each other
        steps = np.load(data)
        env = gymnasium.make(env_id)
        bound = env.action_space.high
        dataset = d3rlpy.dataset.MDPDataset(
            steps["obs"],
            steps["action"] / bound,
            steps["reward"],
            steps["terminated"].astype(np.float32),
            steps["truncated"].astype(np.float32),
            action_space=d3rlpy.ActionSpace.CONTINUOUS,
        )
        agent = configured(name, keys).create(device="cpu:0")
        quiet = {"show_progress": False, "logger_adapter": d3rlpy.logging.NoopAdapterFactory()}
        agent.fit(dataset, n_steps=keys["total_steps"], n_steps_per_epoch=keys["total_steps"], **quiet)
        returns = []
        for episode in range(episodes):
            obs, _ = env.reset(seed=episode)
            total, over = 0.0, False
            while not over:
                action = agent.predict(obs[None].astype(np.float32))[0]
                obs, reward, terminated, truncated, _ = env.step(np.clip(action, -1, 1) * bound)
                total, over = total + float(reward), terminated or truncated
            returns.append(total)
        return float(np.mean(returns))


if __name__ == "__main__":
    serve(Learner(), PACKAGES)
