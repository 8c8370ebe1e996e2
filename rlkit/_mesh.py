"""Values on the devices of a mesh, inside of `jax.shard_map`.

There, JAX tracks over which axes each value varies, and checks that what enters a loop varies as what leaves it. A loop
that starts from a constant therefore starts from `vary_like(constant, x)`, where `x` is what makes the result vary.
Casts at the public functions alone would need a `jax.shard_map` with `check_vma=False` inside of the user's. Its loops
need no casts, but its results count as the same on all devices: a mistake in `out_specs` goes unnoticed then, and
gradients through it are not summed.

Environments and batches of one run may be divided over the devices of a mesh axis, with the same parameters on each.
The functions that then need numbers of all devices take the name of that axis, `axis_name`. It is None for a run on one
device: there, the functions below return their argument.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from rlkit.types import ConfigError, Key, PyTree


def vary_like(tree: PyTree, *others: PyTree, without: str | None = None) -> PyTree:
    """Return `tree`, every leaf varying over all axes of the mesh over which any leaf of it or of `others` varies.

    The leaves of `others` may be of `jax.eval_shape`. The axis `without` is left out: over it, each leaf varies as it
    did, as in a tree of parameters, the same on each of its devices, and of environments, which differ.
    Outside of `jax.shard_map`, and with its `check_vma=False`, it returns `tree` itself.
    """
    axes = frozenset[Any]().union(*map(_axes, jax.tree.leaves((tree, others)))) - {without}
    return _cast(tree, axes) if axes else tree


def vary(tree: PyTree, axis_name: str | None) -> PyTree:
    """Return `tree`, every leaf varying over the axis, as JAX tracks it; its values are the same on each device."""
    return tree if axis_name is None else _cast(tree, frozenset([axis_name]))


def size(axis_name: str | None) -> int:
    """The number of devices of the axis."""
    return 1 if axis_name is None else jax.lax.axis_size(axis_name)


def share(name: str, value: int, devices: int) -> int:
    """The part of each device of a setting that counts things of all devices.

    Raises:
      ConfigError: the value is not a multiple of the number of devices.
    """
    if devices > 1 and value % devices:
        below = value // devices * devices
        remedy = " or ".join(str(multiple) for multiple in (below, below + devices) if multiple)
        raise ConfigError(
            f"{name}={value} must be a multiple of the devices it is divided over, {devices}; try {remedy}"
        )
    return value // devices


def own(tree: PyTree, axis_name: str | None, dim: int = 0) -> PyTree:
    """This device's equal part of leaves [..., D * n, ...] that are the same on each of D devices: [..., n, ...].

    `dim` is the axis of the arrays that is divided.
    """
    if axis_name is None:
        return tree
    devices, index = size(axis_name), jax.lax.axis_index(axis_name)

    def part(x: Any) -> Any:
        length = x.shape[dim] // devices
        return jax.lax.dynamic_slice_in_dim(x, index * length, length, dim)

    return jax.tree.map(part, tree)


def own_key(key: Key, axis_name: str | None) -> Key:
    """A key that differs from device to device."""
    return key if axis_name is None else jax.random.fold_in(key, jax.lax.axis_index(axis_name))


def _reduce(collective: Callable[[PyTree, str], PyTree], tree: PyTree, axis_name: str | None) -> PyTree:
    """The means, sums or extremes of leaves over the devices of the axis."""
    return tree if axis_name is None else collective(tree, axis_name)


mean, total = partial(_reduce, jax.lax.pmean), partial(_reduce, jax.lax.psum)
largest, least = partial(_reduce, jax.lax.pmax), partial(_reduce, jax.lax.pmin)


def _cast(tree: PyTree, axes: frozenset[Any]) -> PyTree:
    """Return `tree`, every leaf varying over the axes too."""

    def cast(x: Any) -> Any:
        missing = tuple(sorted(axes - _axes(x), key=str))
        return jax.lax.pcast(jnp.asarray(x), missing, to="varying") if missing else x

    return jax.tree.map(cast, tree)


def _axes(x: Any) -> frozenset[Any]:
    """Names of the axes over which a leaf varies."""
    if not isinstance(x, Tracer | jax.ShapeDtypeStruct):
        return frozenset()
    kind = x if isinstance(x, jax.ShapeDtypeStruct) else jax.typeof(x)
    tracked = getattr(kind, "manual_axis_type", kind)  # its name differs between versions
    return frozenset(getattr(tracked, "varying", None) or getattr(tracked, "vma", None) or ())
