"""Identity primitives of rlkit._cpu: no bit changes, and few small computations of a loop are ready at once."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hlo import most_ready

from rlkit import _cpu, envs, training
from rlkit._cpu import keep_layout, materialize, sequence
from rlkit._cpu.primitives import once
from rlkit.agents import ppo
from rlkit.agents.common.optimizer import Optimizer
from rlkit.ops.distributions import Categorical

pytestmark = pytest.mark.thorough
rollout = importlib.import_module("rlkit.training.rollout")  # the name is a function's, too

SPLIT = 8  # kernels that XLA's CPU executor leaves on one thread


def identity(x):
    return x


def after(x, other):
    """x, computed after `other`."""
    return sequence(identity, [other, x])[1]


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
    with jax.disable_jit():
        x = jnp.array([1.0, -2.0])
        gradient = jax.grad(lambda x: after(keep_layout(materialize(x)), x) @ x)(x)
        np.testing.assert_array_equal(gradient, 2 * x)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("function", [materialize, keep_layout, lambda x: after(x, jnp.ones(2))])
def test_identities_have_a_transpose(function, compiled):
    x = jnp.array([1.0, -2.0, 3.0])
    transpose = jax.linear_transpose(function, x)
    np.testing.assert_array_equal((jax.jit(transpose) if compiled else transpose)(x)[0], x)
    matrix = jax.vmap(transpose)(jnp.eye(3))[0]
    np.testing.assert_array_equal(matrix, np.eye(3))


def test_a_sequence_is_linear_in_all_of_its_leaves():
    x, y = jnp.array([1.0, -2.0, 3.0]), jnp.array([[4.0]])
    transpose = jax.linear_transpose(lambda x, y: sequence(identity, [x, y]), x, y)
    jax.tree.map(np.testing.assert_array_equal, transpose([x, y]), (x, y))
    (none,) = jax.linear_transpose(lambda y: sequence(identity, [y, x])[1] * 0.0 + y.sum(), y)(x)  # nothing of x in y
    np.testing.assert_array_equal(none, [[2.0]])


def test_other_dtypes_and_nothing_pass():
    flags, empty = jnp.array([True, False]), jnp.zeros((0, 3))
    assert after(flags, jnp.ones(2)) is flags
    assert after(flags, flags) is flags
    assert after(empty, jnp.ones(2)) is empty
    assert after(flags, empty) is flags
    assert materialize(flags) is flags
    assert materialize(empty) is empty


def test_large_leaves_are_not_ordered():
    def ordered(*leaves, **settings):
        """The number of leaves of these sizes that wait for another one."""
        tree = [jnp.ones(size) for size in leaves]
        return len(jax.make_jaxpr(lambda tree: sequence(identity, tree, **settings))(tree).jaxpr.eqns)

    assert ordered(2, 3, 2, 3) == 3
    assert ordered(2, 3, 2, 3, max_bytes=8) == 1
    assert ordered(2, 3, 3, 3, max_bytes=8) == 0
    assert ordered(2, 3, 2, 3, 2, 3, side_by_side=4) == 2


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

    @_cpu.straight_line_keys
    def roll(state):
        return rollout.rollout(agent, env, params, agent.actor(state.agent), state.envs, state.key, 16)

    return roll, state


@pytest.mark.parametrize(("make", "few"), [(descending, SPLIT), (rolling, SPLIT + 1)])
def test_few_kernels_of_a_loop_are_ready_at_once(make, few, monkeypatch):
    """Of a rollout's step, nine copies of the environments' state, of which some wait for others' buffers."""

    def most():
        program, *arguments = make()
        counts = most_ready(jax.jit(program).lower(*arguments).compile().as_text())
        return max(count for name, count in counts.items() if name != "ENTRY")

    assert most() <= few
    monkeypatch.setattr(_cpu, "sequence", lambda fn, *trees, **_: jax.tree.map(fn, *trees))
    assert most() > few  # so that this test would fail without it


@pytest.mark.parametrize(("platform", "barriers"), [("cpu", 4), ("cuda", 0), ("tpu", 0)])
def test_only_a_cpu_keeps_a_layout(platform, barriers):
    """Of many rows' log-probabilities and entropies, the logits and what their gradients turn back; of few, nothing."""

    def total(logits):
        dist = Categorical(logits)
        return jnp.sum(dist.log_prob(jnp.zeros(logits.shape[:1], jnp.int32)) + dist.entropy())

    for rows, expected in ((2048, barriers), (2047, 0)):
        lowered = jax.jit(jax.grad(total)).trace(jnp.ones((rows, 2))).lower(lowering_platforms=(platform,))
        assert lowered.as_text().count("optimization_barrier") == expected
