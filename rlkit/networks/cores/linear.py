"""Linear recurrences h_t = a_t h_{t-1} + b_t, elementwise, computed for all times at once, and blocks around them.

The factors a_t and the inputs b_t do not depend on h: a block computes them from its features, and its next features
from h.
"""

from functools import lru_cache, partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from rlkit import _cpu
from rlkit._mesh import vary_like
from rlkit.networks.cores.recurrent import where_rows
from rlkit.networks.dense import Dense
from rlkit.types import Array, Key

Numbers = Array | tuple[Array, Array]  # real, or complex as (real part, imaginary part)


def times(x: Numbers, y: Numbers) -> Numbers:
    """Return the elementwise product of two real or of two complex arrays."""
    if not (isinstance(x, tuple) and isinstance(y, tuple)):
        return x * y  # type: ignore[operator]
    return x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]


def advance(memory: Numbers, a: Numbers, b: Numbers) -> Numbers:
    """Return a h + b, one step from the memory h."""
    return jax.tree.map(jnp.add, times(a, memory), b)


def unroll(memory: Numbers, a: Numbers, b: Numbers, start: Array) -> tuple[Numbers, Numbers]:
    """Compute h_t = a_t h_{t-1} + b_t for all times by an associative scan (Blelloch 1990).

    Args:
      memory: [B, ...], h before the first row.
      a, b: [T, B, ...].
      start: [T, B] bool, True where an episode starts, before which h is 0; the first row is ignored.

    Returns:
      h [T, B, ...] after each row, and before it.
    """
    start = start.at[0].set(False)
    zeros = jax.tree.map(lambda _: np.float32(0), memory)
    a = where_rows(start, zeros, a)
    first = advance(memory, *jax.tree.map(lambda x: x[0], (a, b)))
    b = jax.tree.map(lambda x, row: x.at[0].set(row), b, first)
    h = _recurrence(*vary_like((a, b)))
    return h, where_rows(start, zeros, jax.tree.map(lambda x, rows: jnp.concatenate([x[None], rows[:-1]]), memory, h))


@jax.custom_vjp
def _recurrence(a: Numbers, b: Numbers) -> Numbers:
    """h_t = a_t h_{t-1} + b_t of all rows, from h = 0 on."""
    zeros = vary_like(jax.tree.map(lambda x: jnp.zeros_like(x[0]), b), a, b)
    return _cpu.recurrence(advance, _associative, zeros, a, b)


def _forward(a: Numbers, b: Numbers) -> tuple[Numbers, tuple[Numbers, Numbers]]:
    h = _recurrence(a, b)
    return h, (a, h)


def _backward(kept: tuple[Numbers, Numbers], grad: Numbers) -> tuple[Numbers, Numbers]:
    """The gradients of a and b: that of b is a recurrence, backward in time, with the conjugates of the factors."""
    a, h = map(_conjugate, kept)
    # Row t of the gradient of h takes a_{t+1} times that of row t + 1. The first row in reverse has none after it.
    factors = jax.tree.map(lambda x: jnp.roll(x[::-1], 1, axis=0), a)
    of_b = _recurrence(factors, jax.tree.map(lambda x: x[::-1], grad))
    of_b = jax.tree.map(lambda x: x[::-1], of_b)
    before = jax.tree.map(lambda x: jnp.concatenate([jnp.zeros_like(x[:1]), x[:-1]]), h)
    return times(before, of_b), of_b


_recurrence.defvjp(_forward, _backward)


def _conjugate(x: Numbers) -> Numbers:
    return (x[0], -x[1]) if isinstance(x, tuple) else x


def _associative(a: Numbers, b: Numbers) -> Numbers:
    def join(earlier: tuple[Numbers, Numbers], later: tuple[Numbers, Numbers]) -> tuple[Numbers, Numbers]:
        return times(later[0], earlier[0]), advance(earlier[1], *later)

    return jax.lax.associative_scan(join, (a, b))[1]


