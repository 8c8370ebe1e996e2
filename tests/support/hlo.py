"""Facts about a compiled program from its text: operations on large arrays, and kernels that are ready at once."""

import math
import re
from collections import deque

# Operations that read or write a few elements of a large array in place, or only pass it on.
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
FREE = {"parameter", "get-tuple-element", "tuple", "bitcast", "constant", "after-all"}  # no kernels
_LINE = re.compile(r"^\s*(?:ROOT )?(%?[\w.-]+) = (\(.*?\)|\S+) ([\w-]+)\((.*)$")
_SHAPE = re.compile(r"(?:pred|[suf]\d+|bf16|c64)\[([\d,]*)\]")


def large_operations(text: str, size: int) -> list[str]:
    """Instructions that read or write a whole array of `size` elements or more, those inside of fusions included.

    A fusion that ends in a dynamic-update-slice of its parameter works in place.
    """
    lines = [match for line in text.splitlines() if (match := _LINE.match(line))]
    shapes = {name: _elements(shape) for name, shape, _, _ in (match.groups() for match in lines)}
    instructions = []
    for name, shape, opcode, rest in (match.groups() for match in lines):
        operands = [shapes.get(operand, 0) for operand in re.findall(r"%?[\w.-]+", rest.split(")")[0])]
        if opcode not in IN_PLACE and max([_elements(shape), *operands]) >= size:
            instructions.append(f"{name} = {shape} {opcode}")
    return instructions


def most_ready(text: str) -> dict[str, int]:
    """Largest number of kernels that are ready at once, in the program's entry and in the body of each loop.

    Counted as XLA's CPU executor does, which runs kernels in the order in which they became ready, but without the
    dependences through shared buffers. Where more than eight are ready, it uses another thread.
    """
    bodies = set(re.findall(r"body=(%[\w.-]+)", text))
    counts = {}
    for block in re.split(r"\n(?=%|ENTRY )", text):
        name = block.split(" ", 1)[0]
        if name == "ENTRY" or name in bodies:
            counts[name] = _peak([match.groups() for line in block.splitlines() if (match := _LINE.match(line))])
    return counts


def _peak(instructions: list[tuple[str, ...]]) -> int:
    needs: dict[str, set[str]] = {}  # of an instruction, the kernels that it waits for
    kernels: dict[str, set[str]] = {}
    for name, _, opcode, rest in instructions:
        operands = re.findall(r"%[\w.-]+", rest.split("), ")[0])
        waits = {kernel for operand in operands for kernel in needs.get(operand, ())}
        needs[name] = waits if opcode in FREE else {name}
        if opcode not in FREE:
            kernels[name] = waits
    ready, peak = deque(name for name, waits in kernels.items() if not waits), 0
    while ready:
        peak = max(peak, len(ready))
        done = ready.popleft()
        for name, waits in kernels.items():
            if done in waits:
                waits.remove(done)
                if not waits:
                    ready.append(name)
    return peak


def _elements(shape: str) -> int:
    """Number of elements of the largest array in the text of a shape."""
    return max((math.prod(int(n) for n in dims.split(",") if n) for dims in _SHAPE.findall(shape)), default=0)
