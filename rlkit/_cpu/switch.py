"""The switch that turns all of `_cpu` off."""

import os


def enabled() -> bool:
    """True unless the environment variable RLKIT_CPU_TRICKS is 0; read each time that a function is traced."""
    return os.environ.get("RLKIT_CPU_TRICKS", "1") != "0"
