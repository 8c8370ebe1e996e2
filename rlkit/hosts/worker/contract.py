"""What a Gymnasium environment promises by its spaces, leaf by leaf, and whether it keeps it.

Imported by worker processes, so it knows no JAX: a worker starts in a third of the time, and holds no device.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

_MASK = "action_mask"  # as in rlkit.networks.features, which needs JAX
_STORED = {"float64": "float32", "float16": "float32", "int64": "int32", "uint64": "int32", "uint32": "int32"}

_INT32 = np.iinfo(np.int32)


class Violation(Exception):
    """An environment did not do what its spaces or Gymnasium's interface promise."""

    def __init__(self, field: str, expected: Any, got: Any):
        super().__init__(f"{field}: expected {expected}, got {got}")


@dataclass(frozen=True, eq=False)
class Leaf:
    """One array of a space, as the environment has it and as it is kept here."""

    path: str  # how errors call it, e.g. ['position']
    discrete: bool  # whole numbers from `low` on, kept here as whole numbers from 0 on
    shape: tuple[int, ...]
    native: np.dtype  # the environment's
    stored: np.dtype  # here: JAX has no 64 bits by default
    low: np.ndarray  # [*shape] of the native dtype
    high: np.ndarray  # [*shape] of the native dtype, included
    wide: bool  # whether a native whole number may not fit the stored dtype

    def says(self) -> str:
        return f"{self.native.name}{list(self.shape)}"

    def same(self, other: "Leaf") -> bool:
        plain = ("path", "discrete", "shape", "native", "stored")
        return all(getattr(self, name) == getattr(other, name) for name in plain) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in ("low", "high")
        )


Tree = Leaf | dict[str, Any] | tuple[Any, ...]  # of Leafs, in the structure of the space's values


def describe(space: Any, path: str = "", field: str = "observation_space") -> Tree:
    """A Gymnasium space as a tree of leaves.

    Raises:
      Violation: the space is none of Gymnasium's that have a fixed number of entries.
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
        mask = path == f"[{_MASK!r}]"
        return _leaf(path, len(space.shape) == 1 and not mask, space.shape, space.dtype, one - one, one)
    if isinstance(space, spaces.Box):
        return _leaf(path, False, space.shape, space.dtype, space.low, space.high)
    raise Violation(field + path, "Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple", type(space).__name__)


def _leaf(path: str, discrete: bool, shape: Any, dtype: Any, low: Any, high: Any) -> Leaf:
    native = np.dtype(dtype)
    stored = np.dtype("bool") if path == f"[{_MASK!r}]" else np.dtype(_STORED.get(native.name, native.name))
    stored = np.dtype("int32") if discrete else stored
    low, high, wide = np.asarray(low, native), np.asarray(high, native), False
    if stored == np.int32:  # of a Discrete the bounds are looked at, of a Box they are not
        beyond = np.subtract(high, low, dtype=np.float64) > _INT32.max
        wide = bool(beyond.any()) if discrete else not np.can_cast(native, stored)
    return Leaf(path, discrete, tuple(shape), native, stored, low, high, wide)


def leaves(tree: Tree) -> list[Leaf]:
    """The leaves in the order of `build`, which is that of JAX."""
    return [leaf for leaf, _ in _walk(tree)]


def same(one: Tree, other: Tree) -> bool:
    """Whether two descriptions are of equal spaces."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return isinstance(one, Leaf) and isinstance(other, Leaf) and one.same(other)


def says(tree: Tree) -> str:
    """Shapes and dtypes in words."""
    return ", ".join(f"{leaf.path} {leaf.says()}".strip() for leaf in leaves(tree))


def _walk(tree: Tree, steps: tuple[Any, ...] = ()) -> Iterator[tuple[Leaf, tuple[Any, ...]]]:
    if isinstance(tree, Leaf):
        yield tree, steps
        return
    for step, child in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield from _walk(child, (*steps, step))


def build(tree: Tree, values: Iterator[Any]) -> Any:
    """A value of the space from those of its leaves, in order."""
    if isinstance(tree, Leaf):
        return next(values)
    if isinstance(tree, dict):
        return {name: build(child, values) for name, child in tree.items()}
    return tuple(build(child, values) for child in tree)


def writer(tree: Tree, views: list[np.ndarray]) -> Callable[[str, int, Any], None]:
    """(field, row, value): puts a value of the space into row `row` of `views`, one array [N, *shape] for each leaf.

    Raises Violation for what the space does not hold, naming `field`. Bounds of boxes are not looked at.
    """
    if isinstance(tree, Leaf) and tree.shape and not (tree.discrete or tree.wide):  # the common case, in few steps
        shape, native, view, ndarray = tree.shape, tree.native, views[0], np.ndarray

        def write_array(field: str, row: int, value: Any) -> None:
            if type(value) is not ndarray or value.shape != shape or value.dtype != native:
                value = _checked(tree, field, value)
            view[row] = value

        return write_array
    targets = [(leaf, steps, view) for (leaf, steps), view in zip(_walk(tree), views, strict=True)]

    def write(field: str, row: int, value: Any) -> None:
        _check_structure(tree, field, value)
        for leaf, steps, view in targets:
            part = value
            for step in steps:
                part = part[step]
            stored = _checked(leaf, field, part)
            view[row] = fitting(leaf, field, stored) if leaf.wide else stored

    return write


