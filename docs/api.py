"""Pages of the API: one for each package, with every public name."""

import importlib
from types import ModuleType
from typing import Any

from rlkit import agents

PACKAGES = {  # package -> modules of it that its `__all__` does not list
    "rlkit": (),
    "rlkit.types": (),
    "rlkit.spaces": (),
    "rlkit.ops": (),
    "rlkit.networks": (),
    "rlkit.replay": ("segment_tree", "slice_index"),
    "rlkit.envs": (),
    "rlkit.agents": agents.names(),
    "rlkit.training": (),
    "rlkit.hosts": (),
    "rlkit.runs": (),
}
_FROM_SUBMODULES = {  # module without `__all__` -> public names that its submodules define
    "rlkit.replay.segment_tree": ("SegmentTree",),
    "rlkit.replay.slice_index": ("SliceIndex", "Slices", "CompletedSlices"),
}
_OF_AN_AGENT = ("Config", "Hyper", "loss", "make")


def public_names(module: ModuleType) -> list[str]:
    """Return a module's public names: its `__all__`, or functions and classes that it or a submodule defines."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    return [*_FROM_SUBMODULES.get(module.__name__, ()), *(name for name in own if not name.startswith("_"))]


def pages() -> dict[str, str]:
    """Return the pages' texts in reStructuredText, by their names."""
    return {package.removeprefix("rlkit."): _package(package, extra) for package, extra in PACKAGES.items()}


def _package(package: str, extra: tuple[str, ...]) -> str:
    module = importlib.import_module(package)
    modules, lines = list(extra), [*heading(f"{package}", "="), f".. automodule:: {package}", ""]
    for name in public_names(module):
        value = getattr(module, name)
        if not isinstance(value, ModuleType):
            lines += _entry(package, name, value)
        elif package == "rlkit":
            lines += [f"- :py:mod:`{value.__name__}`", ""]
        else:
            modules.append(name)
    for name in modules:
        lines += _module(importlib.import_module(f"{package}.{name}"), is_agent=package == "rlkit.agents")
    return "\n".join(lines)


def _module(module: ModuleType, *, is_agent: bool) -> list[str]:
    """A section for a module of a package."""
    lines = heading(module.__name__, "-")
    if is_agent:
        name = module.__name__.rpartition(".")[2]
        lines += [
            f".. py:module:: {module.__name__}",
            "",
            f":doc:`/algorithms/{name}` has the equations and all keys.",
            "",
        ]
    else:
        lines += [f".. automodule:: {module.__name__}", ""]
    names = [name for name in _OF_AN_AGENT if hasattr(module, name)] if is_agent else public_names(module)
    for name in names:
        if not isinstance(getattr(module, name), ModuleType):
            lines += _entry(module.__name__, name, getattr(module, name))
    return lines


def _entry(module: str, name: str, value: Any) -> list[str]:
    """The directive that describes one public name."""
    if isinstance(value, type):
        is_settings = name in ("Config", "Hyper")
        return [f".. autoclass:: {module}.{name}", *([] if is_settings else ["   :members:"]), ""]
    if isinstance(value, dict):
        return [f".. py:data:: {name}", "", "   A dictionary with the keys " + ", ".join(value) + ".", ""]
    return [f".. autofunction:: {module}.{name}", ""]


def heading(title: str, underline: str) -> list[str]:
    """Lines of a heading."""
    return [title, underline * len(title), ""]


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    """Lines of a table of reStructuredText."""
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in (header, *rows):
        lines += [f"   {'* -' if i == 0 else '  -'} {cell}".rstrip() for i, cell in enumerate(row)]
    return [*lines, ""]
