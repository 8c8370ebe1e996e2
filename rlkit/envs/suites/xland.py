"""XLand-MiniGrid in rlkit's protocol."""

from typing import Any

import jax
import jax.numpy as jnp

from rlkit import spaces
from rlkit.envs.adapter import Adapter, construct, find, library, unbounded
from rlkit.spaces import Space
from rlkit.types import Array, Key, PyTree


class XLandEnv(Adapter):
    """An environment of XLand-MiniGrid.

    Observations are images [view, view, tiles + colors] bool: of each cell in sight its tile and its color, one-hot,
    since a network reads nothing from the size of their numbers.
    """

    def __init__(self, name: str, env: Any, sizes: tuple[int, int]):
        self.name = name
        self.env = env
        self._sizes = sizes  # how many tiles and how many colors there are

    def _start(self, key: Key, params: Any) -> tuple[PyTree, Any]:
        timestep = self.env.reset(params, key)
        return self._observe(timestep.observation), timestep

    def _advance(self, key: Key, state: Any, action: PyTree, params: Any) -> tuple[PyTree, Any, Array, Array, Array]:
        del key  # what is random in a step draws from the state's own key
        after = self.env.step(params, state, action)
        terminated, truncated = after.discount == 0, after.state.step_num >= params.max_steps
        return self._observe(after.observation), after, after.reward, terminated, truncated

    def _observe(self, obs: Array) -> Array:
        """[view, view, 2] numbers -> [view, view, tiles + colors] bool."""
        hot = [jax.nn.one_hot(obs[..., i], size, dtype=bool) for i, size in enumerate(self._sizes)]
        return jnp.concatenate(hot, axis=-1)

    def observation_space(self, params: Any) -> Space:
        height, width, _ = self.env.observation_shape(params)
        return unbounded((height, width, sum(self._sizes)), bool)

    def action_space(self, params: Any) -> Space:
        return spaces.Discrete(self.env.num_actions(params))


def names() -> list[str]:
    """XLand-MiniGrid's names: MiniGrid-Empty-8x8, XLand-MiniGrid-R1-9x9, ..."""
    return list(library("xminigrid", "xland").registered_environments())


def make(task: str, **kwargs: Any) -> tuple[XLandEnv, Any]:
    """An environment of XLand-MiniGrid and its parameters.

    Without a ruleset the XLand ones have no goal. Benchmarks of rulesets are downloads of XLand-MiniGrid's own; one
    that you have goes into the parameters: `params.replace(ruleset=benchmark.sample_ruleset(key))`.

    Args:
      task: XLand-MiniGrid's name for it.
      kwargs: fields of its parameters: max_steps, when an episode is truncated; view_size, height, width.

    Raises:
      ConfigError: XLand-MiniGrid is not installed, the name is unknown, or a parameter does not fit.
    """
    name = f"xland:{find(task, names(), 'xland:')}"
    xminigrid, constants = library("xminigrid", "xland"), library("xminigrid.core.constants", "xland")
    fields = xminigrid.make(task)[1].__dataclass_fields__
    env, params = construct(name, lambda **kwargs: xminigrid.make(task, **kwargs), kwargs, fields)
    return XLandEnv(name, env, (constants.NUM_TILES, constants.NUM_COLORS)), params
