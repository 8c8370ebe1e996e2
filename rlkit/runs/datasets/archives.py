"""Transitions from flat arrays with the names of D4RL (Fu et al. 2020), in memory or in a NumPy archive."""

import math
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from rlkit.runs import files
from rlkit.runs.versions import require
from rlkit.types import ConfigError, Transition

_REQUIRED = ("observations", "actions", "rewards", "terminals")
_OPTIONAL = ("timeouts", "next_observations")
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_npz(path: str | Path) -> Transition:
    """Read the transitions of a NumPy archive (.npz) whose keys are arguments of `from_arrays`; other keys are ignored.

    Objects are refused, and a shape is accepted only where the size of its array agrees. The arrays are read into
    memory; `datasets.writer(folder, jax.tree.map(lambda x: x[0, 0], steps), num_envs=1)` writes them as a dataset.

    Returns:
      Transition of NumPy arrays [T, 1, ...].

    Raises:
      ConfigError: it is no such archive, or as `from_arrays`; the error names the file and the key.
    """
    path, key = Path(path), None
    try:
        with os.fdopen(files.open_regular(path, os.O_RDONLY), "rb") as file, zipfile.ZipFile(file) as archive:
            members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
            arrays = {}
            for key in (*_REQUIRED, *_OPTIONAL):
                if key in members:
                    arrays[key] = _array(archive, members[key])
    except Exception as error:  # a damaged archive raises errors of some ten kinds
        reason = (getattr(error, "strerror", None) or str(error) or type(error).__name__).splitlines()[0]
        subject = f"{key} cannot be read" if key else "it cannot be read"
        raise ConfigError(f"{path}: {subject} from a NumPy archive: {reason}; write numbers by numpy.savez") from None
    if missing := [key for key in _REQUIRED if key not in arrays]:
        names = ", ".join(sorted(members)[:20]) or "nothing"
        raise ConfigError(f"{path} must hold {', '.join(missing)}, and it holds {names}; rename or add what is missing")
    try:
        return from_arrays(**arrays)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def minari(name: str) -> Transition:
    """Load the transitions of a Minari dataset, e.g. "D4RL/pen/human-v2", from the local or the public store.

    The last step of an episode that neither terminates nor is truncated is marked truncated.

    Returns:
      Transition of NumPy arrays [T, 1, ...].

    Raises:
      ConfigError: the package is not installed, there is no such dataset, or its observations or actions are not one
        array.
    """
    library = require("minari", f"dataset='minari:{name}'", "minari")
    try:
        episodes = list(library.load_dataset(name, download=True).iterate_episodes())
    except Exception as error:  # of the network, the store, the file format
        raise ConfigError(f"dataset='minari:{name}' cannot be loaded: {' '.join(str(error).split())}") from None
    if not episodes or not all(isinstance(x, np.ndarray) for e in episodes for x in (e.observations, e.actions)):
        raise ConfigError(f"dataset='minari:{name}' must hold observations and actions of one array; use from_arrays")

    def concatenate(part: Callable[[Any], Any]) -> np.ndarray:
        return np.concatenate([part(episode) for episode in episodes])

    return from_arrays(
        observations=concatenate(lambda e: e.observations[:-1]),
        next_observations=concatenate(lambda e: e.observations[1:]),
        actions=concatenate(lambda e: e.actions),
        rewards=concatenate(lambda e: e.rewards),
        terminals=concatenate(lambda e: e.terminations),
        timeouts=concatenate(lambda e: np.arange(len(e.rewards)) == len(e.rewards) - 1),
    )


