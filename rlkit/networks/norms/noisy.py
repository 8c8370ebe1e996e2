"""Dense layers with noise of a learned scale, for exploration (Fortunato et al. 2018)."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from rlkit.networks.dense import Dense
from rlkit.types import Array, Key

STREAM = "noise"  # the name of the random stream: module.apply(params, obs, rngs={STREAM: key})


class NoisyDense(nn.Module):
    """y = (w + σ_w ε_w) x + b + σ_b ε_b with factorized noise (Fortunato et al. 2018, eq. 9 to 11).

    ε_w[i, j] = f(ε_i) f(ε_j) and ε_b = f(ε_j), f(x) = sign(x) sqrt(|x|), drawn from the stream `STREAM` once a call;
    without that stream there is no noise. The mean weights start orthogonal, σ at sigma / sqrt(D). [..., D] -> [...,
    size].
    """

    size: int
    scale: float = 1.0
    sigma: float = 0.5
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        spread = nn.initializers.constant(self.sigma / max(x.shape[-1], 1) ** 0.5)
        kernel_sigma = self.param("kernel_sigma", spread, (x.shape[-1], self.size), jnp.float32)
        bias_sigma = self.param("bias_sigma", spread, (self.size,), jnp.float32)
        y = Dense(self.size, self.scale, self.dtype)(x)
        if not self.has_rng(STREAM):
            return y
        in_key, out_key = jax.random.split(self.make_rng(STREAM))
        before, after = factor(in_key, x.shape[-1]), factor(out_key, self.size)
        leading = (1,) * (x.ndim - 1)
        # The noise of the weights is an outer product: its factors multiply the inputs and the outputs.
        noise = (x * before.reshape(*leading, -1).astype(x.dtype)) @ kernel_sigma.astype(self.dtype)
        noise = (noise + bias_sigma.reshape(*leading, -1).astype(self.dtype)) * after.reshape(*leading, -1).astype(
            y.dtype
        )
        return y + noise


def factor(key: Key, size: int) -> Array:
    """Return sign(ε) sqrt(|ε|), [size] float32, of standard normal ε."""
    noise = jax.random.normal(key, (size,))
    return jnp.sign(noise) * jnp.sqrt(jnp.abs(noise))
