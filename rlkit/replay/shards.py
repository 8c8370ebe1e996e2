"""Buffers whose environments are divided over devices, divided anew over another number of devices.

A buffer on D devices is D buffers, the parts, each of N / D environments in their order. All have the same rows, as
every rollout reaches all of them, and a part for M devices has as many, as capacity and environments shrink alike.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.replay import segment_tree
from rlkit.replay.final_observations import FinalObservations
from rlkit.replay.packing import Rows
from rlkit.replay.priorities import Priorities
from rlkit.replay.segment_tree import SegmentTree
from rlkit.replay.storage import Ring
from rlkit.types import ConfigError, PyTree


def divide(parts: Sequence[PyTree], like: PyTree, num_parts: int) -> list[PyTree]:
    """Divide a buffer anew, with all its items and their priorities.

    Args:
      parts: its parts, states of `uniform`, `prioritized`, `hindsight.buffer` or `slices` with cross_episodes, in the
        order of devices; one for an undivided buffer.
      like: a new part, or its shapes.
      num_parts: M, of which the number of environments is a multiple.

    Returns:
      The M new parts, each as `like`, in the host's memory. Where observations are stored once, the newest final
      observations are kept, as many as there is room for; a truncated step without its own is not drawn.

    Raises:
      ConfigError: the buffer is of another kind.
    """
    parts = jax.device_get(parts)
    if not isinstance(getattr(parts[0], "ring", None), Ring):
        raise ConfigError(
            f"a buffer of {type(parts[0]).__name__} cannot be divided anew; use as many devices as before"
        )
    if parts[0].ring.frames:
        raise ConfigError("a buffer that stores each frame once cannot be divided anew; use as many devices as before")
    rings = _rings([part.ring for part in parts], like.ring, num_parts)
    new = [parts[0].replace(ring=ring) for ring in rings]
    if hasattr(like, "index"):
        index = like.index
        if any(x is not None for x in (index.age, index.starts, index.episodes, index.ended)):
            raise ConfigError("a buffer of slices of one episode cannot be divided anew; use as many devices as before")
        new = [part.replace(index=index.replace(ring=parts[0].index.ring)) for part in new]
    if hasattr(like, "running"):  # of hindsight.buffer
        ages, lengths = (_regrouped([getattr(part, x) for part in parts], num_parts) for x in ("age", "length"))
        running = _regrouped([part.running for part in parts], num_parts, axis=0)
        new = [
            part.replace(age=x, length=y, running=z) for part, x, y, z in zip(new, ages, lengths, running, strict=True)
        ]
    if hasattr(like, "priorities"):
        masses = _masses([part.priorities.mass for part in parts], like.priorities.mass, rings[0], num_parts)
        start = parts[0].priorities.start
        new = [part.replace(priorities=Priorities(mass, start)) for part, mass in zip(new, masses, strict=True)]
    return new


def _regrouped(arrays: Sequence[Any], num_parts: int, axis: int = 1) -> list[Any]:
    """Arrays [..., N / D, ...] of D parts as those of M parts, [..., N / M, ...]; `axis` is that of environments."""
    return np.split(np.concatenate([np.asarray(x) for x in arrays], axis), num_parts, axis)


def _rings(rings: Sequence[Ring], like: Ring, num_parts: int) -> list[Ring]:
    """The rings of M parts."""
    words = _regrouped([ring.stored.words for ring in rings], num_parts)
    own = [_regrouped(leaves, num_parts) for leaves in zip(*(ring.stored.own for ring in rings), strict=True)]
    new = [
        Ring(Rows(words[i], tuple(leaves[i] for leaves in own), like.stored.layout), rings[0].cursor, ())
        for i in range(num_parts)
    ]
    if not isinstance(like.final_obs, FinalObservations):
        return new
    return _with_final_obs(new, rings, like.final_obs)


def _masses(trees: Sequence[SegmentTree], like: SegmentTree, ring: Ring, num_parts: int) -> list[SegmentTree]:
    """The trees of M parts; a leaf belongs to the environment of its flat index."""
    leaves = [np.asarray(tree.leaves)[: tree.capacity].reshape(ring.num_rows, -1) for tree in trees]
    return [
        segment_tree.from_leaves(jnp.asarray(part.reshape(-1)), like.statistics, like.fanout)
        for part in _regrouped(leaves, num_parts)
    ]


def _with_final_obs(new: Sequence[Ring], old: Sequence[Ring], like: FinalObservations) -> list[Ring]:
    """The rings of M parts with their final observations."""
    final: list[Any] = [ring.final_obs for ring in old]
    stacked = jax.tree.map(lambda *leaves: np.concatenate([np.asarray(x) for x in leaves]), *[x.obs for x in final])
    last = jax.tree.map(lambda *leaves: np.concatenate([np.asarray(x) for x in leaves]), *[x.last for x in final])
    num_envs = new[0].num_envs
    places = _regrouped([_places(x) + part * x.capacity * (_places(x) >= 0) for part, x in enumerate(final)], len(new))
    return [
        ring.replace(
            final_obs=_renumbered(
                ring,
                place,
                stacked,
                like.replace(last=jax.tree.map(lambda x, i=i: x[i * num_envs : (i + 1) * num_envs], last)),
            )
        )
        for i, (ring, place) in enumerate(zip(new, places, strict=True))
    ]


def _places(final: Any) -> np.ndarray:
    """The indices [R, N] int64 of steps' final observations, by their numbers; -1 for one that was overwritten."""
    kept = (final.count - final.number) <= np.uint32(final.capacity)
    return np.where(kept, (final.number % np.uint32(final.capacity)).astype(np.int64), -1)


def _renumbered(ring: Ring, place: np.ndarray, obs: PyTree, like: FinalObservations) -> FinalObservations:
    """The final observations of a part, numbered from 0 on, from the oldest to the newest.

    Args:
      ring: of the part.
      place: [R, N] int64, the indices of truncated steps' final observations in `obs`; -1 for one that is lost.
      obs: leaves [F', ...], those of all old parts.
      like: a record with the new `last` and capacity.
    """
    size, steps = like.capacity, ring.steps
    truncated = np.asarray(steps.truncated & ~steps.terminated)
    slots = (int(ring.slot) - int(ring.count) + np.arange(int(ring.count))) % ring.num_rows  # from the oldest row on
    nth, env = np.nonzero(truncated[slots])
    slot = slots[nth]
    kept = place[slot, env] >= 0
    total, lost = int(kept.sum()), int((~kept).sum())
    numbers = np.zeros(kept.shape, np.uint32)
    numbers[kept] = np.arange(total)
    # Those of lost ones lie so far back that none is taken for a kept one; unsigned, they count back from 2^32.
    numbers[~kept] = np.uint32(total) - np.arange(1 + max(size, total), 1 + max(size, total) + lost, dtype=np.uint32)
    number = np.zeros(truncated.shape, np.uint32)
    number[slot, env] = numbers
    source = place[slot, env][kept][-size:]  # of the newest
    target = np.arange(total)[-size:] % size

    def fill(x: np.ndarray) -> np.ndarray:
        room = np.zeros((size, *x.shape[1:]), x.dtype)
        room[target] = x[source]
        return room

    return like.replace(obs=jax.tree.map(fill, obs), number=number, count=np.uint32(total))
