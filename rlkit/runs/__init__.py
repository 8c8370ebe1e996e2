"""Runs: configs, run directories, checkpoints, datasets, metric lines, progress, plots. Files and clocks are used here.

The names are imported on first use, so that `rlkit --help` and a plot load only the modules that they need.
"""

import importlib
from typing import Any

_NAMES = {
    "NonFiniteError": "loop",
    "Policy": "policy",
    "RunConfig": "config.run_config",
    "collect": "collecting",
    "export": "exporting.export",
    "frame": "pictures.frames",
    "load": "policy",
    "load_config": "config.load",
    "match": "matches",
    "parse": "config.parse",
    "plot": "pictures.curves",
    "render": "pictures.rendering",
    "report": "reports.report",
    "restore": "checkpoints.states",
    "resume": "loop",
    "save": "checkpoints.states",
    "save_gif": "pictures.frames",
    "sweep": "sweeps.sweep",
    "train": "loop",
    "use_cpu_cores": "devices",
}

_MODULES = ("datasets",)

__all__ = [*_MODULES, *_NAMES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"rlkit.runs.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(f"rlkit.runs.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'rlkit.runs' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
