"""One library on Gymnasium environments in a process of its own, for run.py: `python worker.py rlkit|sb3|sbx`.

Its protocol is that of ppo/worker.py: {"prepare": [settings]} makes a PPO trainer, {"run": [iterations]} returns the
seconds of an iteration and of its update; {"bridge": [...]} and {"returns": [...]} are the methods below. The libraries
step the same bare scalar environments of the same Gymnasium, by default one after another in their own process.
"""

import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common.workers import serve

PACKAGES = ("rlkit-jax", "stable-baselines3", "sbx-rl", "torch", "jax", "gymnasium", "mujoco", "numpy")
LEARNING_RATE, GAMMA, GAE_LAMBDA, CLIP, MAX_GRAD_NORM = 1e-3, 0.99, 0.95, 0.2, 0.5
OFF_POLICY = {  # environment, batch size, and the keys that differ from the defaults of both libraries
    "sac": ("HalfCheetah-v5", 256),
    "td3": ("HalfCheetah-v5", 256),
    "dqn": ("CartPole-v1", 128),
}
NEVER = 10**9  # learning_starts, to time the steps before it
SAC = {"learning_rate": 3e-4, "gamma": 0.99, "tau": 0.005, "batch_size": 256, "hidden": (256, 256), "starts": 1000}


