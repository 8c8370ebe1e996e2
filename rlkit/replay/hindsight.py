"""Hindsight experience replay (Andrychowicz et al. 2017): what an episode reached becomes the goal of its steps.

`buffer` draws single steps, most with a goal that their episode reached later; `relabel` does that to slices that are
drawn already. Observations are dicts with the leaves `achieved_goal` and `desired_goal`, as in Gymnasium-Robotics, or
any others by `goal_of` and `with_goal`.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from rlkit import _mesh
from rlkit._mesh import vary_like
from rlkit.names import ACHIEVED_GOAL, DESIRED_GOAL
from rlkit.ops._arrays import as_arrays, check_bools, check_key, check_shape
from rlkit.ops._integers import sub_mod, uint32, uniform_below
from rlkit.replay import storage, uniform_buffer, validation, windows
from rlkit.replay.short_repr import short_repr
from rlkit.replay.storage import Ring
from rlkit.replay.validation import ObsStorage
from rlkit.replay.windows import Place
from rlkit.types import Array, Buffer, ConfigError, Key, PyTree, Sample, StateNode, Transition

RewardFunction = Callable[[PyTree, PyTree], tuple[Array, Array]]


def achieved_goal(obs: PyTree) -> PyTree:
    """Return the goal that is reached in an observation."""
    return obs[ACHIEVED_GOAL]


def with_desired_goal(obs: PyTree, goal: PyTree) -> PyTree:
    """Return an observation with another goal to reach."""
    return obs | {DESIRED_GOAL: goal}


class HindsightState(StateNode):
    """State of a buffer of steps with goals, R rows of N environments."""

    ring: Ring  # the stored steps
    age: Array  # [R, N] int32, steps of the episode before this one, R at most
    length: Array  # [R, N] int32, at the first step of an episode its steps so far
    running: Array  # [N] int32, age of each environment's next step

    __repr__ = short_repr


def buffer(
    capacity: int,
    batch_size: int,
    *,
    reward_fn: RewardFunction,
    ratio: float = 0.8,
    goal_of: Callable[[PyTree], PyTree] = achieved_goal,
    with_goal: Callable[[PyTree, PyTree], PyTree] = with_desired_goal,
    axis_name: str | None = None,
) -> Buffer:
    """Return a buffer of the last `capacity` transitions, which relabels what it draws ("future", section 4.5).

    Steps are drawn uniformly, with replacement. With probability `ratio` a step gets the goal that its episode reached
    by itself or a later step. Each stored step of the rest of the episode is equally likely. Reward and flags are those
    of the new goal, as in `relabel`. A step whose episode began before the oldest stored row keeps its goal.

    Args:
      capacity: steps of all environments together, a multiple of their number, below 2^31.
      batch_size: B, items of a sample, leaves [B, ...].
      reward_fn, ratio, goal_of, with_goal: as for `relabel`.
      axis_name: as for `replay.uniform`.

    Raises:
      ConfigError: a setting is out of range; at `init`, the capacity does not fit the environments.
    """
    capacity, batch_size = validation.sizes(capacity=capacity, batch_size=batch_size)
    _check_ratio(ratio)
    goals = {"reward_fn": reward_fn, "ratio": ratio, "goal_of": goal_of, "with_goal": with_goal}
    return Buffer(
        init=partial(_init, capacity=capacity, axis_name=axis_name),
        add=_add,
        sample=partial(_sample, batch_size=batch_size, axis_name=axis_name, **goals),
        update=uniform_buffer.update,
        size=_size,
    )


def _init(example: Transition, num_envs: int, *, capacity: int, axis_name: str | None) -> HindsightState:
    """An empty buffer for transitions like `example`, leaves [...], of `num_envs` environments."""
    capacity, num_envs, obs_storage = validation.shard(capacity, num_envs, ObsStorage(), axis_name)
    ring = storage.init(example, num_envs, capacity, 1, obs_storage)
    shape = ring.num_rows, ring.num_envs
    age, length = jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.int32)
    state = HindsightState(ring, age, length, running=jnp.zeros(num_envs, jnp.int32))
    return _mesh.vary(vary_like(state, example), axis_name)


def _add(state: HindsightState, rollout: Transition) -> HindsightState:
    """Add a rollout [T, N, ...]."""
    state, rollout = as_arrays((state, rollout))
    before, num_rows = state.ring.cursor, state.ring.num_rows
    state = state.replace(ring=storage.add(state.ring, rollout))
    done = rollout.terminated | rollout.truncated
    num_steps = done.shape[0]
    step = jnp.arange(num_steps, dtype=jnp.int32)[:, None]
    ended = jax.lax.cummax(jnp.where(done, step, -1))  # the last end up to each step, -1 for none
    ended_before = jnp.concatenate([jnp.full_like(ended[:1], -1), ended[:-1]])
    age = jnp.where(ended_before < 0, state.running[None] + step, step - 1 - ended_before)
    age = jnp.minimum(age, num_rows)  # of which R means that the first step is not stored
    slot = storage.next_slots(before, num_steps)
    first = sub_mod(slot[:, None], uint32(age), num_rows).astype(jnp.int32)
    stored = num_steps - step + age <= num_rows  # not overwritten by these rows
    env = jnp.broadcast_to(jnp.arange(done.shape[1], dtype=jnp.int32)[None], done.shape)
    length = state.length.at[slot].set(0)  # the first steps that were there are overwritten
    length = length.at[jnp.where(stored, first, num_rows), env].max(age + 1, mode="drop")
    running = jnp.where(done[-1], 0, jnp.minimum(age[-1] + 1, num_rows))
    return state.replace(age=state.age.at[slot].set(age), length=length, running=running)


def _sample(
    state: HindsightState,
    key: Key,
    *,
    batch_size: int,
    axis_name: str | None,
    reward_fn: RewardFunction,
    ratio: float,
    goal_of: Callable[[PyTree], PyTree],
    with_goal: Callable[[PyTree, PyTree], PyTree],
) -> Sample:
    """Draw B steps, each equally likely, and relabel them: leaves [B, ...]."""
    state = as_arrays(state)
    ring = state.ring
    check_key(key)
    validation.check_not_empty(_size(state))
    batch_size = _mesh.share("batch_size", batch_size, _mesh.size(axis_name))
    place_key, future_key, choice_key = jax.random.split(key, 3)
    place, valid = uniform_buffer.draw_places(ring, place_key, batch_size, 1)
    valid &= _size(state) > 0
    sample = windows.take(ring, place, jnp.ones((batch_size,), jnp.float32), valid, None)

    future, later = _later_step(state, place, future_key)
    goal = jax.vmap(goal_of)(storage.steps_at(ring, future.slot, future.env).next_obs)
    relabelled = jax.random.bernoulli(choice_key, ratio, (batch_size,)) & later & valid
    reached = jax.vmap(goal_of)(sample.item.next_obs)
    return sample._replace(item=_with_goals(sample.item, reached, goal, relabelled, with_goal, reward_fn))


def _size(state: HindsightState) -> Array:
    """Number of steps that can be drawn, [] int32."""
    return windows.num_windows(state.ring, 1)


def _later_step(state: HindsightState, place: Place, key: Key) -> tuple[Place, Array]:
    """Draw a step from the rest of each step's episode; the step itself is one of them.

    Returns the places [B] of these steps, and [B] bool, False where the episode's first step is no longer stored.
    """
    ring, num_rows = state.ring, state.ring.num_rows
    age = state.age[place.slot, place.env]
    distance = storage.distance_to_head(ring.cursor, uint32(place.slot))
    begins = distance + uint32(age) <= ring.cursor.rows
    first = sub_mod(uint32(place.slot), uint32(jnp.where(begins, age, 0)), num_rows)
    count = jnp.where(begins, state.length[first.astype(jnp.int32), place.env] - age, 1)
    ahead = uniform_below(key, count.shape, jnp.maximum(count, 1).astype(jnp.uint32)).astype(jnp.int32)
    return Place(storage.slot_after(place.slot, ahead, num_rows), place.env), begins


def relabel(
    item: Transition,
    mask: Array,
    key: Key,
    *,
    goal_of: Callable[[PyTree], PyTree],
    with_goal: Callable[[PyTree, PyTree], PyTree],
    reward_fn: RewardFunction,
    ratio: float = 0.8,
) -> Transition:
    """Return the steps of one slice, some with a goal that their episode reached later ("future", section 4.5).

    A step is relabelled with probability `ratio`, by the goal that its episode has reached after itself or a later step
    of the slice, each equally likely. Each step has a goal of its own, so that the result is L single transitions, not
    a window for n-step returns. The slice has to lie in one episode, as those of `replay.slices` do; with
    `strict=False` and a `slice_len` of the longest episode the first step of each has all of its future. For a batch of
    slices, use jax.vmap.

    Args:
      item: leaves [L, ...], in order of time.
      mask: [L] bool, True at the first, real steps.
      key: a key.
      goal_of: obs -> the goal that is reached in it; of one observation.
      with_goal: (obs, goal) -> the observation with another goal to reach; of one observation.
      reward_fn: (goal reached by the step, goal to reach) -> reward [] float, terminated [] bool.
      ratio: in [0, 1], share of the steps that are relabelled; 0.8 is the paper's k = 4.

    Returns:
      Transition, leaves [L, ...]. obs, next_obs, reward, terminated and truncated of relabelled steps are new; steps
      outside of the mask stay. A terminal state stays one.

    Raises:
      ConfigError: `ratio` is out of range.
      ValueError: `key` is not a key, or `mask` is not [L] bool.
    """
    _check_ratio(ratio)
    check_key(key)
    check_bools(mask=mask)
    item, mask = as_arrays((item, mask))
    length = jnp.shape(item.reward)[0] if jnp.ndim(item.reward) == 1 else 0
    check_shape("mask", mask, (length,))
    choice_key, future_key = jax.random.split(key)
    row = jnp.arange(length, dtype=jnp.int32)
    count = jnp.sum(mask, dtype=jnp.int32)
    ahead = uniform_below(future_key, (length,), jnp.maximum(count - row, 1).astype(jnp.uint32)).astype(jnp.int32)
    relabelled = jax.random.bernoulli(choice_key, ratio, (length,)) & mask

    reached = jax.vmap(goal_of)(item.next_obs)
    goal = jax.tree.map(lambda x: x[jnp.where(mask, row + ahead, row)], reached)
    return _with_goals(item, reached, goal, relabelled, with_goal, reward_fn)


def _check_ratio(ratio: float) -> None:
    if not 0 <= ratio <= 1:
        raise ConfigError(f"ratio={ratio} must lie in [0, 1]; 0.8 is usual")


def _with_goals(
    item: Transition,
    reached: PyTree,
    goal: PyTree,
    relabelled: Array,
    with_goal: Callable[[PyTree, PyTree], PyTree],
    reward_fn: RewardFunction,
) -> Transition:
    """The steps [B, ...], which reached goals [B, ...], with other goals to reach where `relabelled` [B] is true."""
    reward, terminated = jax.vmap(reward_fn)(reached, goal)
    # A terminal state has no later steps, so its new goal is what it reached. It stays terminal: it has either ended
    # the episode by a goal that was reached, as the new one is, or by something else, such as a fall.
    terminated |= item.terminated
    new = item._replace(
        obs=jax.vmap(with_goal)(item.obs, goal),
        next_obs=jax.vmap(with_goal)(item.next_obs, goal),
        reward=reward.astype(item.reward.dtype),
        terminated=terminated,
        truncated=item.truncated & ~terminated,
    )
    return jax.tree.map(lambda x, y: jnp.where(relabelled.reshape(-1, *(1,) * (x.ndim - 1)), x, y), new, item)
