"""Validation of a config: a flat mapping whose keys are those of the run, of the agent's Config and of its Hyper."""

import re
import typing
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ValidationError

from rlkit import agents, envs
from rlkit.agents.base.mistakes import explain, is_missing
from rlkit.hosts.gymnasium_names import check_bare_name
from rlkit.hosts.registry import checked_name, is_host, is_own, require_known_prefix
from rlkit.names import OWN_CODE_KEYS
from rlkit.runs.config import strict_yaml
from rlkit.runs.config.agent_defaults import with_agent_defaults
from rlkit.runs.config.aliases import suggestion
from rlkit.runs.config.errors import by_value, plain_value, show_key, show_value
from rlkit.runs.config.own_code import names_of_objects
from rlkit.runs.config.run_config import RunConfig
from rlkit.runs.config.schema import schema
from rlkit.types import ConfigError

_MOST_MISTAKES = 20  # that an error names


def parse(values: Mapping[Any, Any], *, name: str | None = None) -> RunConfig:
    """Validate a flat mapping of keys to values; an agent and an environment are enough, see `agent_defaults`.

    Args:
      values: the keys and values of a config; code of the user's own may also be an object, see `own_code`.
      name: the stem of the run directory's name; None for run, or that of agent and environment where these are all.

    Raises:
      ConfigError: a key is unknown or missing, or a value has the wrong type, is out of range or does not fit others.
    """
    values = {key: value if key in OWN_CODE_KEYS else by_value(value) for key, value in values.items()}
    values, objects = names_of_objects(values)
    agent = values.get("agent")
    if not isinstance(agent, str):
        if "agent" not in values and "config" in values:
            raise ConfigError(
                "config is a key of a sweep, and this is one run; use `rlkit sweep`, or add e.g. agent: ppo"
            )
        given = f"agent={show_value(agent)}" if "agent" in values else "agent"
        raise ConfigError(f"{given} must be the name of an agent; add e.g. agent: ppo")
    keys = schema(agent)
    values, filled = with_agent_defaults(values)
    _check_keys(values, agent, keys.fields)
    typed = [(key, value, keys.fields[key].annotation) for key, value in values.items()]
    frozen = {key: freeze(_as_list(value, annotation), annotation) for key, value, annotation in typed}
    follow_run = frozen.get("schedule_steps") is None
    if follow_run and "total_steps" in frozen and "schedule_steps" in keys.fields:
        frozen["schedule_steps"] = frozen["total_steps"]
    run_model, agent_model, hyper_model = keys.models
    run, agent_config = validated(run_model, frozen), validated(agent_model, frozen)
    defaults = agents.get(agent).Hyper.defaults(agent_config, run.num_envs)  # of keys that depend on other keys
    missing = {key: value for key, value in defaults.items() if frozen.get(key) is None}
    hyper = validated(hyper_model, frozen | missing).model_dump()
    _check(RunConfig(run, agent_config, hyper))
    name = name or (f"{agent}-{run.env}" if filled else "run")
    return RunConfig(run, agent_config, MappingProxyType(hyper), name, follow_run, objects, filled)


def _check_keys(values: Mapping[Any, Any], agent: str, fields: Mapping[str, Any]) -> None:
    """Raise a ConfigError that names all keys that are unknown or missing, in one line."""
    mistakes = []
    for key in values:
        if key not in fields:
            rule = "is not one either" if mistakes else f"is not a key of a {agent} config"
            mistakes.append(f"{show_key(key)} {rule}{suggestion(key, agent, fields)}")
    mistakes += [is_missing(key, field) for key, field in fields.items() if field.is_required() and key not in values]
    if mistakes:
        more = len(mistakes) - _MOST_MISTAKES
        line = " ".join(text if text.endswith("?") else f"{text}." for text in mistakes[:_MOST_MISTAKES])
        raise ConfigError(f"{line.removesuffix('.')}{f' (and {more} more)' if more > 0 else ''}")


