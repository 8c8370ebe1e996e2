"""Learning from a dataset alone: it must fit the agent, and then fills its replay buffer."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlkit import training
from rlkit.agents.common.config import OffPolicyConfig
from rlkit.hosts.placeholder import HostEnv
from rlkit.networks import features
from rlkit.replay import final_observations
from rlkit.replay.validation import check_capacity, default_final_obs
from rlkit.runs import datasets
from rlkit.runs.config.run_config import RunConfig
from rlkit.runs.datasets import Dataset, origin
from rlkit.runs.programs.host_update import first_state
from rlkit.spaces import Box, Discrete, MultiDiscrete
from rlkit.training import TrainState
from rlkit.types import Agent, ConfigError, Env, PyTree, Transition

_STEPS_AT_ONCE = 1 << 16  # steps that are added to a buffer at a time


class Stored:
    """Transitions of a dataset, which may come from elsewhere, for example from Minari.

    Args:
      config: one with a dataset.
      agent: of the run.
      env, params: an environment that is not stepped; of a HostEnv `params` are None.
      num_streams: the dataset's N where a checkpoint holds it; then the dataset is not opened, and `fill` cannot be
        called. None to open the dataset.

    Raises:
      ConfigError: the dataset cannot be read or does not fit.
    """

    def __init__(self, config: RunConfig, agent: Agent, env: Any, params: Any, num_streams: int | None):
        self.config, self.agent, self.dataset = config, agent, None
        if num_streams is None:
            assert config.run.dataset is not None
            self.dataset = datasets.find(config.run.dataset)
            check(config, self.dataset, agent, env, params)
            num_streams = self.dataset.num_envs
        self.num_streams: int = num_streams
        sizes = {"num_envs": num_streams, "num_steps": config.steps_per_update}
        self.training = training.offline(agent, env, params, **sizes)
        if isinstance(env, HostEnv):  # which cannot be reset
            self.training = self.training._replace(init=partial(first_state, agent, env, num_streams, False))

    def fill(self, state: TrainState, *, batched: bool) -> TrainState:
        """Return a state with all of the dataset in its replay buffer, which is taken over.

        Args:
          state: leaves [S, ...] where `batched`, and then each seed's buffer is filled.
          batched: True for states of several seeds.

        Raises:
          ConfigError: a number is not finite; or a row does not follow the one before although its episode goes on,
            and windows of several steps, or observations that are stored once, would join them.
        """
        assert self.dataset is not None
        assert self.agent.add is not None
        add = jax.jit(jax.vmap(self.agent.add, (0, None)) if batched else self.agent.add, donate_argnums=0)
        source, settings, before = str(self.config.run.dataset), self.config.agent, None
        joins, agent = settings.store_obs_once or settings.item_length > 1, state.agent
        for rows in self.dataset.chunks(max(_STEPS_AT_ONCE // self.num_streams, 1)):
            _check_finite(rows, source)
            if joins:
                joined = rows if before is None else jax.tree.map(lambda *x: np.concatenate(x), before, rows)
                _check_follows(joined, source)
                before = jax.tree.map(lambda x: x[-1:], rows)
            agent = add(agent, jax.tree.map(jnp.asarray, rows._replace(extras=())))
        return state.replace(agent=agent)


def check(config: RunConfig, dataset: Dataset, agent: Agent, env: Env, params: Any) -> None:
    """Raise a ConfigError where a dataset does not fit the agent, its buffer, or the environment's spaces.

    Integers outside of their space would go unnoticed: -1 is the last action, and their one-hot vector is all zero.
    """
    name, source = config.run.agent, config.run.dataset
    if agent.learn is None or not isinstance(config.agent, OffPolicyConfig):
        raise ConfigError(
            f"dataset={source!r} needs an agent that replays single steps, and {name!r} does not; use iql or td3_bc"
        )
    check_capacity(
        config.agent.capacity,
        dataset.num_envs,
        min_rows=dataset.num_rows,
        purpose=f"all steps of dataset={source!r}",
        divisor=f"the {dataset.num_envs} streams of dataset={source!r}",
    )
    _check_final_obs(config, dataset)
    key = jax.eval_shape(lambda: jax.random.key(0))
    if not np.issubdtype(dataset.steps.reward.dtype, np.floating):
        raise ConfigError(
            f"dataset={source!r} must hold reward of a float dtype, and it holds {dataset.steps.reward.dtype}; store "
            "float32"
        )
    if dataset.origin is not None:
        origin.check(dataset.origin, str(source), config.run.env, env, params)
    obs_space, action_space = env.observation_space(params), env.action_space(params)
    for field, space in (("obs", obs_space), ("next_obs", obs_space), ("action", action_space)):
        expected = _shapes_text(jax.eval_shape(space.sample, key))
        stored = _shapes_text(jax.tree.map(lambda x: x[0, 0], getattr(dataset.steps, field)))
        if stored != expected:
            raise ConfigError(
                f"dataset={source!r} must hold {field} of {expected}, as {config.run.env} has, and it holds "
                f"{stored}; collect it from this environment"
            )
        if field == "next_obs":  # what follows a terminated step is not read
            continue
        for leaf in features.leaves(space, getattr(dataset.steps, field)):
            name = "/".join(filter(None, (field, leaf.name)))
            low, high = leaf.value.min((0, 1)), leaf.value.max((0, 1))
            if isinstance(leaf.space, Discrete | MultiDiscrete):
                most = np.subtract(leaf.space.n if isinstance(leaf.space, Discrete) else leaf.space.nvec, 1)
                least, tolerance, remedy = np.zeros_like(most), 0, "count its integers from 0"
            elif field == "action" and isinstance(leaf.space, Box) and leaf.space.bounded:
                least, most = leaf.space.low, leaf.space.high
                tolerance, remedy = 1e-4 * (most - least), "rescale them, or clip what the environment has clipped"
            else:
                continue
            if np.any(low < least - tolerance) or np.any(high > most + tolerance):
                raise ConfigError(
                    f"dataset={source!r} must hold {name} from {least.tolist()} to {most.tolist()}, and it holds "
                    f"{low.tolist()} to {high.tolist()}; {remedy}"
                )


def _check_final_obs(config: RunConfig, dataset: Dataset) -> None:
    """Raise a ConfigError where `store_obs_once` keeps fewer final observations than the dataset has truncated steps.

    Truncated steps whose final observation has been overwritten are never drawn.
    """
    if config.frame_stack > 1:
        raise ConfigError(
            f"replay_stack={config.frame_stack} may lose frames of dataset={config.run.dataset!r}, whose steps are all "
            "kept; leave it out"
        )
    if not config.agent.store_obs_once:
        return
    kept = final_observations.size_of(default_final_obs(config.agent.replay_capacity))
    cut = int(np.count_nonzero(dataset.steps.truncated & ~dataset.steps.terminated))
    if cut > kept:
        raise ConfigError(
            f"store_obs_once=True keeps the final observations of {kept} truncated steps, as of "
            f"capacity={config.agent.replay_capacity}, and dataset={config.run.dataset!r} has {cut}; set "
            "store_obs_once=false"
        )


def _shapes_text(tree: PyTree) -> str:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return ", ".join(f"{jax.tree_util.keystr(path)} {leaf.dtype}{list(leaf.shape)}".strip() for path, leaf in leaves)


def _check_follows(rows: Transition, source: str) -> None:
    """Raise a ConfigError where next_obs is not the next row's obs although the episode goes on."""
    goes_on = ~(rows.terminated | rows.truncated)[:-1]  # [T - 1, N]
    for after, obs in zip(jax.tree.leaves(rows.next_obs), jax.tree.leaves(rows.obs), strict=True):
        after, obs = after[:-1], obs[1:]
        # Programs may compute the two observations of a step apart, so that their last digits differ.
        is_real = np.issubdtype(obs.dtype, np.floating)
        same = np.isclose(after, obs, rtol=1e-5, atol=1e-6, equal_nan=True) if is_real else after == obs
        wrong = goes_on & ~same.reshape(*goes_on.shape, -1).all(-1)
        if wrong.any():
            raise ConfigError(
                f"dataset={source!r} must hold consecutive steps for n_step above 1 and for store_obs_once, and "
                f"next_obs of {int(wrong.sum())} steps is not the obs of the next row although neither terminated nor "
                "truncated is set; set truncated there, as datasets.from_arrays does"
            )


def _check_finite(rows: Transition, source: str) -> None:
    """Raise a ConfigError where a number that learning reads is not finite; next_obs of terminated steps is not."""
    read = {"obs": rows.obs, "action": rows.action, "reward": rows.reward, "next_obs": rows.next_obs}
    for path, leaf in jax.tree_util.tree_leaves_with_path(read):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            continue
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        wrong = ~np.isfinite(leaf)
        if name.startswith("next_obs"):
            wrong &= ~rows.terminated.reshape(*rows.terminated.shape, *(1,) * (leaf.ndim - 2))
        if wrong.any():
            raise ConfigError(
                f"dataset={source!r} must hold finite numbers, and {int(wrong.sum())} of {name} are not, such as "
                f"{leaf[wrong][0]}; leave their episodes out"
            )
