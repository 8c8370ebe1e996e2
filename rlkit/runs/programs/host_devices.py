"""The devices on which a run learns whose environments are outside of JAX: one, or those over which it is divided."""

from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from rlkit import _mesh
from rlkit.training import mesh, processes
from rlkit.training.data_parallel import shardings
from rlkit.types import Key, PyTree, Transition


class HostDevices:
    """Places the state, rollouts and keys of a run on its devices.

    Args:
      data_mesh: over whose devices environments, minibatches and the replay buffer are divided; None for one device.
      num_envs: N, on all devices together.

    Raises:
      ConfigError: the devices do not divide the environments.
    """

    def __init__(self, data_mesh: Mesh | AbstractMesh | None, num_envs: int):
        self.mesh, self.num_envs = data_mesh, num_envs
        self.number = 1 if data_mesh is None else data_mesh.size
        _mesh.share("num_envs", num_envs, self.number)

    @cached_property
    def envs(self) -> range:
        """The environments that this process steps."""
        if self.mesh is None:
            return range(self.num_envs)
        parts = NamedSharding(self.mesh, P(mesh.DATA)).addressable_devices_indices_map((self.num_envs,)).values()
        rows = [part[0].indices(self.num_envs) for part in parts if part is not None]
        return range(min(row[0] for row in rows), max(row[1] for row in rows))

    def gather(self, tree: PyTree, axis: int = 0) -> PyTree:
        """Return NumPy arrays of this process's environments, along an axis, as those of all environments.

        Arrays of all environments are returned as they are, and so are those without the axis.
        """
        if jax.process_count() == 1 or self.mesh is None:
            return tree
        place = NamedSharding(self.mesh, P(*[None] * axis, mesh.DATA))

        def one(x: Any) -> Any:
            if np.ndim(x) <= axis or x.shape[axis] == self.num_envs:
                return x
            return processes.gather(jax.make_array_from_process_local_data(place, np.asarray(x)))

        return jax.tree.map(one, tree)

    def gather_metrics(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """Return the metrics of updates with the episodes [K, T, N] and the restarts [K] of all processes."""
        return {
            name: processes.total(x) if name == "env_restarts" else self.gather(x, axis=2)
            for name, x in metrics.items()
        }

    def state(self, agent: PyTree) -> PyTree:
        """Return the sharding of each leaf of an agent's state; None where it has one device."""
        return None if self.mesh is None else shardings(agent, self.mesh, mesh.DATA)

    @property
    def everywhere(self) -> NamedSharding | None:
        """The sharding of replicated arrays."""
        return None if self.mesh is None else NamedSharding(self.mesh, P())

    @property
    def rollout(self) -> NamedSharding | None:
        """The sharding of rollouts, leaves [T, N, ...]."""
        return None if self.mesh is None else NamedSharding(self.mesh, P(None, mesh.DATA))

    def shapes(self, rollout: Transition, key: Key) -> tuple[Any, Any]:
        """Return the shapes of a rollout and of a key as `place` places them."""
        if self.mesh is None:
            return rollout, key

        def divided(x: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((x.shape[0], self.num_envs, *x.shape[2:]), x.dtype, sharding=self.rollout)

        return jax.tree.map(divided, rollout), jax.ShapeDtypeStruct(key.shape, key.dtype, sharding=self.everywhere)

    def place(self, rollout: Transition, key: Key) -> tuple[Transition, Key]:
        """Return a rollout of NumPy arrays and a key on the devices."""
        if self.mesh is None:
            return rollout, key
        return self.place_rollout(rollout), processes.place(key, self.everywhere)

    def place_rollout(self, rollout: Transition) -> Transition:
        """Return a rollout of NumPy arrays on the devices."""
        if self.mesh is None:
            return rollout
        return jax.tree.map(lambda x: jax.make_array_from_process_local_data(self.rollout, x), rollout)

    def local_copy(self, tree: PyTree) -> PyTree:
        """Return replicated arrays on one device of this process."""
        if self.mesh is None:
            return tree

        def one(x: Any) -> Any:
            if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
                return jax.random.wrap_key_data(one(jax.random.key_data(x)), impl=jax.random.key_impl(x))
            return x.addressable_data(0)

        return jax.tree.map(one, tree)
