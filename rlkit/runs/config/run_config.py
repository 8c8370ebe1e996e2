"""A validated config."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlkit import agents
from rlkit.agents.base.keys import LearningRate, Unused, facts, marked
from rlkit.agents.base.mistakes import UNSET
from rlkit.agents.common import own_parts
from rlkit.hosts.registry import is_host
from rlkit.hosts.worker import atari
from rlkit.names import find_object
from rlkit.runs.config import strict_yaml
from rlkit.runs.config.errors import plain_value, show_value
from rlkit.runs.config.schema import schema
from rlkit.runs.config.settings import Settings, Task
from rlkit.spaces import Space
from rlkit.types import ConfigError

_KEEP_OBS = ("clip_action", "clip_reward", "scale_reward", "sticky_action", "time_limit")  # wrappers


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """A validated config: the settings of the run, the agent's Config, and its traced scalars."""

    run: Settings
    agent: Any  # the agent's Config
    hyper: Mapping[str, Any]  # the fields of the agent's Hyper, each a float, or None where it is not set
    name: str = "run"  # the stem of the run directory's name
    follow_run: bool = False  # True where schedule_steps was not given, and schedules end with the run
    objects: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # that were given as such, by name
    filled: tuple[str, ...] = ()  # keys that the agent's `run_defaults` filled in

    @property
    def hyper_arrays(self) -> dict[str, np.float32]:
        """The fields of the agent's Hyper as a state holds them, so that runs that set them or not are one program."""
        return {name: UNSET if value is None else np.float32(value) for name, value in self.hyper.items()}

    @property
    def task(self) -> Task:
        """The environment of training; `frame_stack` stacks images by `image_axes` of the agent's Config.

        Raises:
          ConfigError: an argument of `frame_stack` names another place of the channels.
        """
        return self._with_image_axes(self.run.task)

    @property
    def eval_task(self) -> Task:
        """The environment of greedy episodes, as `task`."""
        return self._with_image_axes(self.run.eval_task)

    def _with_image_axes(self, task: Task) -> Task:
        axes, specs = getattr(self.agent, "image_axes", "auto"), []
        for spec in task.wrappers:
            if spec.partition(":")[0] == "frame_stack":
                count, comma, given = spec.partition(",")
                if comma and given.strip() != axes:
                    raise ConfigError(f"wrapper={spec!r} must agree with image_axes={axes!r}; write {count!r}")
                spec = count if axes == "auto" else f"{count},{axes}"
            specs.append(spec)
        return task._replace(wrappers=tuple(specs))

    @property
    def frame_stack(self) -> int:
        """Frames of an observation, each of which a replay buffer stores once; 1 where the environment has no stack.

        It is 1 with a dataset too: a buffer of frames that lacks some for short episodes would leave out steps.
        """
        run = self.run
        if (given := getattr(self.agent, "replay_stack", None)) is not None:
            return given
        if run.dataset is not None:
            return 1
        for spec in reversed(run.wrappers):
            name, _, arguments = spec.partition(":")
            if name == "frame_stack":
                return int(arguments.partition(",")[0])
            if name not in _KEEP_OBS:
                return 1
        is_atari = run.env.startswith(("atari:", "ale:"))
        return run.env_kwargs.get("stack", atari.Preprocessing().stack) if is_atari else 1

    @property
    def steps_per_update(self) -> int:
        """Environment steps of one update, of one seed."""
        return self.run.num_envs * self.run.num_steps

    @property
    def num_updates(self) -> int:
        """Updates in all: total_steps in whole updates, rounded up."""
        return -(-self.run.total_steps // self.steps_per_update)

    @property
    def updates_per_line(self) -> int:
        """Updates between metric lines, at least one."""
        every = self.run.log_every or -(-self.run.total_steps // 100)
        return min(max(1, every // self.steps_per_update), self.num_updates)

    def unused(self, action_space: Space | None = None, obs_space: Space | None = None) -> dict[str, str]:
        """Return the keys of the agent that have no effect in this run, each with the setting that is the reason.

        Some depend on the space of actions; and on both spaces, of which the user's own function makes networks.
        """
        settings = {**dict(self.run), **dict(self.agent), **self.hyper, "action_space": action_space}
        settings |= self._own_networks(obs_space, action_space)
        found: dict[str, str] = {}
        hyper = agents.get(self.run.agent).Hyper
        for key, stated in (facts(hyper) | facts(type(self.agent))).items():
            for fact in stated:
                if isinstance(fact, Unused) and (name := fact.reason(settings)) is not None:
                    found[key] = f"{name}={show_value(settings[name])}"
        common, *own = marked(hyper, LearningRate) or ("",)
        if own and all(settings[name] is not None for name in own):
            found.setdefault(common, f"{own[0]}={show_value(settings[own[0]])}")
        scheduled = any(settings[name] in ("linear", "cosine") for name in self.agent.schedules if name not in found)
        read = own_parts.read_by_replay(self.agent) if own_parts.is_own(settings.get("replay")) else set()
        found = {key: why for key, why in found.items() if key not in read or not why.startswith("replay=")}
        scheduled |= settings.get("replay") == "prioritized" or settings.get("epsilon_fraction") is not None
        scheduled |= "beta" in read
        if "learning_rate_schedule" in settings and not scheduled:
            constant = f"learning_rate_schedule={show_value(settings['learning_rate_schedule'])}"
            constant = found.get("learning_rate_schedule", constant)
            found["schedule_steps"] = "epsilon_fraction=null" if "epsilon_fraction" in settings else constant
        return found

    def _own_networks(self, obs_space: Space | None, action_space: Space | None) -> dict[str, str | None]:
        """The name of the user's function, as `network` if it replaces all networks, else as that of each it makes."""
        name, parts = self.run.network, getattr(self.agent, "networks", ())
        if name is None or not parts:
            return {"network": name}
        made = find_object(name)(obs_space, action_space) if obs_space is not None else None
        given = made.keys() if isinstance(made, Mapping) else set()
        whole = name if given >= set(parts) else None
        return {"network": whole, **{f"network.{part}": name for part in given}}

    def without_effect(self, action_space: Space | None = None, obs_space: Space | None = None) -> list[str]:
        """Return a line for each key with another value than its default that has no effect in this run."""
        fields, values = schema(self.run.agent).fields, self.flat()
        follows = {"schedule_steps"} if self.follow_run else set()
        defaults = agents.get(self.run.agent).Hyper.defaults(self.agent, self.run.num_envs)
        follows |= {key for key, value in defaults.items() if values[key] == value}
        found = {**_unused_of_hosts(self.run), **self.unused(action_space, obs_space)}
        return [
            f"{key}={show_value(values[key])} has no effect, as {reason}"
            for key, reason in found.items()
            if key not in (*follows, *self.filled)
            and values[key] != plain_value(fields[key].get_default(call_default_factory=True))
        ]

    def flat(self) -> dict[str, Any]:
        """Return every key with its value, in the order of the schema; `parse` of it gives this config again."""
        values = {**self.run.model_dump(), **self.agent.model_dump(), **self.hyper}
        return {name: plain_value(values[name]) for name in schema(self.run.agent).fields}

    def resolved(self) -> str:
        """Return YAML text that trains again identically.

        A schedule that ends with the run is left out, so that it also ends with a run that is made longer.
        """
        values = self.flat()
        if self.follow_run and values.get("schedule_steps") == values["total_steps"]:
            del values["schedule_steps"]
        if "dataset" in values:
            values["dataset"] = absolute_dataset(values["dataset"])
        return strict_yaml.dump(values)


def _unused_of_hosts(run: Settings) -> dict[str, str]:
    """The keys of environments outside of JAX that have no effect in a run, each with the reason."""
    limits, env = ("env_timeout", "env_restarts"), f"env={show_value(run.env)}"
    if not is_host(run.env):
        return dict.fromkeys(("backend", "num_workers", "overlap", *limits), f"{env} is in JAX")
    if run.env.startswith(("ale:", "envpool:")):
        return dict.fromkeys(("backend", *limits), f"{env} is stepped by its library")
    return dict.fromkeys(("num_workers", "env_timeout"), "backend='serial'") if run.backend == "serial" else {}


def absolute_dataset(value: Any) -> Any:
    """Return a value of `dataset` that is the same one from any folder: an absolute path, or a name of Minari."""
    return os.path.abspath(value) if isinstance(value, str) and not value.startswith("minari:") else value
