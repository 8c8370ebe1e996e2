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
HALFCHEETAH, CARTPOLE = "gymnasium:HalfCheetah-v5", "gymnasium:CartPole-v1"
OFF_POLICY = {  # agent, environment, batch size, capacity, units
    "sac": ("sac", HALFCHEETAH, 256, 100_000, (256, 256)),
    "td3": ("td3", HALFCHEETAH, 256, 100_000, (256, 256)),
    "tqc": ("tqc", HALFCHEETAH, 256, 100_000, (256, 256)),
    "crossq": ("crossq", HALFCHEETAH, 256, 100_000, (256, 256)),
    "dqn": ("dqn", CARTPOLE, 128, 100_000, (256, 256)),
    "dqn, images": ("dqn", "atari:Breakout", 32, 10_000, (512,)),
}
ZOO_CHEETAH = {  # of rl_zoo3's PPO on HalfCheetah, as configs/ppo/halfcheetah.yaml has them
    "n_steps": 512,
    "batch_size": 64,
    "n_epochs": 20,
    "learning_rate": 2.0633e-05,
    "clip_range": 0.1,
    "ent_coef": 0.000401762,
    "vf_coef": 0.58096,  # of the squared error; rlkit's is of half of it
    "max_grad_norm": 0.8,
    "gamma": 0.98,
    "gae_lambda": 0.92,
}
NEVER = 10**9  # learning_starts, to time the steps before it
SAC = {"learning_rate": 3e-4, "gamma": 0.99, "tau": 0.005, "batch_size": 256, "hidden": (256, 256), "starts": 1000}


