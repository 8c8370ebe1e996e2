"""The leaves of a pytree as one stretch of bytes, and back."""

import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.training import processes
from rlkit.types import PyTree

_ALIGNMENT = 64
_SMALL = 1 << 16  # bytes of an array below which it is copied


def layout(tree: PyTree) -> tuple[list[dict[str, Any]], int]:
    """Return the path, dtype, shape and offset of each leaf, and the number of bytes of all.

    Args:
      tree: pytree of arrays, typed keys included, or of jax.ShapeDtypeStruct; the layout is the same.
    """
    entries, offset = [], 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        data, _ = _numbers(leaf)
        offset = -(-offset // _ALIGNMENT) * _ALIGNMENT
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        entries.append({"path": name, "dtype": str(leaf.dtype), "shape": list(leaf.shape), "offset": offset})
        offset += data.size * data.dtype.itemsize
    return entries, offset


def to_bytes(tree: PyTree) -> list[bytes | memoryview]:
    """Return the bytes of all leaves in their layout, with zeros between them: views of large arrays, others joined.

    Each chunk is a system call or more, and after it Python waits for other threads that run.
    """
    assert sys.byteorder == "little"
    chunks, joined, position = [], bytearray(), 0
    for leaf, entry in zip(jax.tree.leaves(tree), layout(tree)[0], strict=True):
        array = np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        joined += bytes(entry["offset"] - position)
        position = entry["offset"] + array.nbytes
        if array.nbytes < _SMALL:
            joined += data
        else:
            chunks += [bytes(joined), data]
            joined = bytearray()
    return [*chunks, bytes(joined)]


def buffers(template: PyTree, offsets: Sequence[int], total: int) -> list[np.ndarray]:
    """Return empty buffers [n] uint8 for `total` bytes: for each leaf, the gap before it and its bytes; then the rest.

    Args:
      template: as for `layout`.
      offsets: of its leaves, ascending.

    Raises:
      ValueError: the leaves overlap, or end after `total`.
    """
    made, position = [], 0
    for leaf, offset in zip(jax.tree.leaves(template), offsets, strict=True):
        data, _ = _numbers(leaf)
        size = data.size * data.dtype.itemsize
        if not position <= offset <= total - size:
            raise ValueError(f"a leaf at {offset} overlaps another, or ends after {total}")
        made += [_aligned(offset - position), _aligned(size)]
        position = offset + size
    return [*made, _aligned(total - position)]


def from_buffers(filled: list[np.ndarray], template: PyTree) -> PyTree:
    """Return the arrays of buffers, in the structure and on the devices of a template.

    On a CPU they are in the memory of the buffers, so that nothing is copied. Each has a buffer of its own: one array
    that is kept, such as the parameters without the replay buffer, does not keep the memory of all.

    Args:
      filled: as `buffers` made them, with the bytes.
      template: as for `buffers`.
    """

    def leaf(like: Any, buffer: np.ndarray) -> jax.Array:
        data, impl = _numbers(like)
        placed = processes.place(buffer.view(data.dtype).reshape(data.shape), getattr(like, "sharding", None))
        return jax.random.wrap_key_data(placed, impl=impl) if impl else placed

    templates, treedef = jax.tree.flatten(template)
    return jax.tree.unflatten(treedef, [leaf(like, one) for like, one in zip(templates, filled[1::2], strict=True)])


def _aligned(size: int) -> np.ndarray:
    """An empty buffer [size] uint8 that starts where JAX can use its memory: at a multiple of 64."""
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size]


def first_difference(stored: list[Any], expected: list[dict[str, Any]]) -> str | None:
    """Return the first leaf that differs between a stored layout and the expected one, in words; None: no difference.

    Args:
      stored: as `layout` returned it, or anything else where a file is forged.
      expected: as `layout` returns it.
    """
    by_path = {str(entry.get("path")): entry for entry in stored if isinstance(entry, dict)}

    def text(entry: dict[str, Any]) -> str:
        return f"{entry.get('dtype')}{entry.get('shape')}"

    for entry in expected:
        other = by_path.pop(entry["path"], None)
        if other is None:
            return f"the leaf {entry['path']} must be {text(entry)}, and there is none"
        if text(other) != text(entry):
            return f"the leaf {entry['path']} must be {text(entry)}, and it is {text(other)}"
    return next((f"the leaf {path} must not be there" for path in by_path), None)


def missing_fields(stored: list[Any], expected: list[dict[str, Any]]) -> list[str]:
    """Return the paths of expected leaves that a stored layout lacks, where the leaves in both agree; else none.

    Args:
      stored, expected: as for `first_difference`.
    """
    paths = {str(entry.get("path")) for entry in stored if isinstance(entry, dict)}
    missing = [entry["path"] for entry in expected if entry["path"] not in paths]
    return [] if first_difference(stored, [e for e in expected if e["path"] in paths]) else missing


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _numbers(leaf: Any) -> tuple[Any, str | None]:
    """The shape and dtype of a leaf's numbers, and the implementation of its generator where it holds typed keys."""
    return _numbers_of_keys(leaf.shape, leaf.dtype) if _is_key(leaf) else (leaf, None)


@lru_cache
def _numbers_of_keys(shape: tuple[int, ...], dtype: Any) -> tuple[jax.ShapeDtypeStruct, str]:
    """`_numbers` of typed keys."""
    impls, keys = [], jax.ShapeDtypeStruct(shape, dtype)
    data = jax.eval_shape(lambda key: impls.append(jax.random.key_impl(key)) or jax.random.key_data(key), keys)
    return data, str(impls[0])
