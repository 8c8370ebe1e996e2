"""Settings of JAX that the commands make before it starts."""

import contextlib
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def use_cores(num_processes: int = 1) -> None:
    """Make the CPU's cores devices, unless XLA_FLAGS sets their number, or JAX has started in this process.

    Args:
      num_processes: that share the cores.
    """
    from rlkit.runs.devices import cores, use_cpu_cores
    from rlkit.types import ConfigError

    with contextlib.suppress(ConfigError):
        use_cpu_cores(max(1, cores() // num_processes))


PROCESSES = ("coordinator", "num_processes", "process_id")  # flags of commands that several processes run together
_SECONDS = 30  # without a sign of life, after which a process counts as dead; and for which the others' end is awaited


def join_processes(flags: Mapping[str, str]) -> None:
    """Join the processes that run a command together, and make CPU cores devices, before JAX starts.

    On one machine the cores are divided among the processes.

    Args:
      flags: the texts of `PROCESSES` that were given. `coordinator` is ADDRESS:PORT of the first process, or auto: then
        JAX asks Slurm, Open MPI, Kubernetes or the TPU pod for all three.

    Raises:
      ConfigError: a flag is missing or wrong, or the processes did not find each other.
    """
    from rlkit.types import ConfigError

    given = {name: flags[name] for name in PROCESSES if name in flags}
    if not given:
        use_cores()
        return
    address = given.pop("coordinator", None)
    if address is None:
        raise ConfigError(f"{_flag(min(given))} needs --coordinator ADDRESS:PORT, of the process with --process-id 0")
    arguments: dict[str, Any] = {}
    sharing = 1  # processes on this machine, as far as it is known
    if address == "auto":
        if given:
            raise ConfigError(f"{_flag(min(given))} must be left out with --coordinator auto, which finds it")
    else:
        if missing := [_flag(name) for name in PROCESSES[1:] if name not in given]:
            raise ConfigError(f"--coordinator {address} needs {' and '.join(missing)}")
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise ConfigError(f"--coordinator={address!r} must be ADDRESS:PORT or auto; write e.g. 127.0.0.1:7777")
        count, index = (_whole_number(name, given[name]) for name in PROCESSES[1:])
        if not 0 <= index < count:
            raise ConfigError(f"--process-id={index} must be at least 0 and less than --num-processes={count}")
        arguments = {"coordinator_address": address, "num_processes": count, "process_id": index}
        here = host in ("localhost", "127.0.0.1", "[::1]")
        if here:
            arguments["coordinator_bind_address"] = address  # and not every interface of the machine
            sharing = count
    from rlkit.runs.devices import lost_process

    known = [arguments.get(name) for name in ("process_id", "num_processes", "coordinator_address")]
    lost_process.watch(*known, seconds=_SECONDS)
    use_cores(sharing)
    import jax

    try:
        jax.distributed.initialize(**arguments, heartbeat_timeout_seconds=_SECONDS, shutdown_timeout_seconds=_SECONDS)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"--coordinator={address!r} must be reached by every process: {reason}") from None
    enable_compilation_cache()  # before the processes agree on the config, which compiles


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _whole_number(name: str, text: str) -> int:
    """The value of a flag."""
    from rlkit.types import ConfigError

    if not text.isdigit():
        raise ConfigError(f"{_flag(name)}={text!r} must be a whole number, such as 2")
    return int(text)


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