class Rlkit:
    """`rlkit train`'s program, called update by update."""

    program: Any = None

    def prepare(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Make PPO; `settings` has env, num_envs, num_steps, num_epochs, num_minibatches and other keys of a config."""
        from rlkit import runs
        from rlkit.runs.programs.host_program import HostProgram

        self.close()
        fixed = {
            "agent": "ppo",
            "total_steps": 10**12,
            "hidden_sizes": [64, 64],
            "activation": "tanh",
            "learning_rate": LEARNING_RATE,
            "gamma": GAMMA,
            "gae_lambda": GAE_LAMBDA,
            "clip_eps": CLIP,
            "max_grad_norm": MAX_GRAD_NORM,
        }
        self.program = HostProgram(runs.parse(fixed | settings))
        self.state = self.program.start()
        assert self.program.note is None, self.program.note
        return {"device": str(self.program.device)}

    def run(self, iterations: int) -> dict[str, Any]:
        """Run some iterations: seconds of one, and means of its metrics."""
        begin = time.perf_counter()
        chunk = self.program.advance(self.state, np.int32(iterations))
        seconds, self.state = time.perf_counter() - begin, chunk.state
        assert int(chunk.count) == iterations
        names = ("update_seconds", "envs_idle", "learner_idle")
        means = {name: float(np.mean(chunk.metrics[name])) for name in names}
        return {"seconds": seconds / iterations, **means}

    def prepare_off_policy(self, agent: str, learns: bool) -> dict[str, Any]:
        """Make an agent that learns after each step of one environment, or that never starts to learn."""
        from rlkit import runs
        from rlkit.runs.programs.host_program import HostProgram

        self.close()
        env, batch_size = OFF_POLICY[agent]
        settings = {
            "agent": agent,
            "env": f"gymnasium:{env}",
            "num_envs": 1,
            "num_steps": 1,
            "total_steps": 10**8,
            "hidden_sizes": list(SAC["hidden"]),
            "batch_size": batch_size,
            "capacity": 100_000,
            "learning_starts": batch_size if learns else NEVER,
            "replay_ratio": 1,
            "learning_rate": SAC["learning_rate"],
            "backend": "serial",
        }
        self.program = HostProgram(runs.parse(settings))
        self.state = self.program.start()
        return {"device": str(self.program.device)}

    def close(self) -> None:
        if self.program is not None:
            self.program.close()
            self.program = None

    def bridge(self, env: str, num_envs: int, kind: str, steps: int) -> dict[str, float]:
        """Seconds for each transition of random actions, by a pool or by one of Gymnasium's vector environments."""
        from rlkit import hosts

        actions = np.random.default_rng(0).integers(0, 2, (steps + 20, num_envs)).astype(np.int64)
        if kind in ("serial", "process", "process, one each"):
            each = {"num_workers": num_envs} if kind == "process, one each" else {}
            envs = hosts.make(f"gymnasium:{env}", num_envs=num_envs, backend=kind.partition(",")[0], **each)
            envs.reset()
            return self._timed(envs, actions, lambda step: int(step.real.sum()))
        mode = gymnasium.vector.AutoresetMode.NEXT_STEP if "next" in kind else gymnasium.vector.AutoresetMode.SAME_STEP
        kwargs = {"autoreset_mode": mode} | ({"context": "spawn"} if kind.startswith("async") else {})
        make = gymnasium.vector.AsyncVectorEnv if kind.startswith("async") else gymnasium.vector.SyncVectorEnv
        envs = make([_Make(env)] * num_envs, **kwargs)
        envs.reset(seed=0)
        # In NEXT_STEP mode, a step after an end is a reset and no transition.
        count = (lambda step: num_envs - int((step[2] | step[3]).sum())) if "next" in kind else lambda step: num_envs
        return self._timed(envs, actions, count)

    def _timed(self, envs: Any, actions: np.ndarray, count: Any) -> dict[str, float]:
        transitions = 0
        for index, action in enumerate(actions):
            if index == 20:
                begin = time.perf_counter()
            step = envs.step(action)
            transitions += count(step) if index >= 20 else 0
        seconds = time.perf_counter() - begin
        envs.close()
        return {"seconds": seconds / transitions}

    def returns(self, env: str, steps: int, seed: int) -> dict[str, Any]:
        """Train SAC as `rlkit train` does: the mean return of 10 greedy episodes, and the seconds of it all."""
        import tempfile

        from rlkit import runs

        settings = {
            "agent": "sac",
            "env": f"gymnasium:{env}",
            "num_envs": 1,
            "num_steps": 1,
            "total_steps": steps,
            "seed": seed,
            "hidden_sizes": list(SAC["hidden"]),
            "batch_size": SAC["batch_size"],
            "capacity": 100_000,
            "learning_starts": SAC["starts"],
            "replay_ratio": 1,
            "learning_rate": SAC["learning_rate"],
            "gamma": SAC["gamma"],
            "tau": SAC["tau"],
            "backend": "serial",
            "eval_episodes": 10,
            "log_every": 1000,
        }
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            trained = runs.train(settings, out=f"{folder}/run", show=False)
        return {"return": trained.evaluation["mean"], "seconds": time.perf_counter() - begin}


class _Make:
    """A function that makes an environment as a pool does, and that can be pickled."""

    def __init__(self, env: str):
        self.env = env

    def __call__(self) -> Any:
        return gymnasium.make(self.env, disable_env_checker=True)


class Peer:
    """Stable-Baselines3, or SBX, which is its version in JAX."""

    def __init__(self, library: str):
        self.library = library

    def prepare(self, settings: dict[str, Any]) -> dict[str, Any]:
        from stable_baselines3.common.vec_env import DummyVecEnv

        num_envs, num_steps = settings["num_envs"], settings["num_steps"]
        env = DummyVecEnv([_Make(settings["env"].removeprefix("gymnasium:"))] * num_envs)
        shared = {
            "n_steps": num_steps,
            "batch_size": num_envs * num_steps // settings["num_minibatches"],
            "n_epochs": settings["num_epochs"],
            "learning_rate": LEARNING_RATE,
            "gamma": GAMMA,
            "gae_lambda": GAE_LAMBDA,
            "clip_range": CLIP,
            "max_grad_norm": MAX_GRAD_NORM,
            "device": "cpu",
            "seed": 0,
        }
        if self.library == "sbx":
            import flax.linen as nn
            from sbx import PPO

            shared["policy_kwargs"] = {"net_arch": [64, 64], "activation_fn": nn.tanh}
        else:
            import torch
            from stable_baselines3 import PPO

            torch.set_num_threads(1)  # two took longer here: its operations are too small to be split
            networks = {"pi": [64, 64], "vf": [64, 64]}
            shared["policy_kwargs"] = {"net_arch": networks, "activation_fn": torch.nn.Tanh}
        self.model = PPO("MlpPolicy", env, **shared)
        self.batch, self.first, self.updating = num_envs * num_steps, True, 0.0
        train = self.model.train

        def timed() -> None:
            begin = time.perf_counter()
            train()
            if self.library == "sbx":
                import jax

                jax.block_until_ready(jax.live_arrays())
            self.updating += time.perf_counter() - begin

        self.model.train = timed
        return {"device": "cpu"}

    def run(self, iterations: int) -> dict[str, Any]:
        self.updating = 0.0
        begin = time.perf_counter()
        self.model.learn(iterations * self.batch, reset_num_timesteps=self.first)
        self.first = False
        seconds = time.perf_counter() - begin
        return {"seconds": seconds / iterations, "update_seconds": self.updating / iterations}

    def prepare_off_policy(self, agent: str, learns: bool) -> dict[str, Any]:
        """As the method of `Rlkit`; the returned model makes a gradient step after each step of one environment."""
        env, batch_size = OFF_POLICY[agent]
        settings = {"batch_size": batch_size, "buffer_size": 100_000, "device": "cpu", "seed": 0, "train_freq": 1}
        settings |= {"gradient_steps": 1, "learning_rate": SAC["learning_rate"]}
        settings |= {"learning_starts": batch_size if learns else NEVER}
        make = getattr(self._library(), agent.upper())
        self.model = make("MlpPolicy", _Make(env)(), policy_kwargs={"net_arch": list(SAC["hidden"])}, **settings)
        self.batch, self.first, self.updating = 1, True, 0.0
        return {"device": "cpu"}

    def _library(self) -> Any:
        if self.library == "sbx":
            import sbx

            return sbx
        import stable_baselines3
        import torch

        torch.set_num_threads(2)  # its products are large enough to be shared
        return stable_baselines3

    def returns(self, env: str, steps: int, seed: int) -> dict[str, Any]:
        from stable_baselines3.common.evaluation import evaluate_policy

        model = self._library().SAC(
            "MlpPolicy",
            env,
            learning_rate=SAC["learning_rate"],
            gamma=SAC["gamma"],
            tau=SAC["tau"],
            batch_size=SAC["batch_size"],
            buffer_size=100_000,
            learning_starts=SAC["starts"],
            policy_kwargs={"net_arch": list(SAC["hidden"])},
            device="cpu",
            seed=seed,
        )
        begin = time.perf_counter()
        model.learn(steps)
        mean, _ = evaluate_policy(model, model.get_env(), n_eval_episodes=10, deterministic=True, warn=False)
        return {"return": float(mean), "seconds": time.perf_counter() - begin}


def main() -> None:
    library = sys.argv[1]
    serve(Rlkit() if library == "rlkit" else Peer(library), PACKAGES)


if __name__ == "__main__":
    main()
