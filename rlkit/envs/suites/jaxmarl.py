"""JaxMARL's environments of several agents in rlkit's protocol: its agents are the players of a world."""

import importlib.util
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rlkit import spaces
from rlkit.envs.adapter import Adapter, construct, known_task, library, standard_promotion, suggestion, unbounded_box
from rlkit.names import ACTION_MASK, OWN_REWARD, PLAYER, PRIVILEGED, SUCCESS, shorten
from rlkit.types import Array, ConfigError, Key, PyTree

CANNOT_RUN = {
    "LearnedPolicyEnemySMAX": "it needs the parameters of a policy; use HeuristicEnemySMAX or SMAX",
    "MPE_simple_world_comm_v3": "the actions of its agents are of different kinds",
    **dict.fromkeys(("storm", "storm_2p", "storm_np"), "its observations are nested in another way than the others'"),
}
_MABRAX = ("ant_4x2", "halfcheetah_6x1", "hopper_3x1", "humanoid_9|8", "walker2d_2x3")
_SUBMODULES = "JaxRobotarium_"  # not on the package index
# Whose agents all get the same reward, or share the larger part of it.
_TEAMS = (
    *("MPE_simple_spread_v3", "MPE_simple_speaker_listener_v4", "MPE_simple_reference_v3", "HeuristicEnemySMAX"),
    *("hanabi", "overcooked", "overcooked_v2", "switch_riddle"),
)
_FLAGS = ("player_number", "world_state", "limit_terminates")  # arguments that are true or false
# Environments whose episodes end at a limit of steps only; a function `is_terminal` tells it of others.
_END_AT_LIMIT_ONLY = ("MPE_", "coin_game")


class JaxMarlState(struct.PyTreeNode):
    """State of a world, and what its last step told of it."""

    env_state: Any
    own_reward: Array  # [P] float32, without shaping
    success: Array  # [] bool, where the team has won


