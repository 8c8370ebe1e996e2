"""The greedy policy of a run as one pure function of named arrays, for batches of observations."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlkit import _cpu
from rlkit.hosts.placeholder import HostEnv
from rlkit.names import OWN_CODE
from rlkit.networks import views
from rlkit.networks.cores.recurrent import where_rows
from rlkit.runs.policy import Policy
from rlkit.spaces import Space, shape_of
from rlkit.types import Array, PyTree

Arrays = dict[str, Any]  # by the names of inputs or outputs, [B, ...]
OBS, FIRST, MEMORY, ACTION, NEXT_MEMORY = "obs", "first", "memory", "action", "next_memory"


class Value(NamedTuple):
    """An input or an output; B, the size of the batch, comes before its shape."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype

    def __str__(self) -> str:
        """Return the name, the dtype and the shape."""
        return f"{self.name} {self.dtype.name}[{', '.join(('B', *map(str, self.shape)))}]"


class PolicyFunction(NamedTuple):
    """A greedy policy with normalization, action masks, scaling of actions, and memory.

    Inputs are the leaves of an observation, `obs` or `obs/NAME`, without `privileged` and
    `game_state`. A policy with a memory also has
    `first` [B] bool, True where an episode begins, where the memory is not read, and the leaves `memory/NAME`. Outputs
    are `action`, or `action/NAME` for each part of a Dict or a Tuple, and `next_memory/NAME`. Parts of a memory that
    the greedy policy does not change, such as noise, are constants.
    """

    apply: Callable[[PyTree, Arrays], Arrays]  # (actor, inputs) -> outputs; pure; also without the axis of the batch
    policy: Policy
    obs_space: Space  # of the observations, without `privileged` and `game_state`
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]

    @property
    def about(self) -> dict[str, Any]:
        """Names of the run, its agent and its environment, and the step of the checkpoint."""
        run = self.policy.config.run
        return {"run": self.policy.run.resolve().name, "agent": run.agent, "env": run.env, "step": self.policy.step}


def policy_function(policy: Policy) -> PolicyFunction:
    """Return the greedy policy of a run as a function; its key is that of seed 0.

    No agent's greedy policy reads the key, except to search in games of chance."""
    env = policy.env
    obs_space = views.actor_space(env.observation_space(policy.params))
    example, start = shape_of(obs_space), jax.tree.map(jnp.asarray, policy.memory)
    greedy = inspect.unwrap(policy.policy)  # not jitted: JAX may have kept a trace of it, with the CPU's own code
    key = jax.random.key(0)

    own = OWN_CODE.fullmatch(policy.config.run.agent)

    def step(actor: PyTree, memory: PyTree, obs: PyTree) -> tuple[PyTree, PyTree]:
        act, (first, one) = greedy, (jax.tree.leaves(tree)[0] for tree in (obs, example))
        if own and first.ndim > len(one.shape):  # the policies of this package take batches themselves
            memory = jax.tree.map(lambda x, x0: jnp.broadcast_to(x, (first.shape[0], *x0.shape)), memory, start)
            act = jax.vmap(greedy, (None, 0, 0, None))
        memory, action, _ = act(actor, memory, obs, key)
        return memory, action

    def leaves_after(memory: list[Array], obs: PyTree) -> list[Array]:
        return jax.tree.leaves(step(policy.actor, jax.tree.unflatten(structure, memory), obs)[0])

    start_leaves, structure = jax.tree.flatten(start)
    changes = _changes(leaves_after, start_leaves, example)
    memory_names = [name for name, changed in zip(_names(MEMORY, start), changes, strict=True) if changed]
    carried = [x for x, changed in zip(start_leaves, changes, strict=True) if changed]
    obs_names, obs_structure = _names(OBS, example), jax.tree.structure(example)

    def apply(actor: PyTree, inputs: Arrays) -> Arrays:
        given = [inputs[name] for name in memory_names]
        if memory_names:
            given = where_rows(inputs[FIRST], carried, given)
        rest = iter(given)
        memory = [next(rest) if changed else x for x, changed in zip(start_leaves, changes, strict=True)]
        obs = obs_structure.unflatten([inputs[name] for name in obs_names])
        obs = env.stored_obs(obs) if isinstance(env, HostEnv) else obs
        after, action = step(actor, structure.unflatten(memory), obs)
        action = env.native_action(action) if isinstance(env, HostEnv) else action
        after = [x for x, changed in zip(jax.tree.leaves(after), changes, strict=True) if changed]
        outputs = zip(_names(ACTION, action), jax.tree.leaves(action), strict=True)
        return dict(outputs) | {f"next_{name}": x for name, x in zip(memory_names, after, strict=True)}

    inputs = [Value(name, x.shape, x.dtype) for name, x in zip(obs_names, jax.tree.leaves(example), strict=True)]
    if memory_names:
        inputs.append(Value(FIRST, (), np.dtype(bool)))
        inputs += [Value(name, x.shape, x.dtype) for name, x in zip(memory_names, carried, strict=True)]
    shapes = {value.name: jax.ShapeDtypeStruct(value.shape, value.dtype) for value in inputs}
    with _cpu.plain():
        results = jax.eval_shape(apply, policy.actor, shapes)
    outputs = [Value(name, x.shape, x.dtype) for name, x in results.items()]
    return PolicyFunction(apply, policy, obs_space, tuple(inputs), tuple(outputs))


def _changes(after: Callable[[list[Array], PyTree], list[Array]], start: list[Array], obs: PyTree) -> list[bool]:
    """Return for each leaf of a memory whether a step returns anything but the leaf itself."""
    if not start:
        return []
    with _cpu.plain():
        program = jax.make_jaxpr(after)(start, obs).jaxpr
    before = program.invars[: len(start)]
    return [a is not b for a, b in zip(before, program.outvars, strict=True)]


def _names(prefix: str, tree: PyTree) -> list[str]:
    """Return the names of the leaves of a tree: the prefix, and their keys and indices, joined by "/"."""
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    return ["/".join(filter(None, (prefix, jax.tree_util.keystr(p, simple=True, separator="/")))) for p in paths]
