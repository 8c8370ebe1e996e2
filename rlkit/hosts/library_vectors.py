"""Vector environments that their libraries (envpool, ale-py) provide ready-made and step in their own threads."""

import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from rlkit.hosts.pool import derive
from rlkit.hosts.vector import RESETTING
from rlkit.hosts.worker import atari
from rlkit.hosts.worker.recipe import Recipe
from rlkit.names import OWN_DONE, OWN_REWARD
from rlkit.types import ConfigError


class ChannelsLast:
    """A vector environment with its images' channels last, as XLA needs them. Its autoreset mode is NEXT_STEP.

    `own` changes the result of a step, so that its infos have the environment's own rewards and ends.
    """

    def __init__(
        self,
        envs: Any,
        num_envs: int,
        obs_space: Any,
        action_space: Any,
        *,
        seeded_reset: bool,
        own: Callable[..., tuple[Any, ...]] = lambda *result: result,
    ):
        self.own = own
        self.envs, self.num_envs, self.seeded_reset, self.close = envs, num_envs, seeded_reset, envs.close
        self.metadata = {}
        self.single_observation_space, self.single_action_space = obs_space, action_space
        self.images = len(obs_space.shape or ()) == 3 and obs_space.dtype == np.uint8
        if self.images:
            low, high = (np.moveaxis(bound, 0, -1) for bound in (obs_space.low, obs_space.high))
            self.single_observation_space = type(obs_space)(low, high, dtype=np.uint8)

    def reset(self, seed: int) -> Any:
        """Start new episodes: -> obs, infos. The seed is used only where the library takes one at a reset."""
        obs, infos = self.envs.reset(seed=seed) if self.seeded_reset else self.envs.reset()
        return self._channels_last(obs), infos

    def step(self, actions: Any) -> Any:
        """Take one step: -> obs, reward, terminated, truncated, infos."""
        obs, *rest = self.own(*self.envs.step(actions))
        return self._channels_last(obs), *rest

    def _channels_last(self, obs: Any) -> Any:
        return np.moveaxis(obs, 1, -1) if self.images else obs


def make(recipe: Recipe, num_envs: int, num_threads: int, seed: int) -> ChannelsLast:
    """Make the vector environment of a recipe; with 0 threads the library chooses their number.

    Raises:
      ConfigError: the library refuses the name or an argument.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the precision of a space's bounds, and about unknown games
        try:
            return MAKERS[recipe.kind](recipe, num_envs, num_threads, seed)
        except (AssertionError, TypeError, ValueError, RuntimeError) as error:
            message = " ".join(str(error).split())[:200]
            raise ConfigError(f"env='{recipe.kind}:{recipe.name}' cannot be made: {message}") from None


def _envpool(recipe: Recipe, num_envs: int, num_threads: int, seed: int) -> ChannelsLast:
    import envpool  # pyright: ignore[reportMissingImports]

    def own(obs: Any, reward: Any, terminated: Any, truncated: Any, infos: dict[str, Any]) -> tuple[Any, ...]:
        if "reward" in infos:  # Atari's, not clipped
            infos[OWN_REWARD] = infos["reward"]
        if "lives" in infos and "terminated" in infos:  # a lost life is an end for learning with `episodic_life`
            infos[OWN_DONE] = infos["terminated"].astype(bool) | np.asarray(truncated, bool)
        return obs, reward, terminated, truncated, infos

    envs = envpool.make(
        recipe.name,
        env_type="gymnasium",
        num_envs=num_envs,
        seed=derive(seed, 0),
        num_threads=num_threads,
        **recipe.kwargs,
    )
    num_envs, spaces = envs.config["num_envs"], (envs.observation_space, envs.action_space)
    return ChannelsLast(envs, num_envs, *spaces, seeded_reset=False, own=own)


class _Games:
    """The vector environment of ale-py, with rewards and ends for learning beside the game's own.

    The library clips rewards without giving the game's own, and its `episodic_life` starts a new game at a lost life.
    """

    def __init__(self, envs: Any, settings: atari.Preprocessing):
        from ale_py import Action  # pyright: ignore[reportMissingImports]

        self.envs, self.clips, self.close = envs, settings.clip_reward, envs.close
        actions = list(envs.ale.get_action_set())
        presses = settings.fire_reset and Action.FIRE in actions
        self.fire = actions.index(Action.FIRE) if presses else None
        self.lost = np.zeros(envs.num_envs, bool)  # [N] a life, after which FIRE is pressed

    def reset(self, seed: int) -> Any:
        """Start new games: -> obs, infos."""
        self.lost[:] = False
        return self.envs.reset(seed=seed)

    def step(self, actions: Any) -> Any:
        """Take one step: -> obs, reward, terminated, truncated, infos."""
        if self.fire is not None:
            actions = np.where(self.lost, np.asarray(self.fire, actions.dtype), actions)
        obs, reward, terminated, truncated, infos = self.envs.step(actions)
        over = terminated & (infos["lives"] == 0) | truncated
        if self.fire is not None:
            self.lost = terminated & ~over
        infos |= {OWN_REWARD: reward, OWN_DONE: over, RESETTING: over | self.lost}
        return obs, np.sign(reward) if self.clips else reward, terminated, truncated, infos


def _ale(recipe: Recipe, num_envs: int, num_threads: int, seed: int) -> ChannelsLast:
    from ale_py.vector_env import AtariVectorEnv  # pyright: ignore[reportMissingImports]

    game = re.sub(r"(?<=[a-z])(?=[A-Z0-9])", "_", recipe.name).lower()  # SpaceInvaders as space_invaders
    settings, others = atari.preprocessing(recipe.kwargs)
    envs = AtariVectorEnv(
        game=game,
        num_envs=num_envs,
        num_threads=num_threads,
        autoreset_mode="NextStep",
        repeat_action_probability=settings.repeat_action_probability,
        full_action_space=settings.full_action_space,
        noop_max=settings.noop_max,
        frameskip=settings.frame_skip,
        img_height=settings.screen_size,
        img_width=settings.screen_size,
        stack_num=settings.stack,
        reward_clipping=False,
        life_loss_info=settings.terminal_on_life_loss,
        use_fire_reset=settings.fire_reset,
        **others,
    )
    spaces = envs.single_observation_space, envs.single_action_space
    return ChannelsLast(_Games(envs, settings), num_envs, *spaces, seeded_reset=True)


MAKERS = {"envpool": _envpool, "ale": _ale}  # by the word before the colon of a name
