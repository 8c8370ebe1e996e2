"""Minibatches of a rollout, and their gradients in bounded memory, for agents without a replay buffer."""

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
from rlkit.ops import chunked
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

    @classmethod
    def of(cls, metrics: Metrics, counts: bool | Array = True) -> "MetricRows":
        """The row of one step, for a scan to stack: its metrics [] by name, and whether it counts []."""
        return cls(jnp.stack(list(metrics.values())), jnp.asarray(counts), tuple(metrics))

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


def noise_keys(key: Key, num_steps: int, axis_name: str | None = None) -> Key:
    """Keys [K] of the noise of K gradient steps, apart from the draws of `shuffled`; every device has its own."""
    return jax.random.split(jax.random.fold_in(_mesh.own_key(key, axis_name), 1), num_steps)


def take(tree: PyTree, rows: Array) -> PyTree:
    """The rows [B] of leaves [R, ...], all of which there are: [B, ...]."""
    return jax.tree.map(lambda x: x.at[rows].get(mode="promise_in_bounds"), tree)


def gradient(
    loss: Callable[[PyTree, Any, Key], tuple[Array, tuple[PyTree, Metrics]]], chunks: int, axis_name: str | None = None
) -> Callable[[PyTree, Any, Key], tuple[PyTree, tuple[PyTree, Metrics]]]:
    """Return a function that computes the gradient of a minibatch's loss, in the memory of one chunk of rows.

    Args:
      loss: (params, batch, key) -> mean loss [], (statistics of the network, metrics); its batch may be any chunk of
        rows, and each chunk has a key of its own.
      chunks: how many, see `num_chunks`; it divides the rows.
      axis_name: of the mesh axis whose devices have equal parts of the minibatch; None for one device.

    Returns:
      The function (params, batch, key) -> gradient by params, (statistics, metrics); batch has leaves [B, ...].
    """
    if chunks == 1:
        return over_devices(jax.grad(loss, has_aux=True), axis_name)
    share = jax.grad(lambda params, *part: jax.tree.map(lambda x: x / chunks, loss(params, *part)), has_aux=True)
    share = jax.jit(share, inline=True)  # traced once, for its shapes and for the loop

    def summed(params: PyTree, batch: Any, key: Key) -> tuple[PyTree, tuple[PyTree, Metrics]]:
        split = jax.tree.map(lambda x: x.reshape(chunks, -1, *x.shape[1:]), batch), jax.random.split(key, chunks)

        def add(sums: tuple[Array, Any], part: Any) -> tuple[tuple[Array, Any], None]:
            grads, metrics = share(params, *part)  # one vector of gradients: a kernel instead of one for each weight
            return jax.tree.map(jnp.add, sums, (ravel_pytree(grads)[0], metrics)), None

        shapes = jax.eval_shape(share, params, *jax.tree.map(lambda x: x[0], split))
        grads, metrics = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        flat, unravel = ravel_pytree(grads)
        (flat, metrics), _ = jax.lax.scan(add, vary_like((flat, metrics), shapes), split)
        return unravel(flat), metrics

    return over_devices(summed, axis_name)


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


def num_chunks(config: MinibatchConfig, stats: PyTree, batch: PyTree) -> int:
    """The chunks of a minibatch [B, ...]: one where the network has statistics, which are of the whole minibatch."""
    return 1 if jax.tree.leaves(stats) else chunked.num_chunks(jax.tree.leaves(batch)[0].shape[0], config.chunk_size)
