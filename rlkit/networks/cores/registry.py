"""Recurrent cores by name, in one layer or several: cells, which run step by step, and linear recurrences."""

from typing import Any

import flax.linen as nn

from rlkit.networks.cores import linear
from rlkit.networks.cores.cells import GRU, LSTM
from rlkit.networks.cores.linear import LRU, S5, MinGRU
from rlkit.networks.cores.recurrent import unroll
from rlkit.networks.dense import Dense
from rlkit.networks.network import as_network
from rlkit.types import Array, Network, PyTree

CELLS: dict[str, type[GRU] | type[LSTM]] = {"gru": GRU, "lstm": LSTM}
BLOCKS: dict[str, type[MinGRU] | type[LRU] | type[S5]] = {"mingru": MinGRU, "lru": LRU, "s5": S5}


class Cells(nn.Module):
    """Layers of a cell, each on the features of the one before; the memory is a tuple of theirs."""

    cell: type[GRU] | type[LSTM]
    size: int
    num_layers: int

    def setup(self):
        self.layers = [self.cell(self.size) for _ in range(self.num_layers)]

    def project(self, x: Array) -> Array:
        """Project features [..., D] to the inputs of the first layer."""
        return self.layers[0].project(x)

    def advance(self, memory: PyTree, x: Array) -> tuple[PyTree, Array]:
        """Return the next memory and the features [..., size], after one step from `memory` with a projected input."""
        after = []
        for i, (layer, before) in enumerate(zip(self.layers, memory, strict=True)):
            new, x = layer.advance(before, layer.project(x) if i else x)
            after.append(new)
        return tuple(after), x

    def unroll(self, memory: PyTree, x: Array, start: Array) -> tuple[Array, PyTree]:
        """Return the features and the memory before each row, [T, B, ...], as `recurrent.unroll` does."""
        memories = []
        for i, (layer, first) in enumerate(zip(self.layers, memory, strict=True)):
            x = layer.project(x) if i else x
            x, before = unroll(layer.advance, self.cell.start(self.size), first, x, start)
            memories.append(before)
        return x, tuple(memories)


class Blocks(nn.Module):
    """A projection, then layers of a block; the memory is a tuple of theirs."""

    block: Any  # a class in `BLOCKS`
    size: int
    num_layers: int

    def setup(self):
        self.inputs = Dense(self.size)
        self.layers = [self.block(self.size) for _ in range(self.num_layers)]

    def project(self, x: Array) -> Array:
        """Project features [..., D] to those of the blocks [..., size]."""
        return self.inputs(x)

    def advance(self, memory: PyTree, x: Array) -> tuple[PyTree, Array]:
        """Return the next memory and the features [..., size], after one step from `memory` with a projected input."""
        after = []
        for layer, before in zip(self.layers, memory, strict=True):
            a, b, rest = layer.project(x)
            after.append(linear.advance(before, a, b))
            x = layer.decode(x, after[-1], rest)
        return tuple(after), x

    def unroll(self, memory: PyTree, x: Array, start: Array) -> tuple[Array, PyTree]:
        """Return the features and the memory before each row, [T, B, ...], as `recurrent.unroll` does."""
        memories = []
        for layer, first in zip(self.layers, memory, strict=True):
            a, b, rest = layer.project(x)
            h, before = linear.unroll(first, a, b, start)
            memories.append(before)
            x = layer.decode(x, h, rest)
        return x, tuple(memories)


def core(name: str, size: int, num_layers: int) -> GRU | LSTM | Cells | Blocks:
    """Return the module of a core by its name and its number of layers."""
    if name in BLOCKS:
        return Blocks(BLOCKS[name], size, num_layers)
    return CELLS[name](size) if num_layers == 1 else Cells(CELLS[name], size, num_layers)


def start(name: str, size: int, num_layers: int) -> PyTree:
    """Return the memory of a core at the start of an episode, for one environment."""
    one = (CELLS | BLOCKS)[name].start(size)
    return one if name in CELLS and num_layers == 1 else (one,) * num_layers


def recurrent_network(module: Any, memory: PyTree) -> Network:
    """Return a module with the fields `recurrent` and `memory_layers` as a `Network` with a memory.

    Cells of one layer run step by step, those of an actor and of a critic in one loop.
    """
    network = as_network(module, memory=memory)
    if module.recurrent in BLOCKS or module.memory_layers > 1:
        return network
    return network._replace(parts=network.parts and network.parts._replace(unroll=None))
