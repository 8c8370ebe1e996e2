"""Frames stored once: every step as in a plain buffer, bit by bit, in an eighth of its bytes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from buffer_invariants import check_buffer
from compiled_buffers import uniform
from mistakes import mistake
from replay_model import Stream, example, steps

from rlkit import replay
from rlkit.replay import frames, shards, storage

ATARI = jax.ShapeDtypeStruct((84, 84, 4), jnp.uint8)


def num_bytes(buffer, num_envs):
    one = jax.tree.map(lambda x: x[0, 0], steps(1))._replace(obs=ATARI, next_obs=ATARI, action=jnp.int32(0))
    state = jax.eval_shape(lambda x: buffer.init(x, num_envs), one)
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))


@pytest.mark.parametrize("num_envs", [1, 32])
def test_a_million_steps_of_atari_take_7_5_gigabytes(num_envs):
    assert num_bytes(replay.uniform(10**6, 32, frame_stack=4), num_envs) < 7.5e9
    assert num_bytes(replay.prioritized(10**6, 32, length=3, frame_stack=4), num_envs) < 7.5e9
    assert num_bytes(replay.uniform(10**6, 32), num_envs) > 56e9


@jax.jit
def at(ring, slot, env):
    return storage.steps_at(ring, slot, env), storage.has_next_obs(ring, slot, env)


def every_step(ring):
    """All stored steps, from the oldest row on, and which of them have all of their frames."""
    rows = (int(ring.slot) - int(ring.count) + np.arange(int(ring.count), dtype=np.int32)) % ring.num_rows
    return at(ring, *np.meshgrid(rows, np.arange(ring.num_envs, dtype=np.int32), indexing="ij"))


def fill(buffer, rollouts, num_envs):
    state = buffer.init(jax.tree.map(lambda x: jnp.asarray(x)[0, 0], rollouts[0]), num_envs)
    for rollout in rollouts:
        state = buffer.add(state, rollout)
    check_buffer(state)
    return state.ring


def equal_bits(x, y):
    return x.dtype == y.dtype and x.shape == y.shape and np.asarray(x).tobytes() == np.asarray(y).tobytes()


def assert_as_plain(rollouts, num_envs, capacity, image_axes="auto"):
    """The buffer holds what a plain one does, of all leaves; return its ring."""
    ring = fill(uniform(capacity, 4, frame_stack=4, image_axes=image_axes), rollouts, num_envs)
    plain = fill(uniform(capacity, 4), rollouts, num_envs)
    (got, stored), (expected, _) = every_step(ring), every_step(plain)
    assert stored.all()
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert equal_bits(x, y)
    return ring


@pytest.mark.parametrize("seed", range(4))
def test_every_step_is_as_in_a_plain_buffer(seed):
    stream = Stream(3, seed)
    assert_as_plain([stream.rollout(4) for _ in range(9)], 3, 30)


def test_states_of_several_seeds():
    buffer = replay.uniform(8, 4, frame_stack=4)
    rollouts = [[Stream(2, seed + 7 * i).rollout(3) for i in range(4)] for seed in range(3)]
    state = jax.vmap(lambda seed: buffer.init(example(), 2))(jnp.arange(3))
    add = jax.jit(jax.vmap(buffer.add))
    for i in range(4):
        state = add(state, jax.tree.map(lambda *x: np.stack(x), *(rollouts[seed][i] for seed in range(3))))
    for seed in range(3):
        got, stored = every_step(jax.tree.map(lambda x, seed=seed: x[seed], state).ring)
        expected = jax.tree.map(lambda *x: np.concatenate(x)[-4:], *rollouts[seed])
        assert stored.all()
        assert all(map(equal_bits, *map(jax.tree.leaves, (got, expected))))


def stacks(frames_of, axis, dtype, length=12):
    """A rollout of one endless episode whose frame t is frames_of(t), in stacks of four."""
    obs = np.stack([np.concatenate([frames_of(t + k) for k in range(4)], axis) for t in range(length + 1)])
    obs = obs.astype(dtype)[:, None]
    return steps(length, obs=obs[:-1], next_obs=obs[1:])


@pytest.mark.parametrize(
    ("shape", "axis", "image_axes"),
    [
        ((1, 20, 20), 0, "auto"),
        pytest.param((20, 20, 3), 2, "auto", marks=pytest.mark.slow),
        pytest.param((80,), 0, "auto", marks=pytest.mark.slow),
        ((3, 20, 3), 0, "first"),
    ],
)
def test_an_episode_takes_one_frame_a_step(shape, axis, image_axes):
    random = np.random.default_rng(0).integers(1000, size=(20, *shape))
    rollout = stacks(lambda t: random[t], axis, np.int32)
    ring = assert_as_plain(
        [jax.tree.map(lambda x: x[:8], rollout), jax.tree.map(lambda x: x[8:], rollout)], 1, 12, image_axes
    )
    assert ring.frames[0].counts[0] == 4 + 12


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        *((bool, 301), (np.int16, 301), (np.uint32, 300)),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((np.int8, 300), (np.int8, 301), (np.uint16, 301))),
    ],
)
def test_every_kind_of_integer(dtype, size):
    random = np.random.default_rng(0).integers(2, size=(20, size)) * -77
    assert_as_plain([stacks(lambda t: random[t], 0, dtype)], 1, 12)


def test_other_leaves_are_stored_whole():
    """One of 256 bytes, one that is no stack of three, and real numbers, whose last digits may differ."""
    for size, dtype, stack in ((16, np.int32, 4), (80, np.int32, 3), (80, np.float32, 4)):
        rollout = stacks(lambda t, size=size: np.full(size, t), 0, dtype)
        assert fill(uniform(12, 4, frame_stack=stack), [rollout], 1).frames == ()


def test_a_picture_that_stands_still_is_never_lost():
    """Environment 0 does not change while environment 1 fills the pool many times over."""
    random, rollouts = np.random.default_rng(0), []
    for _ in range(30):
        pictures = random.integers(256, size=(140, 80))
        moving = stacks(pictures.__getitem__, 0, np.int32, 128)
        still = stacks(lambda _: np.zeros(80), 0, np.int32, 128)
        rollouts.append(jax.tree.map(lambda x, y: np.concatenate([x, y], 1), still, moving))
    ring = assert_as_plain(rollouts, 2, 512)
    assert ring.frames[0].counts[0] > 3 * ring.frames[0].pool.shape[0]


def test_numbers_of_frames_count_on_after_2_to_the_32():
    buffer, stream = uniform(8, 4, frame_stack=4), Stream(2, 0)
    state = buffer.init(example(), 2)
    late = [pool and pool.replace(counts=pool.counts.at[0].set(2**32 - 20)) for pool in state.ring.frames]
    state = state.replace(ring=state.ring.replace(frames=tuple(late)))
    rollouts = [stream.rollout(3) for _ in range(6)]
    for rollout in rollouts:
        state = buffer.add(state, rollout)
    got, stored = every_step(state.ring)
    assert stored.all()
    assert int(state.ring.frames[-1].counts[0]) < 2**31
    expected = jax.tree.map(lambda *x: np.concatenate(x)[-4:], *rollouts)
    assert all(map(equal_bits, *map(jax.tree.leaves, (got, expected))))


def test_others_than_stacks_fill_the_pool_and_the_oldest_steps_are_not_drawn():
    """Each step has eight new frames; the pool of 1,024 more frames than steps has room for those of 385 steps."""
    random = np.random.default_rng(0)
    obs = jnp.asarray(random.integers(256, size=(2, 2048, 1, 320)), jnp.int32)
    rollout = steps(2048, obs=obs[0], next_obs=obs[1])
    buffer = uniform(2048, 64, frame_stack=4)
    for pieces in ([rollout], [jax.tree.map(lambda x, i=i: x[256 * i : 256 * i + 256], rollout) for i in range(8)]):
        ring = fill(buffer, pieces, 1)
        got, stored = every_step(ring)
        kept = (2048 + 4 + 1024) // 8
        assert not stored[:-kept].any()
        assert stored[-kept:].all()
        assert equal_bits(got.obs[-kept:], rollout.obs[-kept:])
        sample = buffer.sample(replay.uniform(2048, 64).init(example(), 1).replace(ring=ring), jax.random.key(0))
        assert sample.mask.all()
        assert (sample.index.row >= 2048 - kept).all()
        assert equal_bits(sample.item.next_obs, rollout.next_obs[sample.index.row, 0])


def test_a_cleared_buffer_starts_anew():
    buffer, stream = uniform(8, 4, frame_stack=4), Stream(2, 0)
    state = replay.clear(buffer.add(buffer.init(example(), 2), stream.rollout(3)))
    rollout = stream.rollout(3)
    state = buffer.add(state, rollout)
    check_buffer(state)
    got, stored = every_step(state.ring)
    assert stored.all()
    assert all(map(equal_bits, *map(jax.tree.leaves, (got, rollout))))


def test_frames_are_never_more_than_the_steps_can_have():
    assert frames.num_frames(8, 2, 4) == 64
    assert frames.num_frames(10**6, 8, 4) == 10**6 + 32 + 10**6 // 20


ERRORS = {
    "frame_stack=0 must be an integer of at least 1": lambda: replay.uniform(8, 4, frame_stack=0),
    "image_axes='middle' must be one of": lambda: replay.slices(8, 4, 2, frame_stack=4, image_axes="middle"),
    "frame_stack=4 needs steps of type Transition, and example=dict": lambda: replay.prioritized(
        8, 4, frame_stack=4
    ).init({"obs": jnp.zeros(3)}, 1),
    "cannot be divided anew": lambda: shards.divide(
        [replay.uniform(8, 4, frame_stack=4).init(example(), 2)], replay.uniform(4, 4).init(example(), 1), 2
    ),
}


@pytest.mark.parametrize("message", ERRORS)
def test_a_mistake_is_one_line(message):
    with mistake() as caught:
        ERRORS[message]()
    assert caught.match(message)


def test_a_rollout_of_another_shape_is_refused():
    buffer = replay.uniform(8, 4, frame_stack=4)
    rollout = Stream(2, 0).rollout(3)
    wrong = rollout._replace(obs=rollout.obs | {"stack": rollout.obs["stack"][..., :3]})
    with pytest.raises(ValueError, match=r"obs.stack is uint8 of shape \(3, 2, 66, 3\), expected uint8 of shape"):
        buffer.add(buffer.init(example(), 2), wrong)
