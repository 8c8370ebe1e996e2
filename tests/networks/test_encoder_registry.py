"""The registry of encoders: every name in it works in a config, and a new one needs nothing beside its entry."""

from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mistakes import mistake

from rlkit.agents import dqn
from rlkit.networks.encoders.combine import SETTINGS, Encoder, choose, field_names
from rlkit.networks.encoders.registry import IMAGES, VECTORS, ImageEncoder
from rlkit.networks.heads.q_network import QNetwork
from rlkit.spaces import Box, Dict, Discrete
from rlkit.types import ConfigError

PAGE = Path(__file__).parents[2] / "docs" / "your-own-network.md"
NAMES = [*IMAGES, *VECTORS]


def encoder(space, **settings):
    return Encoder(space, **dqn.Config(**settings).model_dump(include=set(SETTINGS)))


@pytest.mark.parametrize("name", NAMES)
def test_every_encoder_is_a_value_of_both_keys_and_in_the_docs(name):
    config = dqn.Config(encoder=name, encoders={"leaf": name})
    assert (config.encoder, config.encoders["leaf"]) == (name, name)
    assert name in str(dqn.Config.model_fields["encoder"].description)
    assert f"`{name}`" in PAGE.read_text()


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_every_encoder_computes_in_the_dtype_of_the_config_on_any_leading_axes(name):
    """Weights and features are float32; observations of a batch have the features that each has alone."""
    shape = (IMAGES[name].smallest + 3, IMAGES[name].smallest + 4, 2) if name in IMAGES else (5,)
    space = Dict({"leaf": Box(0, 1, shape), "other": Box(0, 1, (2,))})
    obs = jax.vmap(jax.vmap(space.sample))(jax.random.split(jax.random.key(0), (2, 3)))
    module, half = (
        encoder(space, encoders={"leaf": name}, hidden_sizes=(6,), compute_dtype=dtype)
        for dtype in ("float32", "bfloat16")
    )
    params = jax.jit(half.init)(jax.random.key(1), jax.tree.map(lambda x: x[0, 0], obs))
    assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype(jnp.float32)}
    features, rounded = (jax.jit(module.apply)(params, obs) for module in (module, half))
    assert features.shape == rounded.shape == (2, 3, 6)
    assert features.dtype == rounded.dtype == jnp.float32
    alone = jax.jit(module.apply)(params, jax.tree.map(lambda x: x[1, 2], obs))
    np.testing.assert_allclose(features[1, 2], alone, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(rounded, rounded.astype(jnp.bfloat16).astype(jnp.float32))
    assert (rounded != features).any()


@pytest.mark.parametrize("name", [name for name in IMAGES if name != "conv"])
def test_the_smallest_images_have_features(name):
    """Of one pixel less, nothing is left, or there are no such images."""
    side = IMAGES[name].smallest
    features, _ = jax.eval_shape(IMAGES[name].make(()).init_with_output, jax.random.key(0), jnp.ones((side, side, 1)))
    assert features.size > 0
    dqn.make(dqn.Config(encoder=name), Box(0, 255, (side, side, 1), np.uint8), Discrete(2))
    if side > 1:
        with mistake(f"encoder='{name}'", "use 'conv', 'impala'"):
            dqn.make(dqn.Config(encoder=name), Box(0, 255, (side - 1, side, 1), np.uint8), Discrete(2))


class Mean(nn.Module):
    """The mean of all numbers, in each of the hidden units."""

    hidden_sizes: tuple[int, ...]
    axes: tuple[int, ...]
    activation: str
    layer_norm: bool
    dtype: object

    @nn.compact
    def __call__(self, x):
        return jnp.broadcast_to(x.mean(self.axes)[..., None], (*x.shape[: x.ndim - len(self.axes)], 7))


def test_a_new_encoder_needs_one_entry(monkeypatch):
    def of(axes):
        return lambda hidden_sizes, **settings: Mean(hidden_sizes, axes, **settings)

    monkeypatch.setitem(IMAGES, "mean", ImageEncoder(of((-3, -2, -1)), "the mean", 5))
    monkeypatch.setitem(VECTORS, "mean_of_vector", of((-1,)))
    image, vector = Box(0, 1, (8, 8, 2)), Box(-1, 1, (4,))
    space, config = Dict({"a": image, "b": vector}), dqn.Config().model_copy
    assert choose(space, config(update={"encoder": "mean"})) == ["mean", "none"]
    assert choose(space, config(update={"encoder": "mean_of_vector"})) == ["mean_of_vector"] * 2  # flattened
    assert choose(space, config(update={"encoders": {"b": "mean_of_vector"}})) == ["conv", "mean_of_vector"]
    found = config(update={"encoder": "mean", "encoders": {"b": "mean_of_vector"}, "hidden_sizes": (3,)})
    module, obs = Encoder(space, **found.model_dump(include=set(SETTINGS))), space.sample(jax.random.key(0))
    params = module.init(jax.random.key(1), obs)["params"]
    assert jax.tree.map(jnp.shape, params) == {"MLP_0": {"Dense_0": {"kernel": (14, 3), "bias": (3,)}}}
    with pytest.raises(ConfigError, match=r"encoder='mean' shrinks images of \(4, 4, 2\)"):
        dqn.make(config(update={"encoder": "mean"}), Box(0, 1, (4, 4, 2)), Discrete(2))
    with pytest.raises(ConfigError, match="encoder='mean' needs observations with an image"):
        dqn.make(config(update={"encoder": "mean"}), vector, Discrete(2))


def test_a_new_field_of_a_head_is_a_setting():
    class Wider(QNetwork):
        value_width: int = 0

    assert set(field_names(Wider)) - set(field_names(QNetwork)) == {"value_width"}
    assert {"dueling", "noisy"} <= set(field_names(QNetwork))
    assert set(field_names(QNetwork)).isdisjoint({"make_encoder", "name", "parent"})
