"""The evaluations of a session: those of metric lines, of which the best is known, and that of the end."""

import importlib
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from rlkit.hosts.processes import Interrupted
from rlkit.runs import scores
from rlkit.runs.programs.protocol import Program
from rlkit.types import PyTree


class Evaluations:
    """Greedy episodes of a program's policy.

    Args:
      program: that is trained.
      background: where evaluations are compiled while training goes on.
      best: the step and the mean of the best evaluation so far; None before the first.
      due: True where the last one was not finished.
    """

    def __init__(
        self, program: Program, background: ThreadPoolExecutor, best: tuple[int, float] | None, due: bool
    ) -> None:
        self.program, self.run, self.background = program, program.config.run, background
        self.best, self.due = best, due
        self.seconds, self.count = 0.0, 0  # of this session
        self.prepared: Future[None] | None = None

    def prepare(self) -> None:
        """Compile the evaluation in the background, and load what the end of a run needs."""
        self.prepared = self.background.submit(self._prepare)

    def _prepare(self) -> None:
        if self.run.eval_episodes:
            self.program.compile_evaluation()
            count = self.run.num_seeds if self.program.batched else self.run.eval_episodes
            scores.iqm_and_interval(np.zeros(count, np.float32))
        importlib.import_module("matplotlib.backends.backend_agg")

    def _wait(self) -> None:
        assert self.prepared is not None
        self.prepared.result()

    def entries(self, state: PyTree) -> dict[str, Any]:
        """The entries of greedy episodes in a metric line; none where a signal ends the episodes."""
        self._wait()
        self.due, begin = True, time.perf_counter()
        try:
            summary = scores.summary(self.program.evaluate(state), self.program.batched, self.program.eval_env)
        except Interrupted:
            return {}
        self.due = False
        self.seconds, self.count = self.seconds + time.perf_counter() - begin, self.count + 1
        return {f"eval_{name}": value for name, value in summary.items()}

    def is_best(self, line: Mapping[str, Any]) -> bool:
        """True where a line has the best evaluation so far, and the run keeps the best one."""
        means = [mean for mean in np.atleast_1d(line.get("eval_return_mean", [])) if mean is not None]
        if not self.run.keep_best or not means:
            return False
        mean = float(np.mean(means))
        if self.best is not None and mean <= self.best[1]:
            return False
        self.best = line["step"], mean
        return True

    def last(self, state: PyTree, step: int) -> dict[str, Any] | None:
        """The evaluation at the end of a run; None where its config has none."""
        self._wait()
        return scores.evaluate(self.program, state, step) if self.run.eval_episodes else None
