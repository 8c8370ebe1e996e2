"""Policies as StableHLO, by `jax.export`, for JAX on any platform and for compilers that read MLIR."""

import re
from collections.abc import Callable

import jax
import numpy as np

from rlkit import _cpu
from rlkit.runs.exporting.policy_function import Arrays, PolicyFunction

PLATFORMS = ("cpu", "cuda", "tpu")


def to_bytes(function: PolicyFunction) -> bytes:
    """Return the bytes that `jax.export.deserialize` reads.

    The exported function maps a dict of the inputs to a dict of the outputs, for a batch of any size. So the names,
    shapes and dtypes are those of its `in_tree`, `in_avals`, `out_tree` and `out_avals`; its `fun_name` is the run's.
    """
    (batch,) = jax.export.symbolic_shape("B")

    def act(inputs: Arrays) -> Arrays:
        return function.apply(function.policy.actor, inputs)

    act.__name__ = re.sub(r"[^\w.-]", "_", function.about["run"])
    shapes = {value.name: jax.ShapeDtypeStruct((batch, *value.shape), value.dtype) for value in function.inputs}
    with _cpu.plain(), jax.numpy_rank_promotion("allow"):
        return bytes(jax.export.export(jax.jit(act), platforms=PLATFORMS)(shapes).serialize())


def reader(data: bytes) -> Callable[[Arrays], Arrays]:
    """Return a function from inputs to outputs, NumPy arrays, of an exported policy."""
    call = jax.jit(jax.export.deserialize(bytearray(data)).call)
    return lambda inputs: {name: np.asarray(x) for name, x in call(inputs).items()}
