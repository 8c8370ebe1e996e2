"""Hints for a run in progress, from the figures that it measures."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlkit.agents.common.config import OffPolicyConfig
from rlkit.hosts import devices
from rlkit.hosts.pool import num_cores
from rlkit.runs.config.run_config import RunConfig

_MOST = 0.8  # share of the time from which environments are the bottleneck
_SLOW_SECONDS = 0.005  # of a step of one environment


def slow_environments(config: RunConfig, line: Mapping[str, Any]) -> str | None:
    """Return a hint where slow environments take most of the time and wait for each other in their workers.

    Args:
      config: of the run.
      line: a metric line; without `envs_idle` there are no environments outside of JAX that training steps.

    Returns:
      A line of text; None where more workers cannot help, or before learning starts.
    """
    run = config.run
    workers = 1 if run.backend == "serial" else min(run.num_envs, run.num_workers or num_cores())
    vector = run.env.startswith(("ale:", "envpool:"))  # stepped in threads of their library
    learns = line["step"] > getattr(config.agent, "learning_starts", 0)
    if line.get("envs_idle") is None or vector or workers == run.num_envs or not learns:
        return None
    idle = float(np.mean(line["envs_idle"]))
    envs_of_worker = -(-run.num_envs // workers)
    seconds = (1.0 - idle) * run.num_envs / line["steps_per_second"] / envs_of_worker
    if idle > 1.0 - _MOST or seconds < _SLOW_SECONDS:
        return None
    backend = "backend: process and " if run.backend == "serial" else ""
    return (
        f"environments take {1000 * seconds:.3g} ms a step: if they wait rather than compute, {backend}num_workers: "
        f"{run.num_envs} (one for each environment) may help{'; so may overlap: true' * _may_overlap(config)}"
    )


def _may_overlap(config: RunConfig) -> bool:
    """True where collecting and learning take turns by default, and can overlap."""
    takes_turns = not isinstance(config.agent, OffPolicyConfig) or config.run.num_steps == 1
    return takes_turns and config.run.overlap is None and devices.acting()[1] is None
