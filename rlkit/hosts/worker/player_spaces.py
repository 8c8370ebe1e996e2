"""Spaces of one player that hold those of all players of a world, and the values of agents in them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rlkit.hosts.worker.contract import Violation
from rlkit.names import ACTION_MASK, PLAYER


class Actions(NamedTuple):
    """Actions of one player.

    Args:
      space: of Gymnasium's.
      starts, sizes: [P], of the agents' own Discrete spaces; empty for other spaces, which are equal for all.
      parts: the number of choices of each part of an action; empty where it is not Discrete or MultiDiscrete.
    """

    space: Any
    starts: list[int]
    sizes: list[int]
    parts: list[int]

    def own(self, actions: Sequence[Any]) -> list[Any]:
        """Return actions [P] of `space` as those of the agents' own spaces; their last one in place of a larger one."""
        if len({*zip(self.starts, self.sizes, strict=True)}) < 2:
            return list(actions)
        rows = zip(actions, self.starts, self.sizes, strict=True)
        return [start + np.minimum(action - self.space.start, size - 1) for action, start, size in rows]

    def mask(self, index: int) -> np.ndarray:
        """Return the mask [A] of all actions that player `index` has."""
        if not self.sizes:
            return np.ones(sum(self.parts), bool)
        return np.arange(self.parts[0]) < self.sizes[index]

    @property
    def first_alone(self) -> np.ndarray:
        """The mask [A] of a player that is out, who has the first choice of each part."""
        return np.concatenate([np.arange(size) == 0 for size in self.parts])


def actions(own: list[Any]) -> Actions:
    """Return the actions of one player from the agents' own spaces.

    Raises:
      Violation: they are neither all Discrete nor equal.
    """
    from gymnasium import spaces

    if all(isinstance(space, spaces.Discrete) for space in own):
        starts, sizes = [int(space.start) for space in own], [int(space.n) for space in own]
        start = starts[0] if len(set(starts)) == 1 else 0
        return Actions(spaces.Discrete(max(sizes), start=start), starts, sizes, [max(sizes)])
    if any(space != own[0] for space in own):
        expected = "agents whose actions are of one kind: all Discrete, or equal spaces"
        raise Violation("action_space", expected, _different(own))
    parts = own[0].nvec.ravel().tolist() if isinstance(own[0], spaces.MultiDiscrete) else []
    return Actions(own[0], [], [], parts)


class Observations:
    """Observations of one player.

    Args:
      own: [P] spaces of the agents, without their masks.
      merged: the space that holds them.
      player_actions: of the players.
    """

    def __init__(self, own: list[Any], merged: Any, player_actions: Actions):
        from gymnasium import spaces

        self.own, self.merged, self.actions = own, merged, player_actions
        self.equal = [space == merged for space in own]
        self.is_dict = isinstance(merged, spaces.Dict)
        self.has_player = not all(self.equal) or len(set(player_actions.sizes)) > 1
        self.has_mask = bool(player_actions.parts)
        leaves: dict[str, Any] = dict(merged.spaces) if self.is_dict else {"obs": merged}
        added: dict[str, Any] = {}
        if self.has_player:
            added[PLAYER] = spaces.Discrete(len(own))
            if PLAYER in leaves:
                raise Violation("observation_space", f"a leaf {PLAYER!r} for the player's number alone", list(leaves))
        if self.has_mask:
            added[ACTION_MASK] = spaces.MultiBinary(sum(player_actions.parts))
        self.space = spaces.Dict(leaves | added) if added else merged
        self.nothing = _zero(merged)
        self.all_legal = [player_actions.mask(index) for index in range(len(own))] if self.has_mask else []
        self.out = player_actions.first_alone if self.has_mask else None

    def fit(self, index: int, field: str, obs: Any, mask: Any, *, over: bool) -> Any:
        """Return an agent's observation as one of `space`.

        Args:
          index: of the player.
          field: for errors.
          obs: as the environment has it.
          mask: of its info; None without one.
          over: true where the episode is over, when a mask without a legal action counts as none.

        Raises:
          Violation: a mask has another length than the agent has actions, or a vector than its space.
        """
        if isinstance(obs, dict) and ACTION_MASK in obs and self.has_mask:
            mask = obs[ACTION_MASK]
            obs = {name: value for name, value in obs.items() if name != ACTION_MASK}
        if not self.equal[index]:
            obs = _fit(field, obs, self.own[index], self.merged)
        if not self.has_mask:
            return self._with(index, obs, None)
        legal = self.all_legal[index]
        if mask is not None and not (over and not np.any(mask)):
            mask = np.ravel(mask).astype(bool)
            if len(mask) != legal.sum():
                raise Violation(f"{ACTION_MASK}, {field}", f"{legal.sum()} entries, one for each action", len(mask))
            legal = legal.copy()
            legal[: len(mask)] = mask
        return self._with(index, obs, legal)

    def absent(self, index: int) -> Any:
        """Return the observation of a player that is out."""
        return self._with(index, self.nothing, self.out)

    def _with(self, index: int, obs: Any, mask: np.ndarray | None) -> Any:
        """An observation with the leaves that are added."""
        if self.space is self.merged:
            return obs
        leaves = obs if self.is_dict else {"obs": obs}
        if not isinstance(leaves, dict):
            return leaves  # which the contract reports
        added: dict[str, Any] = {PLAYER: index} if self.has_player else {}
        if mask is not None:
            added[ACTION_MASK] = mask.view(np.int8)
        return leaves | added


