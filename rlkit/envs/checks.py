"""Checks of the environment contract, before training starts."""

from collections.abc import Callable
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.envs.goal_checks import GoalRewards, check_goal_rewards, failed
from rlkit.names import ACTION_MASK
from rlkit.networks.features import action_mask
from rlkit.spaces import Box, Dict, Discrete, MultiDiscrete, Space, Tuple, shape_of
from rlkit.types import ConfigError, Env, Key, PyTree, num_players

_ENVS, _STEPS = 4, 32
_TOLERANCE = 1e-5  # relative to the range between the bounds, for rounding errors


def check(
    env: Env,
    params: Any,
    key: Key,
    *,
    name: str | None = None,
    goal_reward: Callable[[PyTree, PyTree], Any] | None = None,
) -> None:
    """Check that an environment keeps the contract of `rlkit.types.Env`: spaces, shapes, dtypes, then values.

    Shapes, dtypes and structures are checked without compiling anything, values in 32 random steps of 4 environments,
    whose actions are legal. An environment in which an episode ends within them must have reset itself.

    Args:
      env, params: as returned by `rlkit.envs.make`.
      key: for the resets and the actions of the 32 steps.
      name: of the environment in errors; its own `name` by default.
      goal_reward: (achieved, desired) -> the reward, or (reward, terminated), of one pair of goals, which is compared
        with the steps; None for no comparison.

    Raises:
      ConfigError: at the first violation, naming the environment, the field, the expected value and the actual one.
    """
    name = str(name or getattr(env, "name", type(env).__name__))
    obs_space, action_space = env.observation_space(params), env.action_space(params)
    for field, space in (("observation_space", obs_space), ("action_space", action_space)):
        if not isinstance(space, Space):
            _fail(name, field, "a space of rlkit.spaces", type(space).__name__)
    players = num_players(env)
    if not isinstance(players, int) or players < 1:
        _fail(name, "num_players", "an integer of at least 1", players)
    _check_types(env, params, key, name, obs_space, action_space)
    _check_values(env, params, key, name, obs_space, action_space, goal_reward)


def _check_types(env: Env, params: Any, key: Key, name: str, obs_space: Space, action_space: Space) -> None:
    obs, state = _shapes(name, "reset", ("obs", "state"), env.reset, key, params)
    players = num_players(env)
    action = _of_players(players, shape_of(action_space))
    obs_shape = _of_players(players, shape_of(obs_space))
    results = ("obs", "state", "reward", "terminated", "truncated", "info")
    returned = _shapes(name, "step", results, env.step, key, state, action, params)
    next_obs, next_state, reward, terminated, truncated, info = returned
    if not isinstance(info, dict) or "final_observation" not in info:
        got = sorted(info) if isinstance(info, dict) else type(info).__name__
        _fail(name, "info", "a dictionary with final_observation", got)
    observations = {"obs of reset": obs, "obs of step": next_obs, "final_observation": info["final_observation"]}
    for field, value in observations.items():
        _compare(name, field, obs_shape, value, "as in observation_space, ")
    _compare(name, "state of reset", jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state), state)
    _compare(name, "state of step", state, next_state, "as in reset's state, ")
    _compare(name, "reward", _of_players(players, jax.ShapeDtypeStruct((), jnp.float32)), reward)
    for field, value in (("terminated", terminated), ("truncated", truncated)):
        _compare(name, field, _of_players(players, jax.ShapeDtypeStruct((), jnp.bool_)), value)
    for field, value in info.items() if players > 1 else ():
        for path, leaf in jax.tree_util.tree_leaves_with_path(value):
            if leaf.shape[:1] != (players,):
                place = f"info[{field!r}]{jax.tree_util.keystr(path)}"
                _fail(name, place, f"a first axis of the {players} players", f"shape {leaf.shape}")


