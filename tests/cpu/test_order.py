"""What XLA is told (`_xla`): nothing changes but the order of kernels; small loops leave the other threads asleep."""

import importlib
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hlo import most_ready

from rlkit import envs, training
from rlkit._cpu.primitives import after, once, written
from rlkit._cpu.random_bits import straight
from rlkit.agents import ppo
from rlkit.agents.common import optimizer
from rlkit.agents.common.optimizer import Optimizer
from rlkit.ops.distributions import Categorical

rollout = importlib.import_module("rlkit.training.rollout")  # the name is a function's, too

SPLIT = 8  # kernels that XLA's CPU executor leaves on one thread


def bits(x):
    return np.asarray(x).view(np.int32).tolist()


@pytest.mark.parametrize(
    "other", [0.0, -0.0, np.nan, -np.inf, np.float32(-1e-45), np.int32(-(2**31)), np.uint32(2**31)]
)
def test_not_a_bit_changes(other):
    extremes = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3.4e38], np.float32)
    for x in (extremes, extremes.view(np.int32), extremes.view(np.uint32)):
        for found in (after(x, jnp.asarray(other)), jax.jit(after)(x, jnp.full((3, 2), other))):
            assert bits(found) == bits(x)
            assert found.dtype == x.dtype
        each = jax.vmap(after)(jnp.stack([x, x[::-1]]), jnp.full((2, 3), other))
        assert bits(each) == bits(np.stack([x, x[::-1]]))


@pytest.mark.parametrize("first", [0, 1, 2**31 - 1, 2**31, 2**32 - 1])
def test_once_changes_no_bit(first):
    x = np.array([first, 0, 1, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1], np.uint32)
    for fn in (once, jax.jit(once)):
        np.testing.assert_array_equal(fn(x), x)
        np.testing.assert_array_equal(fn(x[0]), first)
    np.testing.assert_array_equal(jax.vmap(once)(np.stack([x, x[::-1]])), np.stack([x, x[::-1]]))
    for empty in (once, jax.vmap(once)):  # of no examples, too
        assert empty(jnp.zeros((0, 3), jnp.uint32)).shape == (0, 3)


def test_nothing_needs_to_be_compiled():
    key = straight(jax.random.key(0))
    expected = jax.jit(jax.random.uniform, static_argnums=1)(key, (3,))
    with jax.disable_jit():
        np.testing.assert_array_equal(jax.random.uniform(key, (3,)), expected)
        np.testing.assert_array_equal(jax.grad(lambda x: after(written(x), x) @ x)(expected), 2 * expected)


def test_each_device_draws_from_keys_of_its_own():
    """On two devices, of keys shared out to them: nothing is sent."""
    program = """
import jax, jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from rlkit._cpu.random_bits import straight
expected = jax.vmap(jax.random.uniform)(jax.random.split(jax.random.key(0), 8))
for kind in (AxisType.Auto, AxisType.Explicit):
    mesh = jax.make_mesh((2,), ("x",), axis_types=(kind,))
    keys = jax.device_put(jax.random.split(jax.random.key(0), 8), NamedSharding(mesh, PartitionSpec("x")))
    draw = jax.jit(jax.vmap(lambda key: jax.random.uniform(straight(key))))
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

    text = jax.jit(lambda key: draw(straight(key))).lower(jax.random.key(0)).compile().as_text()
    assert (
        text.count(" xor(") <= 2 * 25
    )  # 20 rounds each of the split and of the draw, and a few; four times as many else


def test_other_dtypes_and_nothing_pass():
    flags, empty = jnp.array([True, False]), jnp.zeros((0, 3))
    assert after(flags, jnp.ones(2)) is flags
    assert after(flags, flags) is flags
    assert after(empty, jnp.ones(2)).shape == (0, 3)
    assert after(flags, empty) is flags


def test_gradients_pass_to_the_array_alone():
    def f(x, y):
        return jnp.sum(after(x, y) ** 3)

    x, y = jnp.array([1.0, -2.0]), jnp.array([5.0])
    for grad in (jax.grad(f, (0, 1)), jax.jit(jax.grad(f, (0, 1)))):
        np.testing.assert_array_equal(grad(x, y)[0], [3.0, 12.0])
        np.testing.assert_array_equal(grad(x, y)[1], [0.0])
    np.testing.assert_array_equal(jax.hessian(f)(x, y), [[6.0, 0.0], [0.0, -12.0]])


def descending():
    """Steps of Adam on 20 weights, in a loop."""
    descent = Optimizer(jnp.float32(1e-3), jnp.float32(0.5), jnp.float32(1e-5))

    def step(carry, gradient):
        params, opt_state = carry
        grads = jax.tree.map(lambda x: jnp.full(x.shape, gradient), params)
        params, opt_state, _ = descent.step(params, opt_state, grads)
        return (params, opt_state), None

    params = [jnp.ones((i % 3 + 2, 64)) for i in range(20)]
    return lambda carry, gradients: jax.lax.scan(step, carry, gradients)[0], (params, descent.init(params)), jnp.ones(5)


def rolling():
    """A rollout of PPO with few environments."""
    env, params = envs.make("CartPole-v1")
    agent = ppo.make(ppo.Config(hidden_sizes=(8,)), env.observation_space(params), env.action_space(params))
    pair = training.make(agent, env, params, num_envs=4, num_steps=16)
    state = jax.eval_shape(pair.init, ppo.Hyper(), jax.eval_shape(lambda: jax.random.key(0)))

    def roll(state):
        state = straight(state)
        return rollout.rollout(agent, env, params, agent.actor(state.agent), state.envs, state.key, 16)

    return roll, state


@pytest.mark.planned
@pytest.mark.parametrize(("made", "module", "few"), [(descending, optimizer, SPLIT), (rolling, rollout, SPLIT + 1)])
def test_few_kernels_of_a_loop_are_ready_at_once(made, module, few, monkeypatch):
    """Of a rollout's step, nine copies of the environments' state, of which some wait for others' buffers."""

    def most():
        program, *arguments = made()
        counts = most_ready(jax.jit(program).lower(*arguments).compile().as_text())
        return max(count for name, count in counts.items() if name != "ENTRY")

    assert most() <= few
    monkeypatch.setattr(module, "after", lambda x, other: x)
    assert most() > few  # so that this test would see it


@pytest.mark.parametrize(("platform", "barriers"), [("cpu", 4), ("cuda", 0), ("tpu", 0)])
def test_only_a_cpu_is_told_what_to_write_down(platform, barriers):
    """Of many rows' log-probabilities and entropies, the logits and what their gradients turn back; of few, nothing."""

    def total(logits):
        dist = Categorical(logits)
        return jnp.sum(dist.log_prob(jnp.zeros(logits.shape[:1], jnp.int32)) + dist.entropy())

    for rows, expected in ((2048, barriers), (2047, 0)):
        lowered = jax.jit(jax.grad(total)).trace(jnp.ones((rows, 2))).lower(lowering_platforms=(platform,))
        assert lowered.as_text().count("optimization_barrier") == expected
