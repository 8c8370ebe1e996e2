"""Environments of the user's own in JAX, by the name `module:attribute` or as objects.

The interface is that of `rlkit.types.Env` or gymnax's. A Gymnasium environment, which `rlkit.hosts` steps, is told from
them by its methods: its `step` takes an action alone.
"""

import inspect
from typing import Any

from rlkit.envs.adapter import check_keywords, construct, replace_params
from rlkit.envs.suites.legacy import adapt
from rlkit.names import OWN_CODE, UnknownName, find_object
from rlkit.types import ConfigError, Env


def is_in_jax(name: str) -> bool:
    """Return True where `module:attribute` names an environment in JAX; the module is imported.

    False also where there is no such module or attribute.
    """
    if not OWN_CODE.fullmatch(name):
        return False
    try:
        return has_interface(_find(name))
    except Exception:  # whatever the user's module raises: a worker process imports it again and reports it
        return False


def make(name: str, /, **kwargs: Any) -> tuple[Env, Any]:
    """Make an environment and its parameters.

    Args:
      name: `module:attribute` of a class or an object, for which `is_in_jax` is true.
      kwargs: fields of its `default_params`, or arguments of its constructor.

    Raises:
      ConfigError: a keyword is neither of these, a value does not fit, or the environment lacks a method.
    """
    found = _find(name)
    constructor = inspect.signature(found).parameters if inspect.isclass(found) else {}
    arguments = {key: value for key, value in kwargs.items() if key in constructor}
    env = construct(name, found, arguments) if inspect.isclass(found) else found
    env, params = adapt(env, name=name)
    known = getattr(params, "__dataclass_fields__", {})
    check_keywords(name, kwargs, [*known, *constructor])
    changes = {key: value for key, value in kwargs.items() if key in known}
    return env, replace_params(name, params, changes) if changes else params


def _find(name: str) -> Any:
    """The object of a name. Raises ConfigError where there is none, and what its module raises."""
    try:
        return find_object(name)
    except UnknownName as error:
        raise ConfigError(f"env={name!r}: {error}") from None


def has_interface(env: Any) -> bool:
    """True for an environment, or its class, with gymnax's `step_env` or a `step` of a key, a state and an action."""
    if callable(getattr(env, "step_env", None)):
        return True
    step = getattr(env, "step", None)
    if not callable(step):
        return False
    try:
        positional = [p for p in inspect.signature(step).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    except (TypeError, ValueError):
        return False
    return len(positional) - inspect.isclass(env) >= 3
