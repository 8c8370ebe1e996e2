"""Probe environments: so small that the correct values are known, each designed to detect one kind of bug.

Each docstring gives the values under discount γ. `reset` and `step` take `params = ()`. Actions are Discrete(2) and
episodes last one step, except where the docstring states otherwise.
"""

from dataclasses import dataclass, fields
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.envs.probe_base import Probe, ProbeState
from rlkit.envs.probe_cards import RepeatFirst, RepeatPrevious
from rlkit.envs.probe_chain import Chain
from rlkit.names import ACHIEVED_GOAL, ACTION_MASK, DESIRED_GOAL, GAME_STATE, SUCCESS
from rlkit.spaces import Box, Dict, Discrete, MultiDiscrete, Space
from rlkit.types import Array, ConfigError, Key, Model, PyTree


class ConstantValue(Probe):
    """The observation is 0 and the reward 1, always. V = 1."""

    def _observe(self, state: ProbeState) -> PyTree:
        return jnp.zeros((1,), jnp.float32)

    def _reward(self, state: ProbeState, action: PyTree) -> Array | float:
        return 1.0


class ObservationValue(Probe):
    """The observation is -1 or 1, and so is the reward. V(o) = o."""

    def _reward(self, state: ProbeState, action: PyTree) -> Array | float:
        return state.cue


class DelayedReward(Probe):
    """Two steps; the observation is 0, then 1; the reward is 0, then 1. V(0) = γ and V(1) = 1."""

    length = 2

    def _observe(self, state: ProbeState) -> PyTree:
        return jnp.minimum(state.time, 1).astype(jnp.float32)[None]

    def _reward(self, state: ProbeState, action: PyTree) -> Array | float:
        return jnp.where(state.time == 1, 1.0, 0.0)


class ActionReward(Probe):
    """A bandit: the observation is 0, the reward of action 1 is 1, that of action 0 is -1. Best V = 1."""

    def _observe(self, state: ProbeState) -> PyTree:
        return jnp.zeros((1,), jnp.float32)

    def _reward(self, state: ProbeState, action: PyTree) -> Array | float:
        return jnp.where(action == 1, 1.0, -1.0)


class ObservationAction(Probe):
    """The observation is -1 or 1; action 0 is correct for -1 and action 1 for 1; reward 1 or -1. Best V = 1."""

    def _reward(self, state: ProbeState, action: PyTree) -> Array | float:
        return jnp.where((action == 1) == (state.cue > 0), 1.0, -1.0)


@dataclass(frozen=True)
class Truncation(Probe):
    """Distinguishes termination and truncation; the reward is 1 in every step.

    After `length` steps half of the episodes reach a terminal state, and half are truncated by a time limit.

    The observation is [kind, t / length], with kind 1 in episodes that terminate; in others it is [-1, 0] throughout.

        V([1, t / length]) = (1 - γ^(length - t)) / (1 - γ)     V([-1, 0]) = 1 / (1 - γ)

    An agent that treats truncation as termination learns a smaller value for [-1, 0]. One that treats termination as
    truncation, or that bootstraps from the observation after the reset, learns a value other than 1 for
    [1, 1 - 1 / length].
    """

    length: int = 3

    def observation_space(self, params: Any = ()) -> Space:
        return Box(-1, 1, (2,))

    def _observe(self, state: ProbeState) -> PyTree:
        time = state.time.astype(jnp.float32) / self.length
        return jnp.stack([state.cue, jnp.where(state.cue > 0, time, 0.0)])

    def _reward(self, state: ProbeState, action: PyTree) -> Array | float:
        return 1.0

    def _terminal(self, state: ProbeState) -> Array:
        return state.cue > 0


@dataclass(frozen=True)
class Memory(Probe):
    """The first observation shows a cue that the last of `length` steps requires; only that step has a reward.

    The observation is [cue, 0] at first, then [0, 0], and [0, 1] before the last step, where action 0 is correct for
    cue -1 and action 1 for cue 1, with reward 1 or -1. With memory the best V of the first observation is
    γ^(length - 1); without, every policy's mean return is 0. `length` is at least 2.
    """

    length: int = 4

    def observation_space(self, params: Any = ()) -> Space:
        return Box(-1, 1, (2,))

    def _observe(self, state: ProbeState) -> PyTree:
        last_step = jnp.where(state.time == self.length - 1, 1.0, 0.0)
        return jnp.stack([jnp.where(state.time == 0, state.cue, 0.0), last_step])

    def _reward(self, state: ProbeState, action: PyTree) -> Array | float:
        correct = (action == 1) == (state.cue > 0)
        return jnp.where(state.time == self.length - 1, jnp.where(correct, 1.0, -1.0), 0.0)


