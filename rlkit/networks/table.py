"""The networks of an agent as a table: each layer with its input, output, parameters and floating-point operations."""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from rlkit.spaces import Space, shape_of
from rlkit.types import Agent, Key, PyTree, Transition

_HEADER = ("layer", "input", "output", "parameters", "FLOPs")


def table(agent: Agent, hyper: Any, obs_space: Space, action_space: Space, num_envs: int) -> str:
    """Return a table of the layers with weights that an agent's flax modules consist of. Computes nothing.

    FLOPs are those of the products with the weights in a forward pass of one observation: two for each entry of a
    weight and each place where it is applied. Networks of other libraries have no rows.

    Args:
      agent: made for the spaces.
      hyper: of the agent.
      obs_space, action_space: of the environment.
      num_envs: environments.
    """
    rows: list[list[str]] = []
    totals = [0, 0]
    names = [""]

    def record(call: Any, arguments: tuple, keywords: dict[str, Any], context: Any) -> Any:
        module = context.module
        if not module.path:
            names[0] = type(module).__name__
        output = call(*arguments, **keywords)
        own = _own_params(module)
        if own and arguments and context.method_name in ("__call__", "advance"):
            places = math.prod(jax.tree.leaves(output)[-1].shape[:-1])
            flops = sum(2 * places * math.prod(x.shape) for x in own.values() if len(x.shape) > 1)
            parameters = sum(math.prod(x.shape) for x in own.values())
            totals[0], totals[1] = totals[0] + parameters, totals[1] + flops
            shapes = [_shape(arguments[-1]), _shape(output)]
            rows.append(["/".join((names[0], *module.path)), *shapes, f"{parameters:,}", f"{flops:,}" if flops else ""])
        return output

    obs, action = shape_of(obs_space), jax.eval_shape(action_space.sample, jax.eval_shape(jax.random.key, 0))
    zero, key = jnp.zeros(()), jax.eval_shape(jax.random.key, 0)

    def init(key: Key, obs: PyTree, action: PyTree) -> PyTree:
        return agent.init(hyper, key, Transition(obs, action, zero, zero > 0, zero > 0, obs), num_envs)

    with nn.intercept_methods(record):
        jax.eval_shape(init, key, obs, action)
    if not rows:
        return ""
    return _aligned([list(_HEADER), *rows, ["all", "", "", *(f"{total:,}" for total in totals)]])


def _own_params(module: nn.Module) -> dict[str, Any]:
    """The parameters of a module that are not those of a module in it."""
    params = module.variables.get("params", {})
    return {name: x for name, x in params.items() if hasattr(x, "shape")}


def _shape(tree: PyTree) -> str:
    return ", ".join("x".join(map(str, x.shape)) or "1" for x in jax.tree.leaves(tree))


def _aligned(rows: list[list[str]]) -> str:
    """Columns of equal width, words to the left and numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    numbers = len(_HEADER) - 2
    lines = []
    for row in rows:
        cells = [x.rjust(w) if i >= numbers else x.ljust(w) for i, (x, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
