"""Changes of a run's config after its training has begun: which keys may change, and from which step on they did.

Every checkpoint holds the config that led to it, so that an edited config.yaml is noticed, and the list of all changes.
"""

import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax

from rlkit import agents
from rlkit.agents.base.keys import StartOnly, Stays, marked
from rlkit.runs.config import strict_yaml
from rlkit.runs.config.errors import plain_value, show_value
from rlkit.runs.config.run_config import RunConfig
from rlkit.runs.config.schema import schema
from rlkit.runs.config.settings import Settings
from rlkit.spaces import Space
from rlkit.types import ConfigError, PyTree

FILE = "changes.json"


class Changes(NamedTuple):
    """Keys whose values differ between a checkpoint's config and the present one."""

    before: dict[str, Any]  # as YAML has them
    now: dict[str, Any]
    follow_run: bool = False  # True where schedules end with the run, as schedule_steps is not given

    def __bool__(self) -> bool:
        return bool(self.now)

    def lines(self, step: int) -> list[str]:
        """Return a line of text for each key."""
        values = {key: (_text(self.before[key]), _text(self.now[key])) for key in self.now}
        lines = [f"{key}: {before} -> {now} from step {step:,} on" for key, (before, now) in values.items()]
        if "total_steps" in self.now and self.follow_run and "schedule_steps" not in self.now:
            lines.append(f"schedules that end with the run now end at step {self.now['total_steps']:,}")
        return lines


def find(
    extra: Mapping[str, Any],
    config: RunConfig,
    run: Path,
    action_space: Space | None = None,
    *,
    ignored: Collection[str] = (),
) -> Changes:
    """Compare a config with that of a checkpoint.

    Args:
      extra: values of the checkpoint beside its state.
      config: of the run from now on.
      run: its directory, for errors.
      action_space: of the environment; None where it is not known.
      ignored: keys that are not compared.

    Raises:
      ConfigError: a key has changed that must not, or that has no effect; the error names it.
    """
    stored = _stored(extra, run)
    if stored is None:  # as of a block of a sweep
        return Changes({}, {})
    values = strict_yaml.parse(config.resolved())
    follow_run = "schedule_steps" not in values
    fields = schema(config.run.agent).fields
    # A key that the file lacks has its default, except schedule_steps: it is left out where it ends with the run.
    for key in fields.keys() - {"schedule_steps"}:
        default = None if fields[key].is_required() else plain_value(fields[key].get_default(call_default_factory=True))
        stored.setdefault(key, default)
    if ("schedule_steps" in stored) != ("schedule_steps" in values):
        for mapping in (stored, values):
            mapping.setdefault("schedule_steps", float(mapping["total_steps"]))
    changed = [key for key in values if key not in ignored and values[key] != stored.get(key)]
    for key in changed:
        if not may_change(key, config.run.agent):
            raise ConfigError(
                f"{key}={show_value(values[key])} must stay {_text(stored.get(key))} in run={str(run)!r}, which has "
                f"begun; start another run with it: rlkit train CONFIG --init-from {shlex.quote(str(run))}"
            )
    for key, reason in config.unused(action_space).items():
        # Before the setting that is the reason changed, the key may have had an effect.
        if key in changed and reason.partition("=")[0] not in changed:
            raise ConfigError(
                f"{key}={show_value(values[key])} would change nothing in run={str(run)!r}, as {reason}; leave it out, "
                f"or set it back to {_text(stored.get(key))}"
            )
    return Changes({key: stored.get(key) for key in changed}, {key: values[key] for key in changed}, follow_run)


def may_change(key: str, agent: str) -> bool:
    """Return True for a key of an agent's configs that may change after the run has begun."""
    if key in Settings.model_fields:
        return key not in marked(Settings, Stays)
    hyper = agents.get(agent).Hyper  # keys of an agent's Config shape the program and its state, and must stay
    return key in hyper.__dataclass_fields__ and key not in marked(hyper, StartOnly)


def effective(changes: Changes, config: RunConfig, step: int, run: Path) -> Changes:
    """Return the changes that hold from `step` on: none where no step follows.

    What is evaluated at the end of the run follows the present config in any case.

    Raises:
      ConfigError: no step follows, and a key has changed that matters to training alone.
    """
    if step < config.num_updates * config.steps_per_update:
        return changes
    for key, value in changes.now.items():
        if key not in Settings.model_fields:
            raise ConfigError(
                f"{key}={_text(value)} would change nothing in run={str(run)!r}, which has ended at step {step}; add "
                f"--total_steps {2 * step} to make it longer, or set {key} back to {_text(changes.before[key])}"
            )
    return Changes({}, {})


def apply(state: PyTree, config: RunConfig, changes: Changes, step: int) -> PyTree:
    """Return a TrainState [...] or [S, ...] with the Hyper of the present config, if one of its keys has changed.

    Raises:
      ConfigError: total_steps has changed to less than `step`, which the run has reached.
    """
    if "total_steps" in changes.now and config.num_updates * config.steps_per_update < step:
        refuse_length(config.run.total_steps, step)
    hyper = config.hyper_arrays
    current = state.agent.hyper
    assert isinstance(current, agents.get(config.run.agent).Hyper)
    if not changes.now.keys() & {*hyper, "total_steps"}:
        return state
    new = {name: jax.numpy.full_like(getattr(current, name), value) for name, value in hyper.items()}
    return state.replace(agent=state.agent.replace(hyper=current.replace(**new)))


def refuse_length(total_steps: int, step: int) -> NoReturn:
    """Raise ConfigError for a number of steps that is less than that of a run so far."""
    raise ConfigError(f"total_steps={total_steps} must be at least {step}, which the run has reached; try {step}")


def history(extra: Mapping[str, Any], changes: Changes, step: int) -> list[dict[str, Any]]:
    """Return the changes that a checkpoint lists, and those at `step` if there are any."""
    stored = extra.get("changes", [])
    entries = [entry for entry in stored if isinstance(entry, dict)] if isinstance(stored, list) else []
    if changes:
        texts = {key: [_text(changes.before[key]), _text(changes.now[key])] for key in changes.now}
        entries.append({"step": step, "changed": texts})
    return entries


def _stored(extra: Mapping[str, Any], run: Path) -> dict[str, Any] | None:
    """The config of a checkpoint as a mapping; None where it holds none."""
    text = extra.get("config")
    if text is None:
        return None
    try:
        values = strict_yaml.parse(text) if isinstance(text, str) else None
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise ConfigError(f"run={str(run)!r} must hold checkpoints with their config, and it does not; train it anew")
    return values


def _text(value: Any) -> str:
    return strict_yaml.dump({"": value}).partition(": ")[2].strip() if not isinstance(value, dict) else str(value)
