"""Packed rows of a ring: the small leaves of a step lie side by side in one array of 32-bit words.

Drawing a step then reads one stretch of memory instead of one per leaf, and a compiled call has fewer arguments. Leaves
of more than MAX_PACKED_BYTES a step have an array of their own, and so have leaves of complex numbers and of numbers
that are not whole bytes.
"""

import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rlkit.replay.short_repr import short_repr
from rlkit.types import Array, PyTree

MAX_PACKED_BYTES = 256

Kind = Literal["words", "bytes", "own"]  # bytes follow the last word of a step, four in each; own: an array of its own


class Field(NamedTuple):
    """Shape, dtype and location of one leaf of a step."""

    shape: tuple[int, ...]  # in one step
    dtype: Any
    kind: Kind
    start: int  # the leaf's first word or byte in a step, or the index of its own array

    @property
    def stop(self) -> int:
        """Start of the next leaf of the same kind."""
        unit = {"words": 4, "bytes": 1}
        return self.start + (1 if self.kind == "own" else _num_bytes(self.shape, self.dtype) // unit[self.kind])


class Layout(NamedTuple):
    """Structure of a step and location of its leaves."""

    structure: Any  # as jax.tree.structure gives it
    fields: tuple[Field, ...]

    def __repr__(self) -> str:
        return f"Layout({', '.join(f'{field.dtype}{list(field.shape)}' for field in self.fields)})"

    @property
    def num_words(self) -> int:
        """Words of a step that hold leaves of whole words; the bytes follow."""
        return max((field.stop for field in self.fields if field.kind == "words"), default=0)

    @property
    def num_bytes(self) -> int:
        """Bytes of a step that hold leaves of smaller numbers, rounded up to whole words."""
        return -(-max((field.stop for field in self.fields if field.kind == "bytes"), default=0) // 4) * 4


class Rows(struct.PyTreeNode):
    """R rows of N packed steps."""

    words: Array  # [R, N, W] uint32
    own: tuple[Array, ...]  # leaves [R, N, ...] with an array of their own
    layout: Layout = struct.field(pytree_node=False)

    __repr__ = short_repr


def init(example: PyTree, num_rows: int, num_envs: int) -> Rows:
    """Return rows [R, N] of zeros, for steps like `example`, leaves [...]."""
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
    """List each array with its name and the shape that it must have."""
    width = rows.layout.num_words + rows.layout.num_bytes // 4
    own = [field for field in rows.layout.fields if field.kind == "own"]
    return [("words", rows.words, (num_rows, num_envs, width))] + [
        (f"own[{f.start}]", rows.own[f.start], (num_rows, num_envs, *f.shape)) for f in own
    ]


def example(rows: Rows) -> PyTree:
    """Shapes [...] and dtypes of one step."""
    structure, fields = rows.layout
    return jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(field.shape, field.dtype) for field in fields])


def write(rows: Rows, slots: Array, steps: PyTree) -> Rows:
    """Return the rows with steps [T, N, ...] written to `slots` [T] int32, all different."""

    def written(leaf: Array, new: Array) -> Array:
        if slots.shape[0] == 1:
            return jax.lax.dynamic_update_slice_in_dim(leaf, new, slots[0], 0)
        return leaf.at[slots].set(new, mode="promise_in_bounds", unique_indices=True)

    new = pack(rows.layout, steps)
    return new.replace(words=written(rows.words, new.words), own=tuple(map(written, rows.own, new.own)))


def at(rows: Rows, slot: Array, env: Array) -> PyTree:
    """Return the steps at slots and environments [...] int32, leaves [..., ...]."""
    return unpack(jax.tree.map(lambda leaf: leaf.at[slot, env].get(mode="promise_in_bounds"), rows))


def pack(layout: Layout, steps: PyTree) -> Rows:
    """Pack steps, leaves [..., *shape], into rows of the same leading axes."""
    units: dict[Kind, list[Array]] = {"words": [], "bytes": [], "own": []}
    leading: tuple[int, ...] = ()
    for field, leaf in zip(layout.fields, jax.tree.leaves(steps), strict=True):
        leaf = jnp.asarray(leaf)
        leading = leaf.shape[: leaf.ndim - len(field.shape)]
        units[field.kind].append(leaf if field.kind == "own" else _units(leaf, field).reshape(*leading, -1))
    padding = layout.num_bytes - sum(x.shape[-1] for x in units["bytes"])
    single_bytes = jnp.concatenate([*units["bytes"], jnp.zeros((*leading, padding), jnp.uint8)], -1)
    single_bytes = single_bytes.reshape(*leading, layout.num_bytes // 4, 4)
    last_words = jax.lax.bitcast_convert_type(single_bytes, jnp.uint32)
    return Rows(jnp.concatenate([*units["words"], last_words], -1), tuple(units["own"]), layout)


def unpack(rows: Rows) -> PyTree:
    """Unpack rows of any leading axes into steps, leaves [..., *shape]."""
    layout, leading = rows.layout, rows.words.shape[:-1]
    single_bytes = jax.lax.bitcast_convert_type(rows.words[..., layout.num_words :], jnp.uint8)
    units = {"words": rows.words, "bytes": single_bytes.reshape(*leading, layout.num_bytes)}

    def leaf(field: Field) -> Array:
        if field.kind == "own":
            return rows.own[field.start]
        return _leaf(units[field.kind][..., field.start : field.stop], field)

    return jax.tree.unflatten(layout.structure, [leaf(field) for field in layout.fields])


def _kind(leaf: Array) -> Kind:
    dtype = leaf.dtype
    if jnp.issubdtype(dtype, jnp.integer):
        bits = jnp.iinfo(dtype).bits
    elif jnp.issubdtype(dtype, jnp.floating):
        bits = jnp.finfo(dtype).bits
    else:
        bits = 8 if dtype == jnp.bool_ else 0
    if bits == 0 or bits % 8 or not 0 < _num_bytes(leaf.shape, dtype) <= MAX_PACKED_BYTES:
        return "own"
    return "words" if bits >= 32 else "bytes"


def _num_bytes(shape: tuple[int, ...], dtype: Any) -> int:
    return math.prod(shape) * np.dtype(dtype).itemsize


def _units(leaf: Array, field: Field) -> Array:
    """Split numbers into words or bytes of the same bits: [..., *shape] -> [..., *shape] or [..., *shape, U]."""
    if field.dtype == jnp.bool_:
        return leaf.astype(jnp.uint8)
    return jax.lax.bitcast_convert_type(leaf, jnp.uint32 if field.kind == "words" else jnp.uint8)


def _leaf(units: Array, field: Field) -> Array:
    """Join words or bytes [..., n] into a leaf [..., *shape] of the same bits."""
    per_number = np.dtype(field.dtype).itemsize // units.dtype.itemsize
    units = units.reshape(*units.shape[:-1], *field.shape, *((per_number,) if per_number > 1 else ()))
    return units != 0 if field.dtype == jnp.bool_ else jax.lax.bitcast_convert_type(units, field.dtype)