class MinGRU(nn.Module):
    """Minimal gated recurrent unit (Feng et al. 2024, section 3.1) between a norm and a gate, with a residual.

        z = σ(W_z u), h_t = (1 - z) h_{t-1} + z g(W_h u), y = x + W_o (h silu(W_g u)), with u = RMSNorm(x)

    and g(v) = v + 1/2 for v >= 0, σ(v) for v < 0 (appendix B.3). Its memory is h [..., size]. The gates do not
    depend on h: to keep or to forget by what came before needs two layers.
    """

    size: int

    def setup(self):
        self.norm = nn.RMSNorm()
        self.inputs = Dense(3 * self.size, 3**0.5)  # the scale of one orthogonal matrix for each of z, g and the gate
        self.outputs = Dense(self.size)

    @staticmethod
    def start(size: int) -> np.ndarray:
        """Return the memory at the start of an episode, zeros."""
        return np.zeros((size,), np.float32)

    def project(self, x: Array) -> tuple[Array, Array, Array]:
        """Return the factors and the inputs of the recurrence and the gate, [..., size], from features [..., size]."""
        update, candidate, gate = jnp.split(self.inputs(self.norm(x)), 3, axis=-1)
        candidate = jnp.where(candidate >= 0, candidate + 0.5, jax.nn.sigmoid(candidate))
        return jax.nn.sigmoid(-update), jax.nn.sigmoid(update) * candidate, jax.nn.silu(gate)

    def decode(self, x: Array, h: Array, gate: Array) -> Array:
        """Return the next features [..., size]."""
        return x + self.outputs(h * gate)


class Diagonal(nn.Module):
    """Base of blocks with constant complex factors λ and a gated linear unit, with a residual.

        h_t = λ h_{t-1} + B x, v = gelu(Re(C h) + D x), y = x + W_1 v σ(W_2 v)

    Subclasses declare `inputs` [size, 2 P], the real and imaginary parts of B, and `outputs` [2 P, size], those of C
    with the signs that they have in Re(C h), and define `factors`.
    """

    size: int

    def setup(self):
        self.through = self.param("through", nn.initializers.normal(1.0), (self.size,), jnp.float32)
        self.gate = Dense(2 * self.size, 2**0.5)  # the scale of one orthogonal matrix for each of W_1 and W_2

    def project(self, x: Array) -> tuple[Numbers, Numbers, tuple[()]]:
        """Return the factors and the inputs of the recurrence, [..., P] complex, from features [..., size]."""
        real, imag = jnp.split(_product(x, self.inputs), 2, axis=-1)
        factor, scale = jax.tree.map(lambda row: jnp.broadcast_to(row, real.shape), self.factors())
        return factor, times(scale, (real, imag)), ()

    def decode(self, x: Array, h: tuple[Array, Array], rest: tuple[()]) -> Array:
        """Return the next features [..., size]."""
        y = _product(jnp.concatenate(h, axis=-1), self.outputs) + jnp.broadcast_to(self.through, x.shape) * x
        linear, gate = jnp.split(self.gate(jax.nn.gelu(y)), 2, axis=-1)
        return x + linear * jax.nn.sigmoid(gate)

    def factors(self) -> tuple[Numbers, Numbers]:
        """Return λ [P] and the factors [P] of B x."""
        raise NotImplementedError


