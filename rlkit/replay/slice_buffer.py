"""Replay of slices: L consecutive rows of one environment, drawn uniformly, by episode, or by priority.

Uniform slices of one episode are those of TorchRL's SliceSampler; prioritized ones that run on across episode ends are
those of R2D2 (Kapturowski et al. 2019, section 2.3). `rlkit.replay.slice_index` knows where the legal slices are.
"""

from functools import partial
from typing import Literal

import jax.numpy as jnp
from flax import struct

from rlkit.replay import priorities, segment_tree, slice_index, validation, windows
from rlkit.replay import storage as rings
from rlkit.replay.priorities import Priorities
from rlkit.replay.slice_index import SliceIndex
from rlkit.replay.storage import Ring
from rlkit.replay.windows import Handle, Place
from rlkit.types import Array, Buffer, ConfigError, Key, Sample, Transition


class SlicesState(struct.PyTreeNode):
    """A ring of steps and the index of its slices."""

    ring: Ring
    index: SliceIndex


class PrioritizedSlicesState(struct.PyTreeNode):
    """A ring of steps, the index of its slices, and the priorities of the places where they start."""

    ring: Ring
    index: SliceIndex
    priorities: Priorities
    beta: Array  # [] float32, the exponent of the importance weights; anneal it by `state.replace(beta=...)`


def slices(
    capacity: int,
    num_slices: int,
    slice_len: int,
    *,
    law: Literal["slice", "episode"] = "slice",
    strict: bool = True,
    cross_episodes: bool = False,
    prioritized: bool = False,
    alpha: float = 0.6,
    beta: float = 0.4,
    eps: float = 1e-6,
    start_priority: float = 1.0,
    store_obs_once: bool = False,
    max_finals: int | None = None,
) -> Buffer:
    """A buffer of the last `capacity` steps, from which slices of `slice_len` steps are drawn, with replacement.

    Items have leaves [B, L, ...] and a mask [B, L]. A slice never crosses environments or the newest row, and an
    unfinished episode can be used up to its newest step. The last real step of a slice is marked truncated unless it is
    terminated, so that a return computed along the slice bootstraps there. `size` counts slices.

    Args:
      capacity: steps of all environments together, below 2^31, a multiple of their number.
      num_slices: B, slices of a sample.
      slice_len: L, steps of a slice.
      law: "slice" draws each legal slice with the same probability; "episode" each episode that holds one, as far as it
        is stored, and then each of its slices.
      strict: only slices of L steps of one episode; otherwise every stored step starts one, and the mask ends with its
        episode or with the newest row.
      cross_episodes: every L consecutive rows of an environment are a slice, whatever ends inside, for recurrent agents
        that reset their memory there.
      prioritized: draw in proportion to the priorities of `update`, one for each slice, instead of by `law`.
      alpha, beta, eps, start_priority: of the priorities; see `prioritized`.
      store_obs_once, max_finals: see `uniform`.

    Returns:
      `Buffer`. `sample` of a buffer without a slice raises ValueError outside of jit, and has a mask of False inside.

    Raises:
      ConfigError: a setting is out of range, or two contradict each other; at `init`, the capacity does not fit.
    """
    finals = validation.settings(
        store_obs_once=store_obs_once,
        max_finals=max_finals,
        capacity=capacity,
        num_slices=num_slices,
        slice_len=slice_len,
    )
    _check_kind(law, strict, cross_episodes, prioritized)
    priority = priorities.Settings(alpha, beta, eps, start_priority) if prioritized else None
    whole = slice_len if strict and not cross_episodes else 1  # rows that a slice cannot do without
    return Buffer(
        init=partial(
            init,
            capacity=capacity,
            max_finals=finals,
            priority=priority,
            slice_len=slice_len,
            strict=strict,
            cross_episodes=cross_episodes,
            law=law,
        ),
        add=add,
        sample=partial(sample, num_slices=num_slices, whole=whole),
        update=partial(update, settings=priority),
        size=size,
    )


