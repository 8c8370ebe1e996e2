"""`random_shift`: images are moved in the samples that agents learn from, and in nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mistakes import mistake

from rlkit.agents import c51, crossq, dqn, sac, tqc
from rlkit.agents.common.batches import shift_images
from rlkit.spaces import Box, Dict, Discrete, Tuple
from rlkit.types import Sample, Transition

CAMERA = Box(0, 255, (8, 8, 2), np.uint8)
SMALL = {"hidden_sizes": (4,), "channels": (2,), "capacity": 16, "batch_size": 4, "learning_starts": 0}


def rollout(obs, action=0):
    """Two steps of four environments whose observations are `obs`, a function of a NumPy generator."""
    rng = np.random.default_rng(0)
    shape, no = (2, 4), np.zeros((2, 4), bool)
    action = np.broadcast_to(np.asarray(jnp.asarray(action)), shape + np.shape(action))
    return Transition(obs(rng), action, rng.normal(size=shape).astype(np.float32), no, no, obs(rng))


def noise(rng):
    return rng.integers(0, 256, (2, 4, 8, 8, 2), dtype=np.uint8)


def gray(rng):
    """Images of one gray each, which no shift changes."""
    return np.broadcast_to(rng.integers(0, 256, (2, 4, 1, 1, 1), dtype=np.uint8), (2, 4, 8, 8, 2))


def learned(module, space, data, **settings):
    """The parameters after one update, the agent, and the state before it."""
    agent = module.make(module.Config(**SMALL, replay_ratio=0.25, **settings), CAMERA, space)
    example = jax.tree.map(lambda x: x[0, 0], data)
    state = jax.jit(agent.init, static_argnums=3)(module.Hyper(), jax.random.key(0), example, 4)
    after, _ = jax.jit(agent.update)(state, data, jax.random.key(1))
    return after.params, agent, state


def equal(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


@pytest.mark.parametrize(("images", "same"), [(gray, True), (noise, False)])
def test_dqn_learns_something_else_only_from_images_that_a_shift_changes(images, same):
    """DQN's step draws nothing else, so that its parameters are equal where the shifted images are."""
    plain, _, start = learned(dqn, Discrete(3), rollout(images))
    shifted, _, _ = learned(dqn, Discrete(3), rollout(images), random_shift=3)
    assert not equal(plain, start.params)
    assert equal(plain, shifted) == same


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("module", "space", "action"),
    [
        (dqn, Discrete(3), 0),
        pytest.param(c51, Discrete(3), 0, marks=pytest.mark.slow),
        pytest.param(sac, Discrete(3), 0, marks=pytest.mark.slow),
        (sac, Box(-1, 1, (2,)), np.zeros(2, np.float32)),
        pytest.param(tqc, Box(-1, 1, (2,)), np.zeros(2, np.float32), marks=pytest.mark.slow),
        pytest.param(crossq, Box(-1, 1, (2,)), np.zeros(2, np.float32), marks=pytest.mark.slow),
    ],
)
def test_acting_is_of_the_images_as_they_are(module, space, action):
    data = rollout(noise, action)
    _, plain, state = learned(module, space, data)
    changed, shifting, shifting_state = learned(module, space, data, random_shift=3)
    assert equal(state.params, shifting_state.params)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(changed))
    for function in ("act", "policy"):
        actions = [
            jax.jit(getattr(agent, function))(agent.actor(state), agent.memory, data.obs[0, 0], jax.random.key(2))[1]
            for agent in (plain, shifting)
        ]
        np.testing.assert_array_equal(*actions)


def test_the_images_of_an_item_move_together_and_nothing_else_does():
    space = Dict(
        {
            "action_mask": Box(False, True, (8,), np.bool_),
            "cameras": Tuple((CAMERA, Box(0, 255, (3, 9, 9), np.uint8))),
            "joints": Box(-1, 1, (3,)),
        }
    )
    obs = jax.jit(jax.vmap(space.sample))(jax.random.split(jax.random.key(0), 5))
    still = jax.tree.map(lambda x: np.repeat(np.asarray(x)[:, None], 2, axis=1), obs)  # both steps of an item are alike
    flags = jnp.ones((5, 2), bool)
    item = Transition(still, flags, flags, flags, flags, still)
    sample = Sample(item, (), jnp.ones(5), flags)
    shifted = jax.jit(lambda sample, key: shift_images(sample, space, 2, "auto", key))(sample, jax.random.key(1)).item
    for name in ("action_mask", "joints"):
        np.testing.assert_array_equal(shifted.obs[name], still[name])
        np.testing.assert_array_equal(shifted.next_obs[name], still[name])
    for i, axes in enumerate(((2, 3), (3, 4))):
        before, now, after = (np.asarray(x["cameras"][i]) for x in (still, shifted.obs, shifted.next_obs))
        np.testing.assert_array_equal(now[:, 0], now[:, 1])
        assert not np.array_equal(now, after), "obs and next_obs have shifts of their own"
        padded = np.pad(before, [(0, 0)] * axes[0] + [(2, 2)] * 2 + [(0, 0)] * (before.ndim - axes[1] - 1), "edge")
        side = before.shape[axes[0]]
        places = set()
        for n in range(5):
            crops = {
                (y, x): padded[n].take(range(y, y + side), axes[0] - 1).take(range(x, x + side), axes[1] - 1)
                for y in range(5)
                for x in range(5)
            }
            (place,) = [place for place, crop in crops.items() if np.array_equal(crop, now[n])]
            places.add(place)
        assert len(places) > 1, "items have shifts of their own"


@pytest.mark.parametrize("module", [dqn, sac])
@pytest.mark.parametrize(
    ("space", "words"),
    [(Box(-1, 1, (3,)), "random_shift=8 needs observations with an image"), (CAMERA, "must be less than the 8 pixels")],
)
def test_observations_that_cannot_be_shifted_are_refused(module, space, words):
    with mistake(words):
        module.make(module.Config(random_shift=8), space, Discrete(2))
