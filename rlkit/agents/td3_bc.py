"""TD3 with behavior cloning, TD3+BC (Fujimoto and Gu 2021), to learn from a dataset alone.

It is `td3` with `behavior_cloning` on and the settings of the paper: normalized observations, and gradient steps from
the beginning.
"""

from functools import partial
from typing import Annotated

from annotated_types import Interval
from pydantic import Field

from rlkit.agents import td3

Hyper, State = td3.Hyper, td3.State
gradient_step, update, supports = td3.gradient_step, td3.update, td3.supports
make = partial(td3.make, name="td3_bc")


class Config(td3.Config):
    behavior_cloning: bool = Field(default=True, description="imitate the data too, to learn from a dataset alone")
    normalize_obs: bool = True
    learning_starts: Annotated[int, Interval(ge=0, lt=2**32)] = Field(
        default=0, description="environment steps before the first gradient step"
    )


EXAMPLES = (("Probe-Continuous", {"replay": "prioritized"}),)  # (environment, settings) that the contract tests run
