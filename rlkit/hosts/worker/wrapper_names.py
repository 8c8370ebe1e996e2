"""Names of wrappers of environments outside of JAX, and of the user's own; without their code and its imports."""

import importlib
import math
from collections.abc import Callable
from typing import Any

from rlkit.names import MAX_FRAMES, OWN_CODE, did_you_mean, find_object, wrapper_arguments

_OF_JAX = ("flatten", "hide_velocity", "clip_action", "sticky_action")  # of `envs.wrap` alone, so not modules
# By name: the class in `wrappers`, the types of its arguments, and an example.
_WRAPPERS: dict[str, tuple[str, tuple[type, ...], str]] = {
    "frame_stack": ("FrameStack", (int, str), "frame_stack:4 or frame_stack:4,first"),
    "action_repeat": ("ActionRepeat", (int,), "action_repeat:2"),
    "time_limit": ("TimeLimit", (int,), "time_limit:200"),
    "clip_reward": ("ClipReward", (float, float), "clip_reward:-1,1"),
    "scale_reward": ("ScaleReward", (float,), "scale_reward:0.1"),
    "previous_action_reward": ("PreviousActionReward", (), "previous_action_reward"),
    "action_mask": ("ActionMask", (str,), "action_mask:info"),
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
    wrapper = as_env(getattr(importlib.import_module("rlkit.hosts.worker.wrappers"), name))
    return lambda env: wrapper(env, *arguments)


def as_env(wrapper: type) -> type:
    """Return the class of wrappers as one of Gymnasium's environments, as Gymnasium's wrappers accept nothing else."""
    import gymnasium

    return type(wrapper.__name__, (wrapper, gymnasium.Env), {})


def _parse(spec: str) -> tuple[str, list[Any]]:
    """The class of a spelling such as frame_stack:4, and its arguments."""
    name = spec.partition(":")[0]
    if name not in _WRAPPERS:
        remedy = did_you_mean(name, _WRAPPERS, cutoff=0.4) or f"; try {', '.join(_WRAPPERS)} or module:Class"
        raise ValueError(f"wrapper={spec!r} is not one of environments outside of JAX{remedy}")
    wrapper, types, example = _WRAPPERS[name]
    arguments = wrapper_arguments(spec, types, example)
    numbers = [x for x in arguments if not isinstance(x, str)]
    if any(not math.isfinite(x) or (x < 1 and isinstance(x, int)) for x in numbers) or sorted(numbers) != numbers:
        rule = "an integer of at least 1" if types[0] is int else "finite numbers, the lower one first"
        raise ValueError(f"wrapper={spec!r} needs {rule} after the colon, such as {example}")
    if name == "frame_stack" and arguments[0] > MAX_FRAMES:
        raise ValueError(f"wrapper={spec!r} must stack at most {MAX_FRAMES} observations; write {example}")
    return wrapper, arguments