class JaxMarlEnv(Adapter):
    """An environment of JaxMARL, whose agents are the players of a world, in the order of its `agents`.

    Observations are [D] float32 or an image of numbers that are not bytes, or a dict with one as the leaf `obs`: beside
    it are `action_mask` [A] bool where legal actions are known or players have different numbers of them, `player`, the
    number of the player, and `privileged`, the state of the world.

    An episode ends for all agents when JaxMARL's `__all__` is done: truncated where a limit of steps ends it, and
    terminated otherwise. An agent that is out before has one legal action, and its team's rewards, as in JaxMARL.

    Args:
      name: of the environment.
      env: as JaxMARL makes it.
      team: True where its agents share their rewards.
      player_number: True for the leaf `player`; None for True where the agents' spaces differ.
      world_state: True for the leaf `privileged`: the suite's own state of the world, or else the observations of all
        players, one after the other.
      limit_terminates: True where a limit of steps is the task's own end, as JaxMARL's agents take it: no value beyond
        it is estimated.
      shaped_reward: factor of the rewards for learning that the suite gives beside its own, which scores count alone.

    Raises:
      ConfigError: the agents' spaces differ in more than their lengths.
    """

    def __init__(
        self,
        name: str,
        env: Any,
        *,
        team: bool = False,
        player_number: bool | None = None,
        world_state: bool = False,
        limit_terminates: bool = False,
        shaped_reward: float = 0.0,
    ):
        self.name, self.env, self.shared_reward = name, env, team
        self.agents, self.num_players = tuple(env.agents), len(env.agents)
        self.world_state, self.shaped_reward = world_state, shaped_reward
        self.limit_terminates = limit_terminates
        self._ends_at_limit_only = name.removeprefix("jaxmarl:").startswith(_END_AT_LIMIT_ONLY)
        self._has_battles = team and hasattr(env, "num_allies")  # against a heuristic, so that all players win or none
        with standard_promotion():
            obs, state = jax.eval_shape(env.reset, jax.eval_shape(jax.random.key, 0))
            self._legal = _legal_actions(env, state)
        shapes = [obs[agent].shape for agent in self.agents]
        if len(set(shapes)) > 1 and any(len(shape) != 1 for shape in shapes):
            raise ConfigError(f"env={name!r} has agents that observe {shapes}, and they must differ in lengths alone")
        self._shape = max(shapes)
        actions = [env.action_space(agent) for agent in self.agents]
        self._numbers = [int(space.n) for space in actions if type(space).__name__ == "Discrete"]
        self._action_space = _action_space(name, actions)
        differ = len(set(shapes)) > 1 or len(set(self._numbers)) > 1
        self.player_number = differ if player_number is None else player_number
        self._masked = bool(self._numbers) and (self._legal is not None or len(set(self._numbers)) > 1)
        parts: dict[str, spaces.Space] = {"obs": unbounded_box(self._shape, np.float32)}
        if self._masked:
            parts[ACTION_MASK] = unbounded_box((max(self._numbers),), bool)
        if self.player_number:
            parts[PLAYER] = spaces.Discrete(self.num_players)
        if world_state:
            with standard_promotion():
                world = jax.eval_shape(self._world, obs, state)
            parts[PRIVILEGED] = unbounded_box(world.shape, np.float32)
        self._obs_space = spaces.Dict(parts) if len(parts) > 1 else parts["obs"]

    def _start(self, key: Key, params: Any) -> tuple[PyTree, Any]:
        obs, state = self.env.reset(key)
        world = JaxMarlState(state, jnp.zeros(self.num_players, jnp.float32), jnp.array(False))
        return self._observe(obs, state), world

    def _advance(self, key: Key, state: Any, action: PyTree, params: Any) -> tuple[PyTree, Any, Array, Array, Array]:
        if self._numbers:
            action = jnp.minimum(action, jnp.array(self._numbers, action.dtype) - 1)
        action = action if self.num_players > 1 else action[None]
        actions = {agent: action[i] for i, agent in enumerate(self.agents)}
        obs, after, rewards, dones, info = self.env.step_env(key, state.env_state, actions)
        own = jnp.stack([jnp.reshape(rewards[agent], ()) for agent in self.agents]).astype(jnp.float32)
        reward = own
        if self.shaped_reward:
            shaped = jnp.stack([jnp.reshape(info["shaped_reward"][agent], ()) for agent in self.agents])
            reward = own + self.shaped_reward * shaped.astype(jnp.float32)
        done = jnp.reshape(jnp.asarray(dones["__all__"], bool), ())
        terminated = done & self._terminal(after)
        world = JaxMarlState(after, own, jnp.asarray(self._won(after), bool))
        flags = (jnp.broadcast_to(flag, (self.num_players,)) for flag in (terminated, done & ~terminated))
        return self._observe(obs, after), world, reward, *flags  # type: ignore[return-value]

    def _info(self, state: Any) -> dict[str, Array]:
        info = {OWN_REWARD: state.own_reward} if self.shaped_reward else {}  # of two players at least
        won = jnp.broadcast_to(state.success, (self.num_players,) if self.num_players > 1 else ())
        return info | ({SUCCESS: won} if self._has_battles else {})

    def _terminal(self, state: Any) -> Array | bool:
        """True where an episode that is over would be over without a limit of steps too."""
        if self.limit_terminates:
            return True
        if self._ends_at_limit_only:
            return False
        if not hasattr(self.env, "is_terminal"):
            return True
        inner = state.state if hasattr(state, "state") else state
        clear = inner.replace(step=jnp.zeros_like(inner.step), done=jnp.zeros_like(inner.done))
        return self.env.is_terminal(state.replace(state=clear) if hasattr(state, "state") else clear)

    def _won(self, state: Any) -> Array | bool:
        if not self._has_battles:
            return False
        alive = (state.state if hasattr(state, "state") else state).unit_alive
        allies = self.env.num_allies
        return jnp.any(alive[:allies]) & ~jnp.any(alive[allies:])

    def _observe(self, obs: Mapping[str, Array], state: Any) -> PyTree:
        views = [obs[agent] for agent in self.agents]
        if len(self._shape) == 1:
            views = [jnp.pad(view, (0, self._shape[0] - len(view))) for view in views]
        parts = {"obs": jnp.stack(views)}
        if self._masked:
            parts[ACTION_MASK] = self._mask(state)
        if self.player_number:
            parts[PLAYER] = jnp.arange(self.num_players, dtype=jnp.int32)
        if self.world_state:
            world = self._world(obs, state)
            parts[PRIVILEGED] = jnp.broadcast_to(world, (self.num_players, *world.shape))
        seen = parts if len(parts) > 1 else parts["obs"]
        return seen if self.num_players > 1 else jax.tree.map(lambda x: x[0], seen)

    def _mask(self, state: Any) -> Array:
        """The legal actions [P, A] of the players."""
        size = max(self._numbers)
        known = jnp.arange(size) < jnp.array(self._numbers)[:, None]
        if self._legal is None:
            return known
        legal = self._legal(state)
        masks = [jnp.asarray(legal[agent], bool).ravel() for agent in self.agents]
        return jnp.stack([jnp.pad(mask, (0, size - len(mask))) for mask in masks]) & known

    def _world(self, obs: Mapping[str, Array], state: Any) -> Array:
        """The state of the world, [D] float32."""
        if hasattr(self.env, "get_world_state"):
            return jnp.ravel(self.env.get_world_state(state)).astype(jnp.float32)
        return jnp.concatenate([jnp.ravel(obs[agent]) for agent in self.agents]).astype(jnp.float32)


