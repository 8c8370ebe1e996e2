"""The updates after which a run writes a metric line, evaluates and saves."""

from rlkit.runs.config.run_config import RunConfig


class Schedule:
    """Updates at which something happens; evaluations and checkpoints come at multiples of a metric line."""

    def __init__(self, config: RunConfig):
        line, total, batch = config.updates_per_line, config.num_updates, config.steps_per_update
        self.line, self.total = line, total
        self.eval_at_end = config.run.keep_best  # the last parameters may be the best
        self.eval_lines = max(1, round(every / (batch * line))) if (every := config.run.eval_every) else None
        self.save_lines = max(1, round((config.run.checkpoint_every or config.run.total_steps / 10) / (batch * line)))

    @property
    def ever_evaluates(self) -> bool:
        """True where an evaluation comes before the end of the run."""
        return self.eval_lines is not None and self.line * self.eval_lines < self.total

    def next_line(self, update: int) -> int:
        """Return the first update after `update` that ends with a metric line."""
        return min((update // self.line + 1) * self.line, self.total)

    def evaluates(self, update: int) -> bool:
        """Return True where an evaluation follows `update`."""
        if self.eval_at_end and update == self.total:
            return True
        return self.eval_lines is not None and update % (self.line * self.eval_lines) == 0

    def saves(self, update: int) -> bool:
        """Return True where a checkpoint follows `update`."""
        return update == self.total or update % (self.line * self.save_lines) == 0
