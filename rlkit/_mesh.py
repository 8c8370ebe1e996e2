"""Values that vary over the axes of a device mesh, inside of `jax.shard_map`.

There, JAX tracks over which axes each value varies, and checks that what enters a loop varies as what leaves it. A loop
that starts from a constant therefore starts from `vary_like(constant, x)`, where `x` is what makes the result vary.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from rlkit.types import PyTree


def vary_like(tree: PyTree, *others: PyTree) -> PyTree:
    """Return `tree`, every leaf varying over all axes of the mesh over which any leaf of it or of `others` varies.

    The leaves of `others` may be of `jax.eval_shape`.
    Outside of `jax.shard_map`, with its `check_vma=False`, and where this version of JAX tracks nothing, it returns
    `tree` itself.
    """
    axes = frozenset[Any]().union(*map(_axes, jax.tree.leaves((tree, others))))
    if not axes:
        return tree

    def cast(x):
        missing = tuple(sorted(axes - _axes(x), key=str))
        return jax.lax.pcast(jnp.asarray(x), missing, to="varying") if missing else x

    return jax.tree.map(cast, tree)


def _axes(x: Any) -> frozenset[Any]:
    """Names of the axes over which a leaf varies."""
    if not isinstance(x, Tracer | jax.ShapeDtypeStruct) or not hasattr(jax.lax, "pcast"):
        return frozenset()
    kind = x if isinstance(x, jax.ShapeDtypeStruct) else jax.typeof(x)
    tracked = getattr(kind, "manual_axis_type", kind)  # its name differs between versions
    return frozenset(getattr(tracked, "varying", None) or getattr(tracked, "vma", None) or ())
