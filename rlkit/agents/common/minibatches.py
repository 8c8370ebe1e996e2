"""Epochs of minibatches over a rollout, in one loop and bounded memory, for agents without a replay buffer."""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import struct
from jax.flatten_util import ravel_pytree

from rlkit import _mesh
from rlkit._mesh import vary_like
from rlkit.agents.common.config import MinibatchConfig
from rlkit.agents.common.optimizer import over_devices
from rlkit.ops.chunked import num_chunks
from rlkit.ops.permutation import permutations
from rlkit.spaces import Space, shape_of
from rlkit.types import Array, Key, Network, PyTree

Config = TypeVar("Config", bound=MinibatchConfig)
Metrics = dict[str, Array]
CPU_ROWS = 8192


class MetricRows(struct.PyTreeNode):
    """The metrics of K steps as one array."""

    values: Array  # [K, M]
    counts: Array  # [K] bool, whether a step counts
    names: tuple[str, ...] = struct.field(pytree_node=False)  # of the M metrics

    def means(self) -> Metrics:
        """The mean [] of each metric over the steps that count; at least one does."""
        steps = tuple(range(self.values.ndim - 1))
        total = jnp.sum(self.values, axis=steps, where=self.counts[..., None])
        return dict(zip(self.names, total / self.counts.sum(dtype=jnp.float32), strict=True))


def flat(rollout: PyTree) -> PyTree:
    """Leaves [T, N, ...] as [T * N, ...]."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rollout)


def shuffled(key: Key, num_epochs: int, num_minibatches: int, rows: int, axis_name: str | None = None) -> Array:
    """The rows of each minibatch, [E, M, rows / M] int32; every epoch has an order of its own, and every device."""
    return permutations(_mesh.own_key(key, axis_name), num_epochs, rows).reshape(num_epochs, num_minibatches, -1)


def take(tree: PyTree, rows: Array) -> PyTree:
    """The rows [B] of leaves [R, ...], all of which there are: [B, ...]."""
    return jax.tree.map(lambda x: x.at[rows].get(mode="promise_in_bounds"), tree)


def gradient(
    loss: Callable[[PyTree, Any, Key], tuple[Array, tuple[PyTree, Metrics]]],
    params: PyTree,
    batch: PyTree,
    key: Key,
    chunk_size: int | None,
    axis_name: str | None = None,
) -> tuple[PyTree, tuple[PyTree, Metrics]]:
    """The gradient of a minibatch's loss and its metrics, as means over equal chunks of rows, in the memory of one.

    Args:
      loss: (params, batch, key) -> mean loss [], (statistics of the network, metrics); its batch may be any chunk of
        rows, and each chunk has a key of its own.
      params: by which the gradient is taken.
      batch: leaves [B, ...].
      key: for the noise of a network.
      chunk_size: the most rows of a chunk; None for all at once, as where no divisor of B comes near it.
      axis_name: of the mesh axis whose devices have equal parts of the minibatch; None for one device.

    Returns:
      The gradient, and (statistics, metrics). A network with statistics needs the whole minibatch in one chunk.
    """
    return over_devices(lambda params: _gradient(loss, params, batch, key, chunk_size), params, axis_name)


def _gradient(loss: Callable, params: PyTree, batch: PyTree, key: Key, chunk_size: int | None) -> tuple[PyTree, Any]:
    """`gradient` of this device's part of a minibatch."""
    chunks = num_chunks(jax.tree.leaves(batch)[0].shape[0], chunk_size)
    if chunks == 1:
        return jax.grad(loss, has_aux=True)(params, batch, key)
    split = jax.tree.map(lambda x: x.reshape(chunks, -1, *x.shape[1:]), batch), jax.random.split(key, chunks)
    share = jax.grad(lambda params, *part: jax.tree.map(lambda x: x / chunks, loss(params, *part)), has_aux=True)
    share = jax.jit(share, inline=True)  # traced once, for its shapes and for the loop

    def add(sums: tuple[Array, Any], part: Any) -> tuple[tuple[Array, Any], None]:
        grads, metrics = share(params, *part)  # one vector of gradients: a kernel instead of one for each weight
        return jax.tree.map(jnp.add, sums, (ravel_pytree(grads)[0], metrics)), None

    shapes = jax.eval_shape(share, params, *jax.tree.map(lambda x: x[0], split))
    grads, metrics = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    flat, unravel = ravel_pytree(grads)
    (flat, metrics), _ = jax.lax.scan(add, vary_like((flat, metrics), shapes), split)
    return unravel(flat), metrics


