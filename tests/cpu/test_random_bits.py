"""rlkit._cpu.random_bits: the same bits as JAX's own generator, and never a key of it outside."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlkit._cpu.random_bits import plain, straight


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


@pytest.mark.parametrize("name", DRAWS)
def test_every_draw_has_the_bits_of_jax(name):
    draw = DRAWS[name]
    expected = data(draw(jax.random.key(3)))
    with jax.debug_key_reuse(True):
        np.testing.assert_array_equal(data(draw(straight(jax.random.key(3)))), expected)
        np.testing.assert_array_equal(jax.jit(lambda key: data(draw(straight(key))))(jax.random.key(3)), expected)
    keys = jax.random.split(jax.random.key(4), 3)
    expected = jax.jit(jax.vmap(lambda key: data(draw(key))))(keys)
    np.testing.assert_array_equal(data(jax.vmap(draw)(straight(keys))), expected)


def test_64_bits_are_those_of_jax():
    with jax.enable_x64(True):
        key = jax.random.key(3)
        bits = jax.random.bits(straight(key), (5,), jnp.uint64)
        np.testing.assert_array_equal(bits, jax.random.bits(key, (5,), jnp.uint64))


def test_straight_draws_compile_without_a_loop():
    def count(convert):
        draw = jax.jit(lambda key: jax.random.bits(convert(key), (64,)))
        return draw.lower(jax.random.key(0)).as_text("hlo").count(" while(")

    assert (count(plain), count(straight)) == (1, 0)


def test_keys_of_a_tree_come_back_as_they_were():
    tree = {"key": jax.random.key(1), "many": jax.random.split(jax.random.key(2), (2, 3)), "x": jnp.ones(2)}
    there = straight(tree)
    assert there["key"].dtype != tree["key"].dtype
    back = plain(there)
    assert jax.tree.map(lambda x: (x.dtype, x.shape), back) == jax.tree.map(lambda x: (x.dtype, x.shape), tree)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(data(a), data(b)), back, tree)


def test_keys_of_other_generators_stay():
    key = jax.random.key(0, impl="rbg")
    assert straight(key).dtype == plain(key).dtype == key.dtype
    with jax.threefry_partitionable(False):  # jax then draws other bits
        assert straight(jax.random.key(0)).dtype == jax.random.key(0).dtype
