"""The environment contract, checked before training starts."""

from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.envs._spaces import leaves
from rlkit.types import Box, ConfigError, Dict, Env, PyTree, Space, Tuple

_ENVS, _STEPS = 4, 16
_TOLERANCE = 1e-5  # relative; bounds may be passed by rounding


def check(env: Env, params: Any, *, name: str | None = None) -> None:
    """Check that an environment keeps the contract of `rlkit.types.Env`: spaces, shapes, dtypes, then values.

    Shapes, dtypes and structures are checked without compiling anything, values in 16 random steps of 4 environments.

    Args:
      env, params: as `rlkit.envs.make` gives them.
      name: how errors call the environment; its own `name` by default.

    Raises:
      ConfigError: at the first violation, naming the environment, the field, what was expected, and what came.
    """
    name = name or getattr(env, "name", type(env).__name__)
    obs_space, action_space = env.observation_space(params), env.action_space(params)
    for field, space in (("observation_space", obs_space), ("action_space", action_space)):
        if not isinstance(space, Space):
            _fail(name, field, "a space of rlkit.types", type(space).__name__)
    _check_types(env, params, name, obs_space, action_space)
    _check_values(env, params, name, obs_space, action_space)


def _check_types(env: Env, params: Any, name: str, obs_space: Space, action_space: Space) -> None:
    key = jax.eval_shape(lambda: jax.random.key(0))
    obs, state = jax.eval_shape(env.reset, key, params)
    action = jax.eval_shape(action_space.sample, key)
    returned = jax.eval_shape(env.step, key, state, action, params)
    if not isinstance(returned, tuple) or len(returned) != 6:
        _fail(
            name,
            "step",
            "obs, state, reward, terminated, truncated, info",
            f"{type(returned).__name__} of other length",
        )
    next_obs, next_state, reward, terminated, truncated, info = returned
    if not isinstance(info, dict) or "final_observation" not in info:
        _fail(name, "info", "a dictionary with final_observation", sorted(info) if isinstance(info, dict) else info)
    observed = {"obs of reset": obs, "obs of step": next_obs, "final_observation": info["final_observation"]}
    for field, value in observed.items():
        _check_observation(name, field, obs_space, value)
    _compare(name, "state of step", state, next_state, "as reset's state, ")
    scalars = {
        "reward": (reward, jnp.float32),
        "terminated": (terminated, jnp.bool_),
        "truncated": (truncated, jnp.bool_),
    }
    for field, (value, dtype) in scalars.items():
        _compare(name, field, jax.ShapeDtypeStruct((), dtype), value)
    for field, value in (("obs of reset", obs), ("state of reset", state)):
        _compare(name, field, jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), value), value)


def _check_observation(name: str, field: str, space: Space, value: PyTree) -> None:
    expected = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), leaves(space))
    _compare(name, field, expected, value, "as observation_space, ")


def _check_values(env: Env, params: Any, name: str, obs_space: Space, action_space: Space) -> None:
    def play(key: jax.Array) -> Any:
        reset_key, play_key = jax.random.split(key)
        obs, state = env.reset(reset_key, params)

        def step(carry: Any, key: jax.Array) -> Any:
            action_key, step_key = jax.random.split(key)
            action = action_space.sample(action_key)
            obs, state, reward, terminated, truncated, info = env.step(step_key, carry[1], action, params)
            final = info["final_observation"]
            done = terminated | truncated
            same = [
                jnp.all(done | _equal(a, b)) for a, b in zip(jax.tree.leaves(obs), jax.tree.leaves(final), strict=True)
            ]
            return (obs, state), (obs, final, reward, jnp.all(jnp.stack(same)))

        return obs, jax.lax.scan(step, (obs, state), jax.random.split(play_key, _STEPS))[1]

    first, (obs, final, reward, same) = jax.device_get(
        jax.jit(jax.vmap(play))(jax.random.split(jax.random.key(0), _ENVS))
    )
    for field, value in (("obs of reset", first), ("obs of step", obs), ("final_observation", final)):
        _check_bounds(name, field, obs_space, value)
    if not np.isfinite(reward).all():
        _fail(name, "reward", "finite numbers", reward[~np.isfinite(reward)][0])
    if not same.all():
        _fail(name, "final_observation", "obs wherever the episode goes on", "another value")


def _equal(a: jax.Array, b: jax.Array) -> jax.Array:
    equal = a == b
    return equal | (jnp.isnan(a) & jnp.isnan(b)) if jnp.issubdtype(a.dtype, jnp.floating) else equal


def _check_bounds(name: str, field: str, space: Space, value: PyTree) -> None:
    """Values [..., *shape] against a space's bounds."""
    if isinstance(space, Dict | Tuple):
        children = space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces)
        for child, sub in children:
            _check_bounds(name, f"{field}[{child!r}]", sub, value[child])
        return
    if np.isnan(np.asarray(value, np.float64)).any():
        _fail(name, field, "numbers", "NaN")
    if isinstance(space, Box):
        low, high = (np.asarray(bound, np.float64) for bound in (space.low, space.high))
    else:
        low, high = np.zeros(space.shape), np.asarray(getattr(space, "nvec", None) or space.n) - 1.0
    slack = _TOLERANCE * np.maximum(1.0, np.where(np.isfinite(high - low), high - low, 1.0))
    below, above = value < low - slack, value > high + slack
    if (below | above).any():
        got = np.asarray(value)[below | above].ravel()[0]
        where = (
            np.argwhere(below | above)[0][2:]
            if np.ndim(value) > len(space.shape) + 1
            else np.argwhere(below | above)[0][1:]
        )
        index = tuple(int(i) for i in where)
        bounds = f"[{np.broadcast_to(low, space.shape)[index]}, {np.broadcast_to(high, space.shape)[index]}]"
        _fail(name, f"{field}{list(index) if index else ''}", f"a value in {bounds} as observation_space says", got)


def _compare(name: str, field: str, expected: PyTree, got: PyTree, why: str = "") -> None:
    """Structures, shapes, dtypes and strong types of two trees of shapes."""
    if jax.tree.structure(expected) != jax.tree.structure(got):
        _fail(name, field, f"{why}the structure {_describe(expected)}", _describe(got))
    paths = jax.tree_util.tree_leaves_with_path(expected)
    for (path, e), g in zip(paths, jax.tree.leaves(got), strict=True):
        leaf = field + jax.tree_util.keystr(path)
        if (e.shape, e.dtype) != (g.shape, g.dtype):
            _fail(name, leaf, f"{why}{_aval(e)}", _aval(g))
        if getattr(g, "weak_type", False):
            _fail(name, leaf, f"{why}a strong type", f"weak {g.dtype}; write jnp.asarray(x, jnp.{g.dtype})")


def _describe(tree: PyTree) -> str:
    return str(jax.tree.map(_aval, tree))


def _aval(x: Any) -> str:
    return f"{x.dtype}{list(x.shape)}"


def _fail(name: str, field: str, expected: Any, got: Any) -> NoReturn:
    raise ConfigError(f"env={name!r}: {field}: expected {expected}, got {got}")
