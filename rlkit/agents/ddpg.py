"""Deep deterministic policy gradient, DDPG (Lillicrap et al. 2016).

It is `td3` with one critic, no delay of the policy and no noise in the targets. A gradient step minimizes, over
transitions drawn from a replay buffer,

    critic  E[ w (Q(o, a) - r - γ^n Q_target(o', μ_target(o')))^2 / 2 ]
    policy  E[ -Q(o, μ(o)) ]

with actions in [-1, 1].

Departures from the paper: the acting noise is correlated from step to step, as the paper's Ornstein-Uhlenbeck process
is, but has a deviation of 0.2 where that one has 0.38 (0.2 is that of its increments). There is no batch normalization
and no weight decay of the critic, which joins the action to a vector observation before its first layer. Policy and
critic have the same learning rate, unless `actor_learning_rate` is set, and by default the targets follow faster
(0.005, and 0.001 in the paper). The departures of `td3` apply as well.
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


class Config(td3.Config):
    num_critics: NumCritics = Field(default=1, description="of which the least value is taken")
    policy_delay: Count = Field(default=1, description="gradient steps of the critics for each of the policy")


class Hyper(td3.Hyper):
    """Traced float32 scalars, which a vmap may sweep. Infinity switches a term off. Noise is of actions in [-1, 1]."""

    exploration_noise: Annotated[FiniteNonNegative, "deviation of the acting noise"] = 0.2
    noise_correlation: Annotated[Scalar, Interval(ge=0.0, lt=1.0), "of the acting noise with the last step's"] = 0.85
    target_noise: Annotated[FiniteNonNegative, "deviation of the target's noise"] = 0.0


make = partial(td3.make, config_class=Config)
