"""TorchRL's prioritized sampler and its sampler of slices, for run.py.

It is called in the fastest way: a plain ReplayBuffer rather than a TensorDictReplayBuffer, items that are
TensorDicts already, `add` rather than `extend` for one item, and its compiled trees.
"""

import os
import sys
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from workload import (
    ALPHA,
    BETA,
    EPS,
    Operations,
    bytes_of_steps,
    cycles,
    filling,
    slices_filling,
    transitions,
)

# TorchRL's compiled extension is built for one version of torch, and none for 2.13: two functions are missing, which
# only autograd calls. With lazy binding of functions it loads nevertheless; `check` verifies its trees.
_flags = sys.getdlopenflags()
sys.setdlopenflags(os.RTLD_LAZY)
from torchrl import _torchrl  # noqa: E402, F401

sys.setdlopenflags(_flags)

from torchrl.data import LazyTensorStorage, ReplayBuffer, SliceSampler  # noqa: E402
from torchrl.data.replay_buffers.samplers import PrioritizedSampler  # noqa: E402

Inputs = list[tuple[Any, Any, Any]]


def record(leaves: dict[str, np.ndarray]) -> TensorDict:
    """Make a TensorDict of n items from leaves [n, ...]."""
    return TensorDict({name: torch.from_numpy(x) for name, x in leaves.items()}, leaves["reward"].shape[:1])


class Prioritized:
    def __init__(self, capacity: int, batch: int, python: int = 500, jit: int = 0):
        rng = np.random.default_rng(0)
        self.sampler = PrioritizedSampler(capacity, ALPHA, BETA, EPS)
        self.buffer = ReplayBuffer(storage=LazyTensorStorage(capacity), sampler=self.sampler, batch_size=batch)
        for places, steps, priority in filling(rng, capacity):
            self.buffer.extend(record(steps))
            self.buffer.update_priority(torch.arange(places.start, places.stop), torch.from_numpy(priority))
        steps, priority = record(transitions(rng, (python,))), 1 - rng.random((python, batch), np.float32)
        self.inputs: Inputs = [(steps[index], None, torch.from_numpy(priority[index])) for index in range(python)]
        self.modes = {"python": self.python}

    def python(self, seed: int) -> dict[str, float]:
        np.random.seed(seed)  # noqa: NPY002, this is where its sampler draws from
        operations = Operations(
            add=self.buffer.add,
            sample=lambda key: self.buffer.sample(return_info=True)[1]["index"],
            update=self.buffer.update_priority,
        )
        return cycles(operations, self.inputs)

    def check(self) -> dict[str, Any]:
        """Assert that the minimum is that of the leaves; return the error of the total."""
        trees, capacity = (self.sampler._sum_tree, self.sampler._min_tree), len(self.buffer)
        leaves = np.asarray(trees[0][torch.arange(capacity)], np.float64)
        total, least = (float(tree.query(0, capacity)) for tree in trees)
        assert least == leaves.min(), f"the least priority is {leaves.min()}, not {least}"
        return {"total": total, "sum": leaves.sum(), "error": abs(total - leaves.sum()) / leaves.sum()}


class Slices:
    """One stream in its order; several would need a storage of more dimensions, which is no faster."""

    def __init__(self, stored: int, capacity: int, slices: int, slice_len: int, rows: int, python: int = 3):
        rng = np.random.default_rng(0)
        sampler = SliceSampler(slice_len=slice_len, end_key="done", strict_length=True, cache_values=True)
        storage = LazyTensorStorage(capacity)
        self.buffer = ReplayBuffer(storage=storage, sampler=sampler, batch_size=slices * slice_len)
        for steps in slices_filling(rng, stored, 1):
            self.buffer.extend(self.record(steps))
        self.inputs: Inputs = [(self.record(bytes_of_steps(rng, (rows, 1))), None, None) for _ in range(python)]
        self.modes = {"python": self.python}

    @staticmethod
    def record(steps: dict[str, np.ndarray]) -> TensorDict:
        names = {"obs": "obs", "reward": "reward", "terminated": "done", "truncated": "truncated"}
        return record({name: steps[source][:, 0] for source, name in names.items()})

    def python(self, seed: int) -> dict[str, float]:
        torch.manual_seed(seed)
        return cycles(Operations(self.buffer.extend, lambda key: self.buffer.sample(), None), self.inputs)

    def check(self) -> dict[str, Any]:
        return {"stored": len(self.buffer)}


KINDS = {"prioritized": Prioritized, "slices": Slices}
