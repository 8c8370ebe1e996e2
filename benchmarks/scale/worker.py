"""Trainings of many seeds in a process of its own, for run.py: `python worker.py rlkit|rejax`.

The protocol is that of `workers.serve`: {"compile": [subject, num_envs, updates, seeds, devices]} and {"run": [seed]}
return their seconds, and a run also the environment steps of all seeds that the program itself has counted.
"""

import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`
sys.path.insert(2, str(Path(__file__).resolve().parents[1] / "ppo"))

from common.trainer import PACKAGES
from common.workers import serve


def module_from(path: Path) -> Any:
    """The worker of the benchmark of PPO, under a name of its own."""
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("ppo_worker", path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PPO = module_from(Path(__file__).resolve().parents[1] / "ppo" / "worker.py")


def off_policy(name: str, env_name: str, hidden: tuple[int, ...], updates: int):
    """DQN or SAC with one gradient step of 64 transitions for every 4 environment steps, or for each."""
    import jax

    from rlkit import agents, envs, training

    module = agents.get(name)
    env, params = envs.make(env_name)
    settings = {"hidden_sizes": hidden, "capacity": 10_000, "batch_size": 64, "learning_starts": 64}
    ratio = {"dqn": 0.25, "sac": 1.0}[name]
    config = module.Config(replay_ratio=ratio, **settings)
    agent = module.make(config, env.observation_space(params), env.action_space(params))
    init, step = training.make(agent, env, params, num_envs=1, num_steps=4)

    def train(key):
        return jax.lax.scan(lambda state, _: (step(state)[0], None), init(module.Hyper(), key), None, updates)

    return train, lambda out: int(out[0].step.sum()) * 4


class Seeds:
    """Compiles and runs trainings of many seeds; the last compiled one is kept."""

    def __init__(self, library: str):
        self.library = library
        if library == "rlkit":
            import rlkit

            rlkit.use_cpu_cores()

    def compile(self, subject: str, num_envs: int, updates: int, seeds: int, devices: int) -> dict[str, float]:
        """Compile a whole training of some seeds, spread over devices."""
        import jax

        jax.clear_caches()
        if subject == "ppo":
            train, _ = getattr(PPO, self.library)(num_envs, updates, *([False] if self.library == "rlkit" else []))
            self.count = {
                "rlkit": lambda out: int(out[0].agent.num_updates.sum()) * num_envs * PPO.NUM_STEPS,
                "rejax": lambda out: int(out[0].global_step.sum()),
            }[self.library]
        else:
            env, hidden = {"dqn": ("CartPole-v1", (64, 64)), "sac": ("Pendulum-v1", (64, 64))}[subject]
            train, self.count = off_policy(subject, env, hidden, updates)
        if self.library == "rlkit":
            from rlkit import training

            mesh = training.mesh.make(jax.local_devices()[:devices]) if devices > 1 else None
            function = training.over_runs(train, mesh)
        else:
            function = jax.vmap(train)
        begin = time.perf_counter()
        self.keys = jax.random.split(jax.random.key(0), seeds)
        self.compiled = jax.jit(function).lower(self.keys).compile()
        return {"seconds": time.perf_counter() - begin}

    def run(self, seed: int) -> dict[str, float]:
        """Run the compiled program: seconds, and the environment steps of all seeds."""
        import jax

        keys = jax.random.split(jax.random.key(seed), self.keys.shape[0])
        keys = jax.block_until_ready(jax.device_put(keys, self.compiled.input_shardings[0][0]))
        begin = time.perf_counter()
        out = jax.block_until_ready(self.compiled(keys))
        return {"seconds": time.perf_counter() - begin, "steps": self.count(out)}


if __name__ == "__main__":
    serve(Seeds(sys.argv[1]), PACKAGES)
