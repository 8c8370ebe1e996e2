"""Ring storage of the buffers: R rows, each one step of N environments, of which the newest overwrite the oldest.

A row has two numbers. Its absolute row counts all rows ever added, modulo 2^32. Its slot, in [0, R), is its index in
the arrays, which is used again R rows later; the absolute row tells the two uses apart. A step is addressed by slot and
environment, or by one flat index, slot * N + env.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rlkit.ops._integers import add_mod, sub_mod, uint32
from rlkit.replay import final_observations, frames, packing, validation
from rlkit.replay.final_observations import FinalObservations
from rlkit.replay.frames import Frames
from rlkit.replay.packing import Rows
from rlkit.replay.short_repr import short_repr
from rlkit.replay.validation import ObsStorage
from rlkit.types import Array, ConfigError, PyTree, Transition


class Cursor(struct.PyTreeNode):
    """Position of the next row of a ring, and the number of rows stored.

    Absolute row and slot are counted apart, so that R need not divide 2^32.

    Attributes:
      counts: [3] uint32, (head, slot, rows); one array, as every argument of a compiled call costs time.
      num_rows: R, static, below 2^31.
    """

    counts: Array  # [3]
    num_rows: int = struct.field(pytree_node=False)

    __repr__ = short_repr

    @property
    def head(self) -> Array:
        """Absolute row of the next row, [] uint32, modulo 2^32."""
        return self.counts[0]

    @property
    def slot(self) -> Array:
        """Slot of the next row, [] uint32."""
        return self.counts[1]

    @property
    def rows(self) -> Array:
        """Number of stored rows, [] uint32."""
        return self.counts[2]

    def with_counts(self, **counts: Array | int) -> "Cursor":
        """Return the cursor with some of `head`, `slot` and `rows` replaced."""
        merged = {"head": self.head, "slot": self.slot, "rows": self.rows} | counts
        return self.replace(counts=jnp.stack([uint32(merged[name]) for name in ("head", "slot", "rows")]))


def empty_cursor(num_rows: int) -> Cursor:
    """Return the cursor of an empty ring of R rows."""
    return Cursor(jnp.zeros((3,), jnp.uint32), num_rows)


def advance(cursor: Cursor, count: int) -> Cursor:
    """Return the cursor after `count` more rows, R at most."""
    return cursor.with_counts(
        head=cursor.head + jnp.uint32(count),
        slot=add_mod(cursor.slot, uint32(count), cursor.num_rows),
        rows=jnp.minimum(cursor.rows + jnp.uint32(count), jnp.uint32(cursor.num_rows)),
    )


def next_slots(cursor: Cursor, count: int) -> Array:
    """Slots of the next `count` rows, R at most: [count] uint32."""
    return add_mod(cursor.slot, jnp.arange(count, dtype=jnp.uint32), cursor.num_rows)


def slot_before_head(cursor: Cursor, distance: Array) -> Array:
    """Slot of the row that is `distance` [...] uint32 rows before the head: 1 for the newest row, R at most."""
    return sub_mod(cursor.slot, distance, cursor.num_rows)


def distance_to_head(cursor: Cursor, slot: Array) -> Array:
    """Distance of the row in `slot` [...] uint32 from the head, in rows: 1 for the newest row, R at most."""
    distance = sub_mod(cursor.slot, slot, cursor.num_rows)
    return jnp.where(distance == 0, jnp.uint32(cursor.num_rows), distance)


def slot_after(slot: Array, count: Array | int, num_rows: int) -> Array:
    """Slot `count` [...] rows after `slot` [...], both int32, 0 <= count <= R: [...] int32."""
    beyond_end = slot - (num_rows - count)  # slot + count may not fit in int32
    return jnp.where(beyond_end < 0, beyond_end + num_rows, beyond_end)


def window_at(slot: Array, env: Array, length: int, num_rows: int) -> tuple[Array, Array]:
    """Slots and environments, [B, L] int32 each, of the L rows from the steps at slot and env [B] int32 on."""
    slots = slot_after(slot[:, None], jnp.arange(length, dtype=jnp.int32)[None], num_rows)
    return slots, jnp.broadcast_to(env[:, None], slots.shape)


def flat_index(slot: Array, env: Array, num_envs: int) -> Array:
    """Flat index slot * N + env, [...] int32, of slots and environments [...] uint32; R * N is below 2^31."""
    return (slot * jnp.uint32(num_envs) + env).astype(jnp.int32)


def flat_indices(slots: Array, num_envs: int) -> Array:
    """Flat indices of all steps of the rows in `slots` [T], [T, N] int32. Those of slot R are R * N or more."""
    return flat_index(uint32(slots)[:, None], jnp.arange(num_envs, dtype=jnp.uint32)[None], num_envs)


def slot_and_env(index: Array, num_envs: int) -> tuple[Array, Array]:
    """Slot and environment, [...] uint32 each, of flat indices [...]."""
    return jnp.divmod(uint32(index), jnp.uint32(num_envs))


class Ring(struct.PyTreeNode):
    """The last R steps of N environments."""

    stored: Rows  # packed steps; next_obs is () where observations are stored once; of leaves in frames their numbers
    cursor: Cursor  # position of the next row and number of stored rows
    final_obs: FinalObservations | tuple  # final observations where observations are stored once, otherwise ()
    frames: tuple[Frames | None, ...] = ()  # of each leaf of obs whose frames are stored once; () where none is

    __repr__ = short_repr

    @property
    def steps(self) -> PyTree:
        """All steps, leaves [R, N, ...], as a copy; next_obs is () where observations are stored once."""
        return _with_frames(self, packing.unpack(self.stored))

    @property
    def slot(self) -> Array:
        """Slot of the next row, [] int32."""
        return self.cursor.slot.astype(jnp.int32)

    @property
    def count(self) -> Array:
        """Number of stored rows, [] int32."""
        return self.cursor.rows.astype(jnp.int32)

    @property
    def head(self) -> Array:
        """Absolute row of the next row, [] uint32, modulo 2^32."""
        return self.cursor.head

    @property
    def num_rows(self) -> int:
        """R, the rows of the ring."""
        return self.cursor.num_rows

    @property
    def num_envs(self) -> int:
        """N, the environments of a row."""
        return self.stored.words.shape[-2]

    @property
    def capacity(self) -> int:
        """R * N, the steps of the ring."""
        return self.num_rows * self.num_envs


def init(example: PyTree, num_envs: int, capacity: int, window: int, obs_storage: ObsStorage) -> Ring:
    """Return an empty ring of `capacity` steps of `num_envs` environments.

    Args:
      example: one step, leaves [...].
      num_envs: N.
      capacity: R * N.
      window: rows of the windows that are drawn, at most R.
      obs_storage: how observations are stored.

    Raises:
      ConfigError: the capacity is not a multiple of `num_envs`, or is below `window` rows; or the example has no leaf,
        or lacks a field that is needed.
    """
    kind = type(example).__name__
    if not jax.tree.leaves(example):
        raise ConfigError(f"example={kind} has no leaf; give one step, with an array at least")
    final_obs, stack, image_axes = obs_storage
    for setting, given in (("store_obs_once=True", final_obs is not None), (f"frame_stack={stack}", stack > 1)):
        if given and not isinstance(example, Transition):
            raise ConfigError(f"{setting} needs steps of type Transition, and example={kind}; leave it out")
    purpose = f"windows of {window} steps of each of {num_envs} environments"
    validation.check_capacity(capacity, num_envs, min_rows=window, purpose=purpose)
    num_envs = int(num_envs)
    num_rows = capacity // num_envs
    example = jax.tree.map(jnp.asarray, example)
    if stack > 1:
        pools = tuple(frames.init(x, num_envs, capacity, stack, image_axes) for x in jax.tree.leaves(example.obs))
        if any(pool is not None for pool in pools):
            numbers = jax.tree.unflatten(
                jax.tree.structure(example.obs),
                [
                    x if pool is None else jnp.zeros((stack,), jnp.uint32)
                    for x, pool in zip(jax.tree.leaves(example.obs), pools, strict=True)
                ],
            )
            stored = packing.init(example._replace(obs=numbers, next_obs=numbers), num_rows, num_envs)
            return Ring(stored, empty_cursor(num_rows), (), pools)
    if final_obs is None:
        return Ring(packing.init(example, num_rows, num_envs), empty_cursor(num_rows), ())
    return Ring(
        stored=packing.init(example._replace(next_obs=()), num_rows, num_envs),
        cursor=empty_cursor(num_rows),
        final_obs=final_observations.init(example.obs, num_rows, num_envs, final_obs),
    )


def add(ring: Ring, rollout: PyTree) -> Ring:
    """Return the ring after a rollout [T, N, ...], 1 <= T <= R, which overwrites the oldest rows.

    Gradients with respect to what is stored are zero.

    Raises:
      ValueError: structure, shapes or dtypes of the rollout differ from those of the example given to `init`, or T > R.
    """
    length = _checked_length(ring, rollout)
    rollout = jax.lax.stop_gradient(rollout)  # packed leaves have none
    slots = next_slots(ring.cursor, length).astype(jnp.int32)
    if ring.frames:
        ring, rollout = _add_frames(ring, rollout)
    ring = ring.replace(cursor=advance(ring.cursor, length))
    if not isinstance(ring.final_obs, FinalObservations):
        return ring.replace(stored=packing.write(ring.stored, slots, rollout))
    return ring.replace(
        stored=packing.write(ring.stored, slots, rollout._replace(next_obs=())),
        final_obs=final_observations.add(ring.final_obs, slots, rollout),
    )


def _checked_length(ring: Ring, rollout: PyTree) -> int:
    """Return T of a rollout [T, N, ...]. Raises ValueError unless it fits the ring."""
    step = packing.example(ring.stored)
    if isinstance(ring.final_obs, FinalObservations):
        step = step._replace(next_obs=step.obs)
    if ring.frames:
        obs = _map_frames(ring, lambda pool, x: pool.leaf, step.obs)
        step = step._replace(obs=obs, next_obs=obs)
    expected, given = jax.tree.structure(step), jax.tree.structure(rollout)
    if expected != given:
        raise ValueError(f"rollout has the structure {given}, expected {expected}, that of init's example")
    paths, _ = jax.tree_util.tree_flatten_with_path(step)
    leaves = [
        (jax.tree_util.keystr(path, simple=True, separator="."), leaf, x)
        for (path, leaf), x in zip(paths, jax.tree.leaves(rollout), strict=True)
    ]
    first, leaf, x = min(leaves, key=lambda leaf: leaf[0] != "reward")  # the reward where there is one
    shape = jnp.shape(x)
    if len(shape) != 2 + len(leaf.shape) or not 1 <= shape[0] <= ring.num_rows:
        expected = ", ".join(["T", str(ring.num_envs), *map(str, leaf.shape)])
        raise ValueError(
            f"{first} has shape {shape}, expected [{expected}] with 1 <= T <= {ring.num_rows}; add a longer "
            "rollout in pieces, or raise the capacity"
        )
    for name, leaf, x in leaves:
        leaf_shape = (shape[0], ring.num_envs, *leaf.shape)
        if jnp.shape(x) != leaf_shape or jnp.asarray(x).dtype != leaf.dtype:
            raise ValueError(
                f"{name} is {jnp.asarray(x).dtype} of shape {jnp.shape(x)}, expected {leaf.dtype} of shape "
                f"{leaf_shape}, by init's example"
            )
    return shape[0]


def slot_of_row(ring: Ring, row: Array) -> tuple[Array, Array]:
    """Slots of absolute rows, and which of these rows are still stored.

    Args:
      ring: of R rows.
      row: [...] uint32, absolute rows.

    Returns:
      [...] int32, the slot, R for a row that is not stored; and [...] bool, True where the row is stored.
    """
    distance = ring.head - row
    stored = (distance >= jnp.uint32(1)) & (distance <= ring.cursor.rows)
    slot = slot_before_head(ring.cursor, jnp.where(stored, distance, jnp.uint32(1))).astype(jnp.int32)
    return jnp.where(stored, slot, ring.num_rows), stored


def row_of_slot(ring: Ring, slot: Array) -> Array:
    """Absolute rows, [...] uint32, of the rows in slots [...] int32."""
    return ring.head - distance_to_head(ring.cursor, uint32(slot))


def steps_at(ring: Ring, slot: Array, env: Array) -> PyTree:
    """Return the steps at slots and environments [...] int32, leaves [..., ...]."""
    step = packing.at(ring.stored, slot, env)
    if not isinstance(ring.final_obs, FinalObservations):
        return _with_frames(ring, step)
    following = slot_after(slot, 1, ring.num_rows)
    is_newest, following_obs = following == ring.slot, packing.at(ring.stored, following, env).obs
    return step._replace(
        next_obs=final_observations.next_obs(ring.final_obs, step, slot, env, is_newest, following_obs)
    )


def has_next_obs(ring: Ring, slot: Array, env: Array) -> Array:
    """Mark the steps at [...] whose next_obs is stored: [...] bool.

    It is False at truncated steps whose final observation has been overwritten, and at steps whose frames have been.
    """
    if ring.frames:
        numbers = packing.at(ring.stored, slot, env).obs
        stored = jax.tree.leaves(_map_frames(ring, frames.are_stored, numbers, others=jnp.ones(slot.shape, bool)))
        return jnp.stack(stored).all(0)
    if not isinstance(ring.final_obs, FinalObservations):
        return jnp.ones(slot.shape, bool)
    return final_observations.has_next_obs(ring.final_obs, packing.at(ring.stored, slot, env), slot, env)


def _map_frames(ring: Ring, function: Any, *trees: PyTree, others: Any = None) -> PyTree:
    """Map observations by `function`, (pool, *leaves) -> leaf, in leaves whose frames are stored once.

    The other leaves become `others`, or stay those of the first tree.
    """
    leaves = zip(*map(jax.tree.leaves, trees), strict=True)
    kept = [
        (x[0] if others is None else others) if pool is None else function(pool, *x)
        for pool, x in zip(ring.frames, leaves, strict=True)
    ]
    return jax.tree.unflatten(jax.tree.structure(trees[0]), kept)


def _with_frames(ring: Ring, step: PyTree) -> PyTree:
    """Return stored steps with observations in the place of the numbers of their frames."""
    if not ring.frames:
        return step
    return step._replace(
        obs=_map_frames(ring, frames.at, step.obs), next_obs=_map_frames(ring, frames.at, step.next_obs)
    )


def _add_frames(ring: Ring, rollout: Transition) -> tuple[Ring, Transition]:
    """Add the new frames of a rollout [T, N, ...] to their pools, and return it with numbers [T, N, n] of frames."""
    envs = jnp.arange(ring.num_envs, dtype=jnp.int32)
    newest = slot_before_head(ring.cursor, jnp.ones(envs.shape, jnp.uint32)).astype(jnp.int32)
    before, is_followed = packing.at(ring.stored, newest, envs).next_obs, ring.count > 0
    structure = jax.tree.structure(rollout.obs)
    added = [
        (None, obs, next_obs) if pool is None else frames.add(pool, number, is_followed, obs, next_obs)
        for pool, number, obs, next_obs in zip(
            ring.frames, *map(jax.tree.leaves, (before, rollout.obs, rollout.next_obs)), strict=True
        )
    ]
    pools, obs, next_obs = zip(*added, strict=True)
    numbered = rollout._replace(
        obs=jax.tree.unflatten(structure, obs), next_obs=jax.tree.unflatten(structure, next_obs)
    )
    return ring.replace(frames=pools), numbered