def _check(config: RunConfig) -> None:
    run, batch = config.run, config.steps_per_update
    if batch >= 2**31:
        fitting = max(1, 2**30 // run.num_steps)
        raise ConfigError(
            f"num_envs={run.num_envs} times num_steps={run.num_steps} must be below {2**31}; try {fitting}"
        )
    if run.total_steps < batch:
        raise ConfigError(
            f"total_steps={run.total_steps} must be at least num_envs * num_steps = {batch}, one update; try {batch}"
        )
    if config.num_updates >= 2**31:
        raise ConfigError(f"total_steps={run.total_steps} must be below {2**31} updates; try {batch * (2**31 - 1)}")
    if run.keep_best and (run.eval_every is None or run.eval_every >= run.total_steps):
        raise ConfigError(
            f"keep_best=true needs evaluations before the end of total_steps={run.total_steps}, and eval_every="
            f"{show_value(run.eval_every)} makes none; try eval_every: {max(run.total_steps // 20, 1)}"
        )
    if run.eval_episodes == 0 and run.eval_every is not None:
        raise ConfigError(f"eval_episodes=0 does not go with eval_every={run.eval_every}; leave out one of them")
    if run.seed + run.num_seeds > 2**31:
        raise ConfigError(f"seed={run.seed} must leave room for num_seeds={run.num_seeds}; try {2**31 - run.num_seeds}")
    if run.reset_pool is not None and (run.dataset is not None or is_host(run.env)):
        reason = f"dataset={show_value(run.dataset)}" if run.dataset is not None else f"env={show_value(run.env)}"
        raise ConfigError(
            f"reset_pool={run.reset_pool} does not go with {reason}: only environments in JAX that are trained in draw "
            "starts from a pool; leave it out"
        )
    if is_host(run.env) and run.dataset is None and run.num_seeds > 1 and run.devices not in ("auto", 1):
        raise ConfigError(
            f"devices={show_value(run.devices)} must be 1 or auto with env={show_value(run.env)} and num_seeds="
            f"{run.num_seeds}: seeds outside of JAX take turns on one device; leave one of them out"
        )
    if run.network is not None and not is_own(run.network):
        raise ConfigError(f"network={show_value(run.network)} must be module:function; give the name of a function")
    _check_env(run.env)
    if run.eval_env is not None:
        _check_env(run.eval_env, "eval_env")
        if is_host(run.env) != is_host(run.eval_env):
            raise ConfigError(
                f"eval_env={show_value(run.eval_env)} must be in JAX if env={show_value(run.env)} is, and outside of "
                "it otherwise; choose another"
            )
    for key in ("env_kwargs", "eval_env_kwargs"):
        for name, value in (getattr(run, key) or {}).items():
            _check_kwarg(f"{key}.{show_key(name)}={show_value(value)}", value)
    for key in ("wandb", "dataset"):
        if not (getattr(run, key) or "").isprintable():
            raise ConfigError(f"{key}={show_value(getattr(run, key))} must be printable text; rename it")
    config.agent.check_hyper(config.hyper)


def _check_kwarg(shown: str, value: Any) -> None:
    """Raise ConfigError, which begins with `shown`, unless a config file can hold the value of an env_kwarg."""
    if isinstance(value, dict | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            _check_kwarg(shown, item)
    elif not isinstance(value, bool | int | float | str | None):
        kind = type(value).__name__
        raise ConfigError(f"{shown} must be a number, a word, null, or a list or mapping of these, and it is a {kind}")
    elif value != value:
        raise ConfigError(f"{shown} must not be NaN; give a number")
    plain = plain_value(value)
    try:
        written = strict_yaml.parse(strict_yaml.dump({"value": plain}))["value"]
    except ValueError as error:
        raise ConfigError(f"{shown} cannot be written to a config file: {error}; give another value") from None
    if written != plain:
        raise ConfigError(f"{shown} must be a value that YAML can hold; give words, or numbers of up to 40 digits")


def _check_env(env: str, key: str = "env") -> None:
    try:
        if is_host(env):
            checked_name(env)
        elif not is_own(env) and env not in envs.names():
            require_known_prefix(env)
            check_bare_name(env)
            envs.make(env)  # raises a ConfigError with the reason
    except ConfigError as error:
        raise ConfigError(re.sub("^env=", f"{key}=", str(error))) from None


def validated(model: type[BaseModel], values: Mapping[str, Any]) -> Any:
    """Return the model with those of the values that are its own. Raises ConfigError."""
    own = {key: value for key, value in values.items() if key in model.model_fields}
    try:
        return model.model_validate(own, strict=True)
    except ValidationError as error:
        raise ConfigError(explain(model, error, lambda value: show_value(plain_value(value)))) from None


def _as_list(value: Any, annotation: Any) -> Any:
    """A value of a list field as a list: numbers `64,64`, one number, and one word are lists there."""
    is_list = any(typing.get_origin(kind) is tuple for kind in (annotation, *typing.get_args(annotation)))
    if not is_list or isinstance(value, bool):
        return value
    if isinstance(value, str) and str not in _types(annotation):  # a word may hold commas
        return [strict_yaml.scalar(word.strip()) for word in value.split(",")]
    return [value] if isinstance(value, int | float | str) else value


def freeze(value: Any, annotation: Any) -> Any:
    """A value with tuples for lists, and with ints for whole floats such as 1e6 where a field is an int."""
    if isinstance(value, list | tuple):
        return tuple(freeze(item, annotation) for item in value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        types = set(_types(annotation))
        return int(value) if int in types and float not in types else value
    if isinstance(value, dict):
        return {key: freeze(item, Any) for key, item in value.items()}
    return value


def _types(annotation: Any) -> Iterator[Any]:
    yield annotation
    for argument in typing.get_args(annotation):
        yield from _types(argument)
