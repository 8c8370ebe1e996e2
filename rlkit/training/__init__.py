"""Training loops as pure functions: rollouts, the train step, evaluation, populations."""

from rlkit.training import mesh, population
from rlkit.training.data_parallel import data_parallel, data_parallel_add, data_parallel_agent
from rlkit.training.evaluate import Evaluation, evaluate
from rlkit.training.matches import Contestant, Match, match
from rlkit.training.mesh import over_runs
from rlkit.training.rollout import EnvsState, Episodes, reset, rollout
from rlkit.training.train import Training, TrainState, make, offline

__all__ = [
    "Contestant",
    "EnvsState",
    "Episodes",
    "Evaluation",
    "Match",
    "TrainState",
    "Training",
    "data_parallel",
    "data_parallel_add",
    "data_parallel_agent",
    "evaluate",
    "make",
    "match",
    "mesh",
    "offline",
    "over_runs",
    "population",
    "reset",
    "rollout",
]
