"""Shared by the tests of sweeps: a small sweep's file, the rows of a table, and a kill."""

import csv
from contextlib import contextmanager

from compilations import remembered_programs
from tiny_runs import shared_compilations

from rlkit.runs.config import strict_yaml

SMALL = {
    "config": "ppo/cartpole",
    "num_envs": 4,
    "num_steps": 16,
    "num_minibatches": 2,
    "num_epochs": 1,
    "hidden_sizes": [8],
    "total_steps": 192,
    "log_every": 64,
    "eval_episodes": 4,
    "env_kwargs.max_steps_in_episode": 50,
    "env_check": False,
    "trials": 5,
    "seeds_per_trial": 2,
    "learning_rate": {"log_uniform": [1e-4, 1e-1]},
}


def a_sweep(folder, **keys):
    """The file of a small sweep, with other keys."""
    path = folder / "mine.yaml"
    small = {key: value for key, value in SMALL.items() if key != "trials" or keys.get("sampler") != "grid"}
    path.write_text(strict_yaml.dump({key: value for key, value in (small | keys).items() if value is not None}))
    return path


def rows(folder):
    """The table of a sweep."""
    with (folder / "trials.csv").open() as file:
        return list(csv.DictReader(file))


@contextmanager
def compiled_once():
    """In the block, sweeps of equal shapes share their programs."""
    with shared_compilations(), remembered_programs():
        yield


class Killed(BaseException):
    """In place of kill -9, before a change of the disk."""
