"""Recipes for environments: plain data that a worker turns into a function that makes one environment."""

import dataclasses
import sys
import warnings
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from rlkit.hosts.worker import atari, pettingzoo_names, wrapper_names
from rlkit.hosts.worker.contract import Violation
from rlkit.hosts.worker.players import is_world
from rlkit.names import find_object, import_module


class Recipe(NamedTuple):
    """A description of one environment; plain data, which is sent to worker processes."""

    kind: str  # gymnasium, atari, pettingzoo, module, pickled
    name: str  # the id, FAMILY/NAME, module:ID or module:attribute
    kwargs: dict[str, Any]
    pickled: bytes = b""
    wrappers: tuple[str, ...] = ()  # from the inside out, e.g. ("time_limit:200", "frame_stack:4")
    specs: bytes = b""  # of `registered_specs`, where the environment is made in another process


def registered_specs(needed: str) -> bytes:
    """Return the specs of Gymnasium's registry, of which a program may have registered some, for `constructor`.

    Specs that cannot be pickled are left out. Raises what the spec of the id `needed` raises where it is one of them.
    """
    if "gymnasium" not in sys.modules:
        return b""
    import cloudpickle
    import gymnasium

    specs: dict[str, bytes] = {}
    for name, spec in gymnasium.registry.items():
        try:
            specs[name] = cloudpickle.dumps(_without_main(spec))
        except Exception:
            if name == needed:
                raise
    return zlib.compress(cloudpickle.dumps(specs))


def _without_main(spec: Any) -> Any:
    """Return a spec with a class or a function as its entry point where its name is one of the main module.

    The main module of a worker is another one.
    """
    module, _, name = str(spec.entry_point).partition(":")
    found = getattr(sys.modules["__main__"], name, None) if module == "__main__" else None
    return spec if found is None else dataclasses.replace(spec, entry_point=found)


def _register(specs: bytes, needed: str) -> None:
    """Add the specs of `registered_specs` to the registry; a module that only other ids need may be missing."""
    import cloudpickle
    import gymnasium

    # A package that has registered some of them does so again where it is imported here.
    warnings.filterwarnings("ignore", r".*Overriding environment .* already in registry")
    for name, spec in cloudpickle.loads(zlib.decompress(specs)).items():
        try:
            gymnasium.registry[name] = cloudpickle.loads(spec)
        except Exception:
            if name == needed:
                raise


def constructor(recipe: Recipe) -> Callable[[], Any]:
    """Import the modules that an environment needs, and return a function that makes it.

    The function has the attribute `shared_reward` where the user's own class or function has it, see `players.World`.
    """
    if recipe.specs:
        _register(recipe.specs, recipe.name.rpartition(":")[2])
    make, wraps = _constructor(recipe), [(spec, wrapper_names.make(spec)) for spec in recipe.wrappers]

    def wrapped() -> Any:
        env = make()
        for spec, wrap in wraps:
            if env is None:
                break  # which the contract reports
            if is_world(env) and not wrapper_names.is_own(spec):
                expected = "an environment of one player; for several, give a wrapper with PettingZoo's interface"
                raise Violation(f"wrapper {spec}", f"{expected} as module:Class", type(env).__name__)
            env = wrap(env)
            if env is None:
                raise Violation(f"wrapper {spec}", "an environment", "None; add its `return`")
        return env

    if not wraps:
        return make
    wrapped.shared_reward = getattr(make, "shared_reward", False)
    return wrapped


def _constructor(recipe: Recipe) -> Callable[[], Any]:
    """Return a function that makes the environment without its wrappers."""
    if recipe.kind == "pickled":
        import cloudpickle

        return cloudpickle.loads(recipe.pickled)  # a function of the process that started this one
    if recipe.kind == "module":
        found = find_object(recipe.name)
        make = partial(found, **recipe.kwargs)
        make.shared_reward = getattr(found, "shared_reward", False)  # type: ignore[attr-defined]
        return make
    if recipe.kind == "atari":
        return atari.constructor(recipe.name, recipe.kwargs)
    if recipe.kind == "pettingzoo":
        return partial(pettingzoo_names.maker(recipe.name), **recipe.kwargs)
    import gymnasium
    from gymnasium.envs.registration import load_env_creator

    module, _, task = recipe.name.rpartition(":")
    if module:
        import_module(module)  # which registers the id
    if task.startswith("ALE/"):
        import ale_py  # pyright: ignore[reportMissingImports]

        gymnasium.register_envs(ale_py)
    entry_point = gymnasium.spec(task).entry_point
    if isinstance(
        entry_point, str
    ):  # imported here: an import may take long, and the timeout for making an environment is short
        load_env_creator(entry_point)
    # Gymnasium's checker checks the same as `contract`, and slows down each step.
    return lambda: gymnasium.make(task, disable_env_checker=True, **recipe.kwargs)
