"""Code of the user's own in a run: given by name, `module:name`, or as an object; no file may name code to run."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType, ModuleType
from typing import Any, TypedDict

from rlkit import agents
from rlkit.hosts import registry
from rlkit.hosts.gymnasium_names import full_name
from rlkit.hosts.worker.wrapper_names import is_own as is_own_wrapper
from rlkit.names import OWN_CODE_KEYS, OWN_PARTS, did_you_mean, name_of_object, register
from rlkit.runs.config.errors import show_value
from rlkit.types import ConfigError


class OwnCode(TypedDict, total=False):
    """Arguments that give the user's own code of a run again: `module:name`, or an object as for `rlkit.runs.train`."""

    agent: Any
    env: Any
    wrappers: Any
    network: Any
    optimizer: Any
    learning_rate_schedule: Any
    replay: Any
    goal_reward: Any


def given(own_code: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of own code that are not None. Raises TypeError for one that is none, as Python does."""
    for name in own_code.keys() - OWN_CODE_KEYS:
        raise TypeError(f"unexpected keyword argument {name!r}{did_you_mean(name, OWN_CODE_KEYS)}")
    return {name: value for name, value in own_code.items() if value is not None}


def names_of_objects(values: Mapping[Any, Any]) -> tuple[dict[Any, Any], Mapping[str, Any]]:
    """The values of a config with names for what is given as an object; and the objects by these names.

    The objects are registered by their names, of which two environments of one class have two.

    Raises:
      ConfigError: an object is not what its key needs.
    """
    plain = str | bytes | int | float | list | tuple | dict | None
    objects = {
        key: x for key, x in values.items() if key in _NAMES and (not isinstance(x, plain) or hasattr(x, "_fields"))
    }
    names = {key: _NAMES[key](value) for key, value in objects.items()}
    for key in ("env", "eval_env"):
        if isinstance(name := values.get(key), str) and (full := full_name(name)) != name:
            names[key] = full
    env = names.get("env", values.get("env"))
    if "eval_env" in names and names["eval_env"] == env and values["eval_env"] is not values["env"]:
        names["eval_env"] += "_eval"
    by_name = MappingProxyType({name: values[key] for key, name in names.items() if not isinstance(values[key], str)})
    register(by_name)
    return {**values, **names}, by_name


def _name_of_agent(agent: Any) -> str:
    """The name of an agent's module, of its function `make`, or of an object with `Config`, `Hyper` and `make`."""
    shipped = isinstance(agent, ModuleType) and agent.__name__.removeprefix(f"{agents.__name__}.")
    if shipped in agents.names():
        return shipped
    make = getattr(agent, "make", agent)
    if not callable(make):
        raise ConfigError(
            f"agent={agent!r:.80} must be a name such as 'ppo', or a module or an object with Config, Hyper and make; "
            "give one"
        )
    if isinstance(agent, ModuleType):
        return f"{agent.__name__}:make"  # `make` itself may be of another module
    return name_of_object(make) if make is agent else f"{name_of_object(make)}_instance"


def _name_of_part(key: str, part: Any) -> str:
    """The name of a function, or of a record of functions as optax's transformations and buffers are."""
    if not (callable(part) or hasattr(part, "_fields")):
        raise ConfigError(f"{key}={part!r:.80} must be a function, or the name 'module:function' of one; give one")
    return name_of_object(part)


_NAMES: dict[str, Callable[[Any], str]] = {  # by key: the name of an object; raises ConfigError for another one
    "agent": _name_of_agent,
    "env": registry.name_of,
    "eval_env": registry.name_of,
    **{key: partial(_name_of_part, key) for key in OWN_PARTS},
}


def is_own(key: str, value: Any) -> bool:
    """Return true where the value of a key names the user's own code; of wrappers, where one of them does."""
    return any(own_words(key, value))


def own_words(key: str, value: Any) -> list[str]:
    """Return the words of a key's value that name own code."""
    is_own = is_own_wrapper if key.endswith("wrappers") else registry.is_own
    words = value if isinstance(value, list) else [value]
    return [word for word in words if key in OWN_CODE_KEYS and isinstance(word, str) and is_own(word)]


def refuse_in_file(values: Mapping[Any, Any], overrides: Mapping[str, Any]) -> None:
    """Raise a ConfigError where the values of a file name code to run, for a key that no override replaces."""
    for key in OWN_CODE_KEYS:
        if key in overrides or not (words := own_words(key, value := values.get(key))):
            continue
        in_python = f"{key}=" if key in OwnCode.__annotations__ else f'overrides={{"{key}": ...}}'
        flag = f'"{value!s:.200}"' if isinstance(value, list) else f"{value:.80}"
        raise ConfigError(
            f"{key.replace('wrappers', 'wrapper')}={show_value(words[0])} is code, and no file may name code to run; "
            f"add --{key} {flag}, or {in_python} in Python"
        )
