"""The contract of a Gymnasium environment: its spaces, leaf by leaf, and checks of its values against them.

Worker processes import this module, so it does not import JAX: a worker starts in a third of the time and holds no
device.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from rlkit.names import ACTION_MASK

_STORED = {"float64": "float32", "float16": "float32", "int64": "int32", "uint64": "int32", "uint32": "int32"}

_INT32 = np.iinfo(np.int32)


class Violation(Exception):
    """Raised where an environment violates its own spaces or Gymnasium's interface."""

    def __init__(self, field: str, expected: Any, got: Any):
        super().__init__(f"{field}: expected {expected}, got {got}")


@dataclass(frozen=True, eq=False)
class Leaf:
    """One array of a space: its type in the environment and the type that it is stored in."""

    path: str  # the name in errors, e.g. ['position']
    discrete: bool  # integers that start at `low`, stored as integers that start at 0
    shape: tuple[int, ...]
    native_dtype: np.dtype  # in the environment
    stored_dtype: np.dtype  # here; JAX has no 64-bit types by default
    low: np.ndarray  # [*shape] of the native dtype
    high: np.ndarray  # [*shape] of the native dtype, included
    may_overflow: bool  # true where a native integer may not fit the stored dtype

    def dtype_and_shape(self) -> str:
        """Return the native dtype and the shape as a text, e.g. float32[4]."""
        return f"{self.native_dtype.name}{list(self.shape)}"

    def equals(self, other: "Leaf") -> bool:
        """Return true where both describe equal arrays with equal bounds."""
        plain = ("path", "discrete", "shape", "native_dtype", "stored_dtype")
        return all(getattr(self, name) == getattr(other, name) for name in plain) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in ("low", "high")
        )


SpaceTree = Leaf | dict[str, Any] | tuple[Any, ...]  # of Leafs, in the structure of the space's values


def describe(space: Any, path: str = "", field: str = "observation_space") -> SpaceTree:
    """Describe a Gymnasium space as a tree of leaves.

    Raises:
      Violation: the space is not one of those in Gymnasium that have a fixed number of entries.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return {name: describe(child, f"{path}[{name!r}]", field) for name, child in sorted(space.spaces.items())}
    if isinstance(space, spaces.Tuple):
        return tuple(describe(child, f"{path}[{index}]", field) for index, child in enumerate(space.spaces))
    if isinstance(space, spaces.Discrete):
        low, high = np.array(space.start), np.array(space.start + space.n - 1)
        return _leaf(path, True, (), space.dtype, low, high)
    if isinstance(space, spaces.MultiDiscrete):
        start = getattr(space, "start", np.zeros_like(space.nvec))
        return _leaf(path, space.nvec.ndim == 1, space.shape, space.dtype, start, start + space.nvec - 1)
    if isinstance(space, spaces.MultiBinary):
        one = np.ones(space.shape, space.dtype)
        mask = path == f"[{ACTION_MASK!r}]"
        return _leaf(path, len(space.shape) == 1 and not mask, space.shape, space.dtype, one - one, one)
    if isinstance(space, spaces.Box):
        return _leaf(path, False, space.shape, space.dtype, space.low, space.high)
    raise Violation(field + path, "Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple", type(space).__name__)


def _leaf(path: str, discrete: bool, shape: Any, dtype: Any, low: Any, high: Any) -> Leaf:
    native = np.dtype(dtype)
    stored = np.dtype("bool") if path == f"[{ACTION_MASK!r}]" else np.dtype(_STORED.get(native.name, native.name))
    stored = np.dtype("int32") if discrete else stored
    low, high, may_overflow = np.asarray(low, native), np.asarray(high, native), False
    if stored == np.int32:  # bounds are checked for a Discrete and not for a Box
        too_wide = np.subtract(high, low, dtype=np.float64) > _INT32.max
        may_overflow = bool(too_wide.any()) if discrete else not np.can_cast(native, stored)
    return Leaf(path, discrete, tuple(shape), native, stored, low, high, may_overflow)


def leaves(tree: SpaceTree) -> list[Leaf]:
    """Return the leaves in the order of `build`, which is the order of JAX."""
    return [leaf for leaf, _ in _walk(tree)]


def equal(one: SpaceTree, other: SpaceTree) -> bool:
    """Return true where two descriptions are of equal spaces."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[name], other[name]) for name in one)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(equal(a, b) for a, b in zip(one, other, strict=True))
    return isinstance(one, Leaf) and isinstance(other, Leaf) and one.equals(other)