def _of_players(players: int, shapes: PyTree) -> PyTree:
    """Shapes of one player as those of a world: the same of one, [P, ...] of several."""
    if players == 1:
        return shapes
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((players, *x.shape), x.dtype), shapes)


def _shapes(name: str, field: str, results: tuple[str, ...], fn: Callable, *args: Any) -> tuple:
    """Trace `fn`; return the shapes and dtypes of its results, one tree for each name in `results`."""
    try:
        returned = jax.eval_shape(fn, *args)
    except Exception as error:
        message = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise ConfigError(f"env={name!r}: {field}: expected a function JAX can trace, got {message}") from error
    if not isinstance(returned, tuple) or len(returned) != len(results):
        got = f"{len(returned)} values" if isinstance(returned, tuple) else type(returned).__name__
        _fail(name, field, ", ".join(results), got)
    return returned


def _check_values(
    env: Env, params: Any, key: Key, name: str, obs_space: Space, action_space: Space, goal_reward: Callable | None
) -> None:
    players = num_players(env)

    def act(key: jax.Array, obs: PyTree) -> PyTree:
        def one(key: jax.Array, obs: PyTree) -> PyTree:
            return legal_action(name, action_space, key, obs)

        return one(key, obs) if players == 1 else jax.vmap(one)(jax.random.split(key, players), obs)

    def play(key: jax.Array) -> Any:
        reset_key, play_key = jax.random.split(key)
        start = obs, state = env.reset(reset_key, params)

        def step(carry: Any, key: jax.Array) -> Any:
            action_key, step_key = jax.random.split(key)
            action = act(action_key, carry[0])
            obs, state, reward, terminated, truncated, info = env.step(step_key, carry[1], action, params)
            after = obs, state
            started = _at_start(start, carry, after)
            return after, (obs, info["final_observation"], reward, terminated, truncated, started)

        return obs, jax.lax.scan(step, (obs, state), jax.random.split(play_key, _STEPS))[1]

    keys = jax.random.split(key, _ENVS)
    # Without optimization this compiles in a third of the time, and it runs only once.
    played = jax.jit(jax.vmap(play)).lower(keys).compile({"xla_backend_optimization_level": "0"})(keys)
    first, (obs, final, reward, terminated, truncated, started) = jax.device_get(played)
    if players > 1:  # each player is checked as an environment is
        if (apart := (terminated | truncated) != (terminated | truncated)[..., :1]).any():
            step = int(np.argwhere(apart)[0][1]) + 1
            _fail(name, f"terminated | truncated of step {step}", "the same for all players", "players apart")
        first = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), first)
        obs, final, reward, terminated, truncated = jax.tree.map(
            lambda x: np.moveaxis(x, 2, 1).reshape(-1, x.shape[1], *x.shape[3:]),
            (obs, final, reward, terminated, truncated),
        )
        started = np.repeat(started, players, 0)
    done = terminated | truncated
    for field, value in (("obs of reset", first), ("obs of step", obs), ("final_observation", final)):
        check_bounds(name, field, obs_space, value)
    if not np.isfinite(reward).all():
        _fail(name, "reward", "finite numbers", reward[~np.isfinite(reward)][0])
    for x, y in zip(jax.tree.leaves(obs), jax.tree.leaves(final), strict=True):
        if not np.array_equal(x[~done], y[~done]):
            _fail(name, "final_observation", "the same as obs wherever the episode goes on", "another value")
    check_mask(name, "obs of reset", action_space, first)
    for step in range(_STEPS):
        now = jax.tree.map(lambda x, step=step: x[:, step], obs)
        check_mask(name, f"obs of step {step + 1}", action_space, now)
    _check_reset(name, first, obs, final, done, started)
    if goal_reward is not None:
        before = jax.tree.map(lambda x, y: np.concatenate([x[:, None], y[:, :-1]], 1), first, obs)
        rewards_of = _goal_rewards(name, goal_reward)
        check_goal_rewards(name, rewards_of, before, final, reward, terminated, truncated)


