"""Keys of a population's random choices, and the hyper-parameters that its members begin with."""

from typing import Any

import jax

from rlkit.runs.config.run_config import RunConfig
from rlkit.training import population
from rlkit.types import Key


def evolution_key(config: RunConfig, update: int) -> Key:
    """Return the key of the evolution after `update`; 0 for that of the first hyper-parameters.

    It differs from the keys of all members, which come from a split of their seeds' keys in two.
    """
    return jax.random.fold_in(jax.random.split(jax.random.key(config.run.seed), 3)[2], update)


def initial_hyper(config: RunConfig, hyper: Any) -> Any:
    """Return the members' Hyper, leaves [P] float32, with draws of what evolves; `hyper` has the other values."""
    ranges, number = config.run.population_ranges, config.run.population
    assert ranges is not None
    assert number is not None
    return jax.device_get(population.initial(hyper, evolution_key(config, 0), number, ranges))
