"""Programs that learn from a dataset alone; their environments, in JAX, only evaluate the policy."""

from rlkit import training
from rlkit.runs import datasets
from rlkit.runs.config.run_config import RunConfig
from rlkit.runs.programs import offline
from rlkit.runs.programs.jax_program import JaxProgram
from rlkit.runs.programs.state import Runs
from rlkit.types import PyTree


class OfflineJaxProgram(JaxProgram):
    """A `Program` that learns from a dataset, for an environment in JAX.

    Args:
      config: one with a dataset.
      num_streams: the dataset's N where a checkpoint holds it; then the dataset is not opened, and `start` cannot be
        called. None to open the dataset.
      runs: as for `JaxProgram`.

    Raises:
      ConfigError: as `JaxProgram`, or the dataset cannot be read or does not fit.
    """

    def __init__(self, config: RunConfig, num_streams: int | None = None, runs: Runs | None = None):
        self.num_streams, self.dataset = num_streams, None
        super().__init__(config, runs)

    def _make_training(self) -> training.Training:
        """The `init` and `step` of one seed."""
        if self.num_streams is None:
            assert self.config.run.dataset is not None
            self.dataset = datasets.find(self.config.run.dataset)
            offline.check(self.config, self.dataset, self.agent, self.env, self.params)
            self.num_streams = self.dataset.num_envs
        return training.offline(
            self.agent, self.env, self.params, num_envs=self.num_streams, num_steps=self.config.steps_per_update
        )

    def start(self) -> PyTree:
        """Return the state before the first update, with all of the dataset in the buffer."""
        assert self.dataset is not None
        state = super().start()
        return state.replace(
            agent=offline.fill(self.agent, state.agent, self.dataset, self.config, batched=self.batched)
        )

    def _rollout_num_bytes(self) -> int:
        """Zero: there are no rollouts."""
        return 0

    def _last_rollout(self, before: PyTree) -> dict[str, PyTree]:
        """An empty mapping: there are no rollouts."""
        return {}
