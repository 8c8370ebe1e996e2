"""Findings about known faults of XLA's backends: measured where that takes no time, else from the version."""

import re
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version

import jax
import jax.numpy as jnp
from jax import lax

from rlkit.runs.doctor import Finding
from rlkit.types import Array

_BYTES = (2**18, 2**22)  # of the small and of the large buffer
_WRITES, _ROUNDS = 500, 5
_SLOW = 2e-6  # seconds of one small write; one that is in place takes a hundredth of it
_HANGING = ((0, 10, 0), (0, 10, 2))  # jaxlib versions, both included


def examine() -> Iterator[Finding]:
    """Yield findings about the default backend."""
    if jax.default_backend() == "cpu":
        yield small_writes(seconds_of_writes)
        yield batched_qr(version("jaxlib"))


def small_writes(seconds: Callable[[int], float]) -> Finding:
    """Return a finding about small writes in a loop, which jaxlib 0.11.1 turns into rewrites of the buffer (jax 40101).

    Args:
      seconds: bytes of a buffer -> seconds of one write of four bytes to it in a compiled loop.
    """
    small, large = map(seconds, _BYTES)
    sizes = f"{_BYTES[0] >> 10} KiB and {_BYTES[1] >> 20} MiB"
    text = f"one in a loop takes {small * 1e6:.2g} and {large * 1e6:.2g} µs, in buffers of {sizes}"
    if large < _SLOW or large < 4 * small:
        return Finding("ok", "small writes", text)
    text += ": each rewrites the whole buffer, in scans and replay buffers as well"
    return Finding("fault", "small writes", text, "use another jaxlib than this one (0.11.1 is known for it)")


def seconds_of_writes(num_bytes: int) -> float:
    """Return seconds of one write of four bytes to a buffer in a compiled loop: the least of a few rounds."""

    def writes(buffer: Array) -> Array:
        return lax.fori_loop(0, _WRITES, lambda i, x: x.at[i + 1].set(x[i] + jnp.float32(1)), buffer)

    compiled = jax.jit(writes, donate_argnums=0)
    buffer, seconds = compiled(jnp.zeros(num_bytes // 4, jnp.float32)), []
    for _ in range(_ROUNDS):
        begin = time.perf_counter()
        buffer = jax.block_until_ready(compiled(buffer))
        seconds.append((time.perf_counter() - begin) / _WRITES)
    return min(seconds)


def batched_qr(jaxlib: str) -> Finding:
    """Return a finding about programs with several batched QR decompositions on the CPU.

    Args:
      jaxlib: its version.
    """
    numbers = tuple(map(int, re.findall(r"\d+", jaxlib)[:3]))
    if not _HANGING[0] <= numbers <= _HANGING[1]:
        return Finding("ok", "batched QR", f"no known fault of jaxlib {jaxlib}")
    text = f"jaxlib {jaxlib} can hang in a program with several batched QR decompositions; rlkit has none of them"
    remedy = "in networks of your own, use rlkit.networks.orthogonal in place of that of jax.nn.initializers"
    return Finding("note", "batched QR", text, remedy)
