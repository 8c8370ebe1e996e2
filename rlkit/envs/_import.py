"""Importing gymnax without the drawing libraries that only its pictures need.

gymnax imports matplotlib, seaborn, and through them pandas and scipy, in the modules of a few environments that can
draw themselves. That is nine tenths of its import time, and rlkit draws by itself.
"""

import importlib.util
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_PACKAGES = ("matplotlib", "seaborn")
_DRAWING = (*_PACKAGES, "matplotlib.pyplot", "matplotlib.colors")  # a package before its submodules


class _Deferred(types.ModuleType):
    """Stands for a module that is imported when one of its attributes is first read."""

    def __getattr__(self, attribute: str) -> Any:
        _evict()
        return getattr(importlib.import_module(self.__name__), attribute)


def _evict() -> None:
    for name in _DRAWING:
        if isinstance(sys.modules.get(name), _Deferred):
            del sys.modules[name]


@contextmanager
def drawing_deferred() -> Iterator[None]:
    """Whatever is imported inside gets stand-ins for the drawing libraries, where those are not imported yet.

    `sys.modules` holds the stand-ins only inside the context. Afterwards they live on as globals of the modules that
    asked for them (`plt` in gymnax's Catch), and anybody else's `import matplotlib.pyplot` is an ordinary import.
    Reading anything from a stand-in, also inside the context, imports the real module.
    """
    for name in _DRAWING:
        if name not in sys.modules:
            deferred = _Deferred(name)
            parent, _, child = name.rpartition(".")
            if name in _PACKAGES:
                spec = importlib.util.find_spec(name)
                if spec is None:
                    continue
                # An import of a submodule that has no stand-in finds its file here.
                deferred.__path__ = list(spec.submodule_search_locations or ())
            elif isinstance(sys.modules.get(parent), _Deferred):
                setattr(sys.modules[parent], child, deferred)
            sys.modules[name] = deferred
    try:
        yield
    finally:
        _evict()
