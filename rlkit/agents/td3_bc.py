"""TD3 with behavior cloning, TD3+BC (Fujimoto and Gu 2021), to learn from a dataset alone.

It is `td3` with `behavior_cloning` on and the settings of the paper: normalized observations, and gradient steps from
the beginning. The critics minimize the loss of `td3`, and the policy, over transitions with D-dimensional actions in
[-1, 1],

    E[ -λ Q_1(o, μ(o)) + |μ(o) - a|^2 / D ],  λ = bc_alpha / mean |Q_1(o, μ(o))|

Departures from the paper: λ is computed from the values of the policy's actions instead of those of the data, and the
squared distance is divided by D; both are so in the authors' code. Normalized observations are clipped to [-10, 10].
The departures of `td3` apply as well.
"""

from functools import partial
from typing import Annotated

from annotated_types import Interval
from pydantic import Field

from rlkit.agents import td3

Hyper, State = td3.Hyper, td3.State
gradient_step, update, supports = td3.gradient_step, td3.update, td3.supports


class Config(td3.Config):
    behavior_cloning: bool = Field(default=True, description="imitate the data too, to learn from a dataset alone")
    normalize_obs: bool = True
    learning_starts: Annotated[int, Interval(ge=0, lt=2**32)] = Field(
        default=0, description="environment steps before the first gradient step"
    )


make = partial(td3.make, config_class=Config)
