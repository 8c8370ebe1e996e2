"""Environments of several players with PettingZoo's parallel interface: their players become rows of a pool.

Everything outside of a worker's group knows rows alone: the P players of a world are P rows that follow each other.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from rlkit.hosts.worker import contract, player_spaces
from rlkit.hosts.worker.contract import Violation
from rlkit.names import ACTION_MASK

_TO_PARALLEL = "pettingzoo.utils.conversions.aec_to_parallel"
_METHODS = ("reset", "step", "observation_space", "action_space")


class WorldStep(NamedTuple):
    """One step of a world; lists of P, in the order of `possible_agents`."""

    obs: list[Any]
    rewards: list[float]
    terminated: list[bool]  # all false unless the episode is over
    truncated: list[bool]  # all false unless the episode is over; false where `terminated` is true
    infos: list[Any]  # of each player, the last one of its steps in the episode; None where there was none yet
    over: bool


class World:
    """A parallel environment, with lists of P where that has dicts by agent.

    Its spaces are those of one player. Vectors of different lengths get zeros at their ends, and Discrete actions are
    as many as the most of a player; where the players' spaces differ so, the leaf `player` is the number of the player,
    its place in `possible_agents`. Where actions are Discrete or MultiDiscrete, observations have the leaf
    `action_mask`: that of the agent's observation or of its info, or else all actions that it has. An observation that
    is not a dict becomes the leaf `obs` of one.

    An agent that is not in `agents`, or whose last flag is true, is out: it observes zeros, may take action 0 alone,
    and is paid 0. The episode is over when all agents are out. A player that left before is then terminated, unless it
    left by a truncation.

    Args:
      env: has `possible_agents`, `agents`, `reset(seed, options)`, `step(actions)`, `observation_space(agent)` and
        `action_space(agent)`.
      shared_reward: true where the players are a team; they also are where `env.shared_reward` is true.

    Raises:
      Violation: the environment lacks one of these, is one whose agents take turns, or has spaces of several kinds.
    """

    def __init__(self, env: Any, *, shared_reward: bool = False):
        if hasattr(env, "agent_iter"):
            got = f"{type(env).__name__}, whose agents take turns (AEC); convert it with {_TO_PARALLEL}"
            raise Violation("the constructor", "PettingZoo's parallel interface", got)
        for name in _METHODS:
            if not callable(getattr(env, name, None)):
                expected = f"PettingZoo's parallel interface, which has the method {name}"
                raise Violation("the constructor", expected, type(env).__name__)
        self.env, self.agents = env, tuple(env.possible_agents)
        if not self.agents:
            raise Violation("possible_agents", "at least one agent", [])
        self.num_players = len(self.agents)
        self.shared_reward = shared_reward or bool(getattr(env, "shared_reward", False))
        own = [(env.observation_space(agent), env.action_space(agent)) for agent in self.agents]
        self.actions = player_spaces.actions([action for _, action in own])
        self.views = player_spaces.observations([obs for obs, _ in own], self.actions)
        self.observation_space, self.action_space = self.views.space, self.actions.space
        self.flags: dict[Any, tuple[bool, bool]] = {}  # of each agent, the last: terminated, truncated
        self.infos: dict[Any, Any] = {}  # of each agent, that of its last step in the episode
        self.present = [False] * self.num_players  # the players that are not out
        self.acted = self.present  # those of before the last step

    @property
    def unwrapped(self) -> Any:
        """The innermost environment."""
        return getattr(self.env, "unwrapped", self.env)

    @property
    def metadata(self) -> Any:
        """The metadata of the environment."""
        return getattr(self.env, "metadata", {})

    def render(self) -> Any:
        """Render the environment."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def reset(self, **arguments: Any) -> list[Any]:
        """Start an episode; return the observations of the players."""
        result = self.env.reset(**arguments)
        obs, infos = _dicts("reset", "obs, infos", result)
        self.flags, self.infos = {}, {}
        self.present = self.acted = self._present()
        if not any(self.present):
            raise Violation("agents after reset", "at least one agent", [])
        return self._observe("reset", obs, infos, self.present)

    def step(self, actions: Sequence[Any]) -> WorldStep:
        """Take one step, with an action of each player. Those of players that are not in `agents` are left out."""
        own = zip(self.agents, self.actions.own(actions), strict=True)
        there = self.env.agents
        result = self.env.step({agent: action for agent, action in own if agent in there})
        fields = "obs, rewards, terminations, truncations, infos"
        obs, rewards, terminations, truncations, infos = _dicts("step", fields, result)
        self.acted, paid = self.present, [0.0] * self.num_players
        for index, agent in enumerate(self.agents):
            if self.acted[index] or (agent in terminations and agent in truncations):
                flags = _of("terminations", terminations, agent), _of("truncations", truncations, agent)
                reward = _of("rewards", rewards, agent) if self.acted[index] else 0.0
                paid[index] = contract.check_scalars(reward, *flags)
                self.flags[agent] = bool(flags[0]), bool(flags[1])
                if self.acted[index] and agent in infos:
                    self.infos[agent] = infos[agent]
        self.present = self._present()
        over = not any(self.present)
        truncated = terminated = [False] * self.num_players
        if over:
            last = [self.flags.get(agent, (True, False)) for agent in self.agents]
            truncated = [cut and not ended for ended, cut in last]
            terminated = [not cut for cut in truncated]
        seen = self._observe("step", obs, infos, self.acted if over else self.present, over=over)
        return WorldStep(seen, paid, terminated, truncated, [self.infos.get(agent) for agent in self.agents], over)

    def of_players(self, rewards: dict[Any, Any]) -> list[float]:
        """Return rewards by agent as those of the players who acted in the last step, and 0 of others."""
        own = zip(self.agents, self.acted, strict=True)
        return [float(rewards.get(agent, 0.0)) if acted else 0.0 for agent, acted in own]

    def _present(self) -> list[bool]:
        there = set(self.env.agents)
        if unknown := there - set(self.agents):
            raise Violation("agents", "those of possible_agents", sorted(map(str, unknown)))
        return [agent in there and not any(self.flags.get(agent, ())) for agent in self.agents]

    def _observe(
        self, call: str, obs: dict[Any, Any], infos: dict[Any, Any], present: list[bool], *, over: bool = False
    ) -> list[Any]:
        """The observations of all players, of which those that are present have one."""
        views = []
        for index, agent in enumerate(self.agents):
            if present[index] and not (over and agent not in obs):
                info, field = infos.get(agent), f"obs of {call}, {agent!r}"
                given = info.get(ACTION_MASK) if isinstance(info, dict) else None
                views.append(self.views.fit(index, field, _of(f"obs of {call}", obs, agent), given, over=over))
            else:
                views.append(self.views.absent(index))
        return views


def is_world(env: Any) -> bool:
    """Return true for an environment with PettingZoo's interface, and false for one with Gymnasium's."""
    return hasattr(env, "possible_agents")


def _of(field: str, values: dict[Any, Any], agent: Any) -> Any:
    if agent not in values:
        raise Violation(field, f"an entry of agent {agent!r}", sorted(map(str, values)))
    return values[agent]


def _dicts(call: str, fields: str, result: Any) -> tuple[dict[Any, Any], ...]:
    """The result of a call, which has to be a tuple of as many dicts as there are fields."""
    if not isinstance(result, tuple) or len(result) != len(fields.split(",")):
        got = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
        raise Violation(call, f"{fields}, each a dict by agent", got)
    if not all(isinstance(x, dict) for x in result):
        raise Violation(call, f"{fields}, each a dict by agent", [type(x).__name__ for x in result])
    return result
