"""XLand-MiniGrid in rlkit's protocol."""

from typing import Any

import jax
import jax.numpy as jnp

from rlkit import spaces
from rlkit.envs.adapter import Adapter, construct, known_task, library, unbounded_box
from rlkit.spaces import Space
from rlkit.types import Array, Key, PyTree


class XLandEnv(Adapter):
    """An environment of XLand-MiniGrid.

    Observations are images [view, view, tiles + colors] bool: the tile and the color of each visible cell, one-hot,
    because the magnitude of their numbers has no meaning.
    """

    def __init__(self, name: str, env: Any, sizes: tuple[int, int]):
        self.name = name
        self.env = env
        self._sizes = sizes  # number of tiles, number of colors

    def _start(self, key: Key, params: Any) -> tuple[PyTree, Any]:
        timestep = self.env.reset(params, key)
        return self._observe(timestep.observation), timestep

    def _advance(self, key: Key, state: Any, action: PyTree, params: Any) -> tuple[PyTree, Any, Array, Array, Array]:
        del key  # a random step draws from the key in the state
        next_state = self.env.step(params, state, action)
        terminated, truncated = next_state.discount == 0, next_state.state.step_num >= params.max_steps
        return self._observe(next_state.observation), next_state, next_state.reward, terminated, truncated

    def _observe(self, obs: Array) -> Array:
        """Convert numbers [view, view, 2] to one-hot vectors [view, view, tiles + colors] bool."""
        one_hot = [jax.nn.one_hot(obs[..., i], size, dtype=bool) for i, size in enumerate(self._sizes)]
        return jnp.concatenate(one_hot, axis=-1)

    def observation_space(self, params: Any) -> Space:
        height, width, _ = self.env.observation_shape(params)
        return unbounded_box((height, width, sum(self._sizes)), bool)

    def action_space(self, params: Any) -> Space:
        return spaces.Discrete(self.env.num_actions(params))


def names() -> list[str]:
    """Return XLand-MiniGrid's names: MiniGrid-Empty-8x8, XLand-MiniGrid-R1-9x9, ..."""
    return list(library("xminigrid", "xland").registered_environments())


def make(task: str, /, **kwargs: Any) -> tuple[XLandEnv, Any]:
    """Make an environment of XLand-MiniGrid and its parameters.

    Without a ruleset the XLand tasks have no goal. XLand-MiniGrid downloads benchmarks of rulesets itself; one that you
    have goes into the parameters: `params.replace(ruleset=benchmark.sample_ruleset(key))`.

    Args:
      task: a name of XLand-MiniGrid.
      kwargs: fields of its parameters: max_steps, the time limit of an episode; view_size, height, width.

    Raises:
      ConfigError: XLand-MiniGrid is not installed, the name is unknown, or a parameter does not fit.
    """
    name = f"xland:{known_task(task, names(), 'xland:')}"
    xminigrid, constants = library("xminigrid", "xland"), library("xminigrid.core.constants", "xland")
    fields = xminigrid.make(task)[1].__dataclass_fields__
    env, params = construct(name, lambda **kwargs: xminigrid.make(task, **kwargs), kwargs, fields)
    return XLandEnv(name, env, (constants.NUM_TILES, constants.NUM_COLORS)), params
