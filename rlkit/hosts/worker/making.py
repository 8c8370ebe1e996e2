"""From the name of an environment to the function that makes it, inside a worker."""

import importlib
import os
from collections.abc import Callable
from typing import Any, NamedTuple


class Recipe(NamedTuple):
    """How to make one environment; plain data, which a worker process is sent."""

    kind: str  # gymnasium, atari, module, pickled
    name: str  # the id, or module:attribute
    kwargs: dict[str, Any]
    pickled: bytes = b""


def maker(recipe: Recipe) -> Callable[[], Any]:
    """Import what an environment needs, and return what makes it."""
    if recipe.kind == "pickled":
        import cloudpickle

        return cloudpickle.loads(recipe.pickled)  # a function of the process that started this one
    if recipe.kind == "module":
        module, _, attribute = recipe.name.partition(":")
        found = getattr(importlib.import_module(module), attribute)
        return lambda: found(**recipe.kwargs)
    import gymnasium

    if recipe.kind == "atari":
        return _atari(recipe)
    from gymnasium.envs.registration import load_env_creator

    if recipe.name.startswith("ALE/"):
        import ale_py  # pyright: ignore[reportMissingImports]

        gymnasium.register_envs(ale_py)
    entry_point = gymnasium.spec(recipe.name).entry_point
    if isinstance(entry_point, str):  # imported now: it may take long, making the environment should not
        load_env_creator(entry_point)
    # Its checker looks at what `contract` looks at, and slows down each step.
    return lambda: gymnasium.make(recipe.name, disable_env_checker=True, **recipe.kwargs)


def _atari(recipe: Recipe) -> Callable[[], Any]:
    """The usual preprocessing (Machado et al. 2018): gray 84 x 84 pictures of every 4th frame, the last 4 of them."""
    import ale_py  # pyright: ignore[reportMissingImports]
    import gymnasium
    import numpy as np

    gymnasium.register_envs(ale_py)
    kwargs = {"frameskip": 1, **recipe.kwargs}
    preprocessing = {
        name: kwargs.pop(name)
        for name in ("noop_max", "frame_skip", "screen_size", "terminal_on_life_loss", "scale_obs")
        if name in kwargs
    }
    stack = kwargs.pop("stack", 4)

    def make() -> Any:
        env = gymnasium.make(f"ALE/{recipe.name}-v5", disable_env_checker=True, **kwargs)
        env = gymnasium.wrappers.AtariPreprocessing(env, **preprocessing)
        env = gymnasium.wrappers.FrameStackObservation(env, stack)
        space: Any = env.observation_space
        low, high = (np.moveaxis(bound, 0, -1) for bound in (space.low, space.high))  # channels last, as XLA has them
        last = gymnasium.spaces.Box(low, high, dtype=space.dtype.type)
        return gymnasium.wrappers.TransformObservation(env, lambda x: np.ascontiguousarray(np.moveaxis(x, 0, -1)), last)

    return make


def only_cpu() -> None:
    """Let JAX in this process see no accelerator: an environment that uses JAX would take a share of its memory."""
    os.environ["JAX_PLATFORMS"] = "cpu"
