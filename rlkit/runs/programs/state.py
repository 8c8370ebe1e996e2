"""The runs of a program: their seeds and hyper-parameters.

The replay buffer in a run's state is large and is donated to an update; the rest must outlive the update. `split` and
`join` separate the two.
"""

from typing import NamedTuple

import numpy as np

from rlkit import agents
from rlkit.runs.config.run_config import RunConfig
from rlkit.types import PyTree


class Runs(NamedTuple):
    """The runs of a program: `num_seeds` in the config is their number, R."""

    seeds: np.ndarray  # [R] int32
    hyper: PyTree  # the agent's Hyper, leaves [R] float32


def of_config(config: RunConfig) -> Runs:
    """Return the seeds of a config, each with the config's Hyper."""
    run = config.run
    values = {key: np.full(run.num_seeds, value) for key, value in config.hyper_arrays.items()}
    hyper = agents.get(run.agent).Hyper(**values)
    return Runs(np.arange(run.seed, run.seed + run.num_seeds, dtype=np.int32), hyper)


def split(agent_state: PyTree) -> tuple[PyTree, PyTree]:
    """Return the state without its replay buffer, and the buffer; () where there is none."""
    if hasattr(agent_state, "replay"):
        return agent_state.replace(replay=()), agent_state.replay
    return agent_state, ()


def join(rest: PyTree, replay: PyTree) -> PyTree:
    """Return the state that `split` separated."""
    return rest.replace(replay=replay) if hasattr(rest, "replay") else rest