class Continuous(Probe):
    """The observation o is uniform in [-1, 1], the action a in [-2, 2], [1] float32; the reward is 1 - (a - o)^2.

    The best policy plays a = o; its V = 1.
    """

    def action_space(self, params: Any = ()) -> Space:
        return Box(-2, 2, (1,))

    def _cue(self, key: Key) -> Array:
        return jax.random.uniform(key, (), jnp.float32, -1, 1)

    def _reward(self, state: ProbeState, action: PyTree) -> Array | float:
        return 1.0 - jnp.square(action[0] - state.cue)


class MaskedAction(Probe):
    """One of three actions is illegal, drawn anew in each episode.

    The illegal action has reward -10, the larger of the legal actions 1, and the other one 0.

    The observation is {"action_mask": [3] bool, "obs": [1] float32, 0}. An agent that obeys the mask never gets -10,
    and its best V = 1. The best action is 2, or 1 where 2 is illegal.
    """

    def observation_space(self, params: Any = ()) -> Space:
        return Dict({ACTION_MASK: Box(False, True, (3,), np.bool_), "obs": Box(-1, 1, (1,))})

    def action_space(self, params: Any = ()) -> Space:
        return Discrete(3)

    def _cue(self, key: Key) -> Array:
        return jax.random.randint(key, (), 0, 3).astype(jnp.float32)

    def _observe(self, state: ProbeState) -> PyTree:
        return {ACTION_MASK: jnp.arange(3) != state.cue.astype(jnp.int32), "obs": jnp.zeros((1,), jnp.float32)}

    def _reward(self, state: ProbeState, action: PyTree) -> Array | float:
        illegal = state.cue.astype(jnp.int32)
        best = jnp.where(illegal == 2, 1, 2)
        return jnp.where(action == illegal, -10.0, jnp.where(action == best, 1.0, 0.0))


class MultiDiscreteAction(Probe):
    """The observation is -1 or 1; the action (a, b) is in {0, 1} x {0, 1, 2}, [2] int32.

    The reward is 1/2 if a is 0 for -1 and 1 for 1, plus 1/2 if b is 2. Best V = 1.
    """

    def action_space(self, params: Any = ()) -> Space:
        return MultiDiscrete((2, 3))

    def _reward(self, state: ProbeState, action: PyTree) -> Array | float:
        first = (action[0] == 1) == (state.cue > 0)
        return jnp.where(first, 0.5, 0.0) + jnp.where(action[1] == 2, 0.5, 0.0)


class HybridAction(Continuous):
    """The observation o is uniform in [-1, 1]; an action is {"amount": in [-2, 2], [1] float32; "side": 0 or 1}.

    The reward is 1/2 if the side is 0 for o < 0 and 1 for o > 0, plus (1 - (amount - o)^2) / 2. Best V = 1.
    """

    def action_space(self, params: Any = ()) -> Space:
        return Dict({"amount": super().action_space(params), "side": Discrete(2)})

    def _reward(self, state: ProbeState, action: PyTree) -> Array | float:
        correct = (action["side"] == 1) == (state.cue > 0)
        return jnp.where(correct, 0.5, 0.0) + super()._reward(state, action["amount"]) / 2


@dataclass(frozen=True)
class BitFlip(Probe):
    """Flips one of `length` bits a step until they equal a goal; both are drawn anew (Andrychowicz et al. 2017, 3.1).

    The observation is {"achieved_goal", "desired_goal"}, [length] float32 each, -1 or 1: the bits and the goal. The
    action is Discrete(length). The reward is 0 where the goal is reached, which is terminal, and -1 elsewhere; after
    `length` steps the episode is truncated. From bits of which d > 0 differ from the goal, the best V is
    -(1 - γ^(d - 1)) / (1 - γ); with d = 0, that of d = 2. Chance reaches few goals, so that an agent learns this with
    10 bits or more only from goals relabelled in hindsight.
    """

    length: int = 8

    def observation_space(self, params: Any = ()) -> Space:
        return Dict({name: Box(-1, 1, (self.length,)) for name in (ACHIEVED_GOAL, DESIRED_GOAL)})

    def action_space(self, params: Any = ()) -> Space:
        return Discrete(self.length)

    def _cue(self, key: Key) -> Array:
        return jax.random.rademacher(key, (2, self.length), jnp.float32)

    def _next_cue(self, state: ProbeState, action: PyTree) -> Array:
        flip = jnp.where(jnp.arange(self.length) == action, -1.0, 1.0)
        return state.cue * jnp.stack([flip, jnp.ones(self.length)])

    def _observe(self, state: ProbeState) -> PyTree:
        return {ACHIEVED_GOAL: state.cue[0], DESIRED_GOAL: state.cue[1]}

    def _reward(self, state: ProbeState, action: PyTree) -> Array | float:
        return self.compute_reward(*self._next_cue(state, action))[0]

    def compute_reward(self, achieved_goal: Array, desired_goal: Array, params: Any = ()) -> tuple[Array, Array]:
        """Reward [] and terminated [] of a step that reaches one goal [length] and wants the other."""
        reached = (achieved_goal == desired_goal).all()
        return jnp.where(reached, 0.0, -1.0), reached

    def _terminal(self, state: ProbeState) -> Array:
        return self.compute_reward(*state.cue)[1]

    def _info(self, state: ProbeState) -> dict[str, Array]:
        return {SUCCESS: self._terminal(state)}

    def _done(self, state: ProbeState) -> Array:
        return super()._done(state) | self._terminal(state)


