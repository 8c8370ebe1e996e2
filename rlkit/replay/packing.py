"""The rows of a ring, each one step of all environments: small leaves lie side by side, in one array of 32-bit words.

To draw a step then reads one stretch of memory, where leaves in arrays of their own would miss the caches once each,
and a call from Python has fewer arrays to hand over. Leaves of more than WIDE bytes a step have an array of their own,
and so have those whose numbers are complex or no whole bytes.
"""

import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rlkit.types import Array, PyTree

WIDE = 256


class Field(NamedTuple):
    """Where a leaf lies."""

    shape: tuple[int, ...]  # in one step
    dtype: Any
    kind: Literal["words", "bytes", "own"]  # "bytes" follow the last word, four in each
    start: int  # its first word or its first byte of a step, or which of the arrays it is

    @property
    def stop(self) -> int:
        """Where the next leaf of this kind starts."""
        unit = {"words": 4, "bytes": 1}
        return self.start + (1 if self.kind == "own" else _num_bytes(self.shape, self.dtype) // unit[self.kind])


class Layout(NamedTuple):
    """Where all leaves of a step lie."""

    structure: Any  # of a step, as jax.tree.structure gives it
    fields: tuple[Field, ...]

    @property
    def num_words(self) -> int:
        """Words of a step that hold leaves of whole words; the bytes follow."""
        return max((field.stop for field in self.fields if field.kind == "words"), default=0)

    @property
    def num_bytes(self) -> int:
        """Bytes of a step, filled up to whole words."""
        return -(-max((field.stop for field in self.fields if field.kind == "bytes"), default=0) // 4) * 4


class Rows(struct.PyTreeNode):
    """R rows of N steps."""

    words: Array  # [R, N, W] uint32
    own: tuple[Array, ...]  # leaves [R, N, ...] with an array of their own
    layout: Layout = struct.field(pytree_node=False)


def init(example: PyTree, num_rows: int, num_envs: int) -> Rows:
    """Rows of zeros, for steps like `example`, leaves [...]."""
    leaves, structure = jax.tree.flatten(jax.tree.map(jnp.asarray, example))
    fields: list[Field] = []
    for leaf in leaves:
        kind = _kind(leaf)
        start = max((field.stop for field in fields if field.kind == kind), default=0)
        fields.append(Field(leaf.shape, leaf.dtype, kind, start))
    layout = Layout(structure, tuple(fields))
    return Rows(
        words=jnp.zeros((num_rows, num_envs, layout.num_words + layout.num_bytes // 4), jnp.uint32),
        own=tuple(jnp.zeros((num_rows, num_envs, *f.shape), f.dtype) for f in fields if f.kind == "own"),
        layout=layout,
    )


def shapes(rows: Rows, num_rows: int, num_envs: int) -> list[tuple[str, Array, tuple[int, ...]]]:
    """Each array with its name and the shape that it must have."""
    width = rows.layout.num_words + rows.layout.num_bytes // 4
    own = [field for field in rows.layout.fields if field.kind == "own"]
    return [("words", rows.words, (num_rows, num_envs, width))] + [
        (f"own[{f.start}]", rows.own[f.start], (num_rows, num_envs, *f.shape)) for f in own
    ]


def example(rows: Rows) -> PyTree:
    """The shapes [...] and dtypes of one step."""
    structure, fields = rows.layout
    return jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(field.shape, field.dtype) for field in fields])


def write(rows: Rows, slots: Array, steps: PyTree) -> Rows:
    """The rows with steps [T, N, ...] in `slots` [T] int32, all different."""

    def written(leaf: Array, new: Array) -> Array:
        if slots.shape[0] == 1:
            return jax.lax.dynamic_update_slice_in_dim(leaf, new, slots[0], 0)
        return leaf.at[slots].set(new, mode="promise_in_bounds", unique_indices=True)

    new = pack(rows.layout, steps)
    return new.replace(words=written(rows.words, new.words), own=tuple(map(written, rows.own, new.own)))


def at(rows: Rows, slot: Array, env: Array) -> PyTree:
    """The steps at places [...], leaves [..., ...]."""
    return unpack(jax.tree.map(lambda leaf: leaf.at[slot, env].get(mode="promise_in_bounds"), rows))


def pack(layout: Layout, steps: PyTree) -> Rows:
    """Steps, leaves [..., *shape], as rows of the same leading axes."""
    units: dict[str, list[Array]] = {"words": [], "bytes": [], "own": []}
    leading: tuple[int, ...] = ()
    for field, leaf in zip(layout.fields, jax.tree.leaves(steps), strict=True):
        leaf = jnp.asarray(leaf)
        leading = leaf.shape[: leaf.ndim - len(field.shape)]
        units[field.kind].append(leaf if field.kind == "own" else _units(leaf, field).reshape(*leading, -1))
    filling = layout.num_bytes - sum(x.shape[-1] for x in units["bytes"])
    few = jnp.concatenate([*units["bytes"], jnp.zeros((*leading, filling), jnp.uint8)], -1)
    few = jax.lax.bitcast_convert_type(few.reshape(*leading, layout.num_bytes // 4, 4), jnp.uint32)
    return Rows(jnp.concatenate([*units["words"], few], -1), tuple(units["own"]), layout)


def unpack(rows: Rows) -> PyTree:
    """The steps of rows with any leading axes, leaves [..., *shape]."""
    layout, leading = rows.layout, rows.words.shape[:-1]
    few = jax.lax.bitcast_convert_type(rows.words[..., layout.num_words :], jnp.uint8)
    few = few.reshape(*leading, layout.num_bytes)
    units = {"words": rows.words, "bytes": few}

    def leaf(field: Field) -> Array:
        if field.kind == "own":
            return rows.own[field.start]
        return _leaf(units[field.kind][..., field.start : field.stop], field)

    return jax.tree.unflatten(layout.structure, [leaf(field) for field in layout.fields])


def _kind(leaf: Array) -> Literal["words", "bytes", "own"]:
    dtype = leaf.dtype
    if jnp.issubdtype(dtype, jnp.integer):
        bits = jnp.iinfo(dtype).bits
    elif jnp.issubdtype(dtype, jnp.floating):
        bits = jnp.finfo(dtype).bits
    else:
        bits = 8 if dtype == jnp.bool_ else 0
    if bits == 0 or bits % 8 or not 0 < _num_bytes(leaf.shape, dtype) <= WIDE:
        return "own"
    return "words" if bits >= 32 else "bytes"


def _num_bytes(shape: tuple[int, ...], dtype: Any) -> int:
    return math.prod(shape) * np.dtype(dtype).itemsize


def _units(leaf: Array, field: Field) -> Array:
    """leaf [..., *shape] -> [..., *shape] or [..., *shape, units of a number], the same bits."""
    if field.dtype == jnp.bool_:
        return leaf.astype(jnp.uint8)
    return jax.lax.bitcast_convert_type(leaf, jnp.uint32 if field.kind == "words" else jnp.uint8)


def _leaf(units: Array, field: Field) -> Array:
    """units [..., n] -> leaf [..., *shape], the same bits."""
    many = np.dtype(field.dtype).itemsize // units.dtype.itemsize
    units = units.reshape(*units.shape[:-1], *field.shape, *((many,) if many > 1 else ()))
    return units != 0 if field.dtype == jnp.bool_ else jax.lax.bitcast_convert_type(units, field.dtype)
