"""Vector environments that come as one from their libraries, which step them in threads of their own."""

import re
import warnings
from typing import Any

import numpy as np

from rlkit.hosts.pool import derive
from rlkit.hosts.worker.making import Recipe
from rlkit.types import ConfigError


class ChannelsLast:
    """A vector environment whose pictures have their channels last, as XLA wants them. It resets in the next step."""

    def __init__(self, envs: Any, num_envs: int, obs_space: Any, action_space: Any, *, seeded: bool):
        self.envs, self.num_envs, self.seeded, self.close = envs, num_envs, seeded, envs.close
        self.metadata = {}
        self.single_observation_space, self.single_action_space = obs_space, action_space
        self.images = len(obs_space.shape or ()) == 3 and obs_space.dtype == np.uint8
        if self.images:
            low, high = (np.moveaxis(bound, 0, -1) for bound in (obs_space.low, obs_space.high))
            self.single_observation_space = type(obs_space)(low, high, dtype=np.uint8)

    def reset(self, seed: int) -> Any:
        obs, infos = self.envs.reset(seed=seed) if self.seeded else self.envs.reset()
        return self._seen(obs), infos

    def step(self, actions: Any) -> Any:
        obs, *rest = self.envs.step(actions)
        return self._seen(obs), *rest

    def _seen(self, obs: Any) -> Any:
        return np.moveaxis(obs, 1, -1) if self.images else obs


def make(recipe: Recipe, num_envs: int, num_threads: int, seed: int) -> ChannelsLast:
    """The vector environment of a recipe; 0 threads leave their number to the library.

    Raises:
      ConfigError: the library refuses the name or an argument.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the precision of a space's bounds; of a game that there is not
        try:
            return MAKERS[recipe.kind](recipe, num_envs, num_threads, seed)
        except (AssertionError, TypeError, ValueError, RuntimeError) as error:
            said = " ".join(str(error).split())[:200]
            raise ConfigError(f"env='{recipe.kind}:{recipe.name}' cannot be made: {said}") from None


def _envpool(recipe: Recipe, num_envs: int, num_threads: int, seed: int) -> ChannelsLast:
    import envpool  # pyright: ignore[reportMissingImports]

    envs = envpool.make(
        recipe.name,
        env_type="gymnasium",
        num_envs=num_envs,
        seed=derive(seed, 0),
        num_threads=num_threads,
        **recipe.kwargs,
    )
    return ChannelsLast(envs, envs.config["num_envs"], envs.observation_space, envs.action_space, seeded=False)


def _ale(recipe: Recipe, num_envs: int, num_threads: int, seed: int) -> ChannelsLast:
    from ale_py.vector_env import AtariVectorEnv  # pyright: ignore[reportMissingImports]

    game = re.sub(r"(?<=[a-z])(?=[A-Z0-9])", "_", recipe.name).lower()  # SpaceInvaders as space_invaders
    kwargs = {"reward_clipping": False, **recipe.kwargs}  # as in one made from the same library by Gymnasium
    envs = AtariVectorEnv(game=game, num_envs=num_envs, num_threads=num_threads, autoreset_mode="NextStep", **kwargs)
    return ChannelsLast(envs, num_envs, envs.single_observation_space, envs.single_action_space, seeded=True)


MAKERS = {"envpool": _envpool, "ale": _ale}  # by the word before the colon of a name
