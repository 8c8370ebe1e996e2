"""Cores with a memory: runs along time against single steps, float64 loops and the equations of the papers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlkit import _cpu
from rlkit.networks import as_network
from rlkit.networks.cores import linear, recurrent, registry
from rlkit.types import Network, Parts

T, B, D, SIZE = 24, 3, 4, 5
NAMES = (*registry.CELLS, *registry.BLOCKS)
HEART = (("gru", 2), ("mingru", 1), ("lru", 2), ("s5", 1))
CASES = [
    pytest.param(name, layers, marks=() if (name, layers) in HEART else pytest.mark.thorough)
    for name in NAMES
    for layers in (1, 2)
    if name in registry.BLOCKS or layers > 1
]


def along(core, memory, x, start):
    return core.unroll(memory, core.project(x), start)


def a_core(name, layers):
    """-> core, its variables, features [T, B, D], episode starts [T, B], a memory [B, ...] that is not zero."""
    core, rng = registry.core(name, SIZE, layers), np.random.default_rng(0)
    x, start = np.float32(rng.normal(size=(T, B, D))), rng.random((T, B)) < 0.15
    start[0] = True  # ignored
    memory = jax.tree.map(lambda m: np.float32(rng.normal(size=(B, *m.shape))), registry.start(name, SIZE, layers))
    start, memory = jnp.asarray(start), jax.tree.map(jnp.asarray, memory)
    variables = jax.jit(lambda: core.init(jax.random.key(0), memory, x, start, method=along))()
    return core, variables, x, start, memory


@pytest.mark.parametrize(("name", "layers"), CASES)
def test_a_run_along_time_is_its_steps(name, layers):
    core, variables, x, start, memory = a_core(name, layers)
    out, before = jax.jit(lambda *args: core.apply(*args, method=along))(variables, memory, x, start)

    @jax.jit
    def step(memory, x):
        return core.apply(variables, memory, x, method=lambda core, memory, x: core.advance(memory, core.project(x)))

    first = registry.start(name, SIZE, layers)
    for t in range(T):
        memory = recurrent.where_rows(start[t], first, memory) if t else memory
        jax.tree.map(lambda a, b, t=t: np.testing.assert_allclose(a[t], b, atol=1e-5), before, memory)
        memory, expected = step(memory, x[t])
        np.testing.assert_allclose(out[t], expected, atol=1e-5)


def a_recurrence(is_complex, rows, seed=0):
    """-> memory, a, b and start of a recurrence whose factors are near 1."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        parts = np.float32(rng.normal(size=(2, *shape)))
        return tuple(parts) if is_complex else parts[0]

    size, phase = rng.uniform(0.9, 0.9999, (2, rows, B, SIZE))
    a = tuple(np.float32(size * part) for part in (np.cos(phase), np.sin(phase))) if is_complex else np.float32(size)
    return normal(B, SIZE), a, normal(rows, B, SIZE), jnp.asarray(rng.random((rows, B)) < 4 / rows)


def numbers(x):
    x = jax.tree.map(np.float64, jax.device_get(x))
    return x[0] + 1j * x[1] if isinstance(x, tuple) else x


BOTH = pytest.mark.parametrize("is_complex", [False, True])


def by_both(function, *args):
    """The results of a function as this machine computes it, and by the associative scan."""
    with _cpu.plain():
        plain = jax.jit(lambda *args: function(*args))(*args)
    return jax.jit(lambda *args: function(*args))(*args), plain


@BOTH
def test_a_linear_recurrence_is_accurate_after_many_steps(is_complex):
    memory, a, b, start = a_recurrence(is_complex, 1024)
    h, rows, befores = numbers(memory), [], []
    for t in range(1024):
        h = np.where(start[t][:, None], 0, h) if t else h
        befores.append(h)
        h = numbers(a)[t] * h + numbers(b)[t]
        rows.append(h)
    for out, before in by_both(linear.unroll, memory, a, b, start):
        scale = np.abs(rows).max()
        np.testing.assert_allclose(numbers(out), rows, rtol=1e-5, atol=1e-6 * scale)
        np.testing.assert_allclose(numbers(before), befores, rtol=1e-5, atol=1e-6 * scale)


@BOTH
def test_gradients_of_a_linear_recurrence_are_those_of_a_loop(is_complex):
    memory, a, b, start = a_recurrence(is_complex, 7)
    weights = jax.tree.leaves([a_recurrence(is_complex, 7, seed)[2] for seed in (1, 2)])

    def loss(outputs):
        return sum(map(jnp.vdot, weights, jax.tree.leaves(outputs)))

    def loop(memory, a, b):
        def step(h, inputs):
            h = linear.advance(h, *inputs)
            return h, h

        zeros = jax.tree.map(lambda m: np.zeros(m.shape[1:], np.float32), memory)
        return recurrent.unroll(step, zeros, memory, (a, b), start)

    run = jax.grad(lambda *args: loss(linear.unroll(*args, start)), (0, 1, 2))
    expected = jax.grad(lambda *args: loss(loop(*args)), (0, 1, 2))(memory, a, b)
    for got in by_both(run, memory, a, b):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), got, expected)


