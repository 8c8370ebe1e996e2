"""Population-based training (Jaderberg et al. 2017) of states that are stacked along a leading axis of P members.

The members train side by side, by `over_runs` of `Training.step`, on one device or several. Now and then the worst of
them become copies of better ones (exploit) and change the copied hyper-parameters (explore):

    hyper = population.initial(ppo.Hyper(), hyper_key, 8, ranges)
    state = training.over_runs(pair.init)(hyper, jax.random.split(init_key, 8))
    for key in jax.random.split(evolve_key, 50):
        state, scores = train_a_while(state)  # steps of all members, under jit, and the mean return of each
        state, lineage = population.evolve(state, scores, key, ranges)

Everything is pure and goes under `jit`, with all arguments but `state`, `scores` and `key` bound beforehand. For
another way to explore, call `truncation` or `tournament`, `inherit`, and a function of your own, as `evolve` does.

Departures from the paper: all members evolve at the same time, and a member copies only from one whose score is greater
than its own, so that equal scores, or none at all, change nothing.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rlkit.names import did_you_mean
from rlkit.training.ranges import Range, Ranges, check_ranges
from rlkit.types import Array, ConfigError, Key, PyTree

EXPLOIT, EXPLORE = ("truncation", "tournament"), ("perturb", "resample")


class Lineage(NamedTuple):
    """Record of one evolution."""

    parent: Array  # [P] int32, the member that each is a copy of; itself where it survived
    hyper: dict[str, Array]  # [P] float32 by name, the values after it of the fields that have a range


def initial(hyper: Any, key: Key, num_members: int, ranges: Ranges) -> Any:
    """Draw each member's hyper-parameters from their ranges.

    Args:
      hyper: an agent's `Hyper`, whose other fields all members share.
      key: one key.
      num_members: P.
      ranges: by field of Hyper.

    Returns:
      The `Hyper` with leaves [P] float32, for `jax.vmap` of `Training.init`.

    Raises:
      ConfigError: a range has no meaning, or its key is not a field of Hyper.
    """
    checked = check_ranges(hyper, ranges)
    hyper = hyper.replace(**{name: checked[name].low for name in checked if getattr(hyper, name) is None})
    stacked = jax.tree.map(lambda x: jnp.broadcast_to(jnp.asarray(x, jnp.float32), (num_members,)), hyper)
    return resample(stacked, jnp.ones((num_members,), bool), key, checked)


def evolve(
    state: PyTree,
    scores: Array,
    key: Key,
    ranges: Ranges,
    *,
    exploit: str = "truncation",
    explore: str = "perturb",
    fraction: float = 0.2,
    factors: tuple[float, ...] = (0.8, 1.25),
    copy_replay: bool | Array = False,
    copy_envs: bool | Array = False,
) -> tuple[PyTree, Lineage]:
    """Replace bad members by copies of better ones with other hyper-parameters.

    Args:
      state: TrainState with leaves [P, ...].
      scores: [P] float, greater is better; one that is not finite is the worst.
      key: one key.
      ranges: by field of Hyper that is explored; the others are copied with the rest.
      exploit: "truncation" or "tournament", the functions of these names.
      explore: "perturb" or "resample", the functions of these names, for the members that are copies.
      fraction: of "truncation".
      factors: of "perturb".
      copy_replay, copy_envs: as for `inherit`.

    Returns:
      The state and the record of parents and hyper-parameters.

    Raises:
      ConfigError: an argument is out of range, or the key of a range is not a field of Hyper.
    """
    _check(state, scores, exploit, explore)
    checked = check_ranges(state.agent.hyper, ranges)
    exploit_key, explore_key, inherit_key = jax.random.split(key, 3)
    parent = truncation(scores, exploit_key, fraction) if exploit == "truncation" else tournament(scores, exploit_key)
    state = inherit(state, parent, inherit_key, copy_replay=copy_replay, copy_envs=copy_envs)
    copied = parent != jnp.arange(parent.size)
    if explore == "perturb":
        hyper = perturb(state.agent.hyper, copied, explore_key, checked, factors)
    else:
        hyper = resample(state.agent.hyper, copied, explore_key, checked)
    state = state.replace(agent=state.agent.replace(hyper=hyper))
    return state, Lineage(parent, {name: getattr(hyper, name) for name in checked})


def truncation(scores: Array, key: Key, fraction: float = 0.2) -> Array:
    """Parents [P] int32 by truncation selection: each of the worst members copies one of the best, drawn uniformly.

    Args:
      scores: [P] float; equal ones are ranked by chance.
      key: one key.
      fraction: share of the members that are the worst, and that are the best; rounded up, but at most half of them.

    Raises:
      ConfigError: the fraction is not within (0, 0.5].
    """
    if not 0.0 < fraction <= 0.5:
        raise ConfigError(f"fraction={fraction} must be above 0 and at most 0.5; try 0.2")
    order_key, draw_key = jax.random.split(key)
    scores, size = _comparable(scores), scores.shape[0]
    count = min(math.ceil(fraction * size), size // 2)
    order = jnp.lexsort((jax.random.uniform(order_key, (size,)), scores))  # the worst first
    rank = jnp.zeros((size,), jnp.int32).at[order].set(jnp.arange(size, dtype=jnp.int32))
    best = order[jax.random.randint(draw_key, (size,), size - max(count, 1), size)]
    return _where_better(scores, jnp.where(rank < count, best, jnp.arange(size)))


def tournament(scores: Array, key: Key) -> Array:
    """Parents [P] int32 by binary tournaments: each member is compared with another one, drawn uniformly.

    It copies that one if its score is greater.

    Args:
      scores: [P] float.
      key: one key.
    """
    scores, size = _comparable(scores), scores.shape[0]
    opponent = (jnp.arange(size) + jax.random.randint(key, (size,), 1, max(size, 2))) % size
    return _where_better(scores, opponent)


def inherit(
    state: PyTree, parent: Array, key: Key, *, copy_replay: bool | Array = False, copy_envs: bool | Array = False
) -> PyTree:
    """Make each member whose parent is another one a copy of it, with other random numbers.

    Parameters, target networks, the optimizer's state, statistics and all of Hyper are copied. Each member keeps its
    key, its environments with their episodes, returns so far and policy memory, and its replay buffer, except where the
    arguments say so. The keys of copies are changed, also those within the agent's state and within copied
    environments: only typed keys, as jax.random.key makes them, can be found there.

    Args:
      state: TrainState with leaves [P, ...].
      parent: [P] int32.
      key: one key.
      copy_replay: copy the replay buffer as well, its priorities and counts included; or [P] bool, where to copy it.
      copy_envs: copy the environments, their episodes and the policy's memory as well; or [P] bool, where to copy them,
        such as after a member's parameters were not finite.
    """
    members = jnp.arange(parent.shape[0], dtype=jnp.int32)
    number = jax.random.bits(key)

    def copy(tree: PyTree, where: bool | Array) -> PyTree:
        """The tree with copies of the parents' values where demanded; its keys are new there."""
        if where is False:
            return tree
        source = jnp.where(where, parent, members)

        def leaf(x: Array) -> Array:
            is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
            return with_new_keys(x[source], source != members) if is_key else x[source]

        return jax.tree.map(leaf, tree)

    def with_new_keys(keys: Array, where: Array) -> Array:
        # For one key, fold_in is one-to-one: copies of one parent get different keys.
        each = jax.vmap(jax.random.fold_in)(keys.reshape(-1), jnp.repeat(members, keys[0].size))
        each = jax.vmap(jax.random.fold_in, (0, None))(each, number)
        return jnp.where(where.reshape(-1, *(1,) * (keys.ndim - 1)), each.reshape(keys.shape), keys)

    agent = state.agent
    if hasattr(agent, "replay"):
        learned = copy(agent.replace(replay=()), True)
        agent = learned.replace(replay=copy(agent.replay, copy_replay))
    else:
        agent = copy(agent, True)
    if hasattr(getattr(agent, "normalizer", None), "running_return"):  # of the environments' episodes
        returns = copy(state.agent.normalizer.running_return, copy_envs)
        agent = agent.replace(normalizer=agent.normalizer.replace(running_return=returns))
    return state.replace(agent=agent, envs=copy(state.envs, copy_envs), key=with_new_keys(state.key, parent != members))


