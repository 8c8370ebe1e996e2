"""Batch renormalization: features by the moments of their batch, corrected towards running moments."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from rlkit import _mesh
from rlkit.types import Array


class BatchRenorm(nn.Module):
    """Batch renormalization (Ioffe 2017, algorithm 1) of features: [..., D] -> [..., D].

    In training, x̂ = (x - μ_B) / σ_B * r + d over all leading axes, with r = σ_B / σ in [1 / r_max, r_max] and
    d = (μ_B - μ) / σ in [-d_max, d_max], through which no gradient flows. μ and σ are running moments, its statistics;
    in acting they take the place of the batch's. For the first `warmup_steps` calls in training r is 1 and d is 0,
    which is plain batch normalization.
    """

    momentum: float = 0.99  # share of the running moments that stays at a call
    epsilon: float = 1e-3
    r_max: float = 3.0
    d_max: float = 5.0
    warmup_steps: int = 100_000
    axis_name: str | None = None  # of the mesh axis over which a batch is divided, for moments of all of it

    @nn.compact
    def __call__(self, x: Array, train: bool = False) -> Array:
        shape = (x.shape[-1],)
        mean = self.variable("batch_stats", "mean", jnp.zeros, shape, jnp.float32)
        var = self.variable("batch_stats", "var", jnp.ones, shape, jnp.float32)
        steps = self.variable("batch_stats", "steps", jnp.zeros, (), jnp.int32)
        scale = self.param("scale", nn.initializers.ones, shape, jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, shape, jnp.float32)

        def along(vector: Array) -> Array:
            return vector.reshape((1,) * (x.ndim - 1) + shape)

        wide = x.astype(jnp.float32)
        if not train or self.is_initializing():
            slope = jax.lax.rsqrt(var.value + self.epsilon) * scale
            return ((wide - along(mean.value)) * along(slope) + along(bias)).astype(x.dtype)
        axes = tuple(range(x.ndim - 1))
        # Both moments in one pass, of differences from an item, the same for all devices. It is at most sqrt(B)
        # deviations from the mean, so that a mean far from 0 costs no precision.
        origin = _mesh.largest(jax.lax.stop_gradient(wide[(0,) * len(axes)]), self.axis_name)
        shifted = wide - along(origin)
        shift, square = (_mesh.mean(part.mean(axes), self.axis_name) for part in (shifted, jnp.square(shifted)))
        batch_mean, batch_var = origin + shift, jnp.maximum(square - jnp.square(shift), 0.0)
        batch_std, std = (jnp.sqrt(v + self.epsilon) for v in (batch_var, var.value))
        r = jnp.clip(batch_std / std, 1.0 / self.r_max, self.r_max)
        d = jnp.clip((batch_mean - mean.value) / std, -self.d_max, self.d_max)
        is_warm = steps.value >= self.warmup_steps
        r, d = (jax.lax.stop_gradient(jnp.where(is_warm, a, b)) for a, b in ((r, 1.0), (d, 0.0)))
        slope = r / batch_std * scale
        mean.value = self.momentum * mean.value + (1.0 - self.momentum) * batch_mean
        var.value = self.momentum * var.value + (1.0 - self.momentum) * batch_var
        steps.value = steps.value + 1
        return (shifted * along(slope) + along(d * scale + bias - shift * slope)).astype(x.dtype)
