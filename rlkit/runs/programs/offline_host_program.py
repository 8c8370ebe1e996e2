"""Programs that learn from a dataset alone; their environments, outside of JAX, only evaluate the policy.

The dataset may come from elsewhere, for example from Minari.
"""

import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

import jax
import numpy as np

from rlkit.runs import datasets
from rlkit.runs.config.run_config import RunConfig
from rlkit.runs.programs import offline
from rlkit.runs.programs.finite import update_is_finite
from rlkit.runs.programs.host_program import HostProgram
from rlkit.runs.programs.host_update import compiled
from rlkit.runs.programs.state import join, split
from rlkit.training import TrainState
from rlkit.types import Array, ConfigError, Key, PyTree


class OfflineHostProgram(HostProgram):
    """A `Program` that learns from a dataset, for an environment outside of JAX.

    Args:
      config: one with a dataset.
      num_streams: the dataset's N where a checkpoint holds it; then the dataset is not opened, and `start` cannot be
        called. None to open the dataset.

    Raises:
      ConfigError: as `HostProgram`, or the dataset cannot be read or does not fit.
      HostError: as `HostProgram`.
    """

    def __init__(self, config: RunConfig, num_streams: int | None = None):
        assert config.run.dataset is not None
        num_seeds, env = config.run.num_seeds, config.run.env
        if num_seeds > 1:
            raise ConfigError(
                f"num_seeds={num_seeds} does not go with a dataset and env={env!r}; start one run for each"
            )
        self.num_streams = num_streams
        self.dataset = datasets.find(config.run.dataset) if num_streams is None else None
        super().__init__(config)
        self.hold, self.overlap = False, False
        self.note: str | None = None

    def _check_agent(self) -> None:
        """Raise ConfigError where the dataset does not fit the agent; a checkpoint of a run is proof that it does."""
        if self.dataset is not None:
            offline.check(self.config, self.dataset, self.agent, self.env, None)
            self.num_streams = self.dataset.num_envs

    def start(self) -> PyTree:
        """Return the state before the first update, with all of the dataset in the buffer."""
        assert self.dataset is not None
        state = super().start()
        return state.replace(agent=offline.fill(self.agent, state.agent, self.dataset, self.config, batched=False))

    def compile(self) -> None:
        """Compile learning; without this call, the first `advance` does."""
        _ = self._learn

    @cached_property
    def _learn(self) -> Callable[..., Any]:
        """A compiled update: the agent's state, metrics, [] bool for whether they are finite, and the next key."""

        def learn(replay: PyTree, rest: PyTree, key: Key) -> tuple[PyTree, dict[str, Array], Array, Key]:
            assert self.agent.learn is not None
            update_key, next_key = jax.random.split(key)
            state, metrics = self.agent.learn(join(rest, replay), update_key, self.config.steps_per_update)
            return state, metrics, update_is_finite(self.agent, state, metrics), next_key

        rest, replay = split(self.template.agent)
        return compiled(learn, replay, rest, self.template.key)

    def begin(self, state: PyTree) -> None:
        """Reset nothing: no environment is stepped between updates."""
        self.begun = True

    def iterate(self, state: PyTree, most: int) -> tuple[PyTree, list[dict[str, Any]], bool]:
        """One update."""
        self.before = state
        assert self.num_streams is not None
        begin = time.perf_counter()
        rest, replay = split(state.agent)
        agent, metrics, finite, key = self._learn(replay, rest, state.key)
        metrics, finite = jax.device_get((metrics, finite))
        step: Any = np.int32(int(state.step) + 1)
        after = TrainState(agent, state.envs, key, step)
        if not finite:
            self._note_not_finite(state, after, metrics)
        row = {
            **metrics,
            "returns": np.full((1, self.num_streams), np.nan, np.float32),
            "lengths": np.zeros((1, self.num_streams), np.int32),
            "update_seconds": time.perf_counter() - begin,
        }
        return after, [row], bool(finite)