class Rlkit:
    """`rlkit train`'s program, called update by update."""

    program: Any = None

    def prepare(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Make PPO; `settings` has env, num_envs, num_steps, num_epochs, num_minibatches and other keys of a config."""
        from rlkit import runs

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
        return self._start(runs.parse(fixed | settings))

    def prepare_config(self, config: str, keys: dict[str, Any]) -> dict[str, Any]:
        """Make the program of a bundled config, with some other keys."""
        from rlkit import runs

        return self._start(runs.load_config(config, {"total_steps": 10**12, **keys}))

    def _start(self, config: Any) -> dict[str, Any]:
        from rlkit.runs.programs.host_program import HostProgram

        self.close()
        self.program = HostProgram(config)
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

    def prepare_off_policy(self, task: str, learns: bool) -> dict[str, Any]:
        """Make an agent that learns after each step of one environment, or that never starts to learn."""
        from rlkit import runs

        agent, env, batch_size, capacity, units = OFF_POLICY[task]
        settings = {
            "agent": agent,
            "env": env,
            "num_envs": 1,
            "num_steps": 1,
            "total_steps": 10**8,
            "hidden_sizes": list(units),
            "batch_size": batch_size,
            "capacity": capacity,
            "learning_starts": batch_size if learns else NEVER,
            "replay_ratio": 1,
            "learning_rate": SAC["learning_rate"],
            "backend": "serial",
        }
        if agent == "crossq":
            settings |= {"critic_hidden_sizes": list(units)}
        return self._start(runs.parse(settings))

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
        return self._trained(runs.parse(settings))

    def returns_ppo(self, steps: int, seed: int) -> dict[str, Any]:
        """As `returns`, of PPO with rl_zoo3's settings for HalfCheetah."""
        from rlkit import runs

        return self._trained(runs.load_config("ppo/halfcheetah", {"total_steps": steps, "seed": seed}))

    def _trained(self, config: Any) -> dict[str, Any]:
        import tempfile

        from rlkit import runs

        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            trained = runs.train(config, out=f"{folder}/run", show=False)
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
        return self._timed(PPO("MlpPolicy", env, **shared), num_envs * num_steps)

    def _timed(self, model: Any, batch: int) -> dict[str, Any]:
        """Have `run` train a model, and time its updates."""
        self.model, self.batch, self.first, self.updating = model, batch, True, 0.0
        train = model.train

        def timed() -> None:
            begin = time.perf_counter()
            train()
            if self.library == "sbx":
                import jax

                jax.block_until_ready(jax.live_arrays())
            self.updating += time.perf_counter() - begin

        self.model.train = timed
        return {"device": "cpu"}

    def prepare_atari(self, game: str) -> dict[str, Any]:
        """PPO with the settings of rl_zoo3 for Atari, with environments in this process, as rl_zoo3 has them."""
        import torch
        from stable_baselines3 import PPO

        torch.set_num_threads(2)  # its convolutions are large enough to be shared
        settings = {"n_steps": 128, "batch_size": 256, "n_epochs": 4, "ent_coef": 0.01, "vf_coef": 0.5, "seed": 0}
        settings |= {"learning_rate": 2.5e-4, "clip_range": 0.1, "device": "cpu"}
        return self._timed(PPO("CnnPolicy", self._atari(game, 8), **settings), 8 * 128)

    def _atari(self, game: str, num_envs: int) -> Any:
        import ale_py
        from stable_baselines3.common.env_util import make_atari_env
        from stable_baselines3.common.vec_env import VecFrameStack

        gymnasium.register_envs(ale_py)
        return VecFrameStack(make_atari_env(f"{game}NoFrameskip-v4", n_envs=num_envs, seed=0), n_stack=4)

    def run(self, iterations: int) -> dict[str, Any]:
        self.updating = 0.0
        begin = time.perf_counter()
        self.model.learn(iterations * self.batch, reset_num_timesteps=self.first)
        self.first = False
        seconds = time.perf_counter() - begin
        return {"seconds": seconds / iterations, "update_seconds": self.updating / iterations}

    def prepare_off_policy(self, task: str, learns: bool) -> dict[str, Any]:
        """As the method of `Rlkit`; the returned model makes a gradient step after each step of one environment."""
        agent, env, batch_size, capacity, units = OFF_POLICY[task]
        settings = {"batch_size": batch_size, "buffer_size": capacity, "device": "cpu", "seed": 0, "train_freq": 1}
        settings |= {"gradient_steps": 1, "learning_rate": SAC["learning_rate"]}
        settings |= {"learning_starts": batch_size if learns else NEVER}
        make = getattr(self._library(), "CrossQ" if agent == "crossq" else agent.upper())
        if env.startswith("atari:"):  # whose networks have 512 units by default
            self.model = make("CnnPolicy", self._atari(env.removeprefix("atari:"), 1), **settings)
        else:
            single = _Make(env.removeprefix("gymnasium:"))()
            self.model = make("MlpPolicy", single, policy_kwargs={"net_arch": list(units)}, **settings)
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

    def returns_ppo(self, steps: int, seed: int) -> dict[str, Any]:
        import torch
        from stable_baselines3 import PPO
        from stable_baselines3.common.evaluation import evaluate_policy
        from stable_baselines3.common.monitor import Monitor
        from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

        torch.set_num_threads(1)  # as in rl_zoo3
        gamma, units = ZOO_CHEETAH["gamma"], {"pi": [256, 256], "vf": [256, 256]}
        env = VecNormalize(DummyVecEnv([lambda: Monitor(gymnasium.make("HalfCheetah-v5"))]), gamma=gamma)
        networks = {"log_std_init": -2, "ortho_init": False, "activation_fn": torch.nn.ReLU, "net_arch": units}
        begin = time.perf_counter()
        model = PPO("MlpPolicy", env, policy_kwargs=networks, device="cpu", seed=seed, **ZOO_CHEETAH)
        model.learn(steps)
        env.training = env.norm_reward = False
        mean, _ = evaluate_policy(model, env, n_eval_episodes=10, deterministic=True)
        return {"return": float(mean), "seconds": time.perf_counter() - begin}


def main() -> None:
    library = sys.argv[1]
    serve(Rlkit() if library == "rlkit" else Peer(library), PACKAGES)


if __name__ == "__main__":
    main()
