"""The interface between the training loop and the compiled program of a run."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import numpy as np

from rlkit.hosts.failure import Failure
from rlkit.hosts.placeholder import HostEnv
from rlkit.runs.config.run_config import RunConfig
from rlkit.training import Evaluation
from rlkit.types import Agent, Array, Env, PyTree, Transition


class Chunk(NamedTuple):
    """Result of some consecutive updates."""

    state: PyTree  # a TrainState; leaves [S, ...] with several seeds
    count: Array  # [] int32, updates done: fewer than requested where the last of them was not finite
    finite: Array  # [] bool
    metrics: dict[str, Array]  # [K, ...], K >= count; rows from count on are zeros


class Rollouts(NamedTuple):
    """Transitions of a policy, one rollout after another."""

    shapes: Transition  # of one rollout, leaves jax.ShapeDtypeStruct [T, N, ...]; extras=()
    rollouts: Iterator[Transition]  # without end; NumPy arrays [T, N, ...], valid until the next one; extras=()


class Program(Protocol):
    """The functions of a run that compute, joined as a config describes it. The loop adds files, clock and display.

    Making a program compiles nothing.
    """

    config: RunConfig  # of the run, as the program applies it
    agent: Agent
    params: Any  # of the environment
    num_shards: int  # devices over which a single run is divided, and with it its replay buffer; 1 for one device
    batched: bool  # True where states have a leading axis of seeds
    num_streams: int | None  # N of the dataset that the run learns from; None where it steps environments
    note: str | None  # a line to be shown when the run starts
    should_stop: Callable[[], bool]  # set by the loop; where it is True, a program may end a chunk early
    on_progress: Callable[[str], None]  # set by the loop; called with a line of text in an evaluation that takes long
    on_failure: Callable[[Failure], None]  # set by the loop; called with failures of environments outside of JAX

    @property
    def env(self) -> Env | HostEnv:
        """The environment; of a HostEnv only the spaces can be used."""
        ...

    @property
    def eval_env(self) -> Env | HostEnv:
        """The environment of evaluations, as `env`."""
        ...

    @property
    def seeds(self) -> np.ndarray:
        """[S] int32, the seeds of the run."""
        ...

    @property
    def num_devices(self) -> int:
        """Number of devices that hold the state."""
        ...

    @property
    def template(self) -> PyTree:
        """Shapes and dtypes of the state, as `export` returns it."""
        ...

    @property
    def most_updates(self) -> int | None:
        """The most updates of a call of `advance`; None where a call ends when `should_stop()`, so that any will do."""
        ...

    @property
    def num_bytes(self) -> int:
        """Device memory that a run needs, estimated without compiling; an update's temporaries come on top."""
        ...

    def check(self) -> None:
        """Step the environment a little. Raises ConfigError where it breaks its contract."""
        ...

    def start(self) -> PyTree:
        """Return the state before the first update."""
        ...

    def export(self, state: PyTree) -> PyTree:
        """Return a state as it is saved and given to users; the other functions accept it as they do their own."""
        ...

    def compile(self) -> None:
        """Compile `advance`; without this call, its first call does."""
        ...

    def advance(self, state: PyTree, count: np.int32) -> Chunk:
        """Make `count` updates, at most `most_updates` and `config.updates_per_line`.

        It makes fewer where one is not finite or where `should_stop()` is True, and may donate the replay buffer of the
        state.
        """
        ...

    def compile_evaluation(self) -> None:
        """Compile `evaluate`, as far as possible before its first call."""
        ...

    def evaluate(self, state: PyTree) -> Evaluation:
        """Play greedy episodes, which start in the same states in every call; leaves [..., N, E]."""
        ...

    def state_before_last(self, state: PyTree, chunk: Chunk) -> PyTree:
        """Return the state before the last update of a chunk that began with `state`."""
        ...

    def name_non_finite(self, before: PyTree, chunk: Chunk) -> str:
        """Name the quantity that was not finite in the last update of a chunk, with environment and seed if known.

        Args:
          before: the TrainState before that update.
          chunk: the chunk that ended with it.
        """
        ...

    def rollouts(
        self, agent: Agent, actor: PyTree, *, num_envs: int, num_steps: int, seed: int
    ) -> AbstractContextManager[Rollouts]:
        """Collect transitions of `agent.act` in new environments, for a dataset.

        Args:
          agent: its `act` acts.
          actor: as `agent.actor` returns it, of one seed.
          num_envs: N.
          num_steps: T, of one rollout.
          seed: of the environments and of the actions.

        Raises:
          ConfigError: an environment gives a number that is not finite.
          HostError: an environment fails.
        """
        ...

    def close(self) -> None:
        """End worker processes, if there are any. The other functions must not be called after it."""
        ...
