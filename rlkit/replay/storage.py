"""The storage of every buffer: a ring of rows, each one step of all environments."""

import jax
import jax.numpy as jnp
from flax import struct

from rlkit.ops._integers import uint32
from rlkit.replay import cursor, final_observations, packing
from rlkit.replay.cursor import Cursor
from rlkit.replay.final_observations import Finals
from rlkit.replay.packing import Rows
from rlkit.types import Array, ConfigError, Transition


class Ring(struct.PyTreeNode):
    """The last R steps of N environments.

    A place is a pair (slot, env). A slot is used again R rows later; a row's absolute number tells the two apart.
    """

    stored: Rows  # steps; next_obs is () where observations are stored once
    cursor: Cursor  # where the next row goes, and how many are stored
    finals: Finals | tuple  # what next_obs is made of where observations are stored once, else ()

    @property
    def steps(self) -> Transition:
        """All steps, leaves [R, N, ...], as a copy; next_obs is () where observations are stored once."""
        return packing.unpack(self.stored)

    @property
    def slot(self) -> Array:
        """[] int32, where the next row goes."""
        return self.cursor.slot.astype(jnp.int32)

    @property
    def count(self) -> Array:
        """[] int32, how many rows are stored."""
        return self.cursor.rows.astype(jnp.int32)

    @property
    def row(self) -> Array:
        """[] uint32, the absolute number of the next row, modulo 2^32."""
        return self.cursor.head

    @property
    def num_rows(self) -> int:
        return self.cursor.num_rows

    @property
    def num_envs(self) -> int:
        return self.stored.words.shape[-2]

    @property
    def capacity(self) -> int:
        return self.num_rows * self.num_envs


def init(example: Transition, num_envs: int, capacity: int, window: int, max_finals: int | None) -> Ring:
    """An empty ring of `capacity` steps, of which windows of `window` rows are drawn.

    Args:
      example: one step, leaves [...].
      max_finals: how many final observations of truncated episodes to keep beside observations that are stored once;
        None to store next_obs as it is.

    Raises:
      ConfigError: the capacity does not divide by `num_envs`, or holds fewer than `window` rows.
    """
    if num_envs < 1:
        raise ConfigError(f"num_envs={num_envs} must be at least 1")
    if capacity % num_envs:
        near = max(capacity // num_envs, 1) * num_envs
        raise ConfigError(f"capacity={capacity} must be a multiple of num_envs = {num_envs}; try {near}")
    num_rows = capacity // num_envs
    if num_rows < window:
        raise ConfigError(
            f"capacity={capacity} must be at least {window * num_envs}, to hold {window} steps of each of {num_envs} "
            f"environments; try {window * num_envs} or more"
        )
    example = jax.tree.map(jnp.asarray, example)
    kept = example if max_finals is None else example._replace(next_obs=())
    return Ring(
        stored=packing.init(kept, num_rows, num_envs),
        cursor=cursor.init(num_rows),
        finals=() if max_finals is None else final_observations.init(example.obs, num_rows, num_envs, max_finals),
    )


def add(ring: Ring, rollout: Transition) -> Ring:
    """The ring after a rollout [T, N, ...], 1 <= T <= R, written over the oldest rows, also across the ring's end.

    Raises:
      ValueError: the rollout has another structure, other shapes or dtypes than the example of `init`, or T > R.
    """
    length = _length(ring, rollout)
    slots = next_slots(ring, length)
    once = isinstance(ring.finals, Finals)
    kept = rollout._replace(next_obs=()) if once else rollout
    return ring.replace(
        stored=packing.write(ring.stored, slots, kept),
        cursor=cursor.advance(ring.cursor, length),
        finals=final_observations.add(ring.finals, slots, rollout) if isinstance(ring.finals, Finals) else (),
    )


def _length(ring: Ring, rollout: Transition) -> int:
    """T of a rollout that fits the ring."""
    once = isinstance(ring.finals, Finals)
    step = packing.example(ring.stored)
    known = step._replace(next_obs=step.obs) if once else step
    expected, given = jax.tree.structure(known), jax.tree.structure(rollout)
    if expected != given:
        raise ValueError(f"rollout has the structure {given}, expected {expected}, that of init's example")
    shape = jnp.shape(rollout.reward)
    if len(shape) != 2 or not 1 <= shape[0] <= ring.num_rows:
        raise ValueError(
            f"reward has shape {shape}, expected [T, {ring.num_envs}] with 1 <= T <= {ring.num_rows}; add a longer "
            "rollout in pieces, or raise the capacity"
        )
    leaves, _ = jax.tree_util.tree_flatten_with_path(known)
    for (path, leaf), x in zip(leaves, jax.tree.leaves(rollout), strict=True):
        fitting = (shape[0], ring.num_envs, *leaf.shape)
        if jnp.shape(x) != fitting or jnp.asarray(x).dtype != leaf.dtype:
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            raise ValueError(
                f"{name} is {jnp.asarray(x).dtype} of shape {jnp.shape(x)}, expected {leaf.dtype} of shape {fitting}, "
                "by init's example"
            )
    return shape[0]


def next_slots(ring: Ring, length: int) -> Array:
    """[T] int32, the slots that the next T rows take."""
    return cursor.next_slots(ring.cursor, length).astype(jnp.int32)


def places(slots: Array, num_envs: int) -> Array:
    """[T * N] int32, slot * N + env of the rows in slots [T]; of a slot R, which is none, the capacity or more."""
    return (slots[:, None] * num_envs + jnp.arange(num_envs, dtype=jnp.int32)[None]).reshape(-1)


def advance(slot: Array, by: Array | int, num_rows: int) -> Array:
    """The slot `by` rows on, 0 <= by <= R, in int32 also where slot + by is not."""
    ahead = slot - (num_rows - by)
    return jnp.where(ahead < 0, ahead + num_rows, ahead)


def slot_of(ring: Ring, row: Array) -> tuple[Array, Array]:
    """The slots of absolute rows [...] uint32, and which rows are still stored; the slot of one that is not is R."""
    age = ring.row - row
    stored = (age >= jnp.uint32(1)) & (age <= ring.cursor.rows)
    slot = cursor.slot_of(ring.cursor, jnp.where(stored, age, jnp.uint32(1))).astype(jnp.int32)
    return jnp.where(stored, slot, ring.num_rows), stored


def row_of(ring: Ring, slot: Array) -> Array:
    """[...] uint32, the absolute numbers of the rows in slots [...] int32."""
    return ring.row - cursor.back_of(ring.cursor, uint32(slot))


def steps_at(ring: Ring, slot: Array, env: Array) -> Transition:
    """The steps at places [...], leaves [..., ...]."""
    step = packing.at(ring.stored, slot, env)
    if not isinstance(ring.finals, Finals):
        return step
    following = advance(slot, 1, ring.num_rows)
    newest, after = following == ring.slot, packing.at(ring.stored, following, env).obs
    return step._replace(next_obs=final_observations.next_obs(ring.finals, step, slot, env, newest, after))


def known(ring: Ring, slot: Array, env: Array) -> Array:
    """[...] bool: False at places of truncated steps whose next_obs is no longer stored."""
    if not isinstance(ring.finals, Finals):
        return jnp.ones(slot.shape, bool)
    return final_observations.known(ring.finals, packing.at(ring.stored, slot, env), slot, env)
