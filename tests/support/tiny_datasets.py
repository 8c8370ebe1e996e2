"""Small transitions, and a dataset of them."""

import jax
import numpy as np

from rlkit.runs import datasets
from rlkit.types import Transition


def rollout(num_rows=6, num_envs=2):
    shape = (num_rows, num_envs)
    places = np.arange(num_rows * num_envs, dtype=np.float32).reshape(shape)
    obs = {"a": np.stack([places, -places], -1), "b": (places.astype(np.uint8),)}
    flags = places % 5 == 4
    return Transition(obs, places.astype(np.int32), places, flags, ~flags & (places % 3 == 2), obs)


EXAMPLE = jax.tree.map(lambda x: x[0, 0], rollout())
NAMES = [f"{number:03d}.bin" for number in range(8)]


def write(folder, times=3, **changes):
    """Write one rollout `times` times, with some of its leaves changed; returns the folder."""
    steps = rollout()._replace(**changes)
    with datasets.writer(folder, jax.tree.map(lambda x: x[0, 0], steps), 2, extra={"note": [1, "x"]}) as w:
        for _ in range(times):
            w.add(steps)
    return folder