def reader(tree: Tree, views: list[np.ndarray]) -> Callable[[], Iterable[Any]]:
    """-> the values of the space in all rows of `views`, as the environments want them, and theirs to keep."""
    if isinstance(tree, Leaf):  # at once: row by row it takes a third of a cheap step's time
        view, native, low = views[0], tree.native, tree.low
        if tree.discrete:
            return lambda: view.astype(native) + low
        return lambda: view.astype(native)
    targets = list(zip(leaves(tree), views, strict=True))

    def read() -> Iterator[Any]:
        rows = [
            view.astype(leaf.native) + leaf.low if leaf.discrete else view.astype(leaf.native) for leaf, view in targets
        ]
        return (build(tree, iter(parts)) for parts in zip(*rows, strict=True))

    return read


def _check_structure(tree: Tree, field: str, value: Any) -> None:
    if isinstance(tree, Leaf):
        return
    if isinstance(tree, dict):
        if not isinstance(value, dict) or value.keys() != tree.keys():
            got = sorted(map(str, value)) if isinstance(value, dict) else type(value).__name__
            raise Violation(field, f"a dictionary with {sorted(tree)}, as observation_space says", got)
        for name, child in tree.items():
            _check_structure(child, f"{field}[{name!r}]", value[name])
        return
    if not isinstance(value, tuple | list) or len(value) != len(tree):
        got = f"{len(value)} of them" if isinstance(value, tuple | list) else type(value).__name__
        raise Violation(field, f"a tuple of {len(tree)}, as observation_space says", got)
    for index, (child, part) in enumerate(zip(tree, value, strict=True)):
        _check_structure(child, f"{field}[{index}]", part)


def _checked(leaf: Leaf, field: str, value: Any) -> Any:
    """What is stored of one leaf's value."""
    if leaf.discrete and not leaf.shape:
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole and not (isinstance(value, np.ndarray) and value.shape == () and value.dtype.kind in "iu"):
            _violate(leaf, field, "a whole number", value)
        value = int(value)
        if not leaf.low <= value <= leaf.high:
            raise Violation(
                field + leaf.path, f"a value in [{leaf.low}, {leaf.high}], as observation_space says", value
            )
        return value - int(leaf.low)
    if not isinstance(value, np.ndarray | np.generic) or value.shape != leaf.shape:
        _violate(leaf, field, leaf.says(), value)
    if leaf.discrete:
        if value.dtype.kind not in "iu":
            _violate(leaf, field, leaf.says(), value)
        if ((value < leaf.low) | (value > leaf.high)).any():
            raise Violation(field + leaf.path, "values within the space's bounds, as observation_space says", value)
        return value - leaf.low
    if value.dtype != leaf.native:
        _violate(leaf, field, leaf.says(), value)
    return value


def fitting(leaf: Leaf, field: str, value: Any) -> Any:
    """What is stored of a wide leaf's value, or of a batch of them. Raises Violation where it would wrap around."""
    least, most = int(np.min(value, initial=0)), int(np.max(value, initial=0))
    if least < _INT32.min or most > _INT32.max:
        got = least if least < _INT32.min else most
        remedy = "return smaller numbers, or floats"
        raise Violation(field + leaf.path, f"{leaf.native.name} whose values must fit int32", f"{got}; {remedy}")
    return value


def _violate(leaf: Leaf, field: str, expected: str, value: Any) -> NoReturn:
    array = isinstance(value, np.ndarray | np.generic)
    got = f"{value.dtype.name}{list(value.shape)}" if array else f"{type(value).__name__} {value!r}"[:60]
    remedy = f"; return it as np.{leaf.native.name}" if array and value.shape == leaf.shape else ""
    raise Violation(field + leaf.path, f"{expected}, as observation_space says", got + remedy)


def check_scalars(reward: Any, terminated: Any, truncated: Any) -> float:
    """The reward as a number, where all three are what Gymnasium's `step` returns."""
    for field, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, bool | np.bool_):
            raise Violation(field, "bool", f"{type(flag).__name__} {flag!r}"[:60])
    number = isinstance(reward, int | float | np.floating | np.integer)
    if not number and not (isinstance(reward, np.ndarray) and reward.shape == () and reward.dtype.kind in "fiu"):
        got = f"{reward.dtype.name}{list(reward.shape)}" if isinstance(reward, np.ndarray) else type(reward).__name__
        raise Violation("reward", "a number", got)
    return float(reward)
