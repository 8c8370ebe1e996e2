"""The device for acting: a CPU device of its own, because calls on one device wait for all earlier calls on it."""

import contextlib
import os
from typing import Any

import jax


def prepare() -> None:
    """Configure a second CPU device, where JAX has not started yet and the user has not chosen one device.

    This also turns asynchronous dispatch off: the result of acting is needed at once, and an update runs in a thread of
    ours. Handing a call of 0.1 ms to one of JAX's threads costs as much again until that thread wakes.
    """
    configured = getattr(jax.config, "jax_num_cpu_devices", -1)
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", "") and configured != 1:
        with contextlib.suppress(RuntimeError):  # JAX has started
            jax.config.update("jax_num_cpu_devices", max(configured, 2))
            jax.config.update("jax_cpu_enable_async_dispatch", False)


def acting() -> tuple[Any, str | None]:
    """Return the device for acting and, where learning runs on the same one, the reason for that; else None."""
    learning = jax.devices()[0]
    try:
        cpus = [device for device in jax.local_devices(backend="cpu") if device != learning]
    except RuntimeError:
        return learning, "JAX has no CPU device here: add cpu to JAX_PLATFORMS"
    if cpus:
        return cpus[0], None
    return learning, (
        "JAX has one CPU device: call jax.config.update('jax_num_cpu_devices', 2) before anything else of JAX"
    )
