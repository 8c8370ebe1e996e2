"""Policies as ONNX graphs, through jax2onnx."""

import importlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.core

from rlkit import _cpu
from rlkit.runs.exporting.policy_function import Arrays, PolicyFunction
from rlkit.runs.versions import require
from rlkit.types import Array, ConfigError

OPSET = 21  # of the operators; onnxruntime 1.20 and newer have it


def to_bytes(function: PolicyFunction) -> bytes:
    """Return an ONNX model for batches of any size, whose metadata has the entries of `about`.

    Raises:
      ConfigError: jax2onnx is missing, or cannot convert the policy.
    """
    jax2onnx = require("jax2onnx", "format='onnx'", "onnx")
    require("onnxruntime", "format='onnx'", "onnx")
    names, outputs = ([value.name for value in values] for values in (function.inputs, function.outputs))
    (batch,) = jax.export.symbolic_shape("B")
    shapes = [jax.ShapeDtypeStruct((batch, *value.shape), value.dtype) for value in function.inputs]

    def act(*inputs: Array) -> list[Array]:
        results = function.apply(function.policy.actor, dict(zip(names, inputs, strict=True)))
        return [results[name] for name in outputs]

    with _cpu.plain(), jax.numpy_rank_promotion("allow"):
        program = jax.make_jaxpr(act)(*shapes)  # before jax2onnx replaces functions of jax.numpy by its own

    def traced(*inputs: Array) -> list[Array]:
        return jax.core.eval_jaxpr(program.jaxpr, program.consts, *inputs)

    try:
        with _without_warnings("onnx_ir.serde"):
            model: Any = jax2onnx.to_onnx(
                traced, shapes, model_name=function.about["run"], opset=OPSET, input_names=names, output_names=outputs
            )
        _pool_two_axes(model.graph)
    except Exception as error:  # of many kinds, by what it meets
        raise ConfigError(
            f"format='onnx' needs a policy that jax2onnx can convert: {_line(error)}; take stablehlo"
        ) from error
    used, initializers = _used(model.graph), model.graph.initializer
    for unused in [x for x in initializers if x.name not in used]:  # onnxruntime warns of each
        initializers.remove(unused)
    for key, value in function.about.items():
        model.metadata_props.add(key=key, value=str(value))
    return model.SerializeToString()


def _pool_two_axes(graph: Any) -> None:
    """Rewrite pooling over all axes of images [B, H, W, C], for which onnxruntime has no kernel, as one over two axes.

    jax2onnx adds two axes for it, and removes them after it.
    """
    node, nodes = importlib.import_module("onnx.helper").make_node, list(graph.node)
    maker = {name: x for x in nodes for name in x.output}
    users = {name: x for x in nodes for name in x.input}
    for pool in [x for x in nodes if x.op_type == "MaxPool"]:
        sizes = {attribute.name: list(attribute.ints) for attribute in pool.attribute}
        if len(sizes["kernel_shape"]) != 4:
            continue
        second, after, name = maker[pool.input[0]], users[pool.output[0]], pool.output[0]
        first, (_, top, left, _, _, bottom, right, _) = maker[second.input[0]], sizes["pads"]
        size = {key: sizes[key][1:3] for key in ("kernel_shape", "strides")}
        new = [
            node("Transpose", first.input[:1], [f"{name}_in"], perm=(0, 3, 1, 2)),
            node("MaxPool", [f"{name}_in"], [f"{name}_out"], pads=(top, left, bottom, right), **size),
            node("Transpose", [f"{name}_out"], after.output, perm=(0, 2, 3, 1)),
        ]
        at = nodes.index(after)
        nodes[at : at + 1] = new
        for old in (first, second, pool):
            nodes.remove(old)
    del graph.node[:]
    graph.node.extend(nodes)


def reader(data: bytes) -> Callable[[Arrays], Arrays]:
    """Return a function from inputs to outputs, NumPy arrays, of an ONNX model; it needs onnxruntime."""
    runtime = require("onnxruntime", "format='onnx'", "onnx")

    def failed(error: Exception) -> ConfigError:
        return ConfigError(f"format='onnx' needs a policy that onnxruntime can run: {_line(error)}; take stablehlo")

    try:
        session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise failed(error) from error
    names = [output.name for output in session.get_outputs()]

    def act(inputs: Arrays) -> Arrays:
        try:
            return dict(zip(names, session.run(names, inputs), strict=True))
        except Exception as error:
            raise failed(error) from error

    return act


def _line(error: Exception) -> str:
    """Return the kind and the first line of an error of a library."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _used(graph: Any) -> set[str]:
    """Return the names of the values that the nodes of a graph and of its inner graphs read."""
    inner = [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    return {name for node in graph.node for name in node.input}.union(*map(_used, inner))


@contextmanager
def _without_warnings(logger: str) -> Iterator[None]:
    """Show only errors of a logger inside of the block."""
    found = logging.getLogger(logger)
    level = found.level
    found.setLevel(logging.ERROR)
    try:
        yield
    finally:
        found.setLevel(level)
