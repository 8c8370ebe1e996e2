"""Where XLA's CPU backend is told what to compute once, in which order, and what to write down; elsewhere identities.

None of it changes a number. Measurements: benchmarks/ppo/NOTES.md. These are primitives, as programs have dozens of
them and `lax.platform_dependent` takes ten times as long to trace.
"""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir


def _itself(name: str, on_cpu: Callable[..., Array]) -> Primitive:
    """A primitive that is x of (x, *others), as `on_cpu` computes it on a CPU; the derivative is that of x alone."""
    primitive = Primitive(name)
    primitive.def_impl(lambda x, *others: jnp.asarray(x))
    primitive.def_abstract_eval(lambda x, *others: x)
    mlir.register_lowering(primitive, mlir.lower_fun(lambda x, *others: x, multiple_results=False))
    mlir.register_lowering(primitive, mlir.lower_fun(on_cpu, multiple_results=False), platform="cpu")
    batching.primitive_batchers[primitive] = lambda args, axes: (primitive.bind(*args), axes[0])
    ad.primitive_jvps[primitive] = lambda primals, tangents: (primitive.bind(*primals), tangents[0])
    return primitive


def _scattered(x: Array) -> Array:
    bits = lax.bitcast_convert_type(x, jnp.int32).reshape(-1)
    bits = bits.at[np.zeros(2, np.int32)].max(np.iinfo(np.int32).min, mode="promise_in_bounds")
    return lax.bitcast_convert_type(bits.reshape(x.shape), x.dtype)


def _divided(x: Array) -> Array:  # each number by its own one: the first of all may be another device's
    return lax.div(x, ones(x))


def _ordered(x: Array, other: Array) -> Array:
    bits, first = (lax.bitcast_convert_type(a, jnp.int32) for a in (x, other[(0,) * other.ndim]))
    return lax.bitcast_convert_type(jnp.maximum(bits, jnp.minimum(first, np.iinfo(np.int32).min)), x.dtype)


_hold, _once, _after, _written = (
    _itself("hold", _scattered),
    _itself("once", _divided),
    _itself("after", _ordered),
    _itself("written", lax.optimization_barrier),
)
# Instead of the rule above: what turns a cotangent back is written down, too.
ad.deflinear2(_written, lambda cotangent, x: [_written.bind(cotangent)])


def hold(x: Array) -> Array:
    """x [...] itself, of 32-bit numbers, computed once.

    XLA's CPU backend would compute it again for each of its uses, random numbers for each of what they index, and a
    descent of a tree for each of its levels, which adds up to powers of two; it looks through an optimization barrier.
    It does not fuse across a scatter, and this one changes nothing: no bits are an integer below the lowest. (Of two
    indices, as one alone becomes a slice.)
    """
    return _hold.bind(x)


def ones(x: Array) -> Array:
    """Ones, uint32 like x [...], that XLA does not recognize: no integer is below the lowest. LLVM does."""
    lowest = lax.bitcast_convert_type(lax.min(lax.bitcast_convert_type(x, jnp.int32), np.int32(-(2**31))), jnp.uint32)
    return lax.bitwise_xor(lowest, np.uint32(2**31 + 1))


def once(x: Array) -> Array:
    """x [...] uint32 itself, computed once for all kernels that use it: less than `hold`, and free.

    XLA's CPU backend computes nothing twice that takes a division, such as this one by `ones`, which LLVM leaves out.
    """
    return _once.bind(x)


def after(x: Array, other: Array) -> Array:
    """x [...] itself, computed after `other` [...], where both are 32-bit numbers.

    Where more than eight kernels are ready at once, XLA's CPU backend hands half of them to another thread, which takes
    longer to wake up than small kernels take. (No bits are an integer below the lowest, which XLA does not know.)
    """
    if not other.size or not {x.dtype, other.dtype} <= {np.dtype(name) for name in ("float32", "int32", "uint32")}:
        return x
    return _after.bind(x, other)


def written(x: Array) -> Array:
    """x [...] itself, written down as it is: XLA's CPU backend else reads what it was made of through its transpose."""
    return _written.bind(x)
