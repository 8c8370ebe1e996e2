"""Names of PettingZoo's environments: FAMILY/NAME, a module with a function `parallel_env`."""

import importlib
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlkit.hosts.worker.contract import Violation
from rlkit.names import UnknownName

# The packages that hold the environments of a family.
FAMILIES = {
    "mpe2": "mpe2",
    "magent2": "magent2.environments",
    **{family: f"pettingzoo.{family}" for family in ("atari", "butterfly", "classic", "sisl")},
}
_VERSIONED = re.compile(r"\w+_v\d+")


def names() -> list[str]:
    """Return the names FAMILY/NAME of the installed families; nothing is imported."""
    found = []
    for family, package in FAMILIES.items():
        for folder in _folders(package):
            modules = (path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir())
            found += [f"{family}/{module}" for module in modules if _VERSIONED.fullmatch(module)]
    return sorted(set(found))


def _folders(package: str) -> list[Path]:
    top, *rest = package.split(".")
    spec = importlib.util.find_spec(top)
    folders = [Path(place, *rest) for place in (spec and spec.submodule_search_locations) or ()]
    return [folder for folder in folders if folder.is_dir()]


def maker(name: str) -> Callable[..., Any]:
    """Import the module of a name in `names()`, and return its function that makes an environment.

    Raises:
      UnknownName: a module that it imports is not installed.
      Violation: its environment has no parallel interface.
    """
    family, _, task = name.partition("/")
    try:
        module = importlib.import_module(f"{FAMILIES[family]}.{task}")
    except ModuleNotFoundError as error:
        remedy = (
            f"; install it: pip install 'pettingzoo[{family}]'" if FAMILIES[family].startswith("pettingzoo") else ""
        )
        raise UnknownName(f"the module {error.name!r}, which it imports, is not installed{remedy}") from error
    if not hasattr(module, "parallel_env"):
        raise Violation(f"pettingzoo:{name}", "a module with parallel_env", "one whose agents take turns (AEC) alone")
    return module.parallel_env
