"""Trains agents with the checkout that is first on PYTHONPATH, and times compilation and updates."""

import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common import workers

from rlkit import agents, envs, training


class Trainer:
    def __init__(self) -> None:
        self.programs: dict[str, list[Any]] = {}

    def prepare(
        self, name: str, agent: str, env_name: str, num_envs: int, num_steps: int, settings: dict, updates: int
    ) -> float:
        """Compile a number of updates as one program. Returns the seconds of tracing, lowering and compiling it."""
        module, (env, params) = agents.get(agent), envs.make(env_name)
        made = module.make(module.Config(**settings), env.observation_space(params), env.action_space(params))
        run = training.make(made, env, params, num_envs=num_envs, num_steps=num_steps)
        state = jax.jit(run.init)(module.Hyper(), jax.random.key(0))

        @partial(jax.jit, donate_argnums=0)
        def train(state: Any) -> Any:
            return jax.lax.scan(lambda state, _: (run.step(state)[0], None), state, None, updates)[0]

        begin = time.perf_counter()
        compiled = train.lower(state).compile()
        seconds = time.perf_counter() - begin
        self.programs[name] = [compiled, jax.block_until_ready(compiled(state))]
        return seconds

    def run(self, name: str) -> float:
        """The seconds of one call of a program."""
        compiled, state = self.programs[name]
        begin = time.perf_counter()
        self.programs[name][1] = jax.block_until_ready(compiled(state))
        return time.perf_counter() - begin


if __name__ == "__main__":
    workers.serve(Trainer(), ("rlkit-jax", "jax", "jaxlib", "flax"))
