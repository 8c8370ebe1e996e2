"""The device for acting: a CPU device of its own, because calls on one device wait for all earlier calls on it."""

import contextlib
import ctypes
import os
import platform
from collections.abc import Sequence
from typing import Any

import jax

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def prepare() -> None:
    """Configure a second CPU device, where JAX has not started yet and the user has not chosen one device.

    This also turns asynchronous dispatch off: the result of acting is needed at once, and an update runs in a thread of
    ours. Handing a call of 0.1 ms to one of JAX's threads costs as much again until that thread wakes. Memory that is
    freed stays with the process.
    """
    configured = getattr(jax.config, "jax_num_cpu_devices", -1)
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", "") and configured != 1:
        with contextlib.suppress(RuntimeError):  # JAX has started
            jax.config.update("jax_num_cpu_devices", max(configured, 2))
            jax.config.update("jax_cpu_enable_async_dispatch", False)
    keep_freed_memory()


def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees, where its C library is glibc and the user has not set it up.

    A compiled program allocates its temporary arrays in each call. glibc gives large ones back to the system when they
    are freed, so that each call gets new pages, which the system fills with zeros one by one at their first use.
    """
    chosen = any(name.startswith("MALLOC_") for name in os.environ) or "malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if platform.libc_ver()[0] == "glibc" and not chosen:
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 2**30)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def acting(learning: Sequence[Any] = ()) -> tuple[Any, str | None]:
    """Return the device for acting and, where learning runs on the same one, the reason for that; else None.

    Args:
      learning: the devices of this process that learn; none for its first one.
    """
    learning = learning or jax.local_devices()[:1]
    try:
        cpus = [device for device in jax.local_devices(backend="cpu") if device not in learning]
    except RuntimeError:
        return learning[0], "JAX has no CPU device here: add cpu to JAX_PLATFORMS"
    if cpus:
        return cpus[0], None
    if len(learning) > 1:
        return learning[0], "each CPU device has a part of the run: leave one of them to acting"
    return learning[0], (
        "JAX has one CPU device: call jax.config.update('jax_num_cpu_devices', 2) before anything else of JAX"
    )
