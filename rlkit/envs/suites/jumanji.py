"""Jumanji in rlkit's protocol: observations as dictionaries, action masks as vectors."""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from rlkit import spaces
from rlkit.envs.adapter import Adapter, construct, known_task, library, unbounded_box
from rlkit.names import ACTION_MASK
from rlkit.spaces import Space
from rlkit.types import Array, ConfigError, Key, PyTree

CANNOT_RUN = {"Sokoban-v0": "it downloads its data when it is made, and rlkit downloads nothing"}


class JumanjiEnv(Adapter):
    """An environment of Jumanji. An episode that ends with a discount above 0 is truncated, any other one terminated.

    Most of Jumanji's own time limits end with a discount of 0: the time is part of the task and of the observation.

    Where the mask marks combinations of several choices, such as the row and column of a cell, the action is one number
    for the combination, counted in row-major order; where it marks each choice by itself, the action stays a vector.
    An environment with several agents is controlled as one: their rewards are summed.
    """

    def __init__(self, name: str, env: Any):
        self.name = name
        self.env = env
        self._obs_space = _corrected(name, _space(env.observation_spec))
        self._action_space, self._action = _actions(env)

    def _start(self, key: Key, params: Any) -> tuple[PyTree, Any]:
        state, timestep = self.env.reset(key)
        return self._observe(timestep.observation), state

    def _advance(self, key: Key, state: Any, action: PyTree, params: Any) -> tuple[PyTree, Any, Array, Array, Array]:
        del key  # a random step draws from the key in the state
        state, timestep = self.env.step(state, self._action(action))
        last, terminal = timestep.last(), jnp.all(timestep.discount == 0)
        return self._observe(timestep.observation), state, jnp.sum(timestep.reward), last & terminal, last & ~terminal

    def _observe(self, obs: Any) -> PyTree:
        values = _values(self.env.observation_spec, obs)
        if isinstance(self._obs_space, spaces.Dict) and ACTION_MASK in self._obs_space.spaces:
            values[ACTION_MASK] = jnp.ravel(values[ACTION_MASK])
        return values


def names() -> list[str]:
    """Return Jumanji's names: Game2048-v1, Snake-v1, Maze-v0, ..."""
    return [name for name in library("jumanji", "jumanji").registered_environments() if name not in CANNOT_RUN]


def make(task: str, /, **kwargs: Any) -> tuple[JumanjiEnv, tuple[()]]:
    """Make an environment of Jumanji and its (empty) parameters.

    Args:
      task: a name of Jumanji.
      kwargs: arguments of its class, such as time_limit.

    Raises:
      ConfigError: Jumanji is not installed, the name is unknown, the task cannot run, or an argument does not fit.
    """
    if task in CANNOT_RUN:
        raise ConfigError(f"env='jumanji:{task}' cannot run: {CANNOT_RUN[task]}")
    name, jumanji = f"jumanji:{known_task(task, names(), 'jumanji:')}", library("jumanji", "jumanji")
    registration = library("jumanji.registration", "jumanji")
    entry = registration.load(registration._REGISTRY[task].entry_point)
    parameters = entry.__init__.__code__.co_varnames[1 : entry.__init__.__code__.co_argcount]
    return JumanjiEnv(name, construct(name, lambda **kwargs: jumanji.make(task, **kwargs), kwargs, parameters)), ()


def _space(spec: Any, name: str = "") -> Space:
    """Convert a spec to a space; an action mask becomes a vector."""
    kind = type(spec).__name__
    if kind == "Spec":
        return spaces.Dict({child: _space(sub, child) for child, sub in spec._specs.items()})
    if name == "step_count" and kind == "DiscreteArray":  # a time, for which one-hot vectors would be too large
        return spaces.Box(0, spec.num_values, (), spec.dtype)  # the last observation has one step more
    if kind == "DiscreteArray":
        return spaces.Discrete(int(spec.num_values), np.dtype(spec.dtype))
    shape = (math.prod(spec.shape),) if name == ACTION_MASK else spec.shape
    if name == ACTION_MASK or kind == "Array":
        return unbounded_box(shape, spec.dtype)
    return spaces.Box(spec.minimum, spec.maximum, shape, spec.dtype)


def _corrected(name: str, space: Space) -> Space:
    """Return the observation space, with correct bounds where random play leaves those of Jumanji."""
    if name == "jumanji:TSP-v1" and isinstance(space, spaces.Dict):  # before the first city the position is -1
        position = space.spaces["position"]
        assert isinstance(position, spaces.Discrete)
        return spaces.Dict({**space.spaces, "position": spaces.Box(-1, position.n - 1, (), position.dtype)})
    return space


def _values(spec: Any, obs: Any) -> PyTree:
    """Convert an observation to dictionaries, in the structure of its spec."""
    if type(spec).__name__ != "Spec":
        return obs
    return {name: _values(sub, getattr(obs, name)) for name, sub in spec._specs.items()}


def _actions(env: Any) -> tuple[Space, Callable[[Array], Array]]:
    """Return the action space, and the function that converts its actions to those of Jumanji."""
    spec = env.action_spec
    if type(spec).__name__ == "DiscreteArray":
        return spaces.Discrete(int(spec.num_values)), lambda action: action.astype(spec.dtype)
    if jnp.issubdtype(spec.dtype, jnp.floating):
        return spaces.Box(spec.minimum, spec.maximum, spec.shape, np.float32), lambda action: action
    sizes = np.broadcast_to(np.asarray(spec.maximum) + 1, spec.shape)
    nvec, mask = tuple(int(n) for n in sizes.ravel()), getattr(env.observation_spec, ACTION_MASK, None)
    if mask is not None and tuple(mask.shape) != nvec:  # [choices, n]; the bounds of MultiCVRP are too wide by one
        nvec = (int(mask.shape[-1]),) * len(nvec)
    elif mask is not None:
        combination = lambda action: jnp.stack(jnp.unravel_index(action, nvec)).astype(spec.dtype)  # noqa: E731
        return spaces.Discrete(math.prod(nvec)), combination
    return spaces.MultiDiscrete(nvec), lambda action: jnp.reshape(action, spec.shape).astype(spec.dtype)