@dataclass(frozen=True)
class PointGoal(Probe):
    """A point moves to a goal; both are drawn uniformly from the square [-1, 1]^2.

    The observation is {"achieved_goal", "desired_goal"}, [2] float32 each: the point and the goal. An action in
    [-1, 1]^2 moves the point by a fifth of it, within the square. The reward is 0 where the point is then within 0.02
    of the goal and -1 elsewhere; the episode goes on there, and is truncated after `length` steps. A policy that moves
    straight to the goal has a mean return of about -4. Agents learn it only from goals relabelled in hindsight.
    """

    length: int = 20

    def observation_space(self, params: Any = ()) -> Space:
        return Dict({name: Box(-1, 1, (2,)) for name in (ACHIEVED_GOAL, DESIRED_GOAL)})

    def action_space(self, params: Any = ()) -> Space:
        return Box(-1, 1, (2,))

    def _cue(self, key: Key) -> Array:
        return jax.random.uniform(key, (2, 2), jnp.float32, -1, 1)

    def _next_cue(self, state: ProbeState, action: PyTree) -> Array:
        point = jnp.clip(state.cue[0] + jnp.clip(action, -1.0, 1.0) / 5, -1.0, 1.0)
        return jnp.stack([point, state.cue[1]])

    def _observe(self, state: ProbeState) -> PyTree:
        return {ACHIEVED_GOAL: state.cue[0], DESIRED_GOAL: state.cue[1]}

    def _reward(self, state: ProbeState, action: PyTree) -> Array | float:
        return self.compute_reward(*self._next_cue(state, action))

    def compute_reward(self, achieved_goal: Array, desired_goal: Array, params: Any = ()) -> Array:
        """Reward [] of a step that reaches one goal [2] and wants the other."""
        distance = jnp.sqrt(jnp.sum(jnp.square(achieved_goal - desired_goal)))
        return jnp.where(distance <= 0.02, 0.0, -1.0)

    def _terminal(self, state: ProbeState) -> Array:
        return jnp.array(False)

    def _info(self, state: ProbeState) -> dict[str, Array]:
        return {SUCCESS: self.compute_reward(*state.cue) == 0}


@dataclass(frozen=True)
class Players(Probe):
    """Three players of a world, each with a cue of its own, -1 or 1; action 0 is correct for -1, action 1 for 1.

    A player's observation is {"action_mask": [2] bool, "obs": [2] float32}: its cue in the first step and 0 after it,
    and 1 in the last of `length` steps. Players 0 and 1 are paid in the last step, 1 for the correct action and -1 for
    the other: they need a memory. Player 2 is paid in the first step and is out then: its only legal action is 0. Its
    episode is terminated, theirs truncated. The best return of each is 1, and the players are a team.
    """

    length: int = 3
    num_players: ClassVar[int] = 3
    shared_reward: ClassVar[bool] = True

    def observation_space(self, params: Any = ()) -> Space:
        return Dict({ACTION_MASK: Box(0, 1, (2,), np.bool_), "obs": Box(-1, 1, (2,))})

    def _cue(self, key: Key) -> Array:
        return jax.random.rademacher(key, (3,), jnp.float32)

    def _observe(self, state: ProbeState) -> PyTree:
        out = (jnp.arange(3) == 2) & (state.time > 0)
        legal = jnp.stack([jnp.ones(3, bool), ~out], -1)
        cue = jnp.where(state.time == 0, state.cue, 0.0)
        last = jnp.broadcast_to(jnp.where(state.time == self.length - 1, 1.0, 0.0), (3,))
        return {ACTION_MASK: legal, "obs": jnp.stack([cue, last], -1)}

    def _reward(self, state: ProbeState, action: PyTree) -> Array | float:
        paid = state.time == jnp.array([self.length - 1, self.length - 1, 0])
        return jnp.where(paid, jnp.where((action == 1) == (state.cue > 0), 1.0, -1.0), 0.0)

    def _done(self, state: ProbeState) -> Array:
        return jnp.broadcast_to(super()._done(state), (3,))

    def _terminal(self, state: ProbeState) -> Array:
        return jnp.arange(3) == 2


