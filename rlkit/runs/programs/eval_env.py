"""The rule for a separate environment of evaluations."""

from typing import Any

from rlkit.runs.config.settings import Settings
from rlkit.types import ConfigError


def check_spaces(run: Settings, trained: tuple[Any, Any], evaluated: tuple[Any, Any]) -> None:
    """Raise ConfigError unless the spaces (of observations, of actions) of `env` and `eval_env` agree."""
    for kind, one, other in zip(("observation", "action"), trained, evaluated, strict=True):
        if one != other:
            raise ConfigError(
                f"eval_env={run.eval_task.env!r} must have the {kind} space of env={run.env!r}, {one}, and it has "
                f"{other}; choose another, or other eval_env_kwargs and eval_wrappers"
            )
