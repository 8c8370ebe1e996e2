"""Runs that learn from a dataset alone, and whose policy is for an environment outside of JAX.

No step of it is taken but to evaluate the policy; so a dataset that others have made of it, Minari's say, can be used.
"""

import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

import jax
import numpy as np

from rlkit import _cpu
from rlkit.runs import datasets
from rlkit.runs.config.run_config import RunConfig
from rlkit.runs.programs import offline
from rlkit.runs.programs.host_program import HostProgram
from rlkit.runs.programs.jax_program import Chunk
from rlkit.runs.programs.parts import join, split
from rlkit.training import TrainState
from rlkit.types import Array, Key, PyTree


class OfflineHostProgram(HostProgram):
    """What `hosted.HostProgram` is, where the transitions come from a dataset; `streams` as for `program.Program`.

    Raises:
      ConfigError: as `HostProgram`, or the dataset cannot be read or does not fit.
    """

    def __init__(self, config: RunConfig, streams: int | None = None):
        assert config.run.dataset is not None
        self.found = datasets.find(config.run.dataset) if streams is None else None
        self.known = streams
        super().__init__(config)
        self.dataset, self.hold, self.overlap, self.note = self.found, False, False, None

    def _streams(self) -> int:
        if self.known is not None:
            return self.known
        assert self.found is not None
        offline.check(self.config, self.found, self.agent, self.env, None)
        return self.found.num_envs

    def start(self) -> PyTree:
        """The state before the first update, with all of the dataset in the buffer."""
        state = super().start()
        assert self.found is not None
        return state.replace(agent=offline.fill(self.agent, state.agent, self.found, batched=False))

    @cached_property
    def advance(self) -> Callable[[PyTree, np.int32], Chunk]:
        """(state, count) -> Chunk: as `HostProgram.advance`, without rollouts."""
        rest, replay = split(self.template.agent)
        compiled = jax.jit(self._learn_more, donate_argnums=0)
        self._compiled = compiled.lower(replay, rest, self.template.key).compile()
        return self._advance

    @_cpu.straight_line_keys
    def _learn_more(self, replay: PyTree, rest: PyTree, key: Key) -> tuple[PyTree, dict[str, Array], Array, Key]:
        assert self.agent.learn is not None
        update_key, next_key = jax.random.split(key)
        state, metrics = self.agent.learn(join(rest, replay), update_key, self.config.steps_per_update)
        return state, metrics, self._finite(state, metrics), next_key

    def _begin(self, state: PyTree) -> None:
        self.begun = True  # there are no episodes to begin

    def _one(self, state: PyTree) -> tuple[PyTree, dict[str, Any], bool]:
        begin = time.perf_counter()
        rest, replay = split(state.agent)
        agent, metrics, finite, key = self._compiled(replay, rest, state.key)
        metrics, finite = jax.device_get((metrics, finite))
        if not finite:
            self.reason = self._quantity(metrics)
            self.before = state.replace(agent=join(rest, split(agent)[1]))
        row = {
            **metrics,
            "returns": np.full((1, self.streams), np.nan, np.float32),
            "lengths": np.zeros((1, self.streams), np.int32),
            "update_seconds": time.perf_counter() - begin,
        }
        count: Any = np.int32(int(state.step) + 1)
        return TrainState(agent, state.envs, key, count), row, bool(finite)
