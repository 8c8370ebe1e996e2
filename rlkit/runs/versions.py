"""Installed software: what the numbers of a run depend on besides its config, and packages of the extras."""

import importlib
import platform
from typing import Any

import jax

from rlkit.runs.doctor import installed_version
from rlkit.types import ConfigError

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


def require(package: str, subject: str, extra: str) -> Any:
    """Import a package of an extra. Raises ConfigError, which begins with `subject`, where it is not installed."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        name = str(error.name or package).partition(".")[0]
        raise ConfigError(f"{subject} needs the package {name}; install it: pip install 'rlkit-jax[{extra}]'") from None
