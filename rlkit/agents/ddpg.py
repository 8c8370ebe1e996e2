"""Deep deterministic policy gradient, DDPG (Lillicrap et al. 2016).

It is `td3` with one critic, no delay of the policy and no noise in the targets. Its acting noise is correlated from
step to step, as the paper's Ornstein-Uhlenbeck process is, but has a deviation of 0.2 where that one has 0.38 (0.2 is
that of its increments).
"""

from functools import partial
from typing import Annotated

from annotated_types import Interval
from pydantic import Field

from rlkit.agents import td3
from rlkit.agents.common.config import Count, NumCritics
from rlkit.agents.common.hyper import FiniteNonNegative
from rlkit.types import Scalar

State = td3.State
gradient_step, update, supports = td3.gradient_step, td3.update, td3.supports
make = partial(td3.make, name="ddpg")


class Config(td3.Config):
    num_critics: NumCritics = Field(default=1, description="of which the least value is taken")
    policy_delay: Count = Field(default=1, description="gradient steps of the critics for each of the policy")


class Hyper(td3.Hyper):
    """Traced float32 scalars, which a vmap may sweep. Infinity switches a term off. Noise is of actions in [-1, 1]."""

    exploration_noise: Annotated[FiniteNonNegative, "deviation of the acting noise"] = 0.2
    noise_correlation: Annotated[Scalar, Interval(ge=0.0, lt=1.0), "of the acting noise with the last step's"] = 0.85
    target_noise: Annotated[FiniteNonNegative, "deviation of the target's noise"] = 0.0


EXAMPLES = (("Probe-Continuous", {}),)  # (environment, settings) that the contract tests run
