"""Names, limits and rules that several packages share: leaves and images of observations, names in error messages.

Worker processes import this module, so it does not import JAX.
"""

import difflib
import importlib
import re
import traceback
from collections.abc import Iterable, Mapping
from typing import Any

ACTION_MASK = "action_mask"  # the leaf of a Dict observation, at its top level, that marks the legal actions
GAME_STATE = "game_state"  # the part of a Dict observation, at its top level, from which a `types.Model` steps
OWN_DONE = "own_done"  # in the info of a step: the task's own end, where a wrapper ends episodes for learning
# In the info of a step: whether the goal is reached now. Gymnasium-Robotics has both, and Meta-World the second.
SUCCESSES = ("is_success", "success")
SUCCESS = SUCCESSES[0]
ACHIEVED_GOAL, DESIRED_GOAL = "achieved_goal", "desired_goal"  # leaves of an observation
OWN_REWARD = "own_reward"  # in the info of a step: the task's own, where a wrapper changes rewards for learning
MAX_FRAMES = 1024  # of `frame_stack`: arrays of one concatenation
MAX_NUMBERS = 2**26  # of a stacked observation, whose bounds are arrays
PLAYER = "player"  # the leaf of an observation with the number of its player, where players differ
PRIVILEGED = "privileged"  # the part of a Dict observation, at its top level, that is for critics and values alone
IMAGE_AXES = ("auto", "last", "first")  # the places of an image's channels

_MOST_CHANNELS = 16  # of a leading axis that is taken for the channels of an image


def channels_first(shape: tuple[int, ...], image_axes: str = "auto") -> bool:
    """Return true where the first of three axes holds the channels of an image.

    With "auto" that is an axis of at most 16 entries, fewer than both others have.
    """
    first = shape[0] <= _MOST_CHANNELS and shape[0] < min(shape[1:])
    return first if image_axes == "auto" else image_axes == "first"


def axes_ambiguous(shape: tuple[int, ...]) -> bool:
    """Return true for three axes of which the first and the last may be the channels, such as (3, 64, 3)."""
    return shape[0] == shape[2] <= _MOST_CHANNELS and shape[0] < shape[1]


def stack_axis(shape: tuple[int, ...], image_axes: str = "auto") -> int:
    """Return the axis along which observations are stacked: the channels of an image, else the last one."""
    return -3 if len(shape) == 3 and channels_first(shape, image_axes) else -1


def stacked_shape(shape: tuple[int, ...], n: int, image_axes: str = "auto") -> tuple[int, ...]:
    """Return the shape of n observations that are concatenated along `stack_axis`.

    Raises:
      ValueError: networks would take another axis of it for the channels of an image; the text is a rule and a remedy.
    """
    axis, stacked = stack_axis(shape, image_axes), list(shape)
    stacked[axis] *= n
    if image_axes == "auto" and stack_axis(tuple(stacked)) != axis:
        place, other = ("first", "last") if axis == -3 else ("last", "first")
        raise ValueError(
            f"{n} arrays of {shape}, channels {place}, that become {tuple(stacked)}, which image_axes='auto' takes for "
            f"channels {other}; set image_axes={place!r}, or frame_stack:{n},{place} without a config"
        )
    return tuple(stacked)


def success_name(info: Mapping[str, Any]) -> str | None:
    """Return the first of `SUCCESSES` that an info has; None where it has neither."""
    return next((name for name in SUCCESSES if name in info), None)


def did_you_mean(word: object, known: Iterable[str], *, cutoff: float = 0.6, prefix: str = "", suffix: str = "") -> str:
    """Suggest existing names for a misspelled one, as a text to be appended to an error message.

    Args:
      word: the name that was given; upper and lower case count as equal.
      known: the names that exist.
      cutoff: similarity in [0, 1] below which nothing is suggested.
      prefix, suffix: added to each suggested name, where `word` is only a part of the full name.

    Returns:
      "; did you mean 'a' or 'b'?", or "" where no known name is similar.
    """
    names = {name.lower(): name for name in known}
    similar = difflib.get_close_matches(str(word)[:60].lower(), names, n=2, cutoff=cutoff)
    suggestions = [repr(f"{prefix}{names[name]}{suffix}") for name in similar]
    return f"; did you mean {' or '.join(suggestions)}?" if suggestions else ""


def shorten(text: str) -> str:
    """Text for an error message, cut after 60 characters."""
    return text if len(text) <= 60 else f"{text[:50]}..."


MASK_SOURCES = ("info", "method")  # of the wrapper `action_mask`


