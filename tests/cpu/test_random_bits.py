"""rlkit._cpu.straight_line_keys: the same bits as JAX's own generator, and never a key of it outside."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlkit._cpu import straight_line_keys

pytestmark = pytest.mark.thorough


def data(x):
    return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x


DRAWS = {
    "split": lambda key: jax.random.split(key, (3, 2)),
    "split twice": lambda key: jax.random.split(jax.random.split(key)[1], 5),
    "fold_in": lambda key: jax.random.fold_in(key, jnp.int32(7)),
    "fold_in a negative number": lambda key: jax.random.fold_in(key, jnp.int32(-1)),
    "8 bits": lambda key: jax.random.bits(key, (5, 3), jnp.uint8),
    "16 bits": lambda key: jax.random.bits(key, (7,), jnp.uint16),
    "32 bits": lambda key: jax.random.bits(key, (2, 65)),
    "one word": jax.random.bits,
    "uniform": lambda key: jax.random.uniform(key, (9,)),
    "normal": lambda key: jax.random.normal(key, (4, 4)),
    "randint": lambda key: jax.random.randint(key, (6,), -3, 1000),
    "categorical": lambda key: jax.random.categorical(key, jnp.arange(4.0)),
    "permutation": lambda key: jax.random.permutation(key, 20),
}


FEW = ("split twice", "fold_in a negative number", "8 bits", "32 bits", "permutation")


@pytest.mark.parametrize("name", [pytest.param(x, marks=() if x in FEW else pytest.mark.slow) for x in DRAWS])
def test_every_draw_has_the_bits_of_jax(name):
    draw = DRAWS[name]
    expected = data(draw(jax.random.key(3)))
    with jax.debug_key_reuse(True):
        straight = straight_line_keys(lambda key: data(draw(key)))
        np.testing.assert_array_equal(straight(jax.random.key(3)), expected)
        np.testing.assert_array_equal(jax.jit(straight)(jax.random.key(3)), expected)
    keys = jax.random.split(jax.random.key(4), 3)
    expected = jax.jit(jax.vmap(lambda key: data(draw(key))))(keys)
    np.testing.assert_array_equal(jax.vmap(straight)(keys), expected)
    np.testing.assert_array_equal(straight_line_keys(lambda keys: data(jax.vmap(draw)(keys)))(keys), expected)


def test_64_bits_are_those_of_jax():
    with jax.enable_x64(True):
        key = jax.random.key(3)
        bits = straight_line_keys(lambda key: jax.random.bits(key, (5,), jnp.uint64))(key)
        np.testing.assert_array_equal(bits, jax.random.bits(key, (5,), jnp.uint64))


def test_straight_line_draws_compile_without_a_loop():
    def count(convert):
        draw = jax.jit(convert(lambda key: jax.random.bits(key, (64,))))
        return draw.lower(jax.random.key(0)).as_text("hlo").count(" while(")

    assert (count(lambda fn: fn), count(straight_line_keys)) == (1, 0)


def test_keys_of_a_tree_come_back_as_they_were():
    tree = {"key": jax.random.key(1), "many": jax.random.split(jax.random.key(2), (2, 3)), "x": jnp.ones(2), "y": None}
    inside = []

    @straight_line_keys
    def identity(tree, name, *, again):
        inside.extend([tree, again])
        assert name == "name"
        return again, tree

    back = identity(tree, "name", again=tree)
    for outside, within in zip(back, inside, strict=True):
        assert {within["key"].dtype, within["many"].dtype}.isdisjoint({tree["key"].dtype})
        assert jax.tree.map(lambda x: (x.dtype, x.shape), outside) == jax.tree.map(lambda x: (x.dtype, x.shape), tree)
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(data(a), data(b)), outside, tree)


def test_one_function_inside_of_another_gives_the_keys_of_the_outer_one():
    inner = straight_line_keys(lambda key: jax.random.split(key)[0])

    @straight_line_keys
    def outer(key):
        key = jax.lax.fori_loop(0, 3, lambda _, key: inner(key), key)
        assert inner(key).dtype == key.dtype != jax.random.key(0).dtype
        return key

    assert outer(jax.random.key(0)).dtype == jax.random.key(0).dtype


def test_results_without_keys_among_the_arguments_stay():
    key = jax.random.key(0)
    assert straight_line_keys(lambda: key)() is key


def test_arguments_and_results_without_keys_are_the_same_objects():
    metrics = {"b": jnp.ones(()), "a": jnp.ones(())}

    @straight_line_keys
    def step(key, argument):
        assert argument is metrics
        return key, argument

    assert list(step(jax.random.key(0), metrics)[1]) == ["b", "a"]  # in their order


def test_keys_of_other_generators_stay():
    def dtype_inside(key):
        dtypes = []
        straight_line_keys(lambda key: dtypes.append(key.dtype))(key)
        return dtypes[0]

    key = jax.random.key(0, impl="rbg")
    assert dtype_inside(key) == key.dtype
    with jax.threefry_partitionable(False):  # jax then draws other bits
        assert dtype_inside(jax.random.key(0)) == jax.random.key(0).dtype


def test_nothing_needs_to_be_compiled():
    draw = straight_line_keys(lambda key: jax.random.uniform(key, (3,)))
    expected = jax.jit(draw)(jax.random.key(0))
    with jax.disable_jit():
        np.testing.assert_array_equal(draw(jax.random.key(0)), expected)


def test_each_device_draws_from_keys_of_its_own():
    """On two devices, of keys shared out to them: nothing is sent."""
    program = """
import jax, jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from rlkit._cpu import straight_line_keys
expected = jax.vmap(jax.random.uniform)(jax.random.split(jax.random.key(0), 8))
for kind in (AxisType.Auto, AxisType.Explicit):
    mesh = jax.make_mesh((2,), ("x",), axis_types=(kind,))
    keys = jax.device_put(jax.random.split(jax.random.key(0), 8), NamedSharding(mesh, PartitionSpec("x")))
    draw = jax.jit(jax.vmap(straight_line_keys(jax.random.uniform)))
    assert (draw(keys) == expected).all()
    text = draw.lower(keys).compile().as_text()
    assert not any(name in text for name in ("all-reduce", "all-gather", "collective")), text
"""
    env = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    subprocess.run([sys.executable, "-c", program], env=env, check=True, timeout=120)


def test_random_numbers_that_many_arrays_are_made_of_are_computed_once():
    def draw(key):
        x = jax.vmap(lambda key: jax.random.uniform(key, (4,)))(jax.random.split(key, 64))
        return x, *jnp.moveaxis(x, -1, 0)  # as a reset makes an observation and a state

    text = jax.jit(straight_line_keys(draw)).lower(jax.random.key(0)).compile().as_text()
    assert (
        text.count(" xor(") <= 2 * 25
    )  # 20 rounds each of the split and of the draw, and a few; four times as many else
