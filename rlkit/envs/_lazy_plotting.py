"""Lazy import of the plotting libraries of gymnax, which only its own rendering needs.

gymnax imports matplotlib, seaborn, and through them pandas and scipy, in the modules of a few environments that can
render themselves. That is nine tenths of its import time, and rlkit has its own rendering.
"""

import importlib.util
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_PACKAGES = ("matplotlib", "seaborn")
_MODULES = (*_PACKAGES, "matplotlib.pyplot", "matplotlib.colors")  # a package before its submodules


class _LazyModule(types.ModuleType):
    """A stand-in for a module, which is imported when one of its attributes is first read."""

    def __getattr__(self, attribute: str) -> Any:
        _evict()
        return getattr(importlib.import_module(self.__name__), attribute)


def _evict() -> None:
    """Remove the stand-ins from `sys.modules`."""
    for name in _MODULES:
        if isinstance(sys.modules.get(name), _LazyModule):
            del sys.modules[name]


@contextmanager
def plotting_imported_lazily() -> Iterator[None]:
    """Replace the plotting libraries by stand-ins for imports inside the context, where they are not imported yet.

    `sys.modules` holds the stand-ins only inside the context. Afterwards they remain as globals of the modules that
    imported them (`plt` in gymnax's Catch), and any other `import matplotlib.pyplot` is an ordinary import. Reading an
    attribute of a stand-in, also inside the context, imports the real module.
    """
    for name in _MODULES:
        if name not in sys.modules:
            lazy = _LazyModule(name)
            parent, _, child = name.rpartition(".")
            if name in _PACKAGES:
                spec = importlib.util.find_spec(name)
                if spec is None:
                    continue
                # The import of a submodule that has no stand-in searches this path.
                lazy.__path__ = list(spec.submodule_search_locations or ())
            elif isinstance(sys.modules.get(parent), _LazyModule):
                setattr(sys.modules[parent], child, lazy)
            sys.modules[name] = lazy
    try:
        yield
    finally:
        _evict()
