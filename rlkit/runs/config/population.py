"""The keys of a population: defaults that depend on other keys, and the rules between them."""

from collections.abc import Callable, Container, Mapping
from typing import Any

from rlkit.agents.base.keys import Evolves, marked
from rlkit.hosts.registry import is_host
from rlkit.runs.config.errors import show_value
from rlkit.runs.config.settings import Settings
from rlkit.training.ranges import check_ranges
from rlkit.types import ConfigError

KEYS = ("evolve_every", "population_ranges", "exploit", "explore")


def with_num_seeds(values: dict[str, Any]) -> dict[str, Any]:
    """Return a config's values with num_seeds, the number of runs in the program, of a population."""
    population = values.get("population")
    if type(population) is int and 2 <= population <= 2**16 and values.get("num_seeds", 1) == 1:
        return values | {"num_seeds": population}
    return values


def resolve(
    run: Settings,
    hyper_class: type,
    hyper: Mapping[str, float | None],
    check: Callable[[dict], None],
    unused: Container[str] = (),
) -> Settings:
    """Return the settings with the ranges of a population.

    Args:
      run: the settings.
      hyper_class: the agent's `Hyper`.
      hyper: its values in the config.
      unused: keys that have no effect, which do not evolve by default.
      check: raises ConfigError for values of Hyper that are out of range or do not fit the agent's Config.

    Raises:
      ConfigError: a key does not go with the others, or a range has no meaning.
    """
    if run.population is None:
        for key in KEYS:
            if (value := getattr(run, key)) != Settings.model_fields[key].default:
                raise ConfigError(f"{key}={show_value(value)} needs a population; add e.g. population: 16")
        return run
    _check(run)
    ranges = run.population_ranges
    if ranges is None:
        known = {key: hyper[key] or 0.0 for key in marked(hyper_class, Evolves) if key not in unused}
        ranges = {key: (_short(value / 10), _short(value * 10)) for key, value in known.items() if value > 0}
        if not ranges:
            raise ConfigError(
                "population_ranges=null must name what evolves, as no key that evolves by itself is above 0; add e.g. "
                "population_ranges: {learning_rate: [1.0e-5, 1.0e-2]}"
            )
    try:
        checked = check_ranges(hyper_class(**hyper), ranges)
    except ConfigError as error:
        raise ConfigError(f"population_{error}") from None
    for key, (low, high, _) in checked.items():
        for end in (low, high):
            try:
                check({**hyper, key: end})
            except ConfigError as error:
                raise ConfigError(f"population_ranges.{error}") from None
    return run.model_copy(update={"population_ranges": ranges})


def _check(run: Settings) -> None:
    """Raise ConfigError where a key does not go with a population."""
    if is_host(run.env):
        raise ConfigError(
            f"population={run.population} needs an environment in JAX, and env={show_value(run.env)} is outside of it; "
            "leave population out, or choose another environment"
        )
    if run.num_seeds != run.population:
        raise ConfigError(
            f"num_seeds={run.num_seeds} does not go with population={run.population}, whose members have seeds of "
            "their own; leave out one of them"
        )
    if run.dataset is not None and run.eval_every is None:
        every = max(run.total_steps // 20, 1)
        raise ConfigError(
            f"population={run.population} needs scores, and with a dataset only evaluations give them; add e.g. "
            f"eval_every: {every}"
        )
    if run.evolve_every is not None and run.eval_every is not None and run.evolve_every < run.eval_every:
        raise ConfigError(
            f"evolve_every={run.evolve_every} must be at least eval_every={run.eval_every}, as evaluations are the "
            f"scores of members; try {run.eval_every}"
        )
    if run.evolve_every is not None and run.evolve_every >= run.total_steps:
        raise ConfigError(
            f"evolve_every={run.evolve_every} must be less than total_steps={run.total_steps}; try "
            f"{max(run.total_steps // 20, 1)}"
        )


def _short(value: float) -> float:
    """A number with seven digits."""
    return float(f"{value:.7g}")
