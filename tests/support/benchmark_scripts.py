"""Programs of benchmarks/ as modules, which import each other by their names as scripts do."""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
PROGRAMS = (BENCHMARKS / "common").exists()  # a source distribution has the Markdown alone


@contextmanager
def loaded(script: str) -> Iterator[ModuleType]:
    """A script, by its path in benchmarks/, as a module; it and what it imports beside itself are forgotten again."""
    path = BENCHMARKS / script
    before, names = [*sys.path], {*sys.modules}
    sys.path[:0] = [str(path.parent), str(BENCHMARKS)]
    try:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path[:] = before
        for name in {*sys.modules} - names:
            if str(BENCHMARKS) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]
