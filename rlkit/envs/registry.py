"""Environments and wrappers by name."""

import difflib
from collections.abc import Callable, Sequence
from typing import Any

from rlkit.envs import gymnax, probes, wrappers
from rlkit.envs.adapter import nearest
from rlkit.envs.suites import brax, craftax, jumanji, pgx, playground, xland
from rlkit.types import ConfigError, Env

# By the word before the colon of a name; each library is an extra of the same name.
SUITES: dict[str, Any] = {
    "brax": brax,
    "craftax": craftax,
    "jumanji": jumanji,
    "pgx": pgx,
    "playground": playground,
    "xland": xland,
}

_KINDS: dict[Any, str] = {int: "a whole number", float: "a number"}
# By name: the wrapper, how its argument is read (None: it has none), and how it is written.
_WRAPPERS: dict[str, tuple[Callable[..., Env], Callable[[str], Any] | None, str]] = {
    "flatten": (wrappers.Flatten, None, "flatten"),
    "hide_velocity": (wrappers.HideVelocity, None, "hide_velocity"),
    "frame_stack": (wrappers.FrameStack, int, "frame_stack:4"),
    "action_repeat": (wrappers.ActionRepeat, int, "action_repeat:2"),
    "clip_action": (wrappers.ClipAction, None, "clip_action"),
    "sticky_action": (wrappers.StickyAction, float, "sticky_action:0.25"),
    "time_limit": (wrappers.TimeLimit, int, "time_limit:200"),
}


def names(suite: str | None = None) -> list[str]:
    """Every name that `make` accepts, of gymnax and the probes, or of one of the other suites: `names("brax")`.

    Raises:
      ConfigError: there is no such suite, or it is not installed.
    """
    if suite is None:
        return [*gymnax.names(), *probes.PROBES]
    return [f"{suite}:{task}" for task in _suite(suite, suite).names()]


def make(name: str, **kwargs: Any) -> tuple[Env, Any]:
    """An environment and its parameters, by name.

    Args:
      name: a gymnax id (CartPole-v1, Breakout-MinAtar, ...), a probe (Probe-Memory, ...) or a task of another suite
        (brax:ant, craftax:Craftax-Symbolic-v1, ...); `names()` and `names("brax")` list them.
      kwargs: fields of the environment's parameters (max_steps_in_episode=5), or arguments of its constructor.

    Returns:
      env, params: `env.reset(key, params)`, `env.step(key, state, action, params)`; see `rlkit.types.Env`.

    Raises:
      ConfigError: for an unknown name or keyword, naming the nearest, for a suite that is not installed, and for a task
        that cannot run.
    """
    suite, colon, task = str(name).partition(":")
    if colon:
        return _suite(suite, name).make(task, **kwargs)
    if name in probes.PROBES:  # without importing gymnax
        return probes.make(name, **kwargs)
    known = names()
    if name not in known and name not in gymnax.CANNOT_RUN:
        raise ConfigError(f"env={name!r} is not known; {nearest(name, known)}")
    return gymnax.make(name, **kwargs)


def _suite(suite: str, name: str) -> Any:
    if suite not in SUITES:
        near = difflib.get_close_matches(suite, SUITES, 1, 0.5) or SUITES
        raise ConfigError(f"env={name!r} is of no suite that rlkit knows; try {', '.join(s + ':' for s in near)}")
    return SUITES[suite]


def wrap(env: Env, specs: Sequence[str]) -> Env:
    """Wrap an environment by names, the first one innermost: `wrap(env, ["hide_velocity", "frame_stack:4"])`.

    Names: flatten, hide_velocity, frame_stack:n, action_repeat:n, clip_action, sticky_action:p, time_limit:n.

    Raises:
      ConfigError: for an unknown name, an argument that is missing, superfluous or out of range, or an environment that
        the wrapper does not fit.
    """
    for spec in specs:
        name, colon, argument = str(spec).partition(":")
        if name not in _WRAPPERS:
            near = difflib.get_close_matches(name, _WRAPPERS, 1, 0.4) or _WRAPPERS
            raise ConfigError(f"wrapper={spec!r} is not known; try {', '.join(near)}")
        wrapper, read, example = _WRAPPERS[name]
        if read is None:
            if colon:
                raise ConfigError(f"wrapper={spec!r} takes no argument; write {example}")
            env = wrapper(env)
            continue
        try:
            value = read(argument)
        except ValueError as error:
            raise ConfigError(f"wrapper={spec!r} needs {_KINDS[read]} after the colon, such as {example}") from error
        env = wrapper(env, value)
    return env