def observations(own: list[Any], player_actions: Actions) -> Observations:
    """Return the observations of one player from the agents' own spaces.

    Raises:
      Violation: the spaces differ in more than the lengths and the bounds of their vectors.
    """
    from gymnasium import spaces

    def without_mask(space: Any) -> Any:
        if not isinstance(space, spaces.Dict) or ACTION_MASK not in space.spaces or not player_actions.parts:
            return space
        return spaces.Dict({name: child for name, child in space.spaces.items() if name != ACTION_MASK})

    own = [without_mask(space) for space in own]
    return Observations(own, _union(own), player_actions)


def _union(own: list[Any]) -> Any:
    """The space that holds the values of all spaces, vectors with zeros at their ends."""
    from gymnasium import spaces

    first = own[0]
    if all(space == first for space in own):
        return first
    if all(isinstance(space, spaces.Box) and space.dtype == first.dtype for space in own):
        shapes = {space.shape for space in own}
        if len(shapes) == 1 or all(len(shape) == 1 for shape in shapes):
            longest = max(shapes)
            low = np.min([_padded(space.low, longest) for space in own], 0)
            high = np.max([_padded(space.high, longest) for space in own], 0)
            return spaces.Box(low, high, longest, first.dtype.type)
    if all(isinstance(space, spaces.Dict) and space.spaces.keys() == first.spaces.keys() for space in own):
        return spaces.Dict({name: _union([space.spaces[name] for space in own]) for name in first.spaces})
    expected = "agents that observe spaces of one kind, which differ in the lengths of vectors alone"
    raise Violation("observation_space", expected, _different(own))


def _fit(field: str, value: Any, own: Any, merged: Any) -> Any:
    """A value of an agent's own space as one of the space of all players."""
    from gymnasium import spaces

    if isinstance(own, spaces.Dict):
        if not isinstance(value, dict) or value.keys() != own.spaces.keys():
            return value  # which the contract reports
        return {name: _fit(f"{field}[{name!r}]", value[name], own.spaces[name], merged.spaces[name]) for name in value}
    if own.shape == merged.shape:
        return value
    if not isinstance(value, np.ndarray) or value.shape != own.shape:
        got = list(value.shape) if isinstance(value, np.ndarray) else type(value).__name__
        raise Violation(field, f"{own.dtype}{list(own.shape)}, as its observation_space declares", got)
    return _padded(value, merged.shape)


def _padded(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A vector with zeros at its end; an array that has the shape already, as it is."""
    return value if value.shape == shape else np.pad(value, (0, shape[0] - len(value)))


def _zero(space: Any) -> Any:
    """The value of a space that is nearest to 0."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return {name: _zero(child) for name, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map(_zero, space.spaces))
    if isinstance(space, spaces.Box):
        return np.clip(np.zeros(space.shape, space.dtype), space.low, space.high)
    if isinstance(space, spaces.Discrete):
        return space.start
    if isinstance(space, spaces.MultiDiscrete):
        return np.broadcast_to(getattr(space, "start", 0), space.shape).astype(space.dtype)
    return np.zeros(space.shape, space.dtype)  # others have a shape, or the contract refuses them


def _different(own: list[Any]) -> str:
    """The first space and one that differs from it, as a text."""
    other = next(space for space in own if space != own[0])
    return f"{own[0]} and {other}"
