"""Identity primitives that steer the scheduling of XLA's CPU backend.

They are primitives, as programs have dozens of them and `lax.platform_dependent` takes ten times as long to trace.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rlkit._cpu.switch import enabled
from rlkit.types import Array, PyTree

_LOWEST = np.int32(-(2**31))
_WORDS = {np.dtype(name) for name in ("float32", "int32", "uint32")}  # dtypes whose bits fit an int32


def materialize(x: Array) -> Array:
    """Return x [...], computed once and stored; arrays of other than 32-bit numbers are returned as they are.

    XLA's CPU backend would compute it again for each of its uses: random numbers for each of what they index, and a
    descent of a tree for each of its levels, which adds up to powers of two.
    """
    return _materialize(x) if enabled() and x.dtype in _WORDS and x.size else x


def materialize_shared(x: Array, other: Array) -> Array:
    """Return x [...], materialized where a vmap maps `other` and not x.

    XLA's CPU backend miscompiles a sum of products of the two where x is a constant of the program
    (benchmarks/ppo/NOTES.md).
    """
    return _materialize_shared(x, other) if enabled() else x


def keep_layout(x: Array) -> Array:
    """Return x [...], stored in the order of its axes; so is its cotangent.

    XLA's CPU backend would otherwise read the operand of a transpose in place, along strides.
    """
    return _keep_layout(x) if enabled() else x


def sequence(
    fn: Callable[..., Array], tree: PyTree, *rest: PyTree, side_by_side: int = 1, max_bytes: int | None = None
) -> PyTree:
    """Return `jax.tree.map(fn, tree, *rest)`, its leaves computed in order, at most `side_by_side` at the same time.

    Where more than eight small computations are ready at once, XLA's CPU executor gives half of them to another
    thread, which takes longer to wake up than they take.

    Args:
      fn: computes a leaf. (Its argument waits and not its result: XLA would compute the first number of a result again
        instead of waiting for it.)
      tree, rest: leaves [...]; only 32-bit numbers of `tree` are ordered.
      side_by_side: leaves that need not wait for each other.
      max_bytes: larger leaves of `tree` are not ordered; None orders all.
    """
    leaves, structure = jax.tree.flatten(tree)
    others = [structure.flatten_up_to(other) for other in rest]
    results: list[Array] = []
    ordered: list[Array] = []
    for leaf, *arguments in zip(leaves, *others, strict=True):
        small = max_bytes is None or leaf.size * leaf.dtype.itemsize <= max_bytes
        orders = enabled() and small and leaf.size and leaf.dtype in _WORDS
        if orders and len(ordered) >= side_by_side:
            leaf = _after(leaf, ordered[(len(ordered) // side_by_side - 1) * side_by_side])
        results.append(fn(leaf, *arguments))
        if orders and results[-1].dtype in _WORDS:
            ordered.append(results[-1])
    return jax.tree.unflatten(structure, results)


def padded_size(size: int) -> int:
    """Return the smallest multiple of 64 that is not below `size`.

    XLA's CPU backend takes four to ten times as long for each element where the size does not divide by the vector
    width.
    """
    return size + -size % 64 if enabled() else size


def once(x: Array) -> Array:
    """Return x [...] uint32, computed once for all that use it: cheaper than `materialize`, but only for uint32.

    XLA's CPU backend computes nothing twice that contains a division, such as this one by ones, which LLVM removes.
    """
    return _once(x) if enabled() else x


def exist() -> bool:
    """Return True where JAX has the APIs that define primitives."""
    return _plain not in (_materialize, _materialize_shared, _once, _after, _keep_layout)


def _scattered(x: Array) -> Array:
    """x after a scatter that changes nothing, as no bits are an integer below the lowest.

    XLA looks through an optimization barrier, but never fuses across a scatter. (Two indices, as one becomes a slice.)
    """
    bits = lax.bitcast_convert_type(x, jnp.int32).reshape(-1)
    bits = bits.at[np.zeros(2, np.int32)].max(_LOWEST, mode="promise_in_bounds")
    return lax.bitcast_convert_type(bits.reshape(x.shape), x.dtype)


def _divided(x: Array) -> Array:
    """x divided by ones that XLA does not recognize: no integer is below the lowest.

    Each number has a one of its own: the first number of all may be on another device.
    """
    lowest = lax.bitcast_convert_type(lax.min(lax.bitcast_convert_type(x, jnp.int32), _LOWEST), jnp.uint32)
    return lax.div(x, lax.bitwise_xor(lowest, np.uint32(2**31 + 1)))


def _ordered(x: Array, other: Array) -> Array:
    """x, whose bits are compared with the first number of `other` clamped to the lowest integer."""
    bits, first = (lax.bitcast_convert_type(a, jnp.int32) for a in (x, other[(0,) * other.ndim]))
    return lax.bitcast_convert_type(jnp.maximum(bits, jnp.minimum(first, _LOWEST)), x.dtype)


def _identity(
    name: str,
    on_cpu: Callable[..., Array],
    cotangent_too: bool = False,
    if_shared: Callable[[Array], Array] | None = None,
) -> Callable[..., Array]:
    """A primitive (x, *others) -> x that a CPU computes by `on_cpu` and other platforms by nothing.

    It is linear in x and constant in the others. Tangents pass it by, unless `cotangent_too` applies it to them and to
    cotangents. Under a vmap that maps only the others it becomes `if_shared(x)`. Without the APIs of JAX that define
    primitives, `_plain`.
    """
    try:
        from jax.extend.core import Primitive
        from jax.interpreters import ad, batching, mlir

        primitive, zero, is_linear = Primitive(name), ad.Zero, ad.is_undefined_primal

        def apply_to(tangent):
            return primitive.bind(tangent) if cotangent_too and not isinstance(tangent, zero) else tangent

        def transpose(cotangent, x, *others):
            zeros = (zero(other.aval) if is_linear(other) else None for other in others)
            return [apply_to(cotangent) if is_linear(x) else None, *zeros]

        def batch(args, axes):
            if if_shared is not None and axes[0] is None:
                return if_shared(args[0]), None
            return primitive.bind(*args), axes[0]

        primitive.def_impl(lambda x, *others: jnp.asarray(x))
        primitive.def_abstract_eval(lambda x, *others: x)
        mlir.register_lowering(primitive, mlir.lower_fun(lambda x, *others: x, multiple_results=False))
        mlir.register_lowering(primitive, mlir.lower_fun(on_cpu, multiple_results=False), platform="cpu")
        batching.primitive_batchers[primitive] = batch
        ad.primitive_jvps[primitive] = lambda primals, tangents: (primitive.bind(*primals), apply_to(tangents[0]))
        ad.primitive_transposes[primitive] = transpose
    except (ImportError, AttributeError, TypeError):
        return _plain
    return primitive.bind


def _plain(x: Array, *others: Array) -> Array:
    """The first argument, in place of a primitive."""
    return x


_materialize = _identity("materialize", _scattered)
_materialize_shared = _identity("materialize_shared", lambda x, other: x, if_shared=materialize)
_once = _identity("once", _divided)
_after = _identity("after", _ordered)
_keep_layout = _identity("keep_layout", lax.optimization_barrier, cotangent_too=True)