def test_min_gru_is_its_equations():
    block, x = linear.MinGRU(SIZE), np.random.default_rng(0).normal(size=(B, SIZE)).astype(np.float32)
    h = np.abs(x[::-1])

    def step(block, h, x):
        a, b, gate = block.project(x)
        h = linear.advance(h, a, b)
        return h, block.decode(x, h, gate)

    variables = block.init(jax.random.key(0), h, x, method=step)
    got = block.apply(variables, h, x, method=step)
    weights = jax.tree.map(np.float64, variables["params"])
    sigmoid = lambda v: 1 / (1 + np.exp(-v))  # noqa: E731
    u = x / np.sqrt(np.mean(np.square(x), -1, keepdims=True) + 1e-6)
    update, candidate, gate = np.split(u @ weights["inputs"]["kernel"], 3, axis=-1)
    assert 0 < (candidate > 0).sum() < candidate.size
    z, candidate = sigmoid(update), np.where(candidate >= 0, candidate + 0.5, sigmoid(candidate))
    h = (1 - z) * h + z * candidate
    np.testing.assert_allclose(got[0], h, rtol=1e-5)
    np.testing.assert_allclose(got[1], x + (h * gate * sigmoid(gate)) @ weights["outputs"]["kernel"], rtol=1e-4)


def factors(block):
    """-> λ and the factors of B x, complex128, and the parameters."""
    found, variables = jax.jit(lambda: block.init_with_output(jax.random.key(1), method="factors"))()
    return *map(numbers, found), variables["params"]


def test_an_lru_begins_in_its_ring():
    decay, scale, _ = factors(linear.LRU(512))
    size, phase = np.abs(decay), np.angle(decay)
    assert 0.9 - 1e-6 < size.min() < 0.91
    assert 0.99 < size.max() < 0.999 + 1e-6
    np.testing.assert_allclose(np.mean(size**2), (0.9**2 + 0.999**2) / 2, atol=0.01)  # uniform over the area
    assert 0 < phase.min() < 0.01
    assert 0.6 < phase.max() < np.pi / 5 + 1e-6
    np.testing.assert_allclose(scale, np.sqrt(1 - size**2), rtol=1e-3)


def test_s5_holds_its_input_over_a_step():
    """The factors in float32, against zero-order hold in complex128, and the spectrum of HiPPO-LegS."""
    decay, scale, params = factors(linear.S5(16))
    rate = -np.exp(np.float64(params["decay"])) + 1j * np.float64(params["frequency"])
    step = np.exp(np.float64(params["step"]))
    assert step.min() > 0.001
    assert step.max() < 0.1
    np.testing.assert_allclose(decay, np.exp(rate * step), rtol=1e-5)
    np.testing.assert_allclose(scale, (np.exp(rate * step) - 1) / rate, rtol=1e-5)
    n = np.arange(16)
    legs = -np.where(n[:, None] > n, np.sqrt((2 * n[:, None] + 1) * (2 * n + 1)), 0) - np.diag(n + 1.0)
    low_rank = np.sqrt(n + 0.5)
    spectrum = np.linalg.eigvals(legs + np.outer(low_rank, low_rank))
    np.testing.assert_allclose(np.sort(rate.imag), np.sort(spectrum.imag)[8:], rtol=1e-5)
    np.testing.assert_allclose(rate.real, -0.5, rtol=1e-5)


def test_s5_begins_as_a_system_of_real_numbers():
    """2 Re(C λ^k B) with half of the eigenvectors is C exp(S k) B of the whole, of a real matrix S."""
    frequencies, basis = linear._legs(8)
    real = np.float32(np.random.default_rng(0).normal(size=(2, 3, 8)))  # [D, N]
    inputs, outputs = (np.asarray(linear._in_basis(basis, x)) for x in real)
    power = np.exp(0.1j * frequencies)
    b, c = inputs[:, :4] + 1j * inputs[:, 4:], outputs[:, :4] - 1j * outputs[:, 4:]
    whole = np.concatenate([basis, basis.conj()], axis=1)
    expected = real[0] @ (whole.conj() * np.concatenate([power, power.conj()])) @ whole.T @ real[1].T
    np.testing.assert_allclose(2 * ((b * power) @ c.T).real, expected.real, atol=1e-4)
    np.testing.assert_allclose(expected.imag, 0, atol=1e-5)


def test_parts_may_be_a_triple():
    functions = (lambda *_: 0, lambda *_: 1, lambda *_: 2)
    network = as_network(Network(functions[0], functions[1], np.zeros(2), functions))  # type: ignore[arg-type]
    assert network.parts == Parts(*functions)
    assert network.parts.unroll is None