def from_arrays(
    *,
    observations: Any,
    actions: Any,
    rewards: Any,
    terminals: Any,
    timeouts: Any = None,
    next_observations: Any = None,
) -> Transition:
    """Make transitions from one stream of consecutive episodes.

    Without `timeouts`, an episode is truncated where `next_observations[t]` differs from `observations[t + 1]`. Without
    `next_observations`, they are the `observations` of the next step; for the last step of a truncated episode there is
    none, so that step is left out and the one before is marked truncated. The last step of all is always truncated or
    terminated, so that several streams can be concatenated.

    Args:
      observations: [S, ...] numbers.
      actions: [S, ...] numbers.
      rewards: [S] numbers.
      terminals: [S] bool, or 0 and 1: terminal states.
      timeouts: [S] bool, or 0 and 1: time limits.
      next_observations: [S, ...] numbers, before any reset.

    Returns:
      Transition of NumPy arrays [T, 1, ...], T <= S. float64 becomes float32, int64 int32. Without `next_observations`,
      next_obs of a terminated step is its obs; it does not matter, since the value of a terminal state is 0.

    Raises:
      ConfigError: an array has another shape or type, neither of the last two is given, or no step is left.
    """
    if timeouts is None and next_observations is None:
        raise ConfigError("timeouts or next_observations must be given to find truncated episodes; add one")
    obs, action = _numbers("observations", observations), _numbers("actions", actions)
    if not obs.ndim or not len(obs):
        raise ConfigError(f"observations has shape {obs.shape} and must be [S, ...] with S >= 1")
    num_steps = len(obs)
    _check_shape("actions", action, (num_steps, *action.shape[1:]))
    reward = _numbers("rewards", rewards).astype(np.float32)
    _check_shape("rewards", reward, (num_steps,))
    terminated = _flags("terminals", terminals, num_steps)
    cut = np.zeros(num_steps, bool) if timeouts is None else _flags("timeouts", timeouts, num_steps)
    last = np.arange(num_steps) == num_steps - 1
    following = np.roll(obs, -1, axis=0)
    if next_observations is not None:
        next_obs = _numbers("next_observations", next_observations)
        _check_shape("next_observations", next_obs, obs.shape)
        if next_obs.dtype != obs.dtype:
            raise ConfigError(f"next_observations is {next_obs.dtype} and must be {obs.dtype}, as observations is")
        if timeouts is None:
            same = np.isclose(next_obs, following, rtol=1e-5, atol=1e-5)
            cut = ~same.reshape(num_steps, -1).all(1)
        complete = np.ones(num_steps, bool)
        truncated = (cut | last) & ~terminated
    else:
        complete = terminated | ~(cut | last)
        next_obs = np.where(terminated.reshape(-1, *(1,) * (obs.ndim - 1)), obs, following)
        truncated = ~np.roll(complete, -1) & ~terminated
        if not complete.any():
            raise ConfigError(f"timeouts leaves no step of {num_steps} a next observation; add next_observations")
    steps: tuple[Any, ...] = (obs, action, reward, terminated, truncated, next_obs)
    return Transition(*(leaf[complete][:, None] for leaf in steps))


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """One array of an archive. It is allocated only if its header agrees with its size; nothing is unpickled."""
    with archive.open(member) as file:
        version = npy.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"version {version} of the format")
        shape, _, dtype = _HEADERS[version](file)
        if dtype.kind not in "biuf":
            raise ValueError(f"{dtype} where there must be numbers")
        if math.prod(shape) * dtype.itemsize != member.file_size - file.tell():
            raise ValueError(f"{member.file_size} bytes where there must be {dtype} of shape {shape}")
    with archive.open(member) as file:
        return npy.read_array(file, allow_pickle=False)


def _numbers(name: str, value: Any) -> np.ndarray:
    """An array in native byte order, of at most 32 bits. Raises ConfigError where that would change an integer."""
    array = np.asarray(value)
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind not in "biuf":
        raise ConfigError(f"{name} is {array.dtype} and must hold numbers")
    narrow = array.astype(np.dtype(f"{kind}{min(size, 4)}"), copy=False)
    if kind in "iu" and size > 4 and not np.array_equal(narrow, array):
        raise ConfigError(f"{name} is {array.dtype} and must fit 32 bits; make it float32, or smaller")
    return narrow


def _flags(name: str, value: Any, num_steps: int) -> np.ndarray:
    """An array [S] bool. Raises ConfigError for another shape, or for numbers other than 0 and 1."""
    array = np.asarray(value)
    _check_shape(name, array, (num_steps,))
    if array.dtype.kind not in "biuf" or not np.isin(array, (0, 1)).all():
        raise ConfigError(f"{name} is {array.dtype} and must be bool, or hold 0 and 1 alone")
    return array.astype(bool)


def _check_shape(name: str, array: np.ndarray, expected: tuple[int, ...]) -> None:
    """Raise ConfigError for another shape than expected."""
    if array.shape != expected:
        raise ConfigError(f"{name} has shape {array.shape} and must have {expected}, by observations")
