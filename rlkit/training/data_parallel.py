"""One training run on several devices: environments and batches divided over them, the same parameters on each.

    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    agent = ppo.make(ppo.Config(), obs_space, action_space, axis_name="data")
    run = training.make(agent, env, params, num_envs=2048, num_steps=32)  # 2048 on all devices together
    init, step = training.data_parallel(run, mesh, "data")
    state = jax.jit(init)(ppo.Hyper(), jax.random.key(0))
    state, metrics = jax.jit(step, donate_argnums=0)(state)

Rollouts have the same keys as on one device, and gradients, statistics and priorities are those of all devices. The
rows of a batch may differ: each device draws its part of a minibatch from its own environments, and its part of a
sample from its own part of the replay buffer, by keys of its own.
"""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

import jax
from flax import struct
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from rlkit import _mesh
from rlkit.training.train import EPISODES, Training, TrainState
from rlkit.types import Agent, Array, ConfigError, Key, PyTree, Transition

# Places in `_split` of a TrainState's leaves.
BY_ENVIRONMENT = 0  # leaves [N, ...]
BY_DEVICE = 1  # leaves [...] on one device, and together [D, ...]
REPLICATED = 2


def data_parallel(run: Training, mesh: Mesh | AbstractMesh, axis_name: str, *, check_vma: bool = True) -> Training:
    """Return the two functions of a training run on the devices of one axis of a mesh together.

    Both are pure functions of whole arrays, to be jitted; `step` may donate its state.

    Args:
      run: of `training.make` or `training.offline`, with an agent made with the same `axis_name`. All settings count
        environments, rows of a batch and steps in the replay buffer on all devices together.
      mesh: of devices. Over its other axes everything is replicated.
      axis_name: of the axis over which environments and batches are divided.
      check_vma: of `jax.shard_map`: False for an environment whose loops do not pass its check.

    Returns:
      `Training`. In its state the environments, leaves [N, ...], are divided over the devices; the replay buffer has
      leaves [D, ...], one entry for each of D devices; all else is replicated. The metrics are as on one device.

    Raises:
      ConfigError: the mesh has no such axis; and from `init` and `step`, a number that cannot be divided over them.
    """
    _check_axis(mesh, axis_name)
    on_devices = partial(jax.shard_map, mesh=mesh, check_vma=check_vma)
    specs = _specs(axis_name)

    def init(hyper: PyTree, key: Key) -> TrainState:
        def on_one(key: Key) -> tuple[TrainState, ...]:
            return _parts(run.init(hyper, key))

        return _join(on_devices(on_one, in_specs=P(), out_specs=specs)(key))

    def step(state: TrainState) -> tuple[TrainState, dict[str, Array]]:
        def on_one(parts: tuple[TrainState, ...]) -> tuple[tuple[TrainState, ...], dict[str, Array], dict[str, Array]]:
            state, metrics = run.step(_of_device(parts))
            episodes = {name: metrics.pop(name) for name in EPISODES if name in metrics}
            return _parts(state), metrics, episodes

        run_step = on_devices(on_one, in_specs=(specs,), out_specs=(specs, P(), P(None, axis_name)))
        parts, metrics, episodes = run_step(_split(state))
        return _join(parts), metrics | episodes

    return Training(init, step)


def data_parallel_agent(agent: Agent, mesh: Mesh | AbstractMesh, axis_name: str, *, check_vma: bool = True) -> Agent:
    """Return an agent that learns on the devices of one axis of a mesh together, from rollouts that are given.

        agent = training.data_parallel_agent(ppo.make(..., axis_name="data"), mesh, "data")
        state, metrics = jax.jit(agent.update, donate_argnums=0)(state, rollout, key)

    Its `init`, `update`, `add` and `wait` are pure functions of whole arrays, to be jitted. A state is divided as
    `data_parallel` divides it, and rollouts, leaves [T, N, ...], are divided by environment. All else of it is as in
    `agent`, for the inside of `jax.shard_map`; an agent made without `axis_name` acts for it.

    Args:
      agent: made with the same `axis_name`.
      mesh, axis_name, check_vma: as for `data_parallel`.

    Raises:
      ConfigError: the agent has another axis, or the mesh has no such axis; and from the functions, a number that
        cannot be divided over the devices.
    """
    _check_axis(mesh, axis_name)
    if agent.axis_name != axis_name:
        raise ConfigError(
            f"axis_name={axis_name!r} must be that of the agent, {agent.axis_name!r}; make it with the same"
        )
    on_devices = partial(jax.shard_map, mesh=mesh, check_vma=check_vma)
    specs = _specs(axis_name)

    def init(hyper: PyTree, key: Key, example: Transition, num_envs: int) -> PyTree:
        def on_one(key: Key) -> tuple[PyTree, ...]:
            return _parts(agent.init(hyper, key, example, num_envs))

        return _join(on_devices(on_one, in_specs=P(), out_specs=specs)(key))

    def divided(function: Callable[..., tuple[PyTree, dict[str, Array]]]) -> Callable[..., Any]:
        """A function of a state, a rollout and perhaps a key, on all devices."""

        def on_one(parts: tuple[PyTree, ...], *arguments: Any) -> tuple[tuple[PyTree, ...], dict[str, Array]]:
            state, metrics = function(_of_device(parts), *arguments)
            return _parts(state), metrics

        def on_all(state: PyTree, rollout: Transition, *key: Key) -> tuple[PyTree, dict[str, Array]]:
            in_specs = (specs, P(None, axis_name), *[P()] * len(key))
            parts, metrics = on_devices(on_one, in_specs=in_specs, out_specs=(specs, P()))(_split(state), rollout, *key)
            return _join(parts), metrics

        return on_all

    functions: dict[str, Any] = {"init": init, "update": divided(agent.update)}
    if (agent_add := agent.add) is not None:
        add = divided(lambda state, rollout: (agent_add(state, rollout), {}))
        functions["add"] = lambda state, rollout: add(state, rollout)[0]
    if agent.wait is not None:
        functions["wait"] = divided(agent.wait)
    return agent._replace(**functions)