def perturb(hyper: Any, chosen: Array, key: Key, ranges: Ranges, factors: tuple[float, ...] = (0.8, 1.25)) -> Any:
    """Multiply the hyper-parameters of the chosen members by a factor, and clip them to their ranges.

    A value of 0 stays there, unless its range begins above 0.

    Args:
      hyper: a `Hyper` with leaves [P] float32.
      chosen: [P] bool.
      key: one key.
      ranges: by field of Hyper.
      factors: of which one is drawn for each field and member.

    Raises:
      ConfigError: a factor is not positive, or a range has no meaning.
    """
    if not factors or not all(math.isfinite(factor) and factor > 0 for factor in factors):
        raise ConfigError(f"factors={factors} must be positive numbers; try (0.8, 1.25)")

    def change(key: Key, value: Array, bounds: Range) -> Array:
        factor = jax.random.choice(key, jnp.asarray(factors, jnp.float32), value.shape)
        return jnp.clip(value * factor, bounds.low, bounds.high)

    return _changed(change, hyper, chosen, key, ranges)


def resample(hyper: Any, chosen: Array, key: Key, ranges: Ranges) -> Any:
    """Draw the hyper-parameters of the chosen members anew from their ranges.

    Args:
      hyper: a `Hyper` with leaves [P] float32.
      chosen: [P] bool.
      key: one key.
      ranges: by field of Hyper.

    Raises:
      ConfigError: a range has no meaning.
    """

    def draw(key: Key, value: Array, bounds: Range) -> Array:
        low, high, scale = bounds
        if scale == "log":
            drawn = jnp.exp(jax.random.uniform(key, value.shape, jnp.float32, math.log(low), math.log(high)))
        else:
            drawn = jax.random.uniform(key, value.shape, jnp.float32, low, high)
        return jnp.clip(drawn, low, high)  # rounding may have left the range

    return _changed(draw, hyper, chosen, key, ranges)


