"""The evolutions of a population in the course of a run."""

from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.runs import files, metrics
from rlkit.runs.config.schedule import Schedule
from rlkit.runs.population import record
from rlkit.runs.programs.finite import all_finite, floats
from rlkit.runs.programs.protocol import Program
from rlkit.runs.programs.state import evolution_key, join, split
from rlkit.training import population
from rlkit.types import PyTree


class Evolution:
    """Metric lines since the last evolution of a population, and the functions of the next one.

    Args:
      program: of the run.
      run: its directory, with the metric lines up to `step`.
      state: TrainState at `step`, as the program exports it.
      step: environment steps so far; the record is cut to them.
    """

    def __init__(self, program: Program, run: Path, state: PyTree, step: int):
        self.program, self.run, self.schedule = program, run, Schedule(program.config)
        settings = program.config.run
        assert settings.population_ranges is not None
        self.names = sorted(settings.population_ranges)
        self.num_members = len(program.seeds)
        self._evolve = jax.jit(
            partial(
                population.evolve,
                ranges=settings.population_ranges,
                exploit=settings.exploit,
                explore=settings.explore,
            )
        )
        self._finite = jax.jit(jax.vmap(lambda learned: all_finite(floats(learned))))
        evolutions = record.cut(run, step)
        if not evolutions:
            nothing = np.full(self.num_members, np.nan)
            record.add(run, 0, nothing, np.arange(self.num_members), self._hyper(state))
        last = evolutions[-1]["step"] if evolutions else 0
        self.lines = [line for line in metrics.read(run) if line["step"] > last]

    def _hyper(self, state: PyTree) -> dict[str, np.ndarray]:
        """The values [P] of the keys that evolve."""
        hyper = self.program.export(state.agent.hyper)
        return {name: np.asarray(getattr(hyper, name)) for name in self.names}

    def entries(self, state: PyTree) -> dict[str, list[float | None]]:
        """Return the entries of a metric line: each member's hyper-parameters."""
        return {f"hyper_{name}": record.numbers(values) for name, values in self._hyper(state).items()}

    def finite(self, state: PyTree) -> np.ndarray:
        """Return [P] bool, True for the members whose parameters and statistics are finite."""
        trained = [attrgetter(field)(state.agent) for field in self.program.agent.trained]
        return np.asarray(self._finite(self.program.export(trained)))

    def after(self, line: dict[str, Any], state: PyTree, update: int) -> PyTree:
        """Return the state after a metric line, evolved where it is time.

        Where parameters are not finite, the member becomes a copy with the environments and the replay buffer of its
        parent: its own may hold what is not finite.
        """
        self.lines.append(line)
        if not self.schedule.evolves(update):
            return state
        state = self.program.export(state)
        finite = self.finite(state)
        scores = np.where(finite, record.scores(self.lines, self.num_members), np.nan)
        ranked = _ranked(scores, finite)
        key = evolution_key(self.program.config, update)
        if finite.all():  # a replay buffer is large, and is left as it is
            rest, replay = split(state.agent)
            after, lineage = self._evolve(state.replace(agent=rest), ranked, key)
            after = after.replace(agent=join(after.agent, replay))
        else:
            lost = jnp.asarray(~finite)
            after, lineage = self._evolve(state, ranked, key, copy_replay=lost, copy_envs=lost)
        record.add(self.run, line["step"], scores, lineage.parent, lineage.hyper)
        self.lines = []
        return after

    def sync(self) -> None:
        """Flush the record to the disk."""
        files.append(self.run / record.FILE, b"", durable=True)


def _ranked(scores: np.ndarray, finite: np.ndarray) -> np.ndarray:
    """The scores [P] float32 by which members are compared; NaN for the worst, those that are not finite.

    A member that ended no episode counts as the median one: nothing is known of it, and in many environments the
    longest episodes are the best.
    """
    unknown = finite & np.isnan(scores)
    if unknown.any() and not np.isnan(scores).all():
        scores = np.where(unknown, np.nanmedian(scores), scores)
    return scores.astype(np.float32)
