"""The structure of a pytree in JSON, and back: a stored tree needs no template, and names no class."""

from typing import Any

from rlkit.types import ConfigError, PyTree


def describe(node: PyTree, name: str) -> Any:
    """Describe a tree of integers in JSON. Raises ConfigError, with the name, for a node that JSON cannot describe."""
    if node is None or type(node) is int:
        return node
    if type(node) is dict and all(isinstance(key, str) for key in node):
        return {"dict": {key: describe(node[key], f"{name}.{key}") for key in sorted(node)}}
    if type(node) in (tuple, list):
        return {type(node).__name__: [describe(child, f"{name}.{index}") for index, child in enumerate(node)]}
    kind = type(node).__name__
    raise ConfigError(f"{name} is a {kind} and must be a tuple, list or dictionary with text for keys; make it one")


def rebuild(node: Any) -> PyTree:
    """Build the tree of a description.

    A forged description raises ValueError, TypeError, KeyError, AttributeError or RecursionError, or gives any tree.
    """
    if node is None or type(node) is int:
        return node
    ((kind, children),) = node.items()
    if kind == "dict":
        return {key: rebuild(child) for key, child in children.items()}
    return {"tuple": tuple, "list": list}[kind](rebuild(child) for child in children)
