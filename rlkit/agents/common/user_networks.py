"""Networks that users give to agents, with the outputs that an agent needs."""

from collections.abc import Mapping
from typing import Any, Literal

import flax.errors
import jax
import jax.numpy as jnp
import numpy as np

from rlkit.names import place, raised
from rlkit.networks import views
from rlkit.networks.heads.actor_critic import policy_size
from rlkit.networks.network import as_network
from rlkit.spaces import Box, Space, leaf_spaces, shape_of
from rlkit.types import ConfigError, Network, PyTree

_BATCH = 3  # observations, of the batch that is traced beside one observation
_REMEDY = "let its call take `train`, and pass it on (use_running_average=not train, deterministic=not train)"


def checked(
    network: Any,
    obs_space: Space,
    form: str,
    sizes: PyTree,
    *inputs: Any,
    field: str = "networks",
    count: int | None = None,
    memory: Literal["none", "optional", "needed"] = "none",
    privileged: bool = False,
    axis_name: str | None = None,
    described: Mapping[str, Any] | None = None,
) -> Network:
    """A user's network as a `Network`, traced for one observation and for a batch without computing anything.

    Args:
      network: in any form of `networks.as_network`.
      obs_space: of the observations.
      form: names of the outputs, as text in the structure of `sizes`, for errors.
      sizes: the shape of each output for one observation, NumPy arrays of integers in a tree of tuples.
      inputs: arrays that `init` and `apply` take after one observation, apart from a memory.
      field: the network's name, for errors.
      count: length of an axis that each output has before those of the batch, as several critics have; None for none.
      memory: whether the agent has a use for a network with a memory, or cannot do without.
      privileged: True for a critic, which has the leaf of that name; other networks never get it.
      axis_name: of the devices that a batch is divided over, whose name the network may use where it trains.
      described: settings, which only a network made from the Config can follow; they must be off.

    Raises:
      ConfigError: a setting in `described` is on; the network has no known form, a memory or none against `memory`,
        statistics and a memory without `parts`, parameters or a memory of an unsuitable dtype, cannot be traced, or
        changes its statistics where it does not train; or an output is missing or has another shape.
    """
    for setting, value in (described or {}).items():
        if value not in (False, "none"):
            raise ConfigError(
                f"{setting}={value!r} needs the network that Config describes; leave it out with a network of your own"
            )
    obs_space = views.critic_space(obs_space) if privileged else views.actor_space(obs_space)
    example = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, inputs))
    try:
        network = as_network(network, shape_of(obs_space), *example)
    except TypeError as error:
        if place(error):
            raise ConfigError(f"{field} must be a network, and it raised {raised(error)}") from error
        raise ConfigError(f"{field} must be a network, and {error}") from None
    except Exception as error:
        raise ConfigError(f"{field} must be a network, and it raised {raised(error)}") from error
    recurrent = bool(jax.tree.leaves(network.memory))
    if memory == "needed" and not recurrent:
        raise ConfigError(
            f"{field} must have a memory for this agent, and it has none; set memory of Network, or leave recurrent out"
        )
    if memory == "none" and recurrent:
        raise ConfigError(
            f"{field} must have no memory for this agent, and it has one; leave it out, or use r2d2, ppo "
            "with one network, or sac or tqc with recurrent"
        )
    if recurrent:
        inputs, form = (*inputs, network.memory), f"{form[:-1]}, memory)" if form[0] == "(" else f"({form}, memory)"
        size = jax.tree.map(lambda x: np.array(np.shape(x), int), network.memory)
        sizes = (*(sizes if isinstance(sizes, tuple) else (sizes,)), size)
        example = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, inputs))
    arguments = (shape_of(obs_space), *example)
    key = jax.eval_shape(jax.random.key, 0)
    params, stats = _pair(
        field, "init(key, obs)", "params, stats", _trace(field, "init(key, obs)", network.init, key, *arguments)
    )
    if found := _low_precision(params):
        raise ConfigError(
            f"{field} must have float32 parameters, and it has some of {found}; give its layers dtype={found}, in "
            "which they compute, and leave param_dtype alone"
        )
    if recurrent and network.parts is None and jax.tree.leaves(stats):
        raise ConfigError(f"{field} must have `parts` to keep statistics beside a memory; see types.Network")
    for leading, of in (((), "one observation"), ((_BATCH,), f"a batch of {_BATCH} observations")):
        batch = jax.tree.map(lambda x, leading=leading: jax.ShapeDtypeStruct(leading + x.shape, x.dtype), arguments)
        name = f"apply(params, stats, obs) for {of}"
        outputs, same = _pair(field, name, "outputs, stats", _trace(field, name, network.apply, params, stats, *batch))
        front = [] if count is None else [count]
        expected = jax.tree.map(lambda size, before=(*front, *leading): str([*before, *size.tolist()]), sizes)
        if recurrent:  # a memory has no axis of several critics
            of_memory = jax.tree.map(lambda size, before=leading: str([*before, *size.tolist()]), sizes[-1])
            expected = (*expected[:-1], of_memory)
        got = jax.tree.map(lambda x: str(list(x.shape)), outputs)
        if expected != got:
            raise ConfigError(
                f"{field} must return {form} of shapes {_text(expected)} for {of}, and it returned {_text(got)}; "
                "change its last layers, or the axes that it works on"
            )
        if recurrent and (got := _dtypes(outputs[-1])) != (start := _dtypes(batch[-1])):
            raise ConfigError(
                f"{field} must return a memory of {start}, as its start is, and it returned {got}; cast it"
            )
        _check_stats(field, name, stats, same)

    def train(key: Any, *arguments: Any) -> Any:
        def on_one(_: Any) -> Any:
            return network.apply(*arguments, train=True, key=key)

        return jax.tree.map(lambda x: x[0], jax.vmap(on_one, axis_name=axis_name)(jnp.zeros(1)))

    name = f"apply(params, stats, obs, train=True) for a batch of {_BATCH} observations"
    _check_stats(field, name, stats, _trace(field, name, train, key, params, stats, *batch)[1])
    results = outputs[:-1] if recurrent else outputs
    network = _with_float32_outputs(network) if _low_precision(results) else network
    return views.of_view(network, views.critic_obs if privileged else views.actor_obs)