def _check(state: PyTree, scores: Array, exploit: str, explore: str) -> None:
    """Raise ConfigError where an argument of `evolve` does not fit."""
    for name, value, allowed in (("exploit", exploit, EXPLOIT), ("explore", explore, EXPLORE)):
        if value not in allowed:
            raise ConfigError(f"{name}={value!r} must be {' or '.join(allowed)}{did_you_mean(value, allowed)}")
    shape = state.step.shape
    if len(shape) != 1 or jnp.shape(scores) != shape:
        raise ConfigError(
            f"scores of shape {jnp.shape(scores)} must be one for each member of a stacked state, whose step has shape "
            f"{shape}; stack states by jax.vmap of init"
        )


def _comparable(scores: Array) -> Array:
    """Scores [P] float32, -inf for those that are not finite."""
    scores = jnp.asarray(scores, jnp.float32)
    return jnp.where(jnp.isfinite(scores), scores, -jnp.inf)


def _where_better(scores: Array, candidate: Array) -> Array:
    """The candidates [P] int32 whose score is greater than the member's, elsewhere the member itself."""
    members = jnp.arange(scores.shape[0], dtype=jnp.int32)
    return jnp.where(scores[candidate] > scores, candidate.astype(jnp.int32), members)


def _changed(
    function: Callable[[Key, Array, Range], Array], hyper: Any, chosen: Array, key: Key, ranges: Ranges
) -> Any:
    """The hyper-parameters [P] with `function(key, value, range)` of the chosen members, for each range."""
    checked = check_ranges(hyper, ranges)
    new = {}
    for name, field_key in zip(checked, jax.random.split(key, len(checked)), strict=True):
        value = getattr(hyper, name)
        new[name] = jnp.where(chosen, function(field_key, value, checked[name]), value)
    return hyper.replace(**new)
