"""Wrappers against plain loops, over random episodes of an environment whose observations identify their step."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from counter_env import Counter, Masked
from mistakes import mistake

from rlkit import envs
from rlkit.envs import wrappers
from rlkit.spaces import Box, Dict, Discrete
from rlkit.types import ConfigError

STEPS = 40


KEYS = jax.random.split(jax.random.key(7), STEPS)
ACTIONS = jax.random.randint(jax.random.key(8), (STEPS,), 0, 3)
STEP, RESET = jax.jit(lambda key, state, action: Counter().step(key, state, action, ())), jax.jit(Counter().reset)


def run(env, actions: Any = ACTIONS):
    """Play with fixed keys and actions: -> first obs; obs, final, reward, terminated, truncated [T, ...]."""

    @jax.jit
    def episodes(key):
        obs, state = env.reset(key, ())

        def step(state, inputs):
            obs, state, reward, terminated, truncated, info = env.step(inputs[0], state, inputs[1], ())
            return state, (obs, info["final_observation"], reward, terminated, truncated)

        return obs, jax.lax.scan(step, state, (KEYS, actions))[1]

    first, steps = episodes(jax.random.key(0))
    return jax.device_get((first, *steps))


def test_frame_stack():
    first, obs, final, *_, terminated, truncated = run(Counter())
    wrapped = run(wrappers.FrameStack(Counter(), 3))
    frames = [first] * 3
    np.testing.assert_array_equal(wrapped[0], np.concatenate(frames))
    for t in range(STEPS):
        frames = [*frames[1:], final[t]]
        np.testing.assert_array_equal(wrapped[2][t], np.concatenate(frames))
        if terminated[t] | truncated[t]:
            frames = [obs[t]] * 3
        np.testing.assert_array_equal(wrapped[1][t], np.concatenate(frames))
    assert np.sum(terminated) > 1
    assert np.sum(truncated) > 2


def test_frame_stack_of_images_and_masks():
    masked = wrappers.FrameStack(wrappers.Flatten(Masked()), 2)
    first, *_ = run(masked)
    assert first["action_mask"].shape == (3,)
    assert first["obs"].shape == (30,)
    space = masked.observation_space(())
    assert isinstance(space, Dict)
    assert {name: s.shape for name, s in space.spaces.items()} == {"action_mask": (3,), "obs": (30,)}

    class Image(Counter):
        def _obs(self, state):
            return jnp.broadcast_to(state.time.astype(jnp.float32), (5, 5, 2))

        def observation_space(self, params):
            return Box(0, 5, (5, 5, 2))

    wrapped = wrappers.FrameStack(Image(), 3)
    _, _, final, *_ = run(wrapped)
    assert wrapped.observation_space(()) == Box(0, 5, (5, 5, 6))
    np.testing.assert_array_equal(final[0, 0, 0], [0, 0, 0, 0, 1, 1])


@pytest.mark.thorough
def test_action_repeat_sums_within_one_episode():
    wrapped = run(wrappers.ActionRepeat(Counter(), 3))
    _, state = RESET(jax.random.key(0), ())
    for t in range(STEPS):
        total = 0.0
        for key in jax.random.split(KEYS[t], 3):
            obs, state, reward, terminated, truncated, info = STEP(key, state, ACTIONS[t])
            total += float(reward)
            if terminated | truncated:
                break
        np.testing.assert_array_equal(wrapped[1][t], obs)
        np.testing.assert_array_equal(wrapped[2][t], info["final_observation"])
        assert (wrapped[3][t], wrapped[4][t], wrapped[5][t]) == (total, terminated, truncated)
    assert wrapped[4].any()
    assert wrapped[5].any()
    assert not (wrapped[4] | wrapped[5]).all()


def test_time_limit_truncates_and_resets_by_itself():
    wrapped = run(wrappers.TimeLimit(Counter(), 3))
    _, state = RESET(jax.random.key(0), ())
    elapsed, cuts = 0, 0
    for t in range(STEPS):
        step_key, reset_key = jax.random.split(KEYS[t])
        obs, state, reward, terminated, truncated, info = STEP(step_key, state, ACTIONS[t])
        elapsed += 1
        if elapsed == 3 and not terminated | truncated:
            obs, state = RESET(reset_key, ())
            cuts += 1
        truncated |= elapsed == 3
        elapsed = 0 if terminated | truncated else elapsed
        np.testing.assert_array_equal(wrapped[1][t], obs)
        np.testing.assert_array_equal(wrapped[2][t], info["final_observation"])
        assert (wrapped[3][t], wrapped[4][t], wrapped[5][t]) == (reward, terminated, truncated)
    assert cuts > 2
    assert wrapped[4].any()
    assert (wrapped[1][wrapped[5], 1] == 0).all()  # a new episode's clock


def test_sticky_action():
    wrapped = run(wrappers.StickyAction(Counter(), 0.5))
    _, state = RESET(jax.random.key(0), ())
    last, sticks = None, 0
    for t in range(STEPS):
        stick_key, env_key = jax.random.split(KEYS[t])
        stick = last is not None and bool(jax.random.bernoulli(stick_key, 0.5))
        action = last if stick else ACTIONS[t]
        sticks += stick
        obs, state, reward, terminated, truncated, info = STEP(env_key, state, action)
        last = None if terminated | truncated else action
        np.testing.assert_array_equal(wrapped[2][t], info["final_observation"])
        np.testing.assert_array_equal(wrapped[1][t], obs)
        assert wrapped[3][t] == reward
    assert 5 < sticks < 30


class Pixels(Counter):
    """Images [C, H, W] whose channel i is 10 times the time, plus i."""

    shape = (3, 16, 18)

    def _obs(self, state):
        channels = 10 * state.time + jnp.arange(self.shape[0])
        return jnp.broadcast_to(channels.astype(jnp.uint8)[:, None, None], self.shape)

    def observation_space(self, params):
        return Box(0, 100, self.shape, np.uint8)


def test_images_with_channels_first_are_stacked_along_their_channels():
    wrapped = envs.wrap(Pixels(), ["frame_stack:4"])
    assert wrapped.observation_space(()) == Box(0, 100, (12, 16, 18), np.uint8)
    first, _, final, *_ = run(wrapped)
    np.testing.assert_array_equal(first[:, 0, 0], [0, 1, 2] * 4)
    np.testing.assert_array_equal(final[0, :, 0, 0], [*[0, 1, 2] * 3, 10, 11, 12])


@pytest.mark.parametrize(("shape", "specs"), [((3, 16, 18), "frame_stack:6"), ((7, 9, 3), "frame_stack:4")])
def test_stacks_whose_channels_are_found_elsewhere_are_refused(shape, specs):
    """Of (18, 16, 18) the last axis would be the channels; of (7, 9, 12) the first."""
    env = Pixels()
    env.shape = shape
    with pytest.raises(ConfigError, match=r"^wrapper frame_stack needs .*set image_axes=.*$"):
        envs.wrap(env, [specs]).observation_space(())
    place = "first" if shape[0] == 3 else "last"
    stacked = envs.wrap(env, [f"{specs},{place}"]).observation_space(())
    assert stacked.shape == ((18, 16, 18) if shape[0] == 3 else (7, 9, 12))


def test_flatten_keeps_what_critics_alone_get():
    class Critics(Counter):
        def _obs(self, state):
            leaves = {"x": jnp.ones((2, 2)), "privileged": {"a": state.time[None], "b": jnp.int32(1)}}
            return {**leaves, "action_mask": jnp.ones(3, bool)}

        def observation_space(self, params):
            leaves = {"x": Box(0, 1, (2, 2)), "privileged": Dict({"a": Box(0, 9, (1,), np.int32), "b": Discrete(2)})}
            return Dict({**leaves, "action_mask": Box(False, True, (3,), np.bool_)})

    wrapped = envs.wrap(Critics(), ["flatten", "frame_stack:2", "previous_action_reward"])
    first, _, final, *_ = run(wrapped)
    assert {name: x.shape for name, x in first.items()} == {
        name: space.shape for name, space in wrapped.observation_space(()).spaces.items()
    }
    np.testing.assert_array_equal(first["obs"], np.ones(8))
    np.testing.assert_array_equal(final["privileged"][0], [0, 0, 1, 1, 0, 1])


def test_flatten():
    env = Masked()
    first, obs, final, *_ = run(env)
    wrapped = wrappers.Flatten(env)
    got = run(wrapped)

    def flat(obs):
        vector, digits = obs["pair"]
        return np.concatenate([np.eye(6)[obs["count"]], vector, *np.eye(3)[digits]])

    for raw, flattened in ((first, got[0]), *(((x), y) for x, y in zip(rows(obs), rows(got[1]), strict=True))):
        np.testing.assert_array_equal(flattened["obs"], flat(raw))
        np.testing.assert_array_equal(flattened["action_mask"], raw["action_mask"])
    np.testing.assert_array_equal([x["obs"] for x in rows(got[2])], [flat(x) for x in rows(final)])
    space = wrapped.observation_space(())
    assert isinstance(space, Dict)
    assert space.spaces["obs"] == Box(np.zeros(15), np.array([1] * 6 + [1, 5, 2] + [1] * 6))
    assert run(wrappers.Flatten(Counter()))[1].shape == (STEPS, 3)


def rows(tree):
    return [jax.tree.map(lambda x, t=t: x[t], tree) for t in range(STEPS)]


@pytest.mark.parametrize(
    ("name", "positions"),
    [("CartPole-v1", [0, 2]), ("MountainCar-v0", [0]), ("Pendulum-v1", [0, 1]), ("Acrobot-v1", [0, 1, 2, 3])],
)
def test_hide_velocity(name, positions):
    env, params = envs.make(name)
    wrapped = envs.wrap(env, ["hide_velocity"])
    obs, _ = env.reset(jax.random.key(0), params)
    hidden, _ = wrapped.reset(jax.random.key(0), params)
    np.testing.assert_array_equal(hidden, obs[np.array(positions)])
    assert wrapped.observation_space(params) == Box(*(b[positions] for b in bounds(env.observation_space(params))))


def bounds(space):
    return space.low, space.high


def test_clip_action():
    env, params = envs.make("Pendulum-v1")
    wrapped = wrappers.ClipAction(env)
    assert wrapped.action_space(params) == Box(-np.inf, np.inf, (1,))
    _, state = env.reset(jax.random.key(0), params)
    # The state keeps the torque that was applied; the environment clips by itself, so a tighter one shows who did it.
    weak = params.replace(max_torque=0.5)
    state = wrapped.step(jax.random.key(1), state, jnp.array([9.0]), weak)[1]
    assert state.last_u == 0.5
    received = []

    class Spy(Counter):
        def action_space(self, params):
            return Box([-1, -2], [1, 2])

        def step(self, key, state, action, params):
            received.append(np.asarray(action))
            return super().step(key, state, jnp.int32(0), params)

    spy = wrappers.ClipAction(Spy())
    spy.step(jax.random.key(1), spy.reset(jax.random.key(0), ())[1], jnp.array([-5.0, 1.5]), ())
    np.testing.assert_array_equal(received[0], [-1, 1.5])


ALL = ["hide_velocity", "frame_stack:4", "flatten", "action_repeat:2", "sticky_action:0.25", "time_limit:6"]


def test_all_together_keep_the_contract_and_never_reuse_a_key():
    env, params = envs.make("CartPole-v1", max_steps_in_episode=9)
    wrapped = envs.wrap(env, ALL)
    envs.check(wrapped, params, jax.random.key(0))
    assert wrapped.observation_space(params).shape == (8,)
    with jax.debug_key_reuse(True):
        _, state = jax.eval_shape(wrapped.reset, jax.random.key(0), params)
        jax.eval_shape(wrapped.step, jax.random.key(0), state, jnp.int32(0), params)
        _, state = jax.jit(wrapped.reset)(jax.random.key(0), params)
        step = jax.jit(wrapped.step)
        for t in range(3):
            _, state, *_ = step(jax.random.key(t), state, jnp.int32(0), params)
    assert step._cache_size() == 1


def test_order_is_from_the_inside_out():
    wrapped = envs.wrap(Counter(), ["action_repeat:2", "time_limit:5"])
    assert wrapped == wrappers.TimeLimit(wrappers.ActionRepeat(wrapped.env.env, 2), 5)
    assert wrapped.name == "Counter"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("framestack:4", "wrapper='framestack:4' is not known; did you mean 'frame_stack'"),
        ("frame_stack", "wrapper='frame_stack' needs an integer after the colon, such as frame_stack:4"),
        ("frame_stack:two", "needs an integer"),
        ("frame_stack:0", "wrapper frame_stack: n=0 must be at least 1"),
        ("frame_stack:999999999", "wrapper frame_stack: n=999999999 must be at most 1024; try 1024"),
        ("action_repeat:999999999", "wrapper action_repeat: n=999999999 must be at most 65536"),
        ("time_limit:2147483648", "wrapper time_limit: n=2147483648 must be at most 2147483647"),
        ("time_limit:-1", "must be at least 1"),
        ("action_repeat:0", "must be at least 1"),
        ("sticky_action:1.5", "p=1.5 must be a probability"),
        ("sticky_action:nan", "p=nan must be a probability"),
        ("scale_reward:inf", "factor=inf must be a finite number"),
        ("clip_reward:1", "needs two numbers, low,high, after the colon, such as clip_reward:-1,1"),
        ("clip_reward:1,-1", "low=1.0 and high=-1.0 must be finite numbers in this order"),
        ("flatten:2", "wrapper='flatten:2' takes no argument; write flatten"),
        ("hide_velocity", "does not support env='Counter'"),
    ],
)
def test_mistakes_are_named(spec, message):
    with mistake(message):
        envs.wrap(Counter(), [spec])


def test_unsuitable_environments_are_refused():
    env, params = envs.make("CartPole-v1")
    with pytest.raises(ConfigError, match="needs continuous actions"):
        envs.wrap(env, ["clip_action"]).action_space(params)
    with pytest.raises(ConfigError, match="put it first"):
        envs.wrap(env, ["frame_stack:2", "hide_velocity"]).observation_space(params)
    lake, params = envs.make("FrozenLake-misc")
    with pytest.raises(ConfigError, match="put flatten before it"):
        envs.wrap(lake, ["frame_stack:2"]).observation_space(params)
