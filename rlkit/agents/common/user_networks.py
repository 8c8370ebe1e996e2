"""Networks that users give to agents, with the outputs that an agent needs."""

from collections.abc import Mapping
from typing import Any, Literal

import flax.errors
import jax
import jax.numpy as jnp
import numpy as np

from rlkit.spaces import Space, shape_of
from rlkit.types import ConfigError, Network, PyTree

_BATCH = 3  # observations, of the batch that is traced beside one observation
_REMEDIES = {  # by an argument of flax's layers that has no default, and that a network is not given
    "use_running_average": "use LayerNorm or GroupNorm in place of BatchNorm, whose batch_stats are not kept",
    "deterministic": "use a Dropout with deterministic=True",
}


def checked(
    network: Any,
    obs_space: Space,
    form: str,
    sizes: PyTree,
    *inputs: Any,
    memory: Literal["none", "optional", "needed"] = "none",
    described: Mapping[str, Any] | None = None,
) -> Network:
    """A user's network as a `Network`, traced for one observation and for a batch without computing anything.

    Args:
      network: a `Network`, a pair of functions, or an object with `init` and `apply`.
      obs_space: of the observations.
      form: names of the outputs, as text in the structure of `sizes`, for errors.
      sizes: the shape of each output for one observation, NumPy arrays of integers in a tree of tuples.
      inputs: arrays that `init` and `apply` take after one observation, apart from a memory.
      memory: whether the agent has a use for a network with a memory, or cannot do without.
      described: settings, which only a network made from the Config can follow; they must be off.

    Raises:
      ConfigError: a setting in `described` is on; the network has a memory or none against `memory`, has variables
        beside its parameters, needs random numbers or cannot be traced; or an output is missing or has another shape.
    """
    for field, value in (described or {}).items():
        if value not in (False, "none"):
            raise ConfigError(
                f"{field}={value!r} needs the network that Config describes; leave it out with a network of your own"
            )
    network = _as_network(network)
    recurrent = bool(jax.tree.leaves(network.memory))
    if memory == "needed" and not recurrent:
        raise ConfigError(
            "network must have a memory for this agent, and it has none; set memory of Network, or use dqn"
        )
    if memory == "none" and recurrent:
        raise ConfigError(
            "network must have no memory for this agent, and it has one; leave it out, or use r2d2 or ppo"
        )
    if recurrent:
        inputs, form = (*inputs, network.memory), f"{form[:-1]}, memory)" if form[0] == "(" else f"({form}, memory)"
        size = jax.tree.map(lambda x: np.array(np.shape(x), int), network.memory)
        sizes = (*(sizes if isinstance(sizes, tuple) else (sizes,)), size)
    arguments = (shape_of(obs_space), *jax.eval_shape(lambda: jax.tree.map(jnp.asarray, inputs)))
    key = jax.eval_shape(jax.random.key, 0)
    params = _trace("init(key, obs)", network.init, key, *arguments)
    _require_params_alone(params)
    for leading, count in (((), "one observation"), ((_BATCH,), f"a batch of {_BATCH} observations")):
        batch = jax.tree.map(lambda x, leading=leading: jax.ShapeDtypeStruct(leading + x.shape, x.dtype), arguments)
        outputs = _trace(f"apply(params, obs) for {count}", network.apply, params, *batch)
        expected = jax.tree.map(lambda size, leading=leading: str([*leading, *size.tolist()]), sizes)
        got = jax.tree.map(lambda x: str(list(x.shape)), outputs)
        if expected != got:
            raise ConfigError(
                f"network must return {form} of shapes {_text(expected)} for {count}, and it returned {_text(got)}; "
                "change its last layers, or the axes that it works on"
            )
    return network


def _as_network(network: Any) -> Network:
    """A `Network`, a pair of functions, or an object with `init` and `apply`, as a `Network`."""
    if isinstance(network, Network):
        return network
    if isinstance(network, tuple):
        return Network(*network)
    return Network(network.init, network.apply, getattr(network, "memory", ()))


def _require_params_alone(params: PyTree) -> None:
    """Raise ConfigError where the variables of a flax module are more than its parameters."""
    if isinstance(params, Mapping) and "params" in params and len(params) > 1:
        others = ", ".join(sorted(str(name) for name in params if name != "params"))
        raise ConfigError(
            f"network must have no variables but params, as networks keep no statistics, and its init returned "
            f"{others} too; {_REMEDIES['use_running_average']}"
        )


def _trace(name: str, function: Any, *arguments: Any) -> PyTree:
    """The shapes of a function's results. Raises ConfigError where it fails."""
    try:
        with jax.numpy_rank_promotion("allow"):  # a network that only ever acts is vmapped and need not broadcast
            return jax.eval_shape(function, *arguments)
    except flax.errors.InvalidRngError as error:
        raise ConfigError(
            f"network must need no random numbers, and {name} does ({_line(error)}); {_REMEDIES['deterministic']}"
        ) from error
    except Exception as error:
        found = [remedy for argument, remedy in _REMEDIES.items() if f'"{argument}"' in str(error)]
        raise ConfigError(
            f"network must have {name} that JAX can trace, and it raised {type(error).__name__}: {_line(error)}; "
            + (found[0] if found else "it must take one observation, and batches of them, without flags")
        ) from error


def _line(error: Exception) -> str:
    """The first line of an error, without the address of a page about it."""
    return str(error).strip().partition("\n")[0].partition(" (http")[0].rstrip(".")


def _text(shapes: PyTree) -> str:
    """Shapes as text, in the structure of their tree."""
    return str(shapes).replace("'", "")