def with_chunk_size(config: Config, network: Network, obs_space: Space, memory: int | None = None) -> Config:
    """The config with a number for `chunk_size`, where it has none.

    On a CPU, chunks of 8192 rows stay in the caches. Other devices wait for each chunk: theirs are as large as 1/16 of
    the memory holds, counting every array of a forward pass, and a gradient takes a half to a quarter of that.

    Args:
      config: of an agent.
      network: of observations, and of its memory where it has one.
      obs_space: an environment's.
      memory: bytes of the device; None for those of the first one, where it is no CPU.
    """
    if config.chunk_size is not None:
        return config
    if memory is None and jax.default_backend() != "cpu":
        memory = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    rows = CPU_ROWS
    if memory is not None:
        inputs = shape_of(obs_space), *((network.memory,) if jax.tree.leaves(network.memory) else ())
        weights = jax.eval_shape(network.init, jax.eval_shape(jax.random.key, 0), *inputs)
        needed = _intermediate_bytes(jax.make_jaxpr(network.apply)(*weights, *inputs).jaxpr)
        fitting = max(memory // 16 // max(needed, 1), 1)
        rows = max(rows, 1 << fitting.bit_length() - 1)  # a power of two
    return config.model_copy(update={"chunk_size": rows})


def _intermediate_bytes(program: Any) -> int:
    """Bytes of all results of a program's operations, those of the programs within it included."""
    total = 0
    for operation in program.eqns:
        inner = [getattr(x, "jaxpr", x) for x in operation.params.values()]
        inner = [x for x in inner if hasattr(x, "eqns")]
        results = (x.aval for x in operation.outvars)
        total += sum(map(_intermediate_bytes, inner)) or sum(math.prod(x.shape) * x.dtype.itemsize for x in results)
    return total


def chunk_size(config: Any, stats: PyTree) -> int | None:
    """The rows of a minibatch that pass the network at once: all where it has statistics, which are of the whole."""
    return None if jax.tree.leaves(stats) else config.chunk_size


def descend(
    step: Callable[[Any, Array, Key], tuple[Any, tuple[Metrics, Array]]],
    learner: Any,
    orders: Array,
    key: Key,
    axis_name: str | None = None,
) -> tuple[Any, MetricRows]:
    """Take a step for each row of `orders` [K, B] int32.

    Args:
      step: (learner, rows [B], key) -> learner, (metrics [] by name, whether they count []).
      learner: what the steps change.
      orders: [K, B] int32.
      key: of the update, from which the steps' noise is drawn, apart from the draws of `shuffled`.
      axis_name: of the mesh axis over which rows differ and the learner does not; None for one device.

    Returns:
      The learner after the last step, and the metrics of all steps.
    """

    def one(learner: Any, inputs: tuple[Array, Key]) -> tuple[Any, MetricRows]:
        learner, (metrics, counts) = step(learner, *inputs)
        return learner, MetricRows(jnp.stack(list(metrics.values())), counts, tuple(metrics))

    keys = jax.random.split(jax.random.fold_in(_mesh.own_key(key, axis_name), 1), orders.shape[0])
    return jax.lax.scan(one, vary_like(learner, orders, without=axis_name), (orders, keys))
