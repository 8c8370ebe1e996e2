"""cpprb's prioritized buffer, for run.py."""

from typing import Any

import numpy as np
from cpprb import PrioritizedReplayBuffer
from workload import ALPHA, BETA, EPS, Operations, cycles, each, filling, transitions


class Prioritized:
    def __init__(self, capacity: int, batch: int, python: int = 500, jit: int = 0):
        rng = np.random.default_rng(0)
        fields = {name: {"shape": x.shape[1:] or 1, "dtype": x.dtype} for name, x in transitions(rng, (1,)).items()}
        self.buffer = PrioritizedReplayBuffer(capacity, fields, alpha=ALPHA, eps=EPS)
        for places, steps, priority in filling(rng, capacity):
            self.buffer.add(**steps)
            self.buffer.update_priorities(np.arange(places.start, places.stop, dtype=np.uint64), priority)
        steps = each(transitions(rng, (python,)), python)
        priority = 1 - rng.random((python, batch), np.float32)
        self.inputs = [(step, None, one) for step, one in zip(steps, priority, strict=True)]
        self.batch = batch
        self.modes = {"python": self.python}

    def python(self, seed: int) -> dict[str, float]:
        np.random.seed(seed)  # noqa: NPY002, this is where cpprb draws from
        operations = Operations(
            add=lambda step: self.buffer.add(**step),
            sample=lambda key: self.buffer.sample(self.batch, BETA)["indexes"],
            update=self.buffer.update_priorities,
        )
        return cycles(operations, self.inputs)

    def check(self) -> dict[str, Any]:
        return {"stored": self.buffer.get_stored_size()}


KINDS = {"prioritized": Prioritized}
