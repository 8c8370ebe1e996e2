"""Probes give the returns that their docstrings state, measured by playing the best policy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from suite_stand_ins import play

from rlkit import envs
from rlkit.envs.probes import PROBES

GAMMA, EPISODES = 0.9, 64


def returns(name, act, **kwargs):
    """Play whole episodes by `act(obs) -> action`: -> first obs, discounted returns, and how they ended."""
    env, params = envs.make(name, **kwargs)
    steps = max(6, kwargs.get("length", 0))  # at least a whole episode
    episodes = jax.jit(jax.vmap(lambda key: play(env, params, key, steps, lambda obs, _: act(obs))))
    first, played = jax.device_get(episodes(jax.random.split(jax.random.key(0), EPISODES)))
    *_, reward, terminated, truncated, final = played
    ends = np.cumsum(terminated | truncated, axis=1)
    of_first = np.pad(ends, ((0, 0), (1, 0)))[:, :-1] == 0  # steps of the first episode, [E, T]
    returns = (reward * of_first * GAMMA ** np.arange(steps)).sum(1)
    return first, returns, (terminated & of_first).sum(1), (truncated & of_first).sum(1), final


def by_sign(obs):
    return (obs[0] > 0).astype(jnp.int32)


CASES = {
    "Probe-ConstantValue": (lambda obs: jnp.int32(0), lambda obs: 1.0),
    "Probe-ObservationValue": (lambda obs: jnp.int32(0), lambda obs: obs[0]),
    "Probe-DelayedReward": (lambda obs: jnp.int32(0), lambda obs: GAMMA),
    "Probe-ActionReward": (lambda obs: jnp.int32(1), lambda obs: 1.0),
    "Probe-ObservationAction": (by_sign, lambda obs: 1.0),
    "Probe-Continuous": (lambda obs: obs, lambda obs: 1.0),
    "Probe-MaskedAction": (lambda obs: jnp.where(obs["action_mask"][2], 2, 1), lambda obs: 1.0),
    "Probe-MultiDiscreteAction": (lambda obs: jnp.stack([by_sign(obs), jnp.int32(2)]), lambda obs: 1.0),
    "Probe-HybridAction": (lambda obs: {"amount": obs, "side": by_sign(obs)}, lambda obs: 1.0),
}


ALIKE = ("Probe-ConstantValue", "Probe-ActionReward", "Probe-ObservationAction", "Probe-MultiDiscreteAction")


def some(name, *values):
    return pytest.param(name, *values, marks=pytest.mark.slow if name in ALIKE else ())


@pytest.mark.parametrize("name", [some(name) for name in CASES])
def test_the_best_policy_gets_the_stated_value(name):
    act, value = CASES[name]
    first, got, terminated, truncated, _ = returns(name, act)
    expected = [value(jax.tree.map(lambda x, i=i: x[i], first)) for i in range(EPISODES)]
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    assert (terminated == 1).all()
    assert (truncated == 0).all()


@pytest.mark.parametrize(
    ("name", "act", "least"),
    [
        some("Probe-ActionReward", lambda obs: jnp.int32(0), -1),
        some("Probe-ObservationAction", lambda obs: 1 - by_sign(obs), -1),
        ("Probe-Continuous", lambda obs: obs + 2, -3),
        ("Probe-MaskedAction", lambda obs: jnp.argmin(obs["action_mask"]), -10),
        some("Probe-MultiDiscreteAction", lambda obs: jnp.stack([1 - by_sign(obs), jnp.int32(1)]), 0),
        ("Probe-HybridAction", lambda obs: {"amount": obs + 2, "side": 1 - by_sign(obs)}, -1.5),
    ],
)
def test_a_wrong_policy_gets_less(name, act, least):
    np.testing.assert_allclose(returns(name, act)[1], least, rtol=1e-5)


def test_truncation_probe_distinguishes_the_two_ends():
    length = 4
    first, got, terminated, truncated, final = returns("Probe-Truncation", lambda obs: jnp.int32(0), length=length)
    kind = first[:, 0]
    assert set(kind) == {-1.0, 1.0}
    np.testing.assert_array_equal(terminated, kind > 0)
    np.testing.assert_array_equal(truncated, kind < 0)
    expected = (1 - GAMMA**length) / (1 - GAMMA)
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    # Bootstrapping from the final observation, which is the same one, gives the fixed point 1 / (1 - gamma).
    np.testing.assert_array_equal(final[kind < 0][:, length - 1], [[-1, 0]] * (kind < 0).sum())
    value = 1 / (1 - GAMMA)
    np.testing.assert_allclose(got[kind < 0] + GAMMA**length * value, value, rtol=1e-6)


def test_memory_probe_returns_zero_on_average_without_memory():
    first, got, *_, final = returns("Probe-Memory", by_sign, length=3)
    np.testing.assert_allclose(np.abs(got), GAMMA**2, rtol=1e-6)
    assert set(first[:, 0]) == {-1.0, 1.0}
    np.testing.assert_allclose(got[first[:, 0] == -1].mean(), -got[first[:, 0] == 1].mean())
    # The cue is hidden from the first step to the last one.
    np.testing.assert_array_equal(final[:, 0], [[0, 0]] * EPISODES)
    np.testing.assert_array_equal(final[:, 1], [[0, 1]] * EPISODES)


def test_every_action_is_masked_in_some_episode_and_never_two():
    first, *_ = returns("Probe-MaskedAction", lambda obs: jnp.int32(0))
    masks = first["action_mask"]
    assert (masks.sum(1) == 2).all()
    assert (~masks).any(0).all()


def test_bit_flip_ends_at_its_goal():
    """The best policy flips a wrong bit at a time; another one flips the first bit all the time."""
    best = lambda obs: jnp.argmax(obs["achieved_goal"] != obs["desired_goal"])  # noqa: E731
    first, got, terminated, truncated, _ = returns("Probe-BitFlip", best, length=5)
    distance = (first["achieved_goal"] != first["desired_goal"]).sum(1)
    distance = np.where(distance == 0, 2, distance)  # there and back
    np.testing.assert_allclose(got, -(1 - GAMMA ** (distance - 1)) / (1 - GAMMA), rtol=1e-5, atol=1e-7)
    assert set(distance) == {1, 2, 3, 4, 5}
    assert (terminated == 1).all()
    assert (truncated == 0).all()
    first, got, terminated, truncated, final = returns("Probe-BitFlip", lambda obs: jnp.int32(0), length=5)
    lost = (first["achieved_goal"] != first["desired_goal"])[:, 1:].any(1)
    np.testing.assert_array_equal(truncated, lost)
    np.testing.assert_array_equal(terminated, ~lost)
    np.testing.assert_allclose(got[lost], -(1 - GAMMA**5) / (1 - GAMMA), rtol=1e-5)
    np.testing.assert_array_equal(
        final["achieved_goal"][lost, 4], first["achieved_goal"][lost] * np.array([-1, 1, 1, 1, 1])
    )
    np.testing.assert_array_equal(final["desired_goal"][lost, 4], first["desired_goal"][lost])


def test_a_point_that_moves_straight_reaches_its_goal_and_stays():
    def straight(obs):
        return jnp.clip(5 * (obs["desired_goal"] - obs["achieved_goal"]), -1, 1)

    first, _, terminated, truncated, final = returns("Probe-PointGoal", straight, length=12)
    np.testing.assert_allclose(final["achieved_goal"][:, -1], first["desired_goal"], atol=1e-6)
    assert (truncated == 1).all()
    assert (terminated == 0).all()


@pytest.mark.parametrize(
    "name",
    [
        *("Probe-MaskedAction", "Probe-PointGoal", "Probe-Nim"),
        *(pytest.param(f"Probe-{x}", marks=pytest.mark.slow) for x in ("DelayedReward", "Truncation", "BitFlip")),
    ],
)
def test_probes_keep_the_contract(name):
    envs.check(*envs.make(name), jax.random.key(0))


def test_every_probe_is_listed():
    assert set(PROBES) <= set(envs.names())
    others = ["Truncation", "Memory", "BitFlip", "PointGoal", "Players", "Nim", "RepeatFirst", "RepeatPrevious"]
    assert set(PROBES) == set(CASES) | {f"Probe-{name}" for name in (*others, "Chain")}
