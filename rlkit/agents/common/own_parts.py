"""Parts of an agent that may be the user's own: fields of `Config` that hold a word, or else an object or its name."""

from typing import Any

import optax
from pydantic import WrapValidator

from rlkit.names import OWN_CODE, UnknownName, find_object
from rlkit.types import ConfigError


def is_own(value: Any) -> bool:
    """Return true for an object, such as a function, and for the name `module:attribute` of one."""
    return bool(OWN_CODE.fullmatch(value)) if isinstance(value, str) else value is not None


def has_own_rate(optimizer: Any) -> bool:
    """Return true for a value of `optimizer` that holds or names a transformation of optax, not a function of a rate.

    False also where there is no such object: whoever makes the agent gets the error.
    """
    try:
        return is_own(optimizer) and isinstance(find("optimizer", optimizer), optax.GradientTransformation)
    except Exception:  # whatever the user's module raises
        return False


def find(key: str, value: Any) -> Any:
    """Return the object that a field of a Config holds or names. Raises ConfigError where there is none."""
    if not isinstance(value, str):
        return value
    try:
        return find_object(value)
    except UnknownName as error:
        raise ConfigError(f"{key}={value!r}: {error}") from None


def _own_or(value: Any, validate: Any) -> Any:
    """The value itself where it is a function, a record of functions, or a name; otherwise what the field allows."""
    own = callable(value) or hasattr(value, "_fields") or (isinstance(value, str) and is_own(value))
    return value if own else validate(value)


OrOwn = WrapValidator(_own_or)  # beside the words of a field
