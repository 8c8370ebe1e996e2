"""One computation of several processes, on one machine or many, that `jax.distributed.initialize` has joined.

Each process makes the same calls with the same values, in the same order. A mesh of the devices of all of them divides
arrays; each process holds the parts on its own devices. In a single process these functions change nothing.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.types import PyTree

_TOGETHER = 1 << 20  # bytes of small arrays that are exchanged together


def is_first() -> bool:
    """Return True in the process that writes files and prints."""
    return jax.process_index() == 0


def number() -> int:
    """Return the number of processes that train together; 1 for a process alone."""
    return jax.process_count()


def gather(tree: PyTree) -> PyTree:
    """Return arrays that are divided over processes as whole ones, in the host's memory of each process.

    Small arrays are exchanged together, as an exchange takes milliseconds whatever its size. A large one is for a
    moment whole on each device as well. Other arrays are returned as they are.

    Args:
      tree: of the same structure and shapes in each process; typed keys included.
    """
    if jax.process_count() == 1:
        return tree
    from jax.experimental import multihost_utils

    leaves, structure = jax.tree.flatten(tree)
    groups: list[list[int]] = [[]]
    for i, x in enumerate(leaves):
        if not isinstance(x, jax.Array) or x.is_fully_addressable:
            continue
        if x.nbytes > _TOGETHER and not x.is_fully_replicated:
            leaves[i] = multihost_utils.process_allgather(x, tiled=True)
            continue
        if sum(leaves[j].nbytes for j in groups[-1]) + x.nbytes > _TOGETHER:
            groups.append([])
        groups[-1].append(i)
    for group in groups:
        for i, whole in zip(group, _gather_together([leaves[i] for i in group]), strict=True):
            leaves[i] = whole
    return structure.unflatten(leaves)


def _gather_together(arrays: list[jax.Array]) -> list[Any]:
    """The whole arrays, by one exchange of the bytes that each process has."""
    from jax.experimental import multihost_utils

    is_key = [jnp.issubdtype(x.dtype, jax.dtypes.prng_key) for x in arrays]
    numbers = [jax.random.key_data(x) if key else x for x, key in zip(arrays, is_key, strict=True)]
    wholes, own = [], []
    views: list[list[np.ndarray]] = [[] for _ in range(jax.process_count())]  # the parts of each process, in one order
    for x in numbers:
        if x.is_fully_replicated:
            wholes.append(np.asarray(x.addressable_data(0)))
            continue
        wholes.append(np.empty(x.shape, x.dtype))
        for device, index in sorted(x.sharding.devices_indices_map(x.shape).items(), key=lambda pair: pair[0].id):
            views[device.process_index].append(wholes[-1][index])
        shards = sorted(x.addressable_shards, key=lambda shard: shard.device.id)
        own += [np.ascontiguousarray(shard.data).reshape(-1).view(np.uint8) for shard in shards]
    if length := max(sum(view.nbytes for view in parts) for parts in views):
        sent = np.zeros(length, np.uint8)
        sent[: sum(part.size for part in own)] = np.concatenate([*own, np.zeros(0, np.uint8)])
        for parts, row in zip(views, np.asarray(multihost_utils.process_allgather(sent)), strict=True):
            begin = 0
            for view in parts:
                view[...] = row[begin : begin + view.nbytes].view(view.dtype).reshape(view.shape)
                begin += view.nbytes
    return [
        jax.random.wrap_key_data(whole, impl=jax.random.key_impl(x)) if key else whole
        for whole, x, key in zip(wholes, arrays, is_key, strict=True)
    ]


def place(tree: PyTree, shardings: PyTree) -> PyTree:
    """Return whole arrays as ones that are divided, the reverse of `gather`.

    Args:
      tree: the same values in each process.
      shardings: of each leaf; None for the first device of the process.
    """
    if jax.process_count() == 1:
        return jax.device_put(tree, shardings)

    def one(x: Any, sharding: Any) -> jax.Array:
        if sharding is None or sharding.is_fully_addressable or getattr(x, "sharding", None) == sharding:
            return jax.device_put(x, sharding)
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(one(jax.random.key_data(x), sharding), impl=jax.random.key_impl(x))
        whole = np.asarray(x)
        return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])

    leaves, structure = jax.tree.flatten(tree)
    places = [shardings] * len(leaves) if shardings is None else structure.flatten_up_to(shardings)
    return structure.unflatten([one(*pair) for pair in zip(leaves, places, strict=True)])


def agree(tree: PyTree) -> PyTree:
    """Return the values of the first process in each, for what depends on clocks, files or a user's function.

    Args:
      tree: arrays and numbers of the same structure and shapes in each process.
    """
    if jax.process_count() == 1:
        return tree
    from jax.experimental import multihost_utils

    return multihost_utils.broadcast_one_to_all(tree)


def agree_on_text(text: str, most: int = 1 << 14) -> str:
    """Return a text of the first process in each, cut to `most` bytes."""
    if jax.process_count() == 1:
        return text
    return _text(agree(_words(text, most)))


def greatest(value: int) -> int:
    """Return the greatest value of all processes."""
    if jax.process_count() == 1:
        return value
    from jax.experimental import multihost_utils

    return int(multihost_utils.process_allgather(np.int32(value)).max())


def texts(text: str, most: int = 1 << 10) -> list[str]:
    """Return the texts of all processes in their order, each cut to `most` bytes."""
    if jax.process_count() == 1:
        return [text]
    from jax.experimental import multihost_utils

    return [_text(words) for words in multihost_utils.process_allgather(_words(text, most))]


def total(values: np.ndarray) -> np.ndarray:
    """Return the sums of arrays over all processes."""
    if jax.process_count() == 1:
        return values
    from jax.experimental import multihost_utils

    return multihost_utils.process_allgather(values).sum(0, dtype=values.dtype)


def _words(text: str, most: int) -> np.ndarray:
    """A text as [most] uint8, filled up with zeros."""
    words = np.zeros(most, np.uint8)
    data = text.encode("utf-8", "surrogateescape")[:most]
    words[: len(data)] = np.frombuffer(data, np.uint8)
    return words


def _text(words: Any) -> str:
    """The inverse of `_words`."""
    return bytes(np.asarray(words)).rstrip(b"\0").decode("utf-8", "surrogateescape")
