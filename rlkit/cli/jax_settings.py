"""Settings of JAX that the commands make before it starts."""

import contextlib
import os
import stat
import sys
from pathlib import Path


def use_cores() -> None:
    """Make the CPU's cores devices, unless XLA_FLAGS sets their number, or JAX has started in this process."""
    from rlkit.runs.devices import use_cpu_cores
    from rlkit.types import ConfigError

    with contextlib.suppress(ConfigError):
        use_cpu_cores()


def enable_compilation_cache() -> None:
    """Keep compiled programs in a private folder, so that the second run of a config starts at once.

    RLKIT_CACHE=off turns the cache off; another value is its folder. A cached program is code, so a folder that other
    users can write to is not used.
    """
    import jax

    from rlkit.types import ConfigError

    try:
        folder = cache_folder()
    except ConfigError as error:
        print(f"rlkit: no compilation cache: {error}", file=sys.stderr)
        return
    if folder is not None:
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def cache_folder() -> Path | None:
    """Return the folder of compiled programs, made where there is none; None where the cache is off.

    Raises:
      ConfigError: it cannot be made, or other users can use it.
    """
    from rlkit.types import ConfigError

    setting = os.environ.get("RLKIT_CACHE", "")
    if setting.lower() in ("off", "0", "false"):
        return None
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(setting) if setting else home / "rlkit" / "xla"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise ConfigError(f"{folder} must be a folder that can be made: {error.strerror}; set RLKIT_CACHE") from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ConfigError(f"{folder} must be a folder only you can use (chmod 700)")
    return folder