def dtypes_and_shapes(tree: SpaceTree) -> str:
    """Return the dtypes and shapes of all leaves as a text, for errors."""
    return ", ".join(f"{leaf.path} {leaf.dtype_and_shape()}".strip() for leaf in leaves(tree))


def _walk(tree: SpaceTree, keys: tuple[Any, ...] = ()) -> Iterator[tuple[Leaf, tuple[Any, ...]]]:
    """Iterate over the leaves, each with the keys and indices that lead to it."""
    if isinstance(tree, Leaf):
        yield tree, keys
        return
    for key, child in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield from _walk(child, (*keys, key))


def build(tree: SpaceTree, values: Iterator[Any]) -> Any:
    """Assemble a value of the space from the values of its leaves, in order."""
    if isinstance(tree, Leaf):
        return next(values)
    if isinstance(tree, dict):
        return {name: build(child, values) for name, child in tree.items()}
    return tuple(build(child, values) for child in tree)


def make_writer(tree: SpaceTree, views: list[np.ndarray]) -> Callable[[str, int, Any], None]:
    """Return a function (field, row, value) that writes a value of the space into one row of `views`.

    The function raises Violation, naming `field`, where the value is not in the space. Bounds of boxes are not checked.

    Args:
      tree: of the space.
      views: one array [N, *shape] for each leaf.
    """
    if isinstance(tree, Leaf) and tree.shape and not (tree.discrete or tree.may_overflow):  # common case, kept short
        shape, native, view, ndarray = tree.shape, tree.native_dtype, views[0], np.ndarray

        def write_array(field: str, row: int, value: Any) -> None:
            if type(value) is not ndarray or value.shape != shape or value.dtype != native:
                value = _to_stored(tree, field, value)
            view[row] = value

        return write_array
    targets = [(leaf, keys, view) for (leaf, keys), view in zip(_walk(tree), views, strict=True)]

    def write(field: str, row: int, value: Any) -> None:
        _check_structure(tree, field, value)
        for leaf, keys, view in targets:
            part = value
            for key in keys:
                part = part[key]
            stored = _to_stored(leaf, field, part)
            view[row] = check_int32(leaf, field, stored) if leaf.may_overflow else stored

    return write


def wide_leaves(tree: SpaceTree) -> list[Leaf]:
    """Return the leaves of float64, whose values a writer rounds to float32."""
    return [leaf for leaf in leaves(tree) if leaf.native_dtype == np.float64]


def make_recorder(tree: SpaceTree, views: list[np.ndarray]) -> Callable[[int, Any], None]:
    """Return a function (row, value) that copies the `wide_leaves` of a value, which a writer has accepted.

    Args:
      tree: of the space.
      views: one array [N, *shape] float64 for each of those leaves.
    """
    keys = [keys for leaf, keys in _walk(tree) if leaf.native_dtype == np.float64]

    def record(row: int, value: Any) -> None:
        for path, view in zip(keys, views, strict=True):
            part = value
            for key in path:
                part = part[key]
            view[row] = part

    return record


def make_reader(tree: SpaceTree, views: list[np.ndarray]) -> Callable[[], Iterable[Any]]:
    """Return a function that reads the values in all rows of `views`: copies, in the native dtypes of the space."""
    if isinstance(tree, Leaf):  # in one operation: row by row it would take a third of a cheap step's time
        view, convert = views[0], to_native(tree)
        return lambda: convert(view)
    targets = [(view, to_native(leaf)) for leaf, view in zip(leaves(tree), views, strict=True)]

    def read() -> Iterator[Any]:
        rows = [convert(view) for view, convert in targets]
        return (build(tree, iter(parts)) for parts in zip(*rows, strict=True))

    return read


