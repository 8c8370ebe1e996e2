"""Bases of the `Config` and the `Hyper` of every agent, of this package or your own, and facts about their keys.

An agent is a module, or any object, with three attributes: `Config`, derived from `base.Config`, its static settings;
`Hyper`, derived from `base.Hyper`, its scalars that are traced; and `make(config, obs_space, action_space)`, which
returns an `rlkit.types.Agent` whose state has a field `hyper`, made by `as_arrays`. `agent: module:make` in a run then
gives it all that the agents of this package have.
"""

from annotated_types import Interval

from rlkit.agents.base.config import Config, Task
from rlkit.agents.base.hyper import Hyper, as_arrays
from rlkit.agents.base.keys import LearningRate, StartOnly, Unused
from rlkit.ops.schedules import Schedule

__all__ = [
    "Config",
    "Hyper",
    "Interval",
    "LearningRate",
    "Schedule",
    "StartOnly",
    "Task",
    "Unused",
    "as_arrays",
]
