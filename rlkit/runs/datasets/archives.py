"""Transitions from elsewhere: flat arrays with the names of D4RL (Fu et al. 2020), NumPy archives, and Minari."""

import math
import os
import shlex
import zipfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.lib import format as npy

from rlkit.hosts import precision
from rlkit.hosts.worker.contract import Leaf, SpaceTree, Violation, build, check_int32, describe, dtypes_and_shapes
from rlkit.hosts.worker.contract import leaves as space_leaves
from rlkit.runs import files
from rlkit.runs.datasets.origin import Origin
from rlkit.runs.versions import require
from rlkit.types import ConfigError, Transition

_REQUIRED = ("observations", "actions", "rewards", "terminals")
_OPTIONAL = ("timeouts", "next_observations", "observation_start", "action_start")
_ROUNDED_SHARE = 0.01  # of a standard deviation, a rounding step of float32
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
    return read_npz_with_origin(path)[0]


def read_npz_with_origin(path: str | Path) -> tuple[Transition, Origin]:
    """Read the transitions of a NumPy archive, as `read_npz` does, and where it says that its integers start."""
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
        return from_arrays(**arrays), Origin(starts=(arrays.get("observation_start"), arrays.get("action_start")))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def minari(name: str, *, download: bool = True) -> Transition:
    """Load the transitions of a Minari dataset, e.g. "D4RL/pen/human-v2", from the local store.

    The last step of an episode that neither terminates nor is truncated is marked truncated. The dataset's own spaces
    say where its integers start, also in dicts and tuples; they count from 0 here, as in `rlkit.spaces`.

    Args:
      name: of the dataset in the store.
      download: True to download a dataset that the local store lacks; False to refuse it.

    Returns:
      Transition of NumPy arrays [T, 1, ...].

    Raises:
      ConfigError: the package is not installed, there is no such dataset, it has a space without a fixed number of
        entries, or its values are not in its spaces.
    """
    return minari_with_origin(name, download=download)[0]


def minari_with_origin(name: str, *, download: bool) -> tuple[Transition, Origin]:
    """Load the transitions of a Minari dataset, as `minari` does, and its own spaces."""
    subject = f"dataset='minari:{name}'"
    library = require("minari", subject, "minari")
    try:
        dataset = library.load_dataset(name, download=download)
        episodes = list(dataset.iterate_episodes())
    except FileNotFoundError:
        raise ConfigError(
            f"dataset={f'minari:{name}'!r} must be in Minari's local store, as a config downloads nothing; "
            f"run: minari download {shlex.quote(name)}"
        ) from None
    except Exception as error:  # of the network, the store, the file format
        raise ConfigError(f"{subject} cannot be loaded: {' '.join(str(error).split())}") from None
    if not episodes:
        raise ConfigError(f"{subject} must hold an episode, and it holds none; choose another")
    try:
        trees = describe(dataset.observation_space), describe(dataset.action_space, field="action_space")
    except Violation as error:
        raise ConfigError(f"{subject}: {error}; convert it with datasets.from_arrays") from None
    observations = [_leaves_of(f"{subject}: observations", trees[0], episode.observations) for episode in episodes]
    actions = [_leaves_of(f"{subject}: actions", trees[1], episode.actions) for episode in episodes]

    def stored(field: str, tree: SpaceTree, parts: Any) -> Any:
        joined = map(np.concatenate, zip(*parts, strict=True))
        leaves = [_in_space(subject, field, x, value) for x, value in zip(space_leaves(tree), joined, strict=True)]
        return build(tree, (x[:, None] for x in leaves))

    terminated = np.concatenate([np.asarray(episode.terminations, bool) for episode in episodes])
    reward = np.concatenate([episode.rewards for episode in episodes]).astype(np.float32)
    last = np.concatenate([np.arange(len(episode.rewards)) == len(episode.rewards) - 1 for episode in episodes])
    obs = stored("observations", trees[0], [[x[:-1] for x in leaves] for leaves in observations])
    next_obs = stored("observations", trees[0], [[x[1:] for x in leaves] for leaves in observations])
    flat = (reward[:, None], terminated[:, None], (last & ~terminated)[:, None])
    leaves: tuple[Any, ...] = (obs, stored("actions", trees[1], actions), *flat, next_obs)
    steps = Transition(*leaves)
    for field, value in steps._asdict().items():
        for leaf in jax.tree.leaves(value):
            _check_shape(f"{subject}: {field}", leaf, (len(last), *leaf.shape[1:]))
    return steps, Origin(spaces=trees)


