"""Programs of several seeds whose environments are outside of JAX: a program for each, advanced one after another."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.runs.config.run_config import RunConfig
from rlkit.runs.programs.host_program import HostProgram
from rlkit.runs.programs.host_update import Iterations
from rlkit.runs.programs.state import join, split
from rlkit.training import Evaluation
from rlkit.types import Agent, PyTree


class HostSeedsProgram(Iterations):
    """A `Program` of several seeds for an environment outside of JAX. Each seed has worker processes of its own.

    Between two updates the state is a list of the seeds' states; `export` stacks them. A signal ends a chunk after
    every seed has made the same number of updates.

    Raises:
      ConfigError, HostError: as `HostProgram`.
    """

    batched = True
    num_devices = num_shards = 1

    def __init__(self, config: RunConfig):
        super().__init__()
        self.seeds = np.arange(config.run.seed, config.run.seed + config.run.num_seeds, dtype=np.int32)
        self._stoppable = False  # True in evaluations: an update of all seeds is not cut
        self._configs = [
            replace(config, run=config.run.model_copy(update={"seed": int(seed), "num_seeds": 1}))
            for seed in self.seeds
        ]
        self.first = self._make_program(0, None)
        self._others: list[HostProgram] = []  # made when they are first needed, with their workers
        self.config = replace(self.first.config, run=config.run)
        self.agent: Agent = self.first.agent
        self.check, self.rollouts = self.first.check, self.first.rollouts  # of the first seed
        self.env, self.eval_env, self.params = self.first.env, self.first.eval_env, None
        self.note, self.pool = self.first.note, self.first.pool

    def _make_program(self, index: int, like: HostProgram | None) -> HostProgram:
        """The program of one seed, which uses what was compiled for another one."""
        program = HostProgram(self._configs[index], like)
        program.should_stop = lambda: self._stoppable and self.should_stop()
        program.on_failure = lambda failure: self.on_failure(failure)
        program.on_progress = lambda text: self.on_progress(f"seed {self.seeds[index]}: {text}")
        return program

    @property
    def programs(self) -> list[HostProgram]:
        while len(self._others) + 1 < len(self.seeds):
            self._others.append(self._make_program(len(self._others) + 1, self.first))
        return [self.first, *self._others]

    def close(self) -> None:
        for program in (self.first, *self._others):
            program.close()

    @property
    def template(self) -> PyTree:
        count = len(self.seeds)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((count, *x.shape), x.dtype), self.first.template)

    @property
    def num_bytes(self) -> int:
        """Bytes of all seeds; their states are stacked while they are saved."""
        return len(self.seeds) * self.first.num_bytes

    def start(self) -> PyTree:
        """Return the state before the first update.

        It needs no workers of other seeds: the loop calls it beside `compile`, in another thread.
        """
        init = jax.jit(self.first.init)
        return [init(seed, self.first.hyper) for seed in self.seeds]

    def export(self, state: PyTree) -> PyTree:
        """Return the state with a leading axis of seeds."""
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *state) if isinstance(state, list) else state

    def _unstack(self, state: PyTree) -> list[PyTree]:
        if isinstance(state, list):
            return state
        return [jax.tree.map(lambda x, index=index: x[index], state) for index in range(len(self.seeds))]

    def compile(self) -> None:
        for program in self.programs:
            program.compile()

    def begin(self, state: PyTree) -> None:
        """Reset the environments of all seeds, after the steps that a checkpoint held back."""
        self.begun = True
        for program, one in zip(self.programs, self._unstack(state), strict=True):
            program.begin(one)

    def iterate(self, state: PyTree, most: int) -> tuple[PyTree, list[dict[str, Any]], bool]:
        """Make the same updates with each seed, at least one; the metrics are stacked.

        Where a seed fails or is not finite, `before` is the state before these updates, but for the replay buffers of
        the seeds that had made theirs, which an update takes over, and the steps that are held back from them.
        """
        before = self.before = self._unstack(state)
        after, rows, finite = [], [], True
        for index, program in enumerate(self.programs):
            new, new_rows, is_finite = program.iterate(before[index], most)
            if not is_finite and finite:
                self.non_finite, finite = f"{program.non_finite} of seed {self.seeds[index]}", False
            after.append(new)
            rows.append(new_rows)
            replay = split(new.agent)[1]
            before[index] = before[index].replace(agent=join(split(before[index].agent)[0], replay), envs=new.envs)
        updates = zip(*rows, strict=True)  # the rows of all seeds, for each update
        stacked = [{name: np.stack([row[name] for row in seeds]) for name in seeds[0]} for seeds in updates]
        return after, stacked, finite

    def evaluate(self, state: PyTree) -> Evaluation:
        """Play greedy episodes with each seed, as `HostProgram.evaluate` does; leaves [S, N, E]."""
        self._stoppable = True
        try:
            states = zip(self.programs, self._unstack(state), strict=True)
            results = [program.evaluate(one) for program, one in states]
        finally:
            self._stoppable = False
        return jax.tree.map(lambda *leaves: np.stack(leaves), *results)
