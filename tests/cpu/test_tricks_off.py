"""RLKIT_CPU_TRICKS=0: the plain computation, with the same results."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlkit import _cpu, envs, training
from rlkit.agents import dqn, ppo

pytestmark = pytest.mark.thorough
FLOATS = jax.random.normal(jax.random.key(0), (384, 4))


def with_gradients(fn):
    """The value of fn(x [384, 4]) and its gradient along a fixed direction."""

    def run(x):
        value, pull = jax.vjp(fn, x)
        return value, pull(jnp.cos(value))

    return lambda: jax.jit(run)(FLOATS)


KERNEL, BIAS = jnp.arange(12.0).reshape(4, 3) / 12, jnp.ones(3)
ACTION = jnp.arange(384, dtype=jnp.int32) % 5  # 4 does not exist
FUNCTIONS = {
    "affine": with_gradients(lambda x: _cpu.affine(x, KERNEL, BIAS)),
    "affine of the kernel": with_gradients(lambda x: _cpu.affine(jnp.ones((256, 384)), x, BIAS[:1].repeat(4))),
    "convolution": with_gradients(
        lambda x: _cpu.convolution(x.reshape(6, 8, 8, 4), jnp.sin(jnp.arange(96.0)).reshape(2, 3, 4, 4), 2, "SAME")
    ),
    "convolution of the kernel": with_gradients(
        lambda x: _cpu.convolution(jnp.cos(jnp.arange(900.0)).reshape(3, 5, 5, 12) / 10, x.reshape(4, 4, 12, 8), 1, 1)
    ),
    "softmax_log_prob": with_gradients(lambda x: _cpu.softmax_log_prob(x, ACTION)),
    "softmax_log_prob of int8": with_gradients(lambda x: _cpu.softmax_log_prob(x, ACTION.astype(jnp.int8))),
    "softmax_log_prob of many rows": with_gradients(
        lambda x: _cpu.softmax_log_prob(x.repeat(4, axis=0), ACTION.repeat(4))
    ),
    "softmax_entropy": with_gradients(_cpu.softmax_entropy),
    "keep_layout": with_gradients(lambda x: _cpu.keep_layout(x.T)),
    "materialize": with_gradients(_cpu.materialize),
    "sequence": with_gradients(lambda x: jnp.stack(_cpu.sequence(jnp.add, [x, x + 1, x + 2], [x, x, 2 * x]))),
}


def test_plain_switches_them_off_inside_of_its_block():
    def program():
        return str(jax.make_jaxpr(lambda x: _cpu.softmax_entropy(_cpu.keep_layout(x)))(FLOATS))

    with_tricks = program()
    with _cpu.plain():
        inside = program()
    assert "keep_layout" in with_tricks
    assert "keep_layout" not in inside
    assert program() == with_tricks


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_the_same(name, without_tricks):
    plain = without_tricks(FUNCTIONS[name])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), FUNCTIONS[name](), plain)


def test_random_bits_are_equal(without_tricks):
    @_cpu.straight_line_keys
    def draw(key):
        first, second = jax.random.split(key)
        return jax.random.bits(first, (7,)), jax.random.normal(jax.random.fold_in(second, 3), (5,)), second

    def run():
        bits, normal, key = jax.jit(draw)(jax.random.key(3))
        return bits, normal, jax.random.key_data(key)

    jax.tree.map(np.testing.assert_array_equal, run(), without_tricks(run))


AGENTS = {
    "ppo": (ppo, {"hidden_sizes": (16, 16), "num_minibatches": 2}, 32),
    "dqn": (dqn, {"hidden_sizes": (16,), "replay": "prioritized", "capacity": 256, "batch_size": 8,
                  "learning_starts": 16, "replay_ratio": 0.25}, 8),
}  # fmt: skip


def pair(name):
    """The training functions of a small agent, and the Hyper of its module."""
    module, settings, num_steps = AGENTS[name]
    env, params = envs.make("CartPole-v1")
    agent = module.make(module.Config(**settings), env.observation_space(params), env.action_space(params))
    return training.make(agent, env, params, num_envs=8, num_steps=num_steps), module.Hyper()


def train(name):
    """The parameters and metrics after a few updates, and the next key."""
    (init, step), hyper = pair(name)
    state = jax.jit(init)(hyper, jax.random.key(0))
    step = jax.jit(step)
    for _ in range(4):
        state, metrics = step(state)
    return state.agent.params, metrics, jax.random.key_data(state.key)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["ppo", pytest.param("dqn", marks=pytest.mark.slow)])
def test_updates_agree(name, without_tricks):
    *plain, plain_key = without_tricks(train, name)
    *numbers, key = train(name)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), numbers, plain)
    np.testing.assert_array_equal(key, plain_key)
