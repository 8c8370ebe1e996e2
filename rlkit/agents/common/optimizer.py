"""The optimizer of every agent: Adam (Kingma and Ba 2015) on gradients clipped by their global norm."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from rlkit import _cpu
from rlkit.types import Array, PyTree, Scalar


class Optimizer(NamedTuple):
    """The traced scalars of a step. It is made inside the trace, so that each may be swept."""

    learning_rate: Scalar
    max_grad_norm: Scalar  # infinity does not clip
    eps: Scalar  # of Adam

    @classmethod
    def of(cls, hyper: Any, learning_rate: Scalar) -> "Optimizer":
        """The optimizer that an agent's Hyper describes, at a learning rate []."""
        return cls(learning_rate, hyper.max_grad_norm, hyper.adam_eps)

    @property
    def transformation(self) -> optax.GradientTransformation:
        return optax.chain(
            optax.clip_by_global_norm(self.max_grad_norm),
            optax.scale_by_adam(eps=self.eps),  # type: ignore[arg-type]
            optax.scale_by_learning_rate(self.learning_rate),
        )

    def init(self, params: PyTree) -> PyTree:
        """The optimizer's state: moments of all parameters as one vector."""
        return self.transformation.init(ravel_pytree(params)[0])

    def step(
        self, params: PyTree, opt_state: PyTree, grads: PyTree, skip: Array | None = None
    ) -> tuple[PyTree, PyTree, Array]:
        """The parameters and the optimizer's state after a step, and the gradient's global norm [] before clipping.

        Where `skip` [] bool is true, neither changes.
        """
        flat, unravel = ravel_pytree(grads)  # Adam on one vector: a few operations, and not a few for every weight
        with jax.numpy_dtype_promotion("standard"):  # optax raises a float to the power of an integer
            updates, moved = self.transformation.update(flat, opt_state)
        if skip is not None:
            updates = jnp.where(skip, 0.0, jnp.asarray(updates))
            moved = jax.tree.map(lambda new, old: jnp.where(skip, old, new), moved, opt_state)
        updates = unravel(jnp.asarray(updates))
        params = _cpu.sequence(lambda update, x: (x + update).astype(x.dtype), updates, params, side_by_side=4)
        return params, moved, optax.tree.norm(flat)