def to_native(leaf: Leaf) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that converts stored values [N, *shape] of a leaf to its native dtype: copies.

    The float32 of a float64 bound may lie outside of the native space, so a value that equals it becomes the bound.
    """
    native, low, high = leaf.native_dtype, leaf.low, leaf.high
    if leaf.discrete:
        return lambda x: x.astype(native) + low
    if native != np.float64:
        return lambda x: x.astype(native)
    with np.errstate(over="ignore"):
        stored_low, stored_high = low.astype(leaf.stored_dtype), high.astype(leaf.stored_dtype)
    return lambda x: np.where(x == stored_low, low, np.where(x == stored_high, high, x))


def _check_structure(tree: SpaceTree, field: str, value: Any) -> None:
    if isinstance(tree, Leaf):
        return
    if isinstance(tree, dict):
        if not isinstance(value, dict) or value.keys() != tree.keys():
            got = sorted(map(str, value)) if isinstance(value, dict) else type(value).__name__
            raise Violation(field, f"a dictionary with {sorted(tree)}, as observation_space declares", got)
        for name, child in tree.items():
            _check_structure(child, f"{field}[{name!r}]", value[name])
        return
    if not isinstance(value, tuple | list) or len(value) != len(tree):
        got = f"{len(value)} entries" if isinstance(value, tuple | list) else type(value).__name__
        raise Violation(field, f"a tuple of {len(tree)} entries, as observation_space declares", got)
    for index, (child, part) in enumerate(zip(tree, value, strict=True)):
        _check_structure(child, f"{field}[{index}]", part)


def _to_stored(leaf: Leaf, field: str, value: Any) -> Any:
    """Check a leaf's value and return it as it is stored. Raises Violation where it is not in the space."""
    if leaf.discrete and not leaf.shape:
        is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not is_integer and not (isinstance(value, np.ndarray) and value.shape == () and value.dtype.kind in "iu"):
            _violate(leaf, field, "an integer", value)
        value = int(value)
        if not leaf.low <= value <= leaf.high:
            raise Violation(
                field + leaf.path, f"a value in [{leaf.low}, {leaf.high}], as observation_space declares", value
            )
        return value - int(leaf.low)
    if not isinstance(value, np.ndarray | np.generic) or value.shape != leaf.shape:
        _violate(leaf, field, leaf.dtype_and_shape(), value)
    if leaf.discrete:
        if value.dtype.kind not in "iu":
            _violate(leaf, field, leaf.dtype_and_shape(), value)
        if ((value < leaf.low) | (value > leaf.high)).any():
            raise Violation(field + leaf.path, "values within the space's bounds, as observation_space declares", value)
        return value - leaf.low
    if value.dtype != leaf.native_dtype:
        _violate(leaf, field, leaf.dtype_and_shape(), value)
    return value


def check_int32(leaf: Leaf, field: str, value: Any) -> Any:
    """Return a leaf's value, or a batch of them, unchanged. Raises Violation where it would overflow int32."""
    least, most = int(np.min(value, initial=0)), int(np.max(value, initial=0))
    if least < _INT32.min or most > _INT32.max:
        got = least if least < _INT32.min else most
        remedy = "return smaller numbers, or floats"
        raise Violation(field + leaf.path, f"{leaf.native_dtype.name} whose values must fit int32", f"{got}; {remedy}")
    return value


def _violate(leaf: Leaf, field: str, expected: str, value: Any) -> NoReturn:
    is_array = isinstance(value, np.ndarray | np.generic)
    got = f"{value.dtype.name}{list(value.shape)}" if is_array else f"{type(value).__name__} {value!r}"[:60]
    remedy = f"; return it as np.{leaf.native_dtype.name}" if is_array and value.shape == leaf.shape else ""
    raise Violation(field + leaf.path, f"{expected}, as observation_space declares", got + remedy)


def check_scalars(reward: Any, terminated: Any, truncated: Any) -> float:
    """Return the reward as a float. Raises Violation where one of the three is not of the type of Gymnasium's API."""
    for field, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, bool | np.bool_):
            raise Violation(field, "bool", f"{type(flag).__name__} {flag!r}"[:60])
    is_number = isinstance(reward, int | float | np.floating | np.integer)
    if not is_number and not (isinstance(reward, np.ndarray) and reward.shape == () and reward.dtype.kind in "fiu"):
        got = f"{reward.dtype.name}{list(reward.shape)}" if isinstance(reward, np.ndarray) else type(reward).__name__
        raise Violation("reward", "a number", got)
    return float(reward)