def _goal_rewards(name: str, function: Callable[[PyTree, PyTree], Any]) -> GoalRewards:
    """A function of one pair of goals as one of goals [E, T, ...] that returns both, rewards and ends [E, T]."""

    def both(achieved: PyTree, desired: PyTree) -> tuple[jax.Array, jax.Array]:
        result = function(achieved, desired)
        reward, terminated = result if isinstance(result, tuple) else (result, False)
        return jnp.asarray(reward, jnp.float32), jnp.asarray(terminated, bool)

    compiled = jax.jit(jax.vmap(jax.vmap(both)))

    def rewards_of(achieved: PyTree, desired: PyTree) -> tuple[np.ndarray, np.ndarray]:
        try:
            return jax.device_get(compiled(achieved, desired))
        except Exception as error:  # whatever a function of the user's raises
            raise failed(name, "compute_reward", error) from error

    return rewards_of


def _at_start(start: PyTree, before: PyTree, after: PyTree) -> jax.Array:
    """[] bool, True where a step has set a leaf back to its value in `start`, or all are as they were there."""
    leaves = zip(*map(jax.tree.leaves, (start, before, after)), strict=True)
    pairs = [
        (jnp.array_equal(c, a), jnp.array_equal(b, a))
        for a, b, c in leaves
        if not jnp.issubdtype(jnp.asarray(a).dtype, jax.dtypes.prng_key)
    ]
    equal, unmoved = (jnp.array(flags, bool) for flags in zip(*pairs, strict=True))
    return jnp.any(equal & ~unmoved) | jnp.all(equal)


def check_mask(
    name: str, field: str, space: Space, obs: PyTree, locate: Callable[[int], str] = "environment {}".format
) -> None:
    """Check that observations [E, ...], which are acted on, permit an action in every part of the action space.

    Args:
      name: of the environment.
      field: name of the observations, for the error.
      space: of the action.
      obs: observations [E, ...], with or without a mask.
      locate: the name of an environment by its index, for the error.

    Raises:
      ConfigError: one permits none.
    """
    mask = action_mask(obs)
    if mask is None or not isinstance(space, Discrete | MultiDiscrete):
        return
    for part in np.split(np.asarray(mask, bool), np.cumsum(_numbers(space))[:-1], axis=-1):
        if len(none := np.flatnonzero(~part.any(-1))):
            expected = "a legal action in every observation that is acted on"
            _fail(name, f"{field}[{ACTION_MASK!r}] of {locate(int(none[0]))}", expected, "none")


def _check_reset(name: str, first: PyTree, obs: PyTree, final: PyTree, done: np.ndarray, started: np.ndarray) -> None:
    """Raise ConfigError where no environment began a new episode after the end of its first one.

    Such an environment returns the observation that ended the episode, and its state goes on. One whose observations
    are all alike, and whose episodes have one step, cannot be told from a correct one.

    Args:
      name: of the environment.
      first: [E, ...] observations of resets.
      obs, final: [E, T, ...] observations of steps, and those before a reset.
      done, started: [E, T] bool, ends of episodes, and `_at_start` of the steps.
    """
    ended = np.flatnonzero(done.any(1))
    rows = list(zip(ended.tolist(), done[ended].argmax(1).tolist(), strict=True))  # of the first ends

    def same(x: PyTree, y: PyTree) -> bool:
        return all(map(np.array_equal, jax.tree.leaves(x), jax.tree.leaves(y)))

    def pick(tree: PyTree, *index: int) -> PyTree:
        return jax.tree.map(lambda x: x[index], tree)

    for env, step in rows:
        now = pick(obs, env, step)
        of_reset = step == 0 and any(same(now, pick(first, other)) for other in range(len(done)))
        if not same(now, pick(final, env, step)) or started[env, step] or of_reset:
            return
    if rows:
        _fail(name, "step", "the observation and state of a new episode where one ended", "those of its end")


