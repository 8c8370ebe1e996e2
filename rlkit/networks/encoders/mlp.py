"""Dense layers."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from rlkit.networks.dense import Dense
from rlkit.types import Array

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "elu": jax.nn.elu,
}


class MLP(nn.Module):
    """Dense layers with an activation after each: [..., D] -> [..., hidden_sizes[-1]].

    `make_norm` makes a module such as `BatchRenorm`, which is applied to the input and after each activation. `dropout`
    is the share of a dense layer's outputs that are 0, where the call has a key for "dropout".
    """

    hidden_sizes: tuple[int, ...]
    activation: str = "tanh"
    layer_norm: bool = False
    dtype: Any = jnp.float32
    make_norm: Callable[[], nn.Module] | None = None
    dropout: float = 0.0

    @nn.compact
    def __call__(self, x: Array, train: bool = False) -> Array:
        def normalize(x: Array) -> Array:
            return x if self.make_norm is None else self.make_norm()(x, train=train)

        x = normalize(x)
        for size in self.hidden_sizes:
            x = Dense(size, 2**0.5, self.dtype)(x)
            if self.dropout:
                x = nn.Dropout(self.dropout, deterministic=not self.has_rng("dropout"))(x)
            if self.layer_norm:
                x = nn.LayerNorm(dtype=self.dtype)(x)
            x = normalize(ACTIVATIONS[self.activation](x))
        return x
