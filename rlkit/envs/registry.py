"""Environments and wrappers by name."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from rlkit.envs import gymnax, own, probes, wrappers
from rlkit.envs.adapter import suggestion
from rlkit.envs.suites import brax, craftax, jaxmarl, jumanji, pgx, playground, xland
from rlkit.names import did_you_mean, shorten, wrapper_arguments
from rlkit.types import ConfigError, Env

# By the word before the colon of a name; each library is an extra of the same name.
SUITES: dict[str, Any] = {
    "brax": brax,
    "craftax": craftax,
    "jaxmarl": jaxmarl,
    "jumanji": jumanji,
    "pgx": pgx,
    "playground": playground,
    "xland": xland,
}

OUTSIDE = (
    "gymnasium",
    "atari",
    "ale",
    "envpool",
    "pettingzoo",
)  # what the names of environments outside of JAX start with
# By name: the wrapper, the types of its arguments, and an example.
_WRAPPERS: dict[str, tuple[Callable[..., Env], tuple[type, ...], str]] = {
    "flatten": (wrappers.Flatten, (), "flatten"),
    "hide_velocity": (wrappers.HideVelocity, (), "hide_velocity"),
    "frame_stack": (wrappers.FrameStack, (int, str), "frame_stack:4 or frame_stack:4,first"),
    "action_repeat": (wrappers.ActionRepeat, (int,), "action_repeat:2"),
    "clip_action": (wrappers.ClipAction, (), "clip_action"),
    "sticky_action": (wrappers.StickyAction, (float,), "sticky_action:0.25"),
    "previous_action_reward": (wrappers.PreviousActionReward, (), "previous_action_reward"),
    "time_limit": (wrappers.TimeLimit, (int,), "time_limit:200"),
    "clip_reward": (wrappers.ClipReward, (float, float), "clip_reward:-1,1"),
    "scale_reward": (wrappers.ScaleReward, (float,), "scale_reward:0.1"),
}


def names(suite: str | None = None) -> list[str]:
    """Return the names that `make` accepts: of gymnax and the probes, or of another suite, as in `names("brax")`.

    Raises:
      ConfigError: there is no such suite, or it is not installed.
    """
    if suite is None:
        return [*gymnax.names(), *probes.PROBES]
    return [f"{suite}:{task}" for task in _suite(suite, suite).names()]


def make(name: str, /, **kwargs: Any) -> tuple[Env, Any]:
    """Make an environment and its parameters, by name.

    Args:
      name: a gymnax id (CartPole-v1, Breakout-MinAtar, ...), a probe (Probe-Memory, ...) or a task of another suite
        (brax:ant, craftax:Craftax-Symbolic-v1, ...); `names()` and `names("brax")` list them. Or `module:Class`, an
        environment of your own in JAX, as `adapt` takes it.
      kwargs: fields of the environment's parameters (max_steps_in_episode=5), or arguments of its constructor.

    Returns:
      env, params: `env.reset(key, params)`, `env.step(key, state, action, params)`; see `rlkit.types.Env`.

    Raises:
      ConfigError: the name or a keyword is unknown (the message suggests similar ones), the suite is not installed, or
        the task cannot run.
    """
    if not isinstance(name, str):
        raise ConfigError(f"env={shorten(repr(name))} must be a name, as 'CartPole-v1'; envs.adapt takes objects")
    suite, colon, task = name.partition(":")
    if colon and suite not in SUITES and own.is_in_jax(name):
        return own.make(name, **kwargs)
    if colon:
        return _suite(suite, name).make(task, **kwargs)
    if name in probes.PROBES:  # without importing gymnax
        return probes.make(name, **kwargs)
    known = names()
    if name not in known and name not in gymnax.CANNOT_RUN:
        hint = f"; for an environment of Gymnasium's, use rlkit.hosts.make or runs.train, with 'gymnasium:{name}'"
        hint = hint if re.fullmatch(r"[\w/-]+-v\d+", name) else ""
        raise ConfigError(f"env={name!r} is not known{did_you_mean(name, known) or hint or suggestion(name, known)}")
    return gymnax.make(name, **kwargs)


def _suite(suite: str, name: str) -> Any:
    if suite in OUTSIDE:
        raise ConfigError(
            f"env={name!r} is outside of JAX: step it with rlkit.hosts.make({name!r}, num_envs=...), or train on it "
            "with rlkit.runs.train or `rlkit train`"
        )
    if suite not in SUITES:
        all_suites = f"; try {', '.join(f'{known}:' for known in SUITES)}"
        remedy = did_you_mean(suite, SUITES, cutoff=0.5, suffix=":") or all_suites
        raise ConfigError(f"env={name!r} does not start with the name of a suite{remedy}")
    return SUITES[suite]


def wrap(env: Env, specs: Sequence[str]) -> Env:
    """Wrap an environment by names, the first one innermost: `wrap(env, ["hide_velocity", "frame_stack:4"])`.

    Names: flatten, hide_velocity, frame_stack:n, action_repeat:n, clip_action, sticky_action:p, time_limit:n,
    previous_action_reward, clip_reward:low,high, scale_reward:factor. For an agent whose `image_axes` are not "auto",
    these follow: frame_stack:n,first.

    Raises:
      ConfigError: a name is unknown, an argument is missing, superfluous or out of range, or a wrapper does not support
        the environment.
    """
    for spec in specs:
        spec = shorten(str(spec))  # what a message shows; every wrapper with its argument is shorter than the cut
        name = spec.partition(":")[0]
        if name not in _WRAPPERS:
            remedy = did_you_mean(name, _WRAPPERS, cutoff=0.4) or f"; try {', '.join(_WRAPPERS)}"
            raise ConfigError(f"wrapper={spec!r} is not known{remedy}")
        wrapper, types, example = _WRAPPERS[name]
        try:
            env = wrapper(env, *wrapper_arguments(spec, types, example))
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError(str(error)) from error
    return env
