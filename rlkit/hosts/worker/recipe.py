"""Recipes for environments: plain data that a worker turns into a function that makes one environment."""

from collections.abc import Callable
from typing import Any, NamedTuple

from rlkit.hosts.worker import atari, wrapper_names
from rlkit.hosts.worker.contract import Violation
from rlkit.names import find_object


class Recipe(NamedTuple):
    """A description of one environment; plain data, which is sent to worker processes."""

    kind: str  # gymnasium, atari, module, pickled
    name: str  # the id, or module:attribute
    kwargs: dict[str, Any]
    pickled: bytes = b""
    wrappers: tuple[str, ...] = ()  # from the inside out, e.g. ("time_limit:200", "frame_stack:4")


def constructor(recipe: Recipe) -> Callable[[], Any]:
    """Import the modules that an environment needs, and return a function that makes it."""
    make, wraps = _constructor(recipe), [(spec, wrapper_names.make(spec)) for spec in recipe.wrappers]

    def wrapped() -> Any:
        env = make()
        for spec, wrap in wraps:
            if env is None:
                break  # which the contract reports
            env = wrap(env)
            if env is None:
                raise Violation(f"wrapper {spec}", "an environment", "None; add its `return`")
        return env

    return wrapped if wraps else make


def _constructor(recipe: Recipe) -> Callable[[], Any]:
    """Return a function that makes the environment without its wrappers."""
    if recipe.kind == "pickled":
        import cloudpickle

        return cloudpickle.loads(recipe.pickled)  # a function of the process that started this one
    if recipe.kind == "module":
        make = find_object(recipe.name)
        return lambda: make(**recipe.kwargs)
    if recipe.kind == "atari":
        return atari.constructor(recipe.name, recipe.kwargs)
    import gymnasium
    from gymnasium.envs.registration import load_env_creator

    if recipe.name.startswith("ALE/"):
        import ale_py  # pyright: ignore[reportMissingImports]

        gymnasium.register_envs(ale_py)
    entry_point = gymnasium.spec(recipe.name).entry_point
    if isinstance(
        entry_point, str
    ):  # imported here: an import may take long, and the timeout for making an environment is short
        load_env_creator(entry_point)
    # Gymnasium's checker checks the same as `contract`, and slows down each step.
    return lambda: gymnasium.make(recipe.name, disable_env_checker=True, **recipe.kwargs)