@dataclass(frozen=True)
class Nim(Probe):
    """Two players take 1, 2 or 3 stones in turn; who takes the last one wins, with reward 1; others are 0.

    One agent moves for both players. A pile of 1 to `length` stones is drawn at the start. The observation is
    {"action_mask": [3] bool, "game_state": [2] float32, the stones left and the player to move, "obs": [length + 1]
    float32, the stones as a one-hot vector}; action a takes a + 1 stones, and more than there are lose with reward -1.
    The best V of the player to move is -1 where the stones are a multiple of 4, and 1 elsewhere; there the best action
    takes stones modulo 4.
    """

    length: int = 7
    alternates: ClassVar[bool] = True

    def observation_space(self, params: Any = ()) -> Space:
        state = Box(0, np.array([self.length, 1]))
        return Dict(
            {ACTION_MASK: Box(False, True, (3,), np.bool_), GAME_STATE: state, "obs": Box(0, 1, (self.length + 1,))}
        )

    def action_space(self, params: Any = ()) -> Space:
        return Discrete(3)

    def game_model(self, params: Any = ()) -> Model:
        """The rules of the game, for agents that plan."""
        return Model(lambda obs: obs[GAME_STATE], lambda obs: obs[GAME_STATE][1].astype(jnp.int32), self._model_step)

    def _model_step(self, key: Key, state: Array, action: Array) -> tuple[Array, PyTree, Array, Array]:
        before = ProbeState(jnp.zeros((), jnp.int32), state)
        after = ProbeState(before.time, self._next_cue(before, action))
        obs = {name: x for name, x in self._observe(after).items() if name != GAME_STATE}
        reward = jnp.where(state[0] == 0, 0.0, self._reward(before, action))
        return after.cue, obs, reward, jnp.where(self._done(after), 0.0, -1.0)

    def _cue(self, key: Key) -> Array:
        stones = jax.random.randint(key, (), 1, self.length + 1)
        return jnp.stack([stones.astype(jnp.float32), jnp.zeros(())])

    def _next_cue(self, state: ProbeState, action: PyTree) -> Array:
        stones, player = state.cue
        return jnp.stack([jnp.maximum(stones - 1 - action.astype(jnp.float32), 0.0), 1.0 - player])

    def _observe(self, state: ProbeState) -> PyTree:
        stones = state.cue[0].astype(jnp.int32)
        mask = (jnp.arange(1, 4) <= stones) | (stones == 0)  # all at the end, where no action counts
        return {
            ACTION_MASK: mask,
            GAME_STATE: state.cue,
            "obs": jax.nn.one_hot(stones, self.length + 1, dtype=jnp.float32),
        }

    def _reward(self, state: ProbeState, action: PyTree) -> Array | float:
        left = state.cue[0] - 1 - action.astype(jnp.float32)
        return jnp.where(left > 0, 0.0, jnp.where(left == 0, 1.0, -1.0))

    def _done(self, state: ProbeState) -> Array:
        return state.cue[0] == 0


PROBES: dict[str, type[Probe]] = {
    f"Probe-{probe.__name__}": probe
    for probe in (
        ConstantValue,
        ObservationValue,
        DelayedReward,
        ActionReward,
        ObservationAction,
        Truncation,
        Memory,
        Continuous,
        MaskedAction,
        MultiDiscreteAction,
        HybridAction,
        BitFlip,
        PointGoal,
        Players,
        Nim,
        RepeatFirst,
        RepeatPrevious,
        Chain,
    )
}


def make(name: str, /, **kwargs: Any) -> tuple[Probe, tuple[()]]:
    """Make a probe and its (empty) parameters, by a name in `PROBES`; kwargs are the probe's fields.

    Raises:
      ConfigError: the probe has no such field, or its value is out of range.
    """
    probe = PROBES[name]
    least = {field.name: field.metadata.get("least", 2) for field in fields(probe)}
    for key, value in kwargs.items():
        if key not in least:
            raise ConfigError(
                f"{key}={value!r} is not a parameter of env {name!r}; it has {', '.join(least) or 'none'}"
            )
        if not isinstance(value, int) or value < least[key]:
            raise ConfigError(
                f"{name}.{key}={value!r} must be an integer of at least {least[key]}; try {least[key] + 1}"
            )
    return probe(**kwargs), ()
