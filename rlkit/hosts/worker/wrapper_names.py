"""Names of wrappers of environments outside of JAX, and of the user's own; without their code and its imports."""

import importlib
import math
from collections.abc import Callable
from typing import Any

from rlkit.names import MAX_FRAMES, OWN_CODE, did_you_mean, find_object

_OF_JAX = ("flatten", "hide_velocity", "clip_action", "sticky_action")  # of `envs.wrap` alone, so not modules
# By name: the class in `wrappers`, the types of its arguments, and an example.
_WRAPPERS: dict[str, tuple[str, tuple[type, ...], str]] = {
    "frame_stack": ("FrameStack", (int,), "frame_stack:4"),
    "action_repeat": ("ActionRepeat", (int,), "action_repeat:2"),
    "time_limit": ("TimeLimit", (int,), "time_limit:200"),
    "clip_reward": ("ClipReward", (float, float), "clip_reward:-1,1"),
    "scale_reward": ("ScaleReward", (float,), "scale_reward:0.1"),
    "previous_action_reward": ("PreviousActionReward", (), "previous_action_reward"),
}


def is_own(spec: str) -> bool:
    """Return true for `module:Class`, code that runs only if the user passes the name."""
    return bool(OWN_CODE.fullmatch(spec)) and spec.partition(":")[0] not in (*_WRAPPERS, *_OF_JAX)


def check(spec: str) -> None:
    """Raise ValueError, whose text is one line, unless `make` accepts a wrapper's spelling."""
    if not is_own(spec):
        _parse(spec)


def make(spec: str) -> Callable[[Any], Any]:
    """Return the function that wraps an environment. Raises ValueError for a mistake in the spelling."""
    if is_own(spec):
        return find_object(spec)
    name, arguments = _parse(spec)
    import gymnasium

    wrapper = getattr(importlib.import_module("rlkit.hosts.worker.wrappers"), name)
    wrapper = type(name, (wrapper, gymnasium.Env), {})  # Gymnasium's own wrappers accept nothing else around them
    return lambda env: wrapper(env, *arguments)


def _parse(spec: str) -> tuple[str, list[Any]]:
    """The class of a spelling such as frame_stack:4, and its arguments."""
    name, colon, text = spec.partition(":")
    if name not in _WRAPPERS:
        remedy = did_you_mean(name, _WRAPPERS, cutoff=0.4) or f"; try {', '.join(_WRAPPERS)} or module:Class"
        raise ValueError(f"wrapper={spec!r} is not one of environments outside of JAX{remedy}")
    wrapper, types, example = _WRAPPERS[name]
    if not types:
        if colon:
            raise ValueError(f"wrapper={spec!r} takes no argument; write {example}")
        return wrapper, []
    try:
        arguments = [kind(word) for kind, word in zip(types, text.split(","), strict=True)]
        valid = all(math.isfinite(x) and (x >= 1 or not isinstance(x, int)) for x in arguments)
    except ValueError:
        valid, arguments = False, []
    if not valid or sorted(arguments) != arguments:
        kinds = {(int,): "an integer of at least 1", (float,): "a number", (float, float): "two numbers, low,high,"}
        raise ValueError(f"wrapper={spec!r} needs {kinds[types]} after the colon, such as {example}")
    if name == "frame_stack" and arguments[0] > MAX_FRAMES:
        raise ValueError(f"wrapper={spec!r} must stack at most {MAX_FRAMES} observations; write {example}")
    return wrapper, arguments