def _check_kind(law: str, strict: bool, cross_episodes: bool, prioritized: bool) -> None:
    if law not in slice_index.LAWS:
        raise ConfigError(f"law={law!r} must be one of {', '.join(map(repr, slice_index.LAWS))}")
    if law == "episode" and prioritized:
        raise ConfigError("law='episode' has no meaning with prioritized=True: priorities are the law; leave it out")
    if law == "episode" and cross_episodes:
        raise ConfigError("law='episode' has no meaning with cross_episodes=True: such slices belong to no episode")
    if cross_episodes and not strict:
        raise ConfigError("strict=False has no meaning with cross_episodes=True: such slices are full; leave it out")


def init(
    example: Transition,
    num_envs: int,
    *,
    capacity: int,
    max_finals: int | None,
    priority: priorities.Settings | None,
    slice_len: int,
    **kind: bool | str,
) -> SlicesState | PrioritizedSlicesState:
    """An empty buffer for steps like `example`, leaves [...], of `num_envs` environments."""
    ring = rings.init(example, num_envs, capacity, slice_len, max_finals)
    index = slice_index.init(ring.num_rows, num_envs, slice_len, **kind)  # type: ignore[arg-type]
    if priority is None:
        return SlicesState(ring, index)
    return PrioritizedSlicesState(ring, index, priorities.init(capacity, priority), jnp.float32(priority.beta))


def add(state: SlicesState | PrioritizedSlicesState, rollout: Transition) -> SlicesState | PrioritizedSlicesState:
    """The buffer after a rollout [T, N, ...]: its index and, where there are some, its priorities with it."""
    ring = rings.add(state.ring, rollout)
    done = rollout.terminated | rollout.truncated
    added = state.replace(ring=ring, index=slice_index.add(state.index, done))
    if isinstance(state, SlicesState):
        return added
    births = slice_index.births(state.index, done)
    born = jnp.where(births.born, rings.places(births.slot, ring.num_envs).reshape(done.shape), ring.capacity)
    forgotten = priorities.forget(state.priorities, rings.next_slots(state.ring, done.shape[0]), ring.num_envs)
    return added.replace(priorities=priorities.renew_places(forgotten, born.reshape(-1)))


def sample(state: SlicesState | PrioritizedSlicesState, key: Key, *, num_slices: int, whole: int) -> Sample:
    """B slices: leaves [B, L, ...], mask [B, L], and weights [B]."""
    validation.not_empty(size(state))
    index, num_envs = state.index, state.ring.num_envs

    def draw(key: Key) -> Place:
        if isinstance(state, PrioritizedSlicesState):
            return priorities.draw(state.priorities, key, num_slices, num_envs)
        drawn = slice_index.sample(index, key, num_slices)
        return Place(drawn.slot, drawn.env)

    place, drawn = windows.draw_known(state.ring, draw, key, whole)
    if isinstance(state, PrioritizedSlicesState):
        drawn &= segment_tree.total(state.priorities.mass) > 0
        weight = priorities.weights(state.priorities, place, state.beta)
    else:
        drawn &= size(state) > 0
        weight = jnp.ones((num_slices,))
    return windows.take(state.ring, place, weight, drawn, index.slice_len, across_ends=index.cross_episodes)


def update(
    state: SlicesState | PrioritizedSlicesState, index: Handle, priority: Array, *, settings: priorities.Settings | None
) -> SlicesState | PrioritizedSlicesState:
    """The buffer after |priority| [B] was measured of the slices of `index`; as it is where it has no priorities."""
    if isinstance(state, SlicesState) or settings is None:
        return state
    return state.replace(priorities=priorities.update(state.priorities, state.ring, index, priority, settings))


def size(state: SlicesState | PrioritizedSlicesState) -> Array:
    """How many slices can be drawn, [] int32."""
    return slice_index.size(state.index)