def policy_form(space: Space) -> tuple[str, PyTree]:
    """`form` and `sizes` of a policy's outputs for an action space, as `checked` takes them."""

    def sizes(leaf: Any) -> PyTree:
        size = np.array([policy_size(leaf)])
        return (size, size) if isinstance(leaf, Box) else size

    forms = jax.tree.map(lambda leaf: "(loc, log_std)" if isinstance(leaf, Box) else "logits", leaf_spaces(space))
    return _text(forms), jax.tree.map(sizes, leaf_spaces(space))


def _low_precision(tree: PyTree) -> str | None:
    """The name of the first floating-point dtype of less than 32 bits in a tree; None where there is none."""
    dtypes = (x.dtype for x in jax.tree.leaves(tree))
    return next((d.name for d in dtypes if jnp.issubdtype(d, jnp.floating) and d.itemsize < 4), None)


def _with_float32_outputs(network: Network) -> Network:
    """A network whose outputs are float32 where they have less precision; its memory keeps its dtype."""

    def cast(outputs: PyTree) -> PyTree:
        return jax.tree.map(lambda x: x.astype(jnp.float32) if _low_precision(x) else x, outputs)

    def apply(*arguments: Any, **training: Any) -> tuple[PyTree, PyTree]:
        outputs, stats = network.apply(*arguments, **training)
        if jax.tree.leaves(network.memory):
            return (*cast(outputs[:-1]), outputs[-1]), stats
        return cast(outputs), stats

    def decode(*arguments: Any, **training: Any) -> tuple[PyTree, PyTree]:
        assert network.parts is not None
        outputs, stats = network.parts.decode(*arguments, **training)
        return cast(outputs), stats

    return network._replace(apply=apply, parts=network.parts and network.parts._replace(decode=decode))


def by_name(networks: Any, names: set[str], *, all_of: bool = False) -> dict[str, Any]:
    """A user's networks by name.

    Raises:
      ConfigError: `networks` is no dict, has another name, or lacks one of the names where `all_of` is set; or one of
        them is None, as of a function that forgets its `return`.
    """
    listed = ", ".join(sorted(names))
    if networks is not None and not isinstance(networks, Mapping):
        raise ConfigError(f"networks must be a dict with some of {listed}, and it is a {type(networks).__name__}")
    given = dict(networks or {})
    if unknown := given.keys() - names:
        raise ConfigError(f"networks must have no {min(unknown)!r} for this agent; it takes {listed}")
    if nothing := [name for name, network in given.items() if network is None]:
        raise ConfigError(f"networks[{nothing[0]!r}] must be a network, and it is None; return one, or leave it out")
    if all_of and (missing := names - given.keys()):
        raise ConfigError(f"networks must have {listed} for this agent, and {min(missing)!r} is missing; give it")
    return given


def _dtypes(tree: PyTree) -> str:
    """The dtypes of a tree's leaves as text."""
    return ", ".join(x.dtype.name for x in jax.tree.leaves(tree))


def _pair(field: str, name: str, form: str, result: Any) -> tuple[PyTree, PyTree]:
    """The two results of a function of a `Network`. Raises ConfigError where it has another number of results."""
    if isinstance(result, tuple) and len(result) == 2:
        return result
    raise ConfigError(
        f"{field} must have {name} that returns ({form}), as functions of a Network do; give functions of parameters "
        "alone as a pair (init, apply)"
    )


def _check_stats(field: str, name: str, before: PyTree, after: PyTree) -> None:
    """Raise ConfigError where statistics come back in another form."""
    if jax.tree.map(lambda x: (x.shape, x.dtype), before) != jax.tree.map(lambda x: (x.shape, x.dtype), after):
        raise ConfigError(f"{field} must return statistics of the shapes of init's, and {name} does not; return all")


def _trace(field: str, name: str, function: Any, *arguments: Any) -> PyTree:
    """The shapes of a function's results. Raises ConfigError where it fails."""
    try:
        with jax.numpy_rank_promotion("allow"):  # a network that only ever acts is vmapped and need not broadcast
            return jax.eval_shape(function, *arguments)
    except (flax.errors.InvalidRngError, flax.errors.ModifyScopeVariableError) as error:
        raise ConfigError(
            f"{field} must need no random numbers and leave its statistics where it does not train, and {name} does "
            f"not ({raised(error)}); {_REMEDY}"
        ) from error
    except Exception as error:
        flags = any(f'"{argument}"' in str(error) for argument in ("use_running_average", "deterministic"))
        raise ConfigError(
            f"{field} must have {name} that JAX can trace, and it raised {raised(error)}; "
            + (_REMEDY if flags else "it must take one observation, and batches of them")
        ) from error


def _text(shapes: PyTree) -> str:
    """Shapes as text, in the structure of their tree."""
    return str(shapes).replace("'", "")
