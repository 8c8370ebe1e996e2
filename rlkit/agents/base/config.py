"""The base of an agent's `Config`, its static settings."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self, dataclass_transform

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rlkit.agents.base import mistakes
from rlkit.ops.schedules import Schedule
from rlkit.spaces import Space
from rlkit.types import ConfigError


class Task(NamedTuple):
    """A kind of task, on which an agent's defaults for a run depend."""

    in_jax: bool  # false: its environments are Python objects, which step a thousand times slower
    images: bool  # some observation is an image
    stored: bool  # learned from a dataset, without steps in an environment


@dataclass_transform(kw_only_default=True, field_specifiers=(Field,))
class _OneLineErrors(type(BaseModel)):
    """Metaclass whose classes raise a ConfigError where they are called with a mistake; `model_validate` does not."""

    if not TYPE_CHECKING:

        def __call__(cls, *args, **kwargs):
            try:
                return super().__call__(*args, **kwargs)
            except ValidationError as error:
                raise ConfigError(mistakes.explain(cls, error)) from None


class Config(BaseModel, metaclass=_OneLineErrors):
    """Base of an agent's static settings: a frozen and hashable pydantic model without unknown fields.

    A field is declared with its type, its default, and a text that `--help` shows:
    `num_epochs: Annotated[int, Interval(ge=1)] = Field(default=4, description="passes over a rollout")`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __repr__(self) -> str:
        """Return the fields that differ from their defaults."""
        fields = type(self).model_fields
        changed = {name: value for name, value in self if value != fields[name].get_default(call_default_factory=True)}
        return f"{mistakes.class_name(type(self))}({', '.join(f'{name}={value!r}' for name, value in changed.items())})"

    @property
    def schedules(self) -> list[str]:
        """The fields that hold a schedule, which lasts `schedule_steps` of the Hyper."""
        return [name for name, field in type(self).model_fields.items() if field.annotation == Schedule]

    @property
    def replay_capacity(self) -> int | None:
        """Steps that the replay buffer holds; None for an agent without one."""
        return None

    @classmethod
    def run_defaults(cls, task: Task) -> dict[str, Any]:
        """Return values of keys of a run, of the Config and of the Hyper for a kind of task.

        They fill in what is not given where a run is started by an agent and an environment alone, without a config.
        `num_envs`, `num_steps` and `total_steps` are always among them.
        """
        return {
            "num_envs": 1 if task.stored else 8 if not task.in_jax else 32,
            "num_steps": 1000 if task.stored else 32,
            "total_steps": 100_000 if task.stored else 1_000_000,
            "eval_episodes": 128 if task.in_jax else 10,
        }

    def for_observations(self, space: Space) -> Self:
        """The config with values in place of those fields that are null where they follow from the observations."""
        return self

    def check_hyper(self, hyper: Mapping[str, float | None]) -> None:
        """Raise a ConfigError where a value of the agent's Hyper has no effect or no meaning with these settings.

        Args:
          hyper: the values that are known; one that is traced is not. None: not set.
        """
