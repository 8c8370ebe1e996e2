"""Checkpoints of a single run that is divided over devices, read for another number of devices."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from rlkit.agents.common.clocks import ReplayState
from rlkit.replay import shards
from rlkit.runs.checkpoints import checkpoint
from rlkit.runs.programs.host_program import HostProgram
from rlkit.runs.programs.jax_program import JaxProgram
from rlkit.runs.programs.protocol import Program
from rlkit.training import processes
from rlkit.types import ConfigError, PyTree

KEY = "shards"  # of a checkpoint's `extra`: the number of devices over which its run was divided


def restore(
    checkpoints: checkpoint.Reader, program: Program, step: int | None = None
) -> tuple[PyTree, int, dict[str, Any]]:
    """Read a checkpoint as `Reader.restore` does, and divide its state as the program does.

    Raises:
      CheckpointError, ConfigError: as `Reader.restore`; or the replay buffer cannot be divided anew.
    """

    def template(extra: Mapping[str, Any]) -> PyTree:
        if _of(extra) == program.num_shards:
            return program.template
        if isinstance(program, JaxProgram | HostProgram) and not program.batched:
            return program.template_of(_of(extra))
        raise ConfigError(
            "the checkpoint is of a run that was divided over devices, and this one is not; train it anew"
        )

    state, step, extra = checkpoints.restore(program.template, step, template_of=template)
    return (state if _of(extra) == program.num_shards else _divide(state, program, _of(extra))), step, extra


def _of(extra: Mapping[str, Any]) -> int:
    """The number of devices over which the run of a checkpoint was divided; 1 for one that was not."""
    number = extra.get(KEY, 1)
    return number if type(number) is int and 1 <= number <= 2**16 else 1


def _divide(state: PyTree, program: Program, stored: int) -> PyTree:
    """A state that is divided over `stored` devices, as the program's."""
    template, agent, number = program.template, state.agent, program.num_shards
    if isinstance(getattr(agent, "replay", None), ReplayState):
        parts = (
            [jax.tree.map(lambda x, d=d: x[d], agent.replay.buffer) for d in range(stored)]
            if stored > 1
            else [agent.replay.buffer]
        )
        like = template.agent.replay.buffer
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[number > 1 :], x.dtype), like)
        try:
            new = shards.divide(parts, like, number)
        except ConfigError as error:
            raise ConfigError(f"devices={number} must be {stored}, as in the checkpoint: {error}") from None
        buffer = jax.tree.map(lambda *leaves: np.stack(leaves), *new) if number > 1 else new[0]
        state = state.replace(agent=agent.replace(replay=agent.replay.replace(buffer=buffer)))
    shapes, expected = (jax.tree.map(lambda x: (x.shape, x.dtype), tree) for tree in (state, template))
    if shapes != expected:
        raise ConfigError(
            f"devices={number} must be {stored}, as in the checkpoint: the state of agent="
            f"{program.config.run.agent!r} cannot be divided anew; resume with devices: {stored}"
        )
    return processes.place(state, jax.tree.map(lambda like: like.sharding, template))
