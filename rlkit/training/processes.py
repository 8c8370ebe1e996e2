"""One computation of several processes, on one machine or many, that `jax.distributed.initialize` has joined.

Each process makes the same calls with the same values, in the same order. A mesh of the devices of all of them divides
arrays; each process holds the parts on its own devices. In a single process these functions change nothing.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.types import PyTree


def is_first() -> bool:
    """Return True in the process that writes files and prints."""
    return jax.process_index() == 0


def gather(tree: PyTree) -> PyTree:
    """Return arrays that are divided over processes as whole ones, in the host's memory of each process.

    An array at a time is whole on each device as well. Other arrays are returned as they are.

    Args:
      tree: of the same structure and shapes in each process; typed keys included.
    """
    if jax.process_count() == 1:
        return tree
    from jax.experimental import multihost_utils

    def one(x: Any) -> Any:
        if not isinstance(x, jax.Array) or x.is_fully_addressable:
            return x
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(one(jax.random.key_data(x)), impl=jax.random.key_impl(x))
        return multihost_utils.process_allgather(x, tiled=True)

    return jax.tree.map(one, tree)


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