class LRU(Diagonal):
    """Linear recurrent unit (Orvieto et al. 2023, section 3), a `Diagonal` block with P = size.

    λ = exp(-exp(ν) + i exp(θ)) is uniform in the ring 0.9 <= |λ| <= 0.999 with phases in [0, 2π / 10] at first. B x is
    scaled by exp(γ), which is sqrt(1 - |λ|^2) at first. Its memory is the two parts of h, [..., size] each.
    """

    def setup(self):
        super().setup()
        self.nu = self.param("nu", _ring, self.size)
        self.theta = self.param("theta", lambda key: jnp.log(_uniform(key, self.size, 1e-6, np.pi / 5)))
        self.gamma = self.param("gamma", lambda _: jnp.log(-jnp.expm1(-2 * jnp.exp(self.nu))) / 2)
        self.inputs = self.param("inputs", _normal(0.5), (self.size, 2 * self.size), jnp.float32)
        self.outputs = self.param("outputs", _normal(2.0), (2 * self.size, self.size), jnp.float32)

    @staticmethod
    def start(size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the memory at the start of an episode, zeros."""
        return np.zeros((size,), np.float32), np.zeros((size,), np.float32)

    def factors(self) -> tuple[Numbers, Numbers]:
        """Return λ [P] and the factors [P] of B x."""
        scale = jnp.exp(self.gamma)
        return _exponential(-jnp.exp(self.nu), jnp.exp(self.theta)), (scale, jnp.zeros_like(scale))


class S5(Diagonal):
    """Simplified state space layer (Smith et al. 2023, sections 3 and 4), a `Diagonal` block with P = size / 2.

    The system h' = Λ h + B x, discretized by zero-order hold over steps Δ: λ = exp(Λ Δ), and B x times (λ - 1) / Λ.
    Λ, B and C are at first those of HiPPO-LegS with a state of `size` in the basis of its eigenvectors, of which the
    half with positive frequencies is kept: the others are their conjugates. Δ is log-uniform in [0.001, 0.1]. The real
    part of Λ is -exp of a parameter, so that it stays negative. The memory is the two parts of h, [..., size / 2] each.
    """

    def setup(self):
        super().setup()
        frequencies, basis = _legs(2 * -(-self.size // 2))
        pairs, real = len(frequencies), partial(_in_basis, basis)
        self.decay = self.param("decay", nn.initializers.constant(np.log(0.5)), (pairs,), jnp.float32)
        self.frequency = self.param("frequency", lambda _: jnp.asarray(frequencies, jnp.float32))
        self.step = self.param("step", _uniform, pairs, np.log(0.001), np.log(0.1))
        self.inputs = self.param("inputs", lambda key: real(_normal(1.0)(key, (self.size, len(basis)))))
        self.outputs = self.param("outputs", lambda key: 2 * real(_normal(1.0)(key, (len(basis), self.size)).T).T)

    @staticmethod
    def start(size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the memory at the start of an episode, zeros."""
        return LRU.start(-(-size // 2))

    def factors(self) -> tuple[Numbers, Numbers]:
        """Return λ [P] and the factors [P] of B x."""
        real, imag, step = -jnp.exp(self.decay), self.frequency, jnp.exp(self.step)
        # λ - 1 without the cancellation near 1
        less_one = (
            jnp.expm1(real * step) - 2 * jnp.exp(real * step) * jnp.square(jnp.sin(imag * step / 2)),
            jnp.exp(real * step) * jnp.sin(imag * step),
        )
        size = jnp.square(real) + jnp.square(imag)
        return _exponential(real * step, imag * step), times(less_one, (real / size, -imag / size))


def _exponential(real: Array, imag: Array) -> tuple[Array, Array]:
    """The complex exponential."""
    return jnp.exp(real) * jnp.cos(imag), jnp.exp(real) * jnp.sin(imag)


def _product(x: Array, kernel: Array) -> Array:
    """x [..., D] @ kernel [D, F]."""
    return (x.reshape(-1, x.shape[-1]) @ kernel).reshape(*x.shape[:-1], kernel.shape[-1])


def _normal(scale: float) -> nn.initializers.Initializer:
    """Weights [fan_in, fan_out] of variance scale / fan_in."""
    return nn.initializers.variance_scaling(scale, "fan_in", "normal")


def _uniform(key: Key, size: int, low: float, high: float) -> Array:
    return jax.random.uniform(key, (size,), jnp.float32, low, high)


def _ring(key: Key, size: int) -> Array:
    """ν [size] of λ that are uniform in the ring 0.9 <= |λ| <= 0.999 (Orvieto et al. 2023, lemma 3.2)."""
    return jnp.log(-jnp.log(_uniform(key, size, 0.9**2, 0.999**2)) / 2)


@lru_cache(maxsize=4)
def _legs(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Frequencies [size / 2] and eigenvectors [size, size / 2] of the normal part of HiPPO-LegS (Gu et al. 2020).

    Its eigenvalues have the real part -1/2; those of negative frequencies are the conjugates of these.
    """
    root = np.sqrt(2 * np.arange(size) + 1.0)
    lower = np.tril(root[:, None] * root[None], -1)
    frequencies, vectors = np.linalg.eigh(-1j * (lower.T - lower) / 2)
    return frequencies[size // 2 :], vectors[:, size // 2 :]


def _in_basis(basis: np.ndarray, real: Array) -> Array:
    """The real and the imaginary parts [D, 2 P] of V^H applied to the rows of a real matrix [D, N]; V is [N, P]."""
    parts = np.real(basis), -np.imag(basis)
    return jnp.concatenate([_product(real, jnp.asarray(part, jnp.float32)) for part in parts], axis=-1)
