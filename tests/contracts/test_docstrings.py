"""Everything public says what it is; what rlkit.ops computes also says the shapes."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import pytest

import rlkit

MODULES = ["rlkit", *(info.name for info in pkgutil.walk_packages(rlkit.__path__, "rlkit."))]


def definitions(module_name: str, methods: bool) -> Iterator[tuple[str, object]]:
    """The module's own public functions and classes, and the methods and properties that those classes define."""
    module = importlib.import_module(module_name)
    for name, member in vars(module).items():
        if name.startswith("_") or getattr(member, "__module__", None) != module_name:
            continue
        if inspect.isfunction(member):
            yield name, member
        elif inspect.isclass(member):
            yield name, member
            for attribute, value in vars(member).items() if methods else ():
                inner = getattr(value, "__func__", getattr(value, "fget", value))
                if inspect.isfunction(inner) and inner.__module__ == module_name and not attribute.startswith("_"):
                    yield f"{name}.{attribute}", inner


@pytest.mark.parametrize("module", [name for name in MODULES if not name.endswith("__main__")])
def test_everything_public_has_a_docstring(module: str):
    assert importlib.import_module(module).__doc__, f"{module} has no docstring"
    missing = [name for name, member in definitions(module, methods=False) if not inspect.getdoc(member)]
    assert not missing, f"{module}: no docstring on {missing}"


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("rlkit.ops.") and "._" not in name])
def test_ops_name_their_shapes(module: str):
    without = [name for name, member in definitions(module, methods=True) if "[" not in (inspect.getdoc(member) or "")]
    assert not without, f"{module}: no shape in the docstring of {without}"
