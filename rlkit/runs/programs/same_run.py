"""The same run in all processes that train together: its config, its software and the user's own code are compared."""

import hashlib
import importlib.metadata
import importlib.util
import inspect
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlkit import __version__
from rlkit.hosts.registry import is_host, is_own
from rlkit.names import registered
from rlkit.runs.config.errors import show_value
from rlkit.runs.config.own_code import own_words
from rlkit.runs.config.run_config import RunConfig
from rlkit.runs.doctor import installed_version
from rlkit.training import processes
from rlkit.types import ConfigError

_CODE = " in code"  # ends the names of entries that are hashes
_VERSION = " version"  # ends those of packages
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")
_OF_SUITES = {"ale": "ale-py", "atari": "ale-py", "xland": "xminigrid"}  # whose package has another name


def require(config: RunConfig, init_from: Any = None) -> None:
    """Compare a run among all processes, before any of them compiles it.

    Args:
      config: of this process.
      init_from: the run that it starts with, where there is one.

    Raises:
      ConfigError: in all processes, if any of them has another key, version or file of own code; the first is named.
    """
    if processes.number() == 1:
        return
    text = json.dumps({**entries(config), "init_from": repr(init_from and str(init_from))})
    texts = processes.texts(text, most=processes.greatest(-(-len(text) // 4096)) * 4096)
    if (problem := first_difference([json.loads(text) for text in texts])) is not None:
        raise ConfigError(problem)


def entries(config: RunConfig) -> dict[str, str]:
    """Return what processes must have in common: versions, the keys of a config, and hashes of the user's own files."""
    found = {f"rlkit{_VERSION}": __version__, **_versions(_PACKAGES)}
    for key, value in config.flat().items():
        found |= {f"{key}.{name}": repr(x) for name, x in value.items()} if isinstance(value, dict) else {}
        found[key] = repr(sorted(value) if isinstance(value, dict) else value)
        for word in own_words(key, value):
            found[f"{key}={show_value(word)}{_CODE}"] = _hash(word)
    return found | _versions(_packages_of(config.run.env))


def _versions(packages: Iterable[str]) -> dict[str, str]:
    return {f"{name}{_VERSION}": str(installed_version(name)) for name in packages}


def first_difference(all_entries: Sequence[Mapping[str, str]]) -> str | None:
    """Return a line on the first entry that a process has otherwise than the process 0, or None.

    Args:
      all_entries: the `entries` of each process.
    """
    for name in dict.fromkeys(name for found in all_entries for name in found):
        first = all_entries[0].get(name)
        for number, found in enumerate(all_entries):
            if (other := found.get(name)) == first:
                continue
            if name.endswith(_CODE):
                have = f"the file of process 0 has the hash {first}, and that of process {number} has {other}"
                return f"{name.removesuffix(_CODE)} must be the same code in all processes: {have}; copy one file"
            remedy = "install the same one" if name.endswith(_VERSION) else "give all the same flags and files"
            return (
                f"{name}={_shown(first)} of process 0 must be that of all processes, and process {number} has "
                f"{_shown(other)}; {remedy}"
            )
    return None


def _shown(value: str | None) -> str:
    return "(absent)" if value is None else value if len(value) <= 200 else f"{value[:180]}... ({_digest(value)})"


def _packages_of(env: str) -> list[str]:
    """The names of packages that an environment comes from; none for one of the user's own, whose file is compared."""
    prefix, colon, task = env.partition(":")
    if not colon:
        return ["gymnax"]
    if is_own(env):
        return []
    if not is_host(env):
        return [_OF_SUITES.get(prefix, prefix), "mujoco"]  # mujoco is None where there is none
    names = ["gymnasium", "mujoco", *([_OF_SUITES[prefix]] if prefix in _OF_SUITES else [])]
    import gymnasium

    if isinstance(point := getattr(gymnasium.registry.get(task), "entry_point", None), str):
        package = point.partition(":")[0].partition(".")[0]
        names += importlib.metadata.packages_distributions().get(package, [])
    return list(dict.fromkeys(names))


def _hash(name: str) -> str:
    """The first digits of the SHA-256 of the file with the code `module:attribute`; "none" where there is no file."""
    thing = registered(name)
    if thing is not None:
        module = sys.modules.get(getattr(thing, "__module__", type(thing).__module__))
        file = thing.__file__ if inspect.ismodule(thing) else getattr(module, "__file__", None)
    else:
        try:
            spec = importlib.util.find_spec(name.partition(":")[0])
        except (ImportError, ValueError):
            spec = None
        file = spec.origin if spec is not None else None
    try:
        return _digest(Path(file or "").read_bytes())
    except OSError:
        return "none"


def _digest(data: str | bytes) -> str:
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()[:12]