def data_parallel_add(
    agent: Agent, mesh: Mesh, axis_name: str, *, check_vma: bool = True
) -> Callable[[TrainState, Transition], TrainState]:
    """Return `Agent.add` for the states of `data_parallel`: it fills the replay buffers for `training.offline`.

        state = jax.jit(training.data_parallel_add(agent, mesh, "data"), donate_argnums=0)(state, transitions)

    Args:
      agent: with a replay buffer, made with the same `axis_name`.
      mesh, axis_name, check_vma: as for `data_parallel`.

    Returns:
      A pure function of a state and of transitions, leaves [T, N, ...], extras (): the N streams are divided over the
      devices, as environments are. It returns the state.

    Raises:
      ConfigError: the agent has no replay buffer or another axis, the mesh has no such axis; and from the function, a
        number of streams that cannot be divided over the devices.
    """
    if agent.add is None:
        raise ConfigError("this agent learns from what it collects itself, not from a dataset; use iql or td3_bc")
    add: Any = data_parallel_agent(agent, mesh, axis_name, check_vma=check_vma).add

    def add_all(state: TrainState, transitions: Transition) -> TrainState:
        _mesh.share("num_envs", transitions.reward.shape[1], mesh.shape[axis_name])
        return state.replace(agent=add(state.agent, transitions))

    return add_all


def shardings(state: PyTree, mesh: Mesh | AbstractMesh, axis_name: str) -> PyTree:
    """Return the sharding of each leaf of a TrainState or of an agent's state, or of its shapes, as it is divided."""
    by_place = {place: NamedSharding(mesh, spec) for place, spec in enumerate(_specs(axis_name))}
    return jax.tree.map(lambda place: by_place[place], _division(state))


def _check_axis(mesh: Mesh | AbstractMesh, axis_name: str) -> None:
    """Raise ConfigError where a mesh has no such axis."""
    if axis_name not in mesh.axis_names:
        raise ConfigError(f"axis_name={axis_name!r} must be an axis of the mesh, one of {', '.join(mesh.axis_names)}")


def _specs(axis_name: str) -> tuple[P, ...]:
    """The divisions of the parts of `_split` over the devices."""
    return P(axis_name), P(axis_name), P()


def _split(state: PyTree) -> tuple[PyTree, ...]:
    """The leaves by environment, those by device, and the replicated ones, each as a state that is None elsewhere."""
    division = _division(state)
    return tuple(
        jax.tree.map(lambda d, x, place=place: x if d == place else None, division, state) for place in range(3)
    )


def _join(parts: tuple[PyTree, ...]) -> PyTree:
    """The state of which `parts` are the parts."""

    def first(*leaves: Array | None) -> Array | None:  # None where the state itself has None
        return next((x for x in leaves if x is not None), None)

    return jax.tree.map(first, *parts, is_leaf=lambda x: x is None)


def _division(tree: PyTree) -> PyTree:
    """The place in `_split` of each leaf, by `by_environment` and `by_device` of the records that hold it."""
    if not _is_record(tree):
        return jax.tree.map(lambda x: _division(x) if _is_record(x) else REPLICATED, tree, is_leaf=_is_record)
    places: dict[str, int] = dict.fromkeys(getattr(tree, "by_environment", ()), BY_ENVIRONMENT)
    places |= dict.fromkeys(getattr(tree, "by_device", ()), BY_DEVICE)

    def of(name: str) -> PyTree:
        field, place = getattr(tree, name), places.get(name)
        return _division(field) if place is None else jax.tree.map(lambda _: place, field)

    return tree.replace(**{f.name: of(f.name) for f in fields(tree) if f.metadata.get("pytree_node", True)})


def _is_record(tree: PyTree) -> bool:
    """True for a record whose class may name fields in `by_environment` and `by_device`."""
    return isinstance(tree, struct.PyTreeNode)


def _parts(state: PyTree) -> tuple[PyTree, ...]:
    """`_split` of the state of one device, where the leaves by device have a new first axis [1, ...]."""
    return _split(jax.tree.map(lambda place, x: x[None] if place == BY_DEVICE else x, _division(state), state))


def _of_device(parts: tuple[PyTree, ...]) -> PyTree:
    """The inverse of `_parts`."""
    state = _join(parts)
    return jax.tree.map(lambda place, x: x[0] if place == BY_DEVICE else x, _division(state), state)
