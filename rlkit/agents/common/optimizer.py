"""The optimizer of every agent, on gradients clipped by their global norm, and its learning rate.

`adam` is Kingma and Ba (2015), `adamw` the same with decoupled weight decay (Loshchilov and Hutter 2019), `radam` the
same with a rectified step (Liu et al. 2020), `rmsprop` divides by a running root mean square with decay 0.99, `sgd` is
plain descent without momentum. One of the user's own is a transformation of optax, or a function that makes one of the
learning rate, such as `optax.lion`: the function is called at each step, with the scheduled rate.

Where a batch is divided over devices, all gradients are averaged in `over_devices`.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from rlkit import _cpu, _mesh
from rlkit.agents.common import own_parts
from rlkit.agents.common.hyper import value_or
from rlkit.ops.schedules import schedule
from rlkit.types import Array, PyTree, Scalar

_SMALL = 128 * 128  # numbers of a leaf


class Optimizer(NamedTuple):
    """The traced scalars of a step. It is made inside the trace, so that each may be swept."""

    learning_rate: Scalar | Mapping[str, Scalar]  # one, or one for each entry of the parameters
    max_grad_norm: Scalar  # infinity does not clip
    eps: Scalar  # of Adam, RAdam and RMSprop
    weight_decay: Scalar = 0.0  # of AdamW
    kind: Any = "adam"  # one of the names above, or the user's own or its name
    adam_b1: Scalar = 0.9  # decay of the mean gradient, of Adam, AdamW and RAdam

    @classmethod
    def of(cls, config: Any, hyper: Any, learning_rate: Scalar | Mapping[str, Scalar]) -> "Optimizer":
        """The optimizer that an agent's Config and Hyper describe, at a learning rate [], or some by parameters."""
        made = cls(learning_rate, hyper.max_grad_norm, hyper.adam_eps, hyper.weight_decay, config.optimizer)
        return made._replace(adam_b1=getattr(hyper, "adam_b1", made.adam_b1))

    @staticmethod
    def scheduled_rate(config: Any, hyper: Any, before: Array, learned: Array, start: Scalar | None = None) -> Array:
        """The learning rate [] of an update, by its schedule and its warm-up.

        Args:
          config: an agent's, with `learning_rate_schedule`.
          hyper: an agent's, with the fields of `OptimizerHyper`.
          before: [] environment steps before the rollout, so that the last rollout of a schedule still counts.
          learned: [] environment steps that have been learned from when this update ends, so that the first one counts.
          start: at which the schedule begins, a field of Hyper; where it is not set, hyper.learning_rate.
        """
        if own_parts.is_own(config.learning_rate_schedule):
            return own_parts.scheduled("learning_rate_schedule", config.learning_rate_schedule, before)
        rate = value_or(start, hyper.learning_rate)
        if config.learning_rate_schedule != "constant":
            factor = schedule(config.learning_rate_schedule, before.astype(jnp.float32) / hyper.schedule_steps)
            rate = hyper.learning_rate_end + (rate - hyper.learning_rate_end) * factor
        share = jnp.clip(jnp.asarray(learned).astype(jnp.float32) / jnp.maximum(hyper.warmup_steps, 1.0), 0.0, 1.0)
        return rate * jnp.where(hyper.warmup_steps > 0, share, 1.0)

    @staticmethod
    def rate_metric(config: Any, rate: Array) -> dict[str, Array]:
        """The metric of the learning rate []; none where the user's own transformation has a rate of its own."""
        return {} if own_parts.has_own_rate(config.optimizer) else {"learning_rate": rate}

    def transformation(self) -> optax.GradientTransformation:
        """The transformation of gradients to updates that are yet to be multiplied by the learning rate."""
        steps = {
            "adam": (optax.scale_by_adam(self.adam_b1, eps=self.eps),),  # type: ignore[arg-type]
            "radam": (optax.scale_by_radam(self.adam_b1, eps=self.eps),),  # type: ignore[arg-type]
            "rmsprop": (optax.scale_by_rms(decay=0.99, eps=self.eps, eps_in_sqrt=False),),  # type: ignore[arg-type]
            "sgd": (),
        }
        steps["adamw"] = (*steps["adam"], optax.add_decayed_weights(self.weight_decay))  # type: ignore[arg-type]
        return optax.chain(optax.clip_by_global_norm(self.max_grad_norm), *steps[self.kind])  # type: ignore[arg-type]

    def init(self, params: PyTree) -> PyTree:
        """The optimizer's state: moments of `_join_small(params)`, or what the user's own makes of `params`."""
        if own_parts.is_own(self.kind):
            if isinstance(self.learning_rate, Mapping):
                rates = self.learning_rate.items()
                return {name: own_parts.init_optimizer(self.kind, rate, params[name]) for name, rate in rates}
            return own_parts.init_optimizer(self.kind, self.learning_rate, params)
        return self.transformation().init(_join_small(params)[0])

    def step(
        self, params: PyTree, opt_state: PyTree, grads: PyTree, skip: Array | None = None
    ) -> tuple[PyTree, PyTree, Array]:
        """The parameters and the optimizer's state after a step, and the gradient's global norm [] before clipping.

        Where `skip` [] bool is true, neither changes.
        """
        if own_parts.is_own(self.kind):
            return self._own_step(params, opt_state, grads, skip)
        joined, restore = _join_small(grads)
        decayed = _join_small(jax.tree_util.tree_map_with_path(_decayed, params))[0] if self.kind == "adamw" else None
        with jax.numpy_dtype_promotion("standard"):  # optax raises a float to the power of an integer
            moves: Any
            moves, moved = self.transformation().update(joined, opt_state, decayed)
        updates = [-rate * move for rate, move in zip(self._rates(params, len(moves)), moves, strict=True)]
        if skip is not None:
            updates = [jnp.where(skip, 0.0, update) for update in updates]
            moved = jax.tree.map(lambda new, old: jnp.where(skip, old, new), moved, opt_state)
        params = _cpu.sequence(lambda update, x: (x + update).astype(x.dtype), restore(updates), params, side_by_side=4)
        return params, moved, optax.tree.norm(joined)

    def _own_step(
        self, params: PyTree, opt_state: PyTree, grads: PyTree, skip: Array | None
    ) -> tuple[PyTree, PyTree, Array]:
        """`step` with the user's own transformation. Each group of parameters with its own rate has its own state."""
        clipped = clip_norm(grads, self.max_grad_norm)
        if isinstance(self.learning_rate, Mapping):
            updates, moved = {}, {}
            for name, rate in self.learning_rate.items():
                parts = clipped[name], opt_state[name], params[name]
                updates[name], moved[name] = own_parts.update_optimizer(self.kind, rate, *parts)
        else:
            updates, moved = own_parts.update_optimizer(self.kind, self.learning_rate, clipped, opt_state, params)
        if skip is not None:
            updates = jax.tree.map(lambda update: jnp.where(skip, 0.0, update), updates)
            moved = jax.tree.map(lambda new, old: jnp.where(skip, old, new), moved, opt_state)
        params = jax.tree.map(lambda x, update: (x + update).astype(x.dtype), params, updates)
        return params, moved, optax.tree.norm(grads)

    def _rates(self, params: PyTree, count: int) -> Sequence[Scalar]:
        """The learning rates of `count` updates, each [] or of the update's shape."""
        if not isinstance(self.learning_rate, Mapping):
            return [self.learning_rate] * count
        rates = {
            name: jax.tree.map(lambda x, rate=self.learning_rate[name]: jnp.broadcast_to(rate, x.shape), part)
            for name, part in params.items()
        }
        return _join_small(rates)[0]


