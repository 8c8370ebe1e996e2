"""Buffers divided over devices, divided anew over another number: every item, with its priority and its next_obs."""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from buffer_invariants import check_buffer

from rlkit import replay
from rlkit.replay import shards, storage
from rlkit.types import ConfigError, Transition

N, T, CAPACITY = 4, 6, 80  # 20 rows, which 7 rollouts overwrite twice
ONCE = {"store_obs_once": True}
KINDS = {
    "uniform": lambda devices: replay.uniform(CAPACITY // devices, 4),
    "prioritized": lambda devices: replay.prioritized(CAPACITY // devices, 4, length=3),
    "slices": lambda devices: replay.slices(CAPACITY // devices, 4, 3, cross_episodes=True, prioritized=True),
    "once": lambda devices: replay.prioritized(CAPACITY // devices, 4, **ONCE),
    "few": lambda devices: replay.uniform(CAPACITY // devices, 4, **ONCE, max_final_obs=8 // devices),
}


def rollout(seed):
    rng = np.random.default_rng(seed)
    obs, next_obs = rng.normal(size=(2, T, N, 3)).astype(np.float32)
    terminated, truncated = rng.random((2, T, N)) < 0.2
    reward = rng.normal(size=(T, N)).astype(np.float32)
    return Transition(obs, np.zeros((T, N), np.int32), reward, terminated, truncated, next_obs)


@lru_cache
def filled(kind, devices):
    """The parts of a buffer on so many devices, after rollouts and priorities."""
    buffer, num_envs = KINDS[kind](devices), N // devices
    parts = [buffer.init(jax.tree.map(lambda x: jnp.asarray(x[0, 0]), rollout(0)), num_envs) for _ in range(devices)]

    @jax.jit
    def step(part, steps, key):
        part = buffer.add(part, steps)
        return buffer.update(part, buffer.sample(part, key).index, 1.0 + jnp.arange(4.0))

    for seed in range(7):
        steps = rollout(seed)
        for i, part in enumerate(parts):
            own = slice(i * num_envs, (i + 1) * num_envs)
            parts[i] = step(part, jax.tree.map(lambda x, own=own: x[:, own], steps), jax.random.key(seed))
    return parts


@jax.jit
def read(ring, slot, env):
    return storage.steps_at(ring, slot, env), storage.has_next_obs(ring, slot, env)


def contents(parts):
    """Steps and masses of all parts, leaves [R, N, ...]; a next_obs that is not stored is NaN."""
    steps = []
    for part in jax.tree.map(jnp.asarray, parts):
        slot, env = np.indices((part.ring.num_rows, part.ring.num_envs), dtype=np.int32)
        step, known = jax.device_get(read(part.ring, slot, env))
        known = known & ~step.terminated
        mass = (
            np.asarray(part.priorities.mass.leaves)[: part.ring.capacity].reshape(slot.shape)
            if hasattr(part, "priorities")
            else slot
        )
        steps.append((step._replace(next_obs=np.where(known[..., None], step.next_obs, jnp.nan)), mass))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves, 1), *steps)


@pytest.mark.parametrize(
    "kind", [kind if kind in ("slices", "few") else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
@pytest.mark.parametrize(("before", "after"), [(2, 1), pytest.param(4, 2, marks=pytest.mark.thorough)])
def test_every_item_is_kept(kind, before, after):
    old, like = filled(kind, before), filled(kind, after)[0]
    new = shards.divide(old, jax.eval_shape(lambda: like), after)
    assert len(new) == after
    for part in new:
        assert jax.tree.structure(part) == jax.tree.structure(like)
        assert jax.tree.map(lambda x: (x.shape, x.dtype), part) == jax.tree.map(lambda x: (x.shape, x.dtype), like)
        check_buffer(part)
    back = shards.divide(new, old[0], before)
    for actual in (new, back):
        jax.tree.map(np.testing.assert_array_equal, contents(actual), contents(old))
    if kind in ("uniform", "prioritized", "slices"):  # final observations are numbered anew
        jax.tree.map(np.testing.assert_array_equal, back, old)


def test_the_oldest_final_observations_go_where_there_is_no_room():
    """All are of one environment, whose part has room for half of them."""
    buffers = {
        devices: replay.uniform(CAPACITY // devices, 4, **ONCE, max_final_obs=8 // devices) for devices in (1, 2)
    }
    steps = rollout(0)
    truncated = np.broadcast_to(np.arange(N) == 0, (T, N))
    steps = steps._replace(terminated=np.zeros((T, N), bool), truncated=truncated)
    example = jax.tree.map(lambda x: jnp.asarray(x[0, 0]), steps)
    whole = jax.jit(buffers[1].add)(buffers[1].init(example, N), steps)
    first, _ = jax.tree.map(jnp.asarray, shards.divide([whole], buffers[2].init(example, N // 2), 2))
    found, known = read(first.ring, np.arange(T, dtype=np.int32), np.zeros(T, np.int32))
    assert known.tolist() == [False, False, True, True, True, True]
    np.testing.assert_array_equal(found.next_obs[2:], steps.next_obs[2:, 0])


def test_slices_of_episodes_are_refused():
    buffer = replay.slices(CAPACITY, 4, 3)
    state = buffer.init(jax.tree.map(lambda x: x[0, 0], rollout(0)), N)
    with pytest.raises(ConfigError, match="a buffer of slices of one episode cannot be divided anew"):
        shards.divide([state], state, 2)
