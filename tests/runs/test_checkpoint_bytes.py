"""The bytes of checkpoints: compared with the file they were written to, and read into memory of each array's own."""

import gc
import weakref

import jax.numpy as jnp
import numpy as np

from rlkit.runs import files
from rlkit.runs.checkpoints import leaves


def test_files_are_compared_to_their_last_byte(tmp_path):
    path, parts = tmp_path / "x", [b"ab", b"", memoryview(bytes(3_000_000)), b"c"]
    whole = b"".join(parts)
    for stored, same in [(whole, True), (whole[:-1], False), (whole + b"c", False), (whole[:-1] + b"d", False)]:
        path.write_bytes(stored)
        assert files.holds(path, parts) is same
    assert files.holds(path, [b"ab"]) is False
    path.write_bytes(b"")
    assert files.holds(path, []) is files.holds(path, [b""]) is True


def test_small_arrays_are_joined_and_large_ones_are_not_copied():
    large = jnp.arange(1 << 15)
    state = [jnp.ones(3), jnp.zeros((0, 2)), large, jnp.ones(5), jnp.ones((), bool)]
    chunks = leaves.to_bytes(state)
    assert [len(chunk) for chunk in chunks] == [64, large.nbytes, 65]
    assert np.shares_memory(np.frombuffer(chunks[1], np.uint8), np.asarray(large))
    joined = b"".join(chunks)
    for leaf, entry in zip(state, leaves.layout(state)[0], strict=True):
        assert joined[entry["offset"] : entry["offset"] + leaf.nbytes] == np.asarray(leaf).tobytes()


def test_a_restored_array_does_not_keep_the_memory_of_the_others():
    state = {"large": jnp.zeros(1 << 20), "small": jnp.arange(8.0)}
    buffers = leaves.buffers(state, [0, 1 << 22], (1 << 22) + 40)
    assert [buffer.size for buffer in buffers] == [0, 1 << 22, 0, 32, 8]
    assert all(buffer.ctypes.data % 64 == 0 for buffer in buffers if buffer.size)
    watched = weakref.ref(buffers[1].base)
    for buffer in buffers:
        buffer[:] = 0
    restored = leaves.from_buffers(buffers, state)
    del buffers, buffer
    small = restored.pop("small")
    del restored
    gc.collect()
    assert watched() is None
    assert small.shape == (8,)
