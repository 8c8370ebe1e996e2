"""Recurrent cells in two parts: a projection of the input, for all times at once, and a step of the memory."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from rlkit.networks.dense import Dense
from rlkit.networks.initializers import orthogonal_param
from rlkit.types import Array, PyTree


class GRU(nn.Module):
    """Gated recurrent unit (Cho et al. 2014), the reset gate after the product; its memory is h [..., size]."""

    size: int

    def setup(self):
        self.inputs = Dense(3 * self.size, 3**0.5)  # the scale of one orthogonal matrix for each gate
        self.kernel = orthogonal_param(self, "kernel", (self.size, 3 * self.size), count=3)
        self.bias = self.param("bias", nn.initializers.zeros, (self.size,), jnp.float32)

    @staticmethod
    def start(size: int) -> PyTree:
        """Return the memory at the start of an episode, zeros."""
        return np.zeros((size,), np.float32)

    def project(self, x: Array) -> Array:
        """Project features [..., D] to the inputs of the gates [..., 3 size]."""
        return self.inputs(x)

    def advance(self, memory: Array, x: Array) -> tuple[Array, Array]:
        """Return the next memory and the features [..., size], after one step from `memory` with a projected input."""
        reset, update, candidate = jnp.split(x, 3, axis=-1)
        h_reset, h_update, h_candidate = jnp.split(memory @ self.kernel, 3, axis=-1)
        reset, update = jax.nn.sigmoid(reset + h_reset), jax.nn.sigmoid(update + h_update)
        bias = self.bias.reshape((1,) * (memory.ndim - 1) + (-1,))
        candidate = jnp.tanh(candidate + reset * (h_candidate + bias))
        memory = update * memory + (1.0 - update) * candidate
        return memory, memory


class LSTM(nn.Module):
    """Long short-term memory (Hochreiter and Schmidhuber 1997; Gers et al. 2000), with a forget bias of 1.

    Its memory is (cell, h), both [..., size].
    """

    size: int

    def setup(self):
        self.inputs = Dense(4 * self.size, 4**0.5)  # the scale of one orthogonal matrix for each gate
        self.kernel = orthogonal_param(self, "kernel", (self.size, 4 * self.size), count=4)

    @staticmethod
    def start(size: int) -> PyTree:
        """Return the memory at the start of an episode, zeros."""
        return np.zeros((size,), np.float32), np.zeros((size,), np.float32)

    def project(self, x: Array) -> Array:
        """Project features [..., D] to the inputs of the gates [..., 4 size]."""
        return self.inputs(x)

    def advance(self, memory: tuple[Array, Array], x: Array) -> tuple[tuple[Array, Array], Array]:
        """Return the next memory and the features [..., size], after one step from `memory` with a projected input."""
        cell, h = memory
        write, forget, candidate, read = jnp.split(x + h @ self.kernel, 4, axis=-1)
        # The forget gate's bias of 1 lets a memory last from the first update on (Jozefowicz et al. 2015).
        cell = jax.nn.sigmoid(forget + 1.0) * cell + jax.nn.sigmoid(write) * jnp.tanh(candidate)
        h = jax.nn.sigmoid(read) * jnp.tanh(cell)
        return (cell, h), h