def wrapper_arguments(spec: str, types: tuple[type, ...], example: str) -> list[Any]:
    """Return the arguments in a wrapper's spelling such as clip_reward:-1,1, of these types.

    A `str` after a number is one of `IMAGE_AXES`, and "auto" where it is left out; alone it is one of `MASK_SOURCES`.

    Raises ValueError, whose text is one line, where the spelling has fewer, more or other arguments.
    """
    _, colon, text = spec.partition(":")
    if not types and not colon:
        return []
    if not types:
        raise ValueError(f"wrapper={spec!r} takes no argument; write {example}")
    try:
        words = text.split(",")
        if types == (str,):
            MASK_SOURCES.index(text)
        elif str in types:
            words += ["auto"] * (len(types) - len(words))
            IMAGE_AXES.index(words[-1])
        return [kind(word) for kind, word in zip(types, words, strict=True)]
    except ValueError:
        kinds = {
            (int,): "an integer",
            (int, str): "an integer",
            (str,): "info or method",
            (float,): "a number",
            (float, float): "two numbers, low,high,",
        }
        raise ValueError(f"wrapper={spec!r} needs {kinds[types]} after the colon, such as {example}") from None


OWN_CODE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")  # module:attribute
# module:ID, as Gymnasium spells an id that importing the module registers; it has a version or a namespace.
MODULE_ID = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:(?=.*[-/])[\w./-]+")
LEARNING_PARTS = ("optimizer", "learning_rate_schedule", "replay", "goal_reward")  # functions that acting never uses
OWN_PARTS = ("network", *LEARNING_PARTS)  # functions of an agent
OWN_CODE_KEYS = ("agent", "env", "eval_env", "wrappers", "eval_wrappers", *OWN_PARTS)  # keys of a run that may name it


_objects: dict[str, Any] = {}  # the user's own, that were given as objects, by name


def register(objects: Mapping[str, Any]) -> None:
    """Make `find_object` return these objects by their names `module:attribute`; a later call may replace them."""
    _objects.update(objects)


def registered(name: str) -> Any:
    """Return the object that is registered by a name; None where there is none."""
    return _objects.get(name)


def name_of_object(thing: Any) -> str:
    """Return `module:name` of a class or a function, such as __main__:_lambda_, and `module:Class_instance` of others.

    An instance is not named as its class is: the class stays what its name means, for whoever gives the name.
    """
    owner, end = (thing, "") if hasattr(thing, "__qualname__") else (type(thing), "_instance")
    name = f"{owner.__module__}:{owner.__qualname__.replace('.', '_')}{end}"
    return "".join(x if x.isalnum() or x in "_.:" else "_" for x in name)


class UnknownName(Exception):
    """Raised for `module:attribute` where there is no such module or attribute."""


def find_object(name: str) -> Any:
    """Return what is registered by the name `module:attribute`, or import the module and return its attribute.

    Raises:
      UnknownName: there is no such module or attribute; and whatever the module raises.
    """
    if name in _objects:
        return _objects[name]
    path, _, attribute = name.partition(":")
    module = import_module(path)
    if not hasattr(module, attribute):
        remedy = did_you_mean(attribute, [word for word in vars(module) if not word.startswith("_")])
        raise UnknownName(f"module {path!r} has no attribute {attribute!r}{remedy}")
    return getattr(module, attribute)


def import_module(path: str) -> Any:
    """Import a module. Raises UnknownName where there is none, and whatever the module raises."""
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{path}.".startswith(f"{error.name}."):
            raise  # a module that it imports is missing
        raise UnknownName(f"there is no module {error.name!r} here or among the installed ones") from None


_PACKAGE, _STANDARD = __file__.removesuffix("names.py"), importlib.__file__.partition("importlib")[0]


def place(error: BaseException, *, libraries: bool = False) -> str:
    """Return the innermost line of the user's code in an exception's traceback, as ` (my_nets.py, line 12)`.

    Nothing where there is none, and for a syntax error, whose text has its place.

    Args:
      error: an exception that was caught.
      libraries: True where installed code counts as the user's, as that of an environment.
    """
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename.replace("\\", "/")
        installed = "/site-packages/" in file or "/dist-packages/" in file
        others = file.startswith((_PACKAGE, "<frozen ")) or (file.startswith(_STANDARD) and not installed)
        if not others and (libraries or not installed):
            found = f" ({file.rpartition('/')[2]}, line {line})"
    return "" if isinstance(error, SyntaxError) else found


def raised(error: BaseException) -> str:
    """Return the type and the first line of an exception, and its `place`: `RuntimeError: boom (my_nets.py, line 12)`.

    The address of a page about the exception is left out.
    """
    line = str(error).strip().partition("\n")[0].partition(" (http")[0].rstrip(".")
    return f"{type(error).__name__}{': ' * bool(line)}{line[:300]}{place(error)}"
