"""What an optimized program does to large arrays, read from its text."""

import math
import re

# Reads or writes a few elements of a large array where it lies, or hands it on.
IN_PLACE = {
    "parameter",
    "get-tuple-element",
    "tuple",
    "while",
    "call",
    "conditional",
    "bitcast",
    "fusion",
    "dynamic-slice",
    "dynamic-update-slice",
    "gather",
    "scatter",
    "slice",
}
_LINE = re.compile(r"^\s*(?:ROOT )?(%?[\w.-]+) = (\(.*?\)|\S+) ([\w-]+)\((.*)$")
_SHAPE = re.compile(r"(?:pred|[suf]\d+|bf16|c64)\[([\d,]*)\]")


def large_operations(text: str, size: int) -> list[str]:
    """The instructions of an optimized program that read or write arrays of `size` elements and more as a whole.

    Also those inside fusions. A fusion that ends in a dynamic-update-slice of its parameter works in place.
    """
    lines = [match for line in text.splitlines() if (match := _LINE.match(line))]
    shapes = {name: _elements(shape) for name, shape, _, _ in (match.groups() for match in lines)}
    found = []
    for name, shape, opcode, rest in (match.groups() for match in lines):
        operands = [shapes.get(operand, 0) for operand in re.findall(r"%?[\w.-]+", rest.split(")")[0])]
        if opcode not in IN_PLACE and max([_elements(shape), *operands]) >= size:
            found.append(f"{name} = {shape} {opcode}")
    return found


def _elements(shape: str) -> int:
    """Of the largest array in a shape's text."""
    return max((math.prod(int(n) for n in dims.split(",") if n) for dims in _SHAPE.findall(shape)), default=0)