def _leaves_of(subject: str, tree: SpaceTree, value: Any) -> list[np.ndarray]:
    """The arrays [T, ...] of an episode, in the order of a space's leaves. Raises ConfigError where they do not fit."""
    leaves, expected = jax.tree.leaves(value), space_leaves(tree)
    fit = len(leaves) == len(expected) and all(
        isinstance(x, np.ndarray) and x.shape[1:] == leaf.shape and np.can_cast(x.dtype, leaf.stored_dtype, "same_kind")
        for x, leaf in zip(leaves, expected, strict=True)
    )
    if not fit:
        got = ", ".join(f"{getattr(x, 'dtype', type(x).__name__)}{list(np.shape(x)[1:])}" for x in leaves)
        raise ConfigError(f"{subject} must be of its own space, {dtypes_and_shapes(tree)}, got {got}; mend the dataset")
    return leaves


def _in_space(subject: str, field: str, leaf: Leaf, value: np.ndarray) -> np.ndarray:
    """An array [S, ...] as it is stored: integers count from 0. Raises ConfigError where they are not in the space."""
    if leaf.discrete:
        low, high = value.min(0, initial=np.iinfo(value.dtype).max), value.max(0, initial=np.iinfo(value.dtype).min)
        if np.any(low < leaf.low) or np.any(high > leaf.high):
            raise ConfigError(
                f"{subject}: {field}{leaf.path} must lie from {leaf.low.tolist()} to {leaf.high.tolist()}, as its own "
                f"space declares, and lie from {low.tolist()} to {high.tolist()}; mend the dataset"
            )
        value = value - leaf.low
    elif field == "observations":
        _check_precision(f"{subject}: {field}{leaf.path}", value)
    try:
        return (check_int32(leaf, field, value) if leaf.may_overflow else value).astype(leaf.stored_dtype)
    except Violation as error:
        raise ConfigError(f"{subject}: {error}") from None


def from_arrays(
    *,
    observations: Any,
    actions: Any,
    rewards: Any,
    terminals: Any,
    timeouts: Any = None,
    next_observations: Any = None,
    observation_start: Any = 0,
    action_start: Any = 0,
) -> Transition:
    """Make transitions from one stream of consecutive episodes.

    An episode is truncated where `timeouts` is true, and where `next_observations[t]` is not `observations[t + 1]` to
    the last digit that is stored, so that rows which were shuffled or left out join no episodes. Without
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
      observation_start, action_start: integers, or arrays that broadcast against a row: where integers that number
        classes start, as `Discrete(3, start=1)` has them. They are subtracted, as integers count from 0 in
        `rlkit.spaces`.

    Returns:
      Transition of NumPy arrays [T, 1, ...], T <= S. float64 becomes float32, int64 int32. Without `next_observations`,
      next_obs of a terminated step is its obs; it does not matter, since the value of a terminal state is 0.

    Raises:
      ConfigError: an array has another shape or type, neither `timeouts` nor `next_observations` is given, or no step
        is left.
    """
    if timeouts is None and next_observations is None:
        raise ConfigError("timeouts or next_observations must be given to find truncated episodes; add one")
    _check_precision("observations", np.asarray(observations))
    obs = _numbers("observations", _from_0("observation", observations, observation_start))
    action = _numbers("actions", _from_0("action", actions, action_start))
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
        next_obs = _numbers("next_observations", _from_0("observation", next_observations, observation_start))
        _check_shape("next_observations", next_obs, obs.shape)
        if next_obs.dtype != obs.dtype:
            raise ConfigError(f"next_observations is {next_obs.dtype} and must be {obs.dtype}, as observations is")
        cut |= ~(next_obs == following).reshape(num_steps, -1).all(1)
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


def _check_precision(subject: str, value: np.ndarray) -> None:
    """Raise ConfigError where float32 would round away the variation of observations [S, ...]."""
    if value.ndim and value.size and precision.is_rounded(value.dtype):
        precision.check(subject, value, share=_ROUNDED_SHARE)


def _from_0(name: str, value: Any, start: Any) -> Any:
    """Subtract the start of integers. Raises ConfigError unless both are integers that fit each other."""
    start = np.asarray(start)
    if not start.any():
        return value
    value = np.asarray(value)
    if start.dtype.kind not in "iu" or value.dtype.kind not in "iu":
        raise ConfigError(f"{name}_start is for integers, and {name}s are {value.dtype}; leave it out")
    if start.shape not in ((), value.shape[1:]):
        raise ConfigError(f"{name}_start has shape {start.shape} and must have () or {value.shape[1:]}, by {name}s")
    return value.astype(np.int64) - start.astype(np.int64)


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
    if array.shape != expected:
        raise ConfigError(f"{name} has shape {array.shape} and must have {expected}, by observations")