def _numbers(space: Discrete | MultiDiscrete) -> tuple[int, ...]:
    """The number of actions of each part of an action."""
    return (space.n,) if isinstance(space, Discrete) else tuple(space.nvec)


def legal_action(name: str, space: Space, key: Key, obs: PyTree) -> PyTree:
    """Draw a random action, a legal one where the observation has a mask; any where the mask permits none.

    Args:
      name: of the environment, for errors.
      space: of the action.
      key: one key.
      obs: one observation.

    Raises:
      ConfigError: the mask does not fit the action space.
    """
    mask = action_mask(obs)
    if mask is None or not isinstance(space, Discrete | MultiDiscrete):
        return space.sample(key)
    nvec = _numbers(space)
    if mask.shape != (sum(nvec),):
        _fail(name, f"obs[{ACTION_MASK!r}]", f"one entry for each action, {[sum(nvec)]}", list(mask.shape))
    # The largest of independent random numbers is any legal action with the same probability.
    numbers = jax.random.uniform(key, mask.shape) + mask.astype(jnp.float32)
    actions = [jnp.argmax(part) for part in jnp.split(numbers, np.cumsum(nvec)[:-1])]
    return (actions[0] if isinstance(space, Discrete) else jnp.stack(actions)).astype(space.dtype)


def check_bounds(name: str, field: str, space: Space, value: PyTree) -> None:
    """Check values [..., *shape] against a space's bounds. Raises ConfigError where one is outside or NaN."""
    if isinstance(space, Dict | Tuple):
        children = space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces)
        for child, sub in children:
            check_bounds(name, f"{field}[{child!r}]", sub, value[child])
        return
    value = np.asarray(value, np.float64)
    if np.isnan(value).any():
        _fail(name, field, "numbers", "NaN")
    low, high = _bounds(space)
    size = np.where(np.isfinite(high - low), high - low, 1.0)
    outside = np.argwhere((value < low - _TOLERANCE * size) | (value > high + _TOLERANCE * size))
    if len(outside):
        index = tuple(outside[0][value.ndim - len(space.shape) :].tolist())
        bounds = f"[{low[index]}, {high[index]}]"
        got = value[tuple(outside[0])]
        _fail(name, f"{field}{list(index) or ''}", f"a value in {bounds}, as observation_space declares", got)


def _bounds(space: Discrete | MultiDiscrete | Box) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest and the largest values of a leaf space, [*shape] float64 each."""
    match space:
        case Discrete():
            return np.zeros(()), np.array(space.n - 1.0)
        case MultiDiscrete():
            return np.zeros(space.shape), np.array(space.nvec) - 1.0
    return space.low.astype(np.float64), space.high.astype(np.float64)


def _compare(name: str, field: str, expected: PyTree, got: PyTree, reference: str = "") -> None:
    """Compare structures, shapes and dtypes of two trees of shapes; weak types are refused."""
    if jax.tree.structure(expected) != jax.tree.structure(got):
        _fail(name, field, f"{reference}the structure {_describe(expected)}", _describe(got))
    paths = jax.tree_util.tree_leaves_with_path(expected)
    for (path, e), g in zip(paths, jax.tree.leaves(got), strict=True):
        leaf = field + jax.tree_util.keystr(path)
        if (e.shape, e.dtype) != (g.shape, g.dtype):
            _fail(name, leaf, f"{reference}{_aval(e)}", _aval(g))
        if getattr(g, "weak_type", False):
            _fail(name, leaf, f"{reference}a strong type", f"weak {g.dtype}; write jnp.asarray(x, jnp.{g.dtype})")


def _describe(tree: PyTree) -> str:
    return str(jax.tree.map(_aval, tree))


def _aval(x: Any) -> str:
    return f"{x.dtype}{list(x.shape)}"


def _fail(name: str, field: str, expected: Any, got: Any) -> NoReturn:
    raise ConfigError(f"env={name!r}: {field}: expected {expected}, got {got}")