def _join_small(tree: PyTree) -> tuple[list[Array], Callable[[list[Array]], PyTree]]:
    """The small leaves of a tree as one vector, and each large leaf [...] as it is; with the inverse.

    Small leaves together take a few operations, and not a few for each; to copy a large one takes longer than that
    (benchmarks/agents/NOTES.md).
    """
    leaves, structure = jax.tree.flatten(tree)
    is_small = [leaf.size <= _SMALL for leaf in leaves]
    vector, unravel = ravel_pytree([leaf for leaf, small in zip(leaves, is_small, strict=True) if small])

    def restore(joined: list[Array]) -> PyTree:
        small_leaves, large_leaves = iter(unravel(joined[0])), iter(joined[1:])
        return structure.unflatten([next(small_leaves if small else large_leaves) for small in is_small])

    return [vector, *(leaf for leaf, small in zip(leaves, is_small, strict=True) if not small)], restore


def _decayed(path: tuple[Any, ...], x: Array) -> Array:
    """A parameter where it decays: a matrix, but no bias, no scalar, and not the deviations of gSDE."""
    is_deviation = bool(path) and getattr(path[-1], "key", None) == "log_std"
    return x if x.ndim > 1 and not is_deviation else jnp.zeros_like(x)


def mean_gradient(loss: Callable[..., tuple[Array, Any]], static: Any, params: PyTree, *arguments: Any) -> Any:
    """The gradient by `params` of the mean over all devices of loss(static, params, *arguments), and what it returns.

    `loss` returns a mean over its batch, and (statistics, *auxiliary results); see `over_devices`. The axis is
    `static.axis_name`.
    """
    gradient = over_devices(jax.grad(partial(loss, static), has_aux=True), static.axis_name)
    return gradient(params, *arguments)


def over_devices(
    gradient: Callable[..., tuple[PyTree, Any]], axis_name: str | None
) -> Callable[..., tuple[PyTree, Any]]:
    """The function that averages a gradient over the devices of the axis, each with an equal part of a batch.

    Args:
      gradient: (params, ...) -> gradient, (statistics of the networks, *auxiliary results): of this device's part. The
        parameters are the same on each device.
      axis_name: of a mesh axis; None for one device, where `gradient` itself is returned.

    Returns:
      A function of the same arguments. It returns the mean gradient, and the auxiliary results: the means of the
      statistics and of scalars. The others are of the items of the batch, and stay the device's own.
    """
    if axis_name is None:
        return gradient

    def averaged(params: PyTree, *arguments: Any) -> tuple[PyTree, Any]:
        # With parameters that vary, the gradient is this device's own. Otherwise JAX would sum it over the devices, but
        # only where shard_map checks what varies.
        grads, (stats, *others) = gradient(_mesh.vary(params, axis_name), *arguments)
        leaves, structure = jax.tree.flatten((stats, *others))
        num_stats = len(jax.tree.leaves(stats))  # of which counts, integers, are the same on each device
        shared = [jnp.issubdtype(x.dtype, jnp.inexact) if i < num_stats else x.ndim == 0 for i, x in enumerate(leaves)]
        to_average = [x for x, is_shared in zip(leaves, shared, strict=True) if is_shared]
        grads, averages = _mesh.mean((grads, to_average), axis_name)  # one exchange for all
        means = iter(averages)
        return grads, structure.unflatten(
            [next(means) if is_shared else x for x, is_shared in zip(leaves, shared, strict=True)]
        )

    return averaged


def clip_norm(grads: PyTree, max_norm: Scalar) -> PyTree:
    """Gradients scaled to a global norm of at most `max_norm`; infinity does not clip."""
    return optax.clip_by_global_norm(max_norm).update(grads, optax.EmptyState())[0]  # type: ignore[arg-type]
