"""Where XLA's CPU backend is told what to compute once, in which order, and what to write down; elsewhere identities.

None of it changes a number. What it is good for: benchmarks/NOTES.md.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax


def hold(x: Array) -> Array:
    """x [...] itself, of 32-bit numbers, computed once.

    XLA's CPU backend would compute it again for each of its uses, random numbers for each of what they index, and a
    descent of a tree for each of its levels, which adds up to powers of two; it looks through an optimization barrier.
    It does not fuse across a scatter, and this one changes nothing: no bits are an integer below the lowest. (Of two
    indices, as one alone becomes a slice.)
    """

    def scattered(x: Array) -> Array:
        bits = lax.bitcast_convert_type(x, jnp.int32).reshape(-1)
        bits = bits.at[np.zeros(2, np.int32)].max(np.iinfo(np.int32).min, mode="promise_in_bounds")
        return lax.bitcast_convert_type(bits.reshape(x.shape), x.dtype)

    return lax.platform_dependent(x, cpu=scattered, default=lambda x: x)


@jax.custom_jvp
def after(x: Array, other: Array) -> Array:
    """x [...] itself, computed after `other` [...], where both are 32-bit numbers.

    Where more than eight kernels are ready at once, XLA's CPU backend hands half of them to another thread, which takes
    longer to wake up than small kernels take. (No bits are an integer below the lowest, which XLA does not know.)
    """

    def ordered(x: Array, other: Array) -> Array:
        bits, first = (lax.bitcast_convert_type(a, jnp.int32) for a in (x, other[(0,) * other.ndim]))
        return lax.bitcast_convert_type(jnp.maximum(bits, jnp.minimum(first, np.iinfo(np.int32).min)), x.dtype)

    if not other.size or not {x.dtype, other.dtype} <= {np.dtype(name) for name in ("float32", "int32", "uint32")}:
        return x
    return lax.platform_dependent(x, other, cpu=ordered, default=lambda x, other: x)


after.defjvp(lambda primals, tangents: (after(*primals), tangents[0]))


def written(x: Array) -> Array:
    """x [...] itself, written down as it is: XLA's CPU backend else reads what it was made of through its transpose."""
    return lax.platform_dependent(x, cpu=lax.optimization_barrier, default=lambda x: x)
