"""Independent runs spread over devices: seeds, trials of a sweep, members of a population.

Their mesh has one axis, `run`, along which stacked runs are divided. Nothing is exchanged between them, so that each
device works at its own pace, and every run has the numbers that it has on one device.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from rlkit.types import PyTree

RUN = "run"  # name of the axis
DATA = "data"  # name of the axis over which `data_parallel` divides one run


def make(devices: Sequence[Any] | None = None, axis_name: str = RUN) -> Mesh:
    """Return a mesh with one axis, by default `run`, over devices; None for all of this process."""
    devices = jax.local_devices() if devices is None else devices
    return jax.make_mesh((len(devices),), (axis_name,), axis_types=(AxisType.Auto,), devices=devices)


def num_devices(num_runs: int, available: int) -> int:
    """Return how many of the available devices runs are spread over: as few as give no device more runs.

    10 runs on 8 devices are two on each of 5; on 4 devices they are three on each, with two copies of a run.
    """
    return math.ceil(num_runs / math.ceil(num_runs / available))


def over_runs(
    function: Callable[..., Any], mesh: Mesh | None = None, *, in_axes: Any = 0, out_axes: Any = 0
) -> Callable[..., Any]:
    """Map a function of one run over stacked runs, as `jax.vmap` does, spread over the devices of a mesh.

        mesh = training.mesh.make()
        states, metrics = jax.jit(training.over_runs(train, mesh))(jax.random.split(key, 10))

    Where the number of runs does not divide by that of devices, copies of the last run fill up, and are dropped.

    Args:
      function: of the values of one run.
      mesh: from `make`; None for `jax.vmap` alone.
      in_axes: for each argument, 0 where its leaves are [R, ...], None where all runs share it.
      out_axes: for each output, 0 for leaves [R, ...], 1 for [..., R, ...].

    Returns:
      A function of the values of R runs.
    """
    mapped = jax.vmap(function, in_axes, out_axes)
    if mesh is None:
        return mapped
    spread_function = spread(mapped, mesh, in_axes=in_axes, out_axes=out_axes)

    def run(*args: Any) -> Any:
        axes = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(args)
        runs = {x.shape[0] for axis, arg in zip(axes, args, strict=True) if axis == 0 for x in jax.tree.leaves(arg)}
        (num_runs,) = runs
        total = padded(num_runs, mesh)
        if total == num_runs:
            return spread_function(*args)
        filled = [pad(arg, total) if axis == 0 else arg for axis, arg in zip(axes, args, strict=True)]
        result = spread_function(*filled)

        def drop(axis: Any, tree: PyTree) -> PyTree:
            return jax.tree.map(lambda x: jax.lax.slice_in_dim(x, 0, num_runs, axis=axis), tree)

        return jax.tree.map(drop, out_axes, result)

    return run


def spread(
    function: Callable[..., Any], mesh: Mesh | None, *, in_axes: Any = 0, out_axes: Any = 0
) -> Callable[..., Any]:
    """Call a function of stacked runs on each device of a mesh, with the runs of that device.

    Args:
      function: of R' stacked runs, for any R'.
      mesh: from `make`; None to call the function once.
      in_axes, out_axes: as for `over_runs`.

    Returns:
      A function of R stacked runs, where the number of devices divides R.
    """
    if mesh is None:
        return function
    # Nothing is exchanged, so that the check of what varies over the mesh could find nothing; and loops in
    # environments of others, which start from constants, would not pass it.
    return jax.shard_map(function, mesh=mesh, in_specs=_specs(in_axes), out_specs=_specs(out_axes), check_vma=False)


def padded(num_runs: int, mesh: Mesh | None) -> int:
    """Return the number of runs, filled up to a multiple of a mesh's devices."""
    size = 1 if mesh is None else mesh.size
    return -(-num_runs // size) * size


def pad(tree: PyTree, total: int) -> PyTree:
    """Fill leaves [R, ...] up to [total, ...] with copies of the last run."""
    return jax.tree.map(lambda x: x[np.minimum(np.arange(total), x.shape[0] - 1)], tree)


def sharding(mesh: Mesh) -> NamedSharding:
    """Return the sharding of stacked runs, leaves [R, ...]."""
    return NamedSharding(mesh, P(RUN))


def _specs(axes: Any) -> Any:
    """The partition of each argument or output: along an axis, or, for None, the same on all devices."""
    return jax.tree.map(
        lambda axis: P() if axis is None else P(*[None] * axis, RUN), axes, is_leaf=lambda axis: axis is None
    )
