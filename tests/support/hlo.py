"""What an optimized program does to large arrays, and how many of its kernels wait at once, read from its text."""

import math
import re
from collections import deque

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
FREE = {"parameter", "get-tuple-element", "tuple", "bitcast", "constant", "after-all"}  # no kernels
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


def most_ready(text: str) -> dict[str, int]:
    """The most kernels that are ready at once, of the program's entry and of the body of each of its loops.

    Counted as XLA's CPU executor does, which takes the first kernel that became ready, but without the order that a
    shared buffer imposes. Where more than eight are ready, it wakes another thread.
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
    """Of the largest array in a shape's text."""
    return max((math.prod(int(n) for n in dims.split(",") if n) for dims in _SHAPE.findall(shape)), default=0)