def _legal_actions(env: Any, state: Any) -> Callable[[Any], Mapping[str, Array]] | None:
    """The function of legal actions of a state; None where the environment has none, as its base class raises."""
    for name in ("get_avail_actions", "get_legal_moves"):
        function = getattr(env, name, None)
        with suppress(NotImplementedError):
            if function is not None and jax.eval_shape(function, state) is not None:
                return function
    return None


def _action_space(name: str, actions: list[Any]) -> spaces.Space:
    """The space of one player's actions: the largest of discrete ones."""
    kinds = {type(space).__name__ for space in actions}
    if kinds == {"Discrete"}:
        return spaces.Discrete(max(int(space.n) for space in actions))
    if kinds == {"Box"} and len({space.shape for space in actions}) == 1:
        low, high = (
            np.broadcast_to(np.asarray(x, np.float32), actions[0].shape) for x in (actions[0].low, actions[0].high)
        )
        return spaces.Box(low, high)
    raise ConfigError(f"env={name!r} has agents with different kinds of actions, and they must be of one kind")


def names() -> list[str]:
    """Return the names of JaxMARL that run: MPE_simple_spread_v3, HeuristicEnemySMAX, overcooked, hanabi, ..."""
    known = library("jaxmarl", "jaxmarl").registered_envs
    left_out = {*CANNOT_RUN, *(_MABRAX if importlib.util.find_spec("brax") is None else ())}
    return [name for name in known if name not in left_out and not name.startswith(_SUBMODULES)]


def make(task: str, /, **kwargs: Any) -> tuple[JaxMarlEnv, tuple[()]]:
    """Make an environment of JaxMARL and its (empty) parameters.

    Args:
      task: a name of JaxMARL.
      kwargs: `player_number`, `world_state`, `limit_terminates` and `shaped_reward`, see `JaxMarlEnv`; `scenario` of
        SMAX and `layout` of Overcooked by their names, such as 3m and cramped_room; and arguments of the environment's
        class.

    Raises:
      ConfigError: JaxMARL is not installed, the name is unknown, the task cannot run, or an argument does not fit.
    """
    if task in CANNOT_RUN:
        raise ConfigError(f"env='jaxmarl:{task}' cannot run: {CANNOT_RUN[task]}")
    name, jaxmarl = f"jaxmarl:{known_task(task, names(), 'jaxmarl:')}", library("jaxmarl", "jaxmarl")
    own = {key: kwargs.pop(key) for key in (*_FLAGS, "shaped_reward") if key in kwargs}
    for key in own.keys() & set(_FLAGS):
        if not isinstance(own[key], bool):
            raise ConfigError(f"{key}={shorten(repr(own[key]))} of env={name!r} must be true or false")
    factor = own.get("shaped_reward", 0.0)
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not np.isfinite(factor):
        raise ConfigError(f"shaped_reward={shorten(repr(factor))} of env={name!r} must be a finite number; try 1.0")
    if factor and not task.startswith("overcooked"):
        raise ConfigError(f"shaped_reward={factor} needs an environment with such rewards, overcooked; leave it out")
    if isinstance(scenario := kwargs.get("scenario"), str) and task.endswith("SMAX"):
        smax = library("jaxmarl.environments.smax.smax_env", "jaxmarl")
        kwargs["scenario"] = _by_name("scenario", scenario, smax.MAP_NAME_TO_SCENARIO)
    if isinstance(layout := kwargs.get("layout"), str) and task == "overcooked":
        overcooked = library("jaxmarl.environments.overcooked", "jaxmarl")
        kwargs["layout"] = _by_name("layout", layout, overcooked.overcooked_layouts)
    env = construct(name, lambda **kwargs: jaxmarl.make(task, **kwargs), kwargs, kwargs)
    return JaxMarlEnv(name, env, team=task in _TEAMS, **own), ()


def _by_name(key: str, name: str, known: Mapping[str, Any]) -> Any:
    """The entry of a table. Raises ConfigError where it has none."""
    if name not in known:
        raise ConfigError(f"{key}={shorten(repr(name))} is not known{suggestion(name, known)}")
    return known[name]
