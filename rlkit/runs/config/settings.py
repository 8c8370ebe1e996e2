"""The keys of a config that belong to the run rather than to the agent."""

from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Interval, MaxLen
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt

from rlkit.agents.base.keys import Stays

_Name = Annotated[str, MaxLen(120)]  # an error message quotes it in full
_Steps = Annotated[int, Interval(ge=1, le=10**15)]


def _check_devices(value: Any) -> Any:
    if value in ("auto", "all") or (type(value) is int and 1 <= value <= 2**16):
        return value
    raise ValueError("must be auto, all, or a number of devices from 1 to 65536")


class Task(NamedTuple):
    """An environment by its name, with what changes it."""

    env: str
    kwargs: dict[str, Any]
    wrappers: tuple[str, ...]


class Settings(BaseModel):
    """Settings of a run: agent, environment, length and output. Steps are environment steps of one seed."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    agent: Annotated[str, Stays] = Field(
        description="the algorithm; `rlkit list` names them, and module:make is one of your own"
    )
    env: Annotated[_Name, Stays] = Field(description="the environment; `rlkit list` names them")
    env_kwargs: Annotated[dict[str, Any], Stays] = Field(
        default={}, description="parameters of the environment, by their names"
    )
    wrappers: Annotated[tuple[str, ...], Stays] = Field(
        default=(), description="from the inside out, e.g. [hide_velocity, 'frame_stack:4']"
    )
    network: Annotated[_Name | None, Stays] = Field(
        default=None, description="your networks in place of the config's: module:function of (obs_space, action_space)"
    )
    num_envs: Annotated[int, Interval(ge=1, le=2**24), Stays] = Field(description="environments that step at once")
    num_steps: Annotated[int, Interval(ge=1, le=2**24), Stays] = Field(description="steps of each between updates")
    reset_pool: Annotated[int | None, Interval(ge=1, le=2**16), Stays] = Field(
        default=None,
        description="starts made once, of which episodes of training draw theirs, for worlds in JAX that are costly to "
        "make, e.g. 1024; null for a reset in every step",
    )
    total_steps: _Steps = Field(description="steps in all, rounded up to whole updates")
    backend: Literal["process", "serial"] = Field(
        default="process", description="backend that steps environments outside of JAX"
    )
    num_workers: PositiveInt | None = Field(default=None, description="its processes; null for one per core")
    overlap: Annotated[bool | None, Stays] = Field(
        default=None,
        description="environments outside of JAX step while the agent learns, so that rollouts are one update late; "
        "PPO then has old_log_prob: collected; null: for agents with replay, unless they learn after every step",
    )
    env_timeout: Annotated[float, Interval(gt=0.0, le=86400.0)] = Field(
        default=5.0, description="seconds that a call of such an environment may take before its worker is given up"
    )
    env_restarts: Annotated[int, Interval(ge=0, le=2**31 - 1)] = Field(
        default=10, description="workers that may be restarted in a run"
    )
    env_check: bool = Field(
        default=True,
        description="step the environment a little before training, to check its values; false for hardware",
    )
    dataset: Annotated[str | None, Stays] = Field(
        default=None, description="learn from stored transitions alone: a folder, a .npz, or minari:NAME"
    )
    seed: Annotated[int, Interval(ge=0, le=2**31 - 1), Stays] = Field(default=0, description="seed of the first run")
    num_seeds: Annotated[int, Interval(ge=1, le=2**16), Stays] = Field(
        default=1, description="runs in one program, with the seeds seed, seed + 1, ..."
    )
    devices: Annotated[str | int, BeforeValidator(_check_devices)] = Field(
        default="auto",
        description="devices that seeds in JAX are spread over, or one run's environments, minibatches and replay "
        "buffer; on a CPU its cores: auto (one device for one seed), all or their number",
    )
    log_every: _Steps | None = Field(
        default=None, description="steps between metric lines; null for a hundredth of the run"
    )
    eval_every: _Steps | None = Field(default=None, description="steps between evaluations; null for the end only")
    eval_episodes: Annotated[int, Interval(ge=0, le=2**20)] = Field(
        default=128, description="greedy episodes for each seed; 0 for no evaluation"
    )
    eval_max_steps: Annotated[int, Interval(ge=1, le=2**31 - 1)] | None = Field(
        default=None,
        description="steps after which a greedy episode is given up, and counts as unfinished; null: twice the time "
        "limit in JAX, a million outside of it",
    )
    eval_env: _Name | None = Field(default=None, description="the environment of greedy episodes; null for env")
    eval_env_kwargs: dict[str, Any] | None = Field(
        default=None, description="its parameters, in place of env_kwargs; null for the same"
    )
    eval_wrappers: tuple[str, ...] | None = Field(
        default=None, description="its wrappers, in place of those of training; null for the same"
    )
    checkpoint_every: _Steps | None = Field(
        default=None, description="steps between checkpoints; null for a tenth of the run"
    )
    keep_checkpoints: PositiveInt = Field(default=3, description="number of newest checkpoints that are not deleted")
    keep_best: bool = Field(
        default=False,
        description="keep the checkpoint with the greatest mean of its greedy episodes too; needs eval_every",
    )
    report: bool = Field(default=False, description="write report.html, the page of `rlkit report`, when the run ends")
    tensorboard: bool = Field(default=False, description="also write TensorBoard events")
    wandb: str | None = Field(default=None, description="also log to this Weights & Biases project")

    @property
    def task(self) -> Task:
        """The environment of training."""
        return Task(self.env, self.env_kwargs, self.wrappers)

    @property
    def eval_task(self) -> Task:
        """The environment of greedy episodes; that of training where nothing else is set."""
        kwargs = self.env_kwargs if self.eval_env_kwargs is None else self.eval_env_kwargs
        wrappers = self.wrappers if self.eval_wrappers is None else self.eval_wrappers
        return Task(self.eval_env or self.env, kwargs, wrappers)
