"""Images in observations: beside other numbers, several at once, and with their channels first."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlkit.agents import dqn, iql, ppo
from rlkit.networks.encoders.combine import Encoder, choose
from rlkit.networks.features import image, image_shape, is_image, leaves, to_normalize
from rlkit.spaces import Box, Dict, Discrete
from rlkit.types import ConfigError, Transition

CAMERA = Box(0, 255, (36, 36, 3), np.uint8)
BOTH = Dict({"camera": CAMERA, "joints": Box(-1, 1, (5,)), "action_mask": Box(0, 1, (2,), np.int8)})
SETTINGS = {"hidden_sizes": (32,), "channels": (4,), "activation": "relu", "layer_norm": False}


def encoder(space, kind="auto", **settings):
    return Encoder(space, kind, compute_dtype="float32", **SETTINGS | settings)


def sizes(space, kind="auto", **settings):
    """The shapes of an encoder's weights."""
    obs = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), space.sample(jax.random.key(0)))
    params = jax.eval_shape(encoder(space, kind, **settings).init, jax.random.key(0), obs)
    return sorted(x.shape for x in jax.tree.leaves(params) if x.ndim > 1)


def test_a_camera_beside_a_vector_is_convolved():
    """The Nature CNN on 36 pixels a side leaves 1 x 1 x 64, then a dense layer beside the five joints."""
    expected = [(8, 8, 3, 32), (4, 4, 32, 64), (3, 3, 64, 64), (64, 32), (32 + 5, 32)]
    assert sizes(BOTH) == sorted(expected)
    assert sizes(BOTH, "mlp") == [(36 * 36 * 3 + 5, 32)]
    assert (3, 3, 3, 4) in sizes(BOTH, "conv")


def test_two_images_have_convolutions_of_their_own():
    space = Dict({"left": Box(0, 1, (8, 8, 1)), "right": Box(0, 1, (8, 8, 2))})
    assert [shape for shape in sizes(space) if len(shape) == 4] == [(3, 3, 1, 4), (3, 3, 2, 4)]


@pytest.mark.parametrize(
    ("shape", "axes", "expected"),
    [
        ((4, 84, 84), "auto", (84, 84, 4)),
        ((84, 84, 4), "auto", (84, 84, 4)),
        ((10, 10, 10), "auto", (10, 10, 10)),  # MinAtar's Seaquest
        ((10, 64, 64), "last", (10, 64, 64)),
        ((20, 20, 20), "first", (20, 20, 20)),
        ((3, 10, 12), "auto", (10, 12, 3)),
    ],
)
def test_the_place_of_the_channels(shape, axes, expected):
    space = Box(0, 255, shape, np.uint8)
    assert image_shape(space, axes) == expected
    pixels = jnp.arange(np.prod(shape), dtype=jnp.uint8).reshape(1, *shape)
    (leaf,) = leaves(space, pixels)
    assert image(leaf, axes).shape == (1, *expected)
    moved = axes == "first" or shape != expected
    np.testing.assert_allclose(image(leaf, axes), (np.moveaxis(pixels, 1, -1) if moved else pixels) / 255, rtol=1e-6)


def test_small_boards_beside_numbers_are_no_images():
    assert not is_image(Box(0, 1, (3, 3, 2)))
    assert is_image(Box(0, 255, (3, 3, 2), np.uint8))
    assert choose(Dict({"board": Box(0, 1, (3, 3, 2)), "turn": Discrete(2)}), dqn.Config()) == ["none", "none"]
    assert choose(Box(0, 1, (3, 3, 2)), dqn.Config()) == ["conv"]  # alone, any array of three axes is one


def test_images_are_not_normalized():
    space = Dict({"depth": Box(0, 10, (8, 8, 1)), "joints": Box(-1, 1, (5,))})
    assert to_normalize(space) == ["['joints']"]


def test_the_place_of_the_channels_decides_what_is_an_image_to_normalize():
    space = Box(0, 1, (4, 32, 32))
    assert to_normalize(space) == to_normalize(space, "first") == []
    assert to_normalize(space, "last") == [""]  # 4 pixels high
    zero, obs = jnp.zeros(()), jnp.zeros(space.shape)
    agent = dqn.make(dqn.Config(normalize_obs=True, image_axes="last"), space, Discrete(2))
    example = Transition(obs, jnp.int32(0), zero, zero > 0, zero > 0, obs)
    state = jax.eval_shape(partial(agent.init, num_envs=2), dqn.Hyper(), jax.random.key(0), example)
    assert state.normalizer.obs.mean[""].shape == space.shape


@pytest.mark.parametrize("space", [CAMERA, Discrete(3), Dict({"camera": CAMERA, "mode": Discrete(2)})])
def test_normalization_of_nothing_is_refused(space):
    with pytest.raises(ConfigError, match=r"^normalize_obs=True needs .* use False.*$"):
        ppo.make(ppo.Config(normalize_obs=True), space, Discrete(2))
    iql.make(iql.Config(), space, Box(-1, 1, (1,)))  # by default true


def test_what_does_not_fit_is_one_line():
    with pytest.raises(ConfigError, match=r"encoder='nature' shrinks images of \(10, 10, 4\)"):
        dqn.make(dqn.Config(encoder="nature"), Box(0, 255, (10, 10, 4), np.uint8), Discrete(2))
    with pytest.raises(ConfigError, match="encoder='conv' needs observations with an image"):
        ppo.make(ppo.Config(encoder="conv"), Box(-1, 1, (5,)), Discrete(2))
