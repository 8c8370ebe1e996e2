"""The integers of a dataset from elsewhere: where they started there, compared with an environment's spaces."""

from typing import Any, NamedTuple

import jax
import numpy as np

from rlkit.hosts.spaces import space, starts
from rlkit.hosts.worker.contract import SpaceTree
from rlkit.spaces import Box, Dict, Discrete, Space, Tuple
from rlkit.types import ConfigError, Env, PyTree

_START_KEYS = ("observation_start", "action_start")


class Origin(NamedTuple):
    """The integers of a dataset in its source; they count from 0 in its steps."""

    spaces: tuple[SpaceTree, SpaceTree] | None = None  # its own, of observations and of actions; None if it has none
    starts: tuple[Any, Any] = (None, None)  # what was subtracted from both; None where that is not known


def check(origin: Origin, source: str, env_name: str, env: Env, params: Any) -> None:
    """Check that the integers of a dataset mean what they mean in an environment.

    Where a dataset has spaces, these must have the structure, shapes and integers of the environment's. Where it has
    none, and the environment's integers do not start at 0, it must say where its own start: [1, 2] fits both.

    Raises:
      ConfigError: they do not agree, or the start is not known.
    """
    fields = ("obs", "action")
    env_spaces = env.observation_space(params), env.action_space(params)
    env_starts = getattr(env, "obs_starts", 0), getattr(env, "action_starts", 0)
    if origin.spaces is not None:
        for field, env_space, env_start, tree in zip(fields, env_spaces, env_starts, origin.spaces, strict=True):
            expected, stored = _text(env_space, env_start), _text(space(tree), starts(tree))
            if stored != expected:
                raise ConfigError(
                    f"dataset={source!r} must have the {field} space of {env_name}, {expected}, and it has {stored}; "
                    "choose the environment that it was recorded in"
                )
        return
    for key, env_start, start in zip(_START_KEYS, env_starts, origin.starts, strict=True):
        declared = np.asarray(0 if start is None else start)
        if np.any(declared) and not _equal(declared, env_start):
            raise ConfigError(
                f"dataset={source!r} has {key}={declared.tolist()}, and integers of {env_name} start at "
                f"{_plain(env_start)}; give that, or 0 where they count from 0"
            )
        if start is None and any(map(np.any, jax.tree.leaves(env_start))):
            raise ConfigError(
                f"dataset={source!r} must hold {key}, as integers of {env_name} start at {_plain(env_start)}; "
                "add it to the archive, or 0 where they count from 0"
            )


def _equal(one: Any, other: Any) -> bool:
    """True where two starts, each a number or an array, are equal; a number stands for all entries."""
    try:
        return bool(np.all(np.asarray(one) == np.asarray(other)))
    except (TypeError, ValueError):
        return False


def _plain(start: PyTree) -> Any:
    """A start in numbers and lists, for errors."""
    return jax.tree.map(lambda x: np.asarray(x).tolist(), start)


def _text(tree: Space, start: PyTree, name: str = "") -> str:
    """The leaves of a space: the integers of each, or the dtype and shape of a box."""
    if isinstance(tree, Dict | Tuple):
        parts = tree.spaces.items() if isinstance(tree, Dict) else enumerate(tree.spaces)
        nested: Any = start if isinstance(start, dict | tuple) else None  # a number is that of all parts
        return ", ".join(
            _text(part, start if nested is None else nested[key], f"{name}/{key}".lstrip("/")) for key, part in parts
        )
    if isinstance(tree, Box):
        return f"{name} {tree.dtype.name}{list(tree.shape)}".strip()
    count = np.asarray(tree.n if isinstance(tree, Discrete) else tree.nvec)
    first = np.broadcast_to(np.asarray(start), count.shape)
    return f"{name} integers {first.tolist()} to {(first + count - 1).tolist()}".strip()
