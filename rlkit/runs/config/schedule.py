"""The updates after which a run writes a metric line, evaluates and saves."""

from rlkit.runs.config.run_config import RunConfig
from rlkit.types import ConfigError


def require_evolution(config: RunConfig) -> None:
    """Raise a ConfigError where a population would never evolve."""
    run = config.run
    if run.population is None or Schedule(config).ever_evolves:
        return
    key = next((key for key in ("evolve_every", "eval_every") if getattr(run, key) is not None), "log_every")
    raise ConfigError(
        f"{key}={getattr(run, key)} leaves population={run.population} no evolution before the end of its "
        f"total_steps={run.total_steps}; try {key}: {max(run.total_steps // 20, 1)}"
    )


class Schedule:
    """Updates at which something happens; evaluations and checkpoints come at multiples of a metric line."""

    def __init__(self, config: RunConfig):
        line, total, batch = config.updates_per_line, config.num_updates, config.steps_per_update
        self.line, self.total = line, total
        self.eval_at_end = config.run.keep_best  # the last parameters may be the best
        self.eval_lines = max(1, round(every / (batch * line))) if (every := config.run.eval_every) else None
        every = config.run.evolve_every or max(config.run.total_steps / 20, config.run.eval_every or 1)
        # Not more often than evaluations, which are the scores where there are any.
        self.evolve_lines = max(round(every / (batch * line)), self.eval_lines or 1)
        self.population = config.run.population is not None
        self.save_lines = max(1, round((config.run.checkpoint_every or config.run.total_steps / 10) / (batch * line)))

    @property
    def ever_evaluates(self) -> bool:
        """True where an evaluation comes before the end of the run."""
        return self.eval_lines is not None and self.line * self.eval_lines < self.total

    @property
    def ever_evolves(self) -> bool:
        """True where the population evolves at all."""
        return self.line * self.evolve_lines < self.total

    def next_line(self, update: int) -> int:
        """Return the first update after `update` that ends with a metric line."""
        return min((update // self.line + 1) * self.line, self.total)

    def evaluates(self, update: int) -> bool:
        """Return True where an evaluation follows `update`."""
        if self.eval_at_end and update == self.total:
            return True
        return self.eval_lines is not None and update % (self.line * self.eval_lines) == 0

    def evolves(self, update: int) -> bool:
        """Return True where the population evolves after `update`; at the end it is left as it was trained."""
        return self.population and update < self.total and update % (self.line * self.evolve_lines) == 0

    def saves(self, update: int) -> bool:
        """Return True where a checkpoint follows `update`."""
        return update == self.total or update % (self.line * self.save_lines) == 0
