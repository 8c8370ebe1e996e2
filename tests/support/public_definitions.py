"""Public functions, classes and methods that a module of the package defines."""

import importlib
import inspect
from collections.abc import Iterator


def definitions(module_name: str, methods: bool) -> Iterator[tuple[str, object]]:
    """Public functions and classes that a module defines; with `methods`, their public methods and properties too."""
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
