"""Versions of the software and the device that the numbers of a run depend on besides its config."""

import platform
from typing import Any

import jax

from rlkit.runs.doctor.installation import installed_version

_PACKAGES = ("rlkit-jax", "jax", "jaxlib", "flax", "optax", "gymnax", "gymnasium", "numpy")


def versions() -> dict[str, Any]:
    """Return the versions of packages (None where one is not installed), of Python and platform, and the devices."""
    device = jax.devices()[0]
    return {
        **{name: installed_version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": f"{device.platform} {device.device_kind}",
        "devices": jax.device_count(),
    }
