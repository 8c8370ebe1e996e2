"""Where to act: on a CPU device of its own, because what is asked of one device waits for all that was asked before."""

import contextlib
import os
from typing import Any

import jax


def prepare() -> None:
    """Ask JAX for a second CPU device, where it has not started yet and nobody has said how many there are to be.

    And to compute on the thread that asks: acting is waited for anyway, and an update has a thread of ours. A call of
    0.1 ms that is handed to a thread of JAX's waits as long again for that thread to wake.
    """
    told = getattr(jax.config, "jax_num_cpu_devices", -1) > 0
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", "") and not told:
        with contextlib.suppress(RuntimeError):  # it has started
            jax.config.update("jax_num_cpu_devices", 2)
            jax.config.update("jax_cpu_enable_async_dispatch", False)


def acting() -> tuple[Any, str | None]:
    """The device to act on, and, where it is the one that learns, why that is."""
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
