"""flashbax's prioritized item buffer, for run.py."""

from functools import partial
from typing import Any

import jax
import numpy as np
from flashbax import make_prioritised_item_buffer
from jax_case import Functions, JaxCase, donated
from workload import ALPHA, filling, transitions


def prioritized(capacity: int, batch: int, **counts: int) -> JaxCase:
    make = partial(
        make_prioritised_item_buffer,
        max_length=capacity,
        min_length=1,
        sample_batch_size=batch,
        priority_exponent=ALPHA,
        device="cpu",
    )
    buffer, rng = make(), np.random.default_rng(0)
    add, set_priorities = donated(make(add_sequences=True).add), donated(buffer.set_priorities)
    state = jax.jit(buffer.init)({name: x[0] for name, x in transitions(rng, (1,)).items()})
    for places, steps, priority in filling(rng, capacity):
        state = add(state, steps)
        state = set_priorities(state, np.arange(places.start, places.stop, dtype=np.int32), priority)

    def sample(state: Any, key: Any) -> tuple[Any, Any]:
        drawn = buffer.sample(state, key)
        return (drawn.experience, drawn.probabilities), drawn.indices

    functions = Functions(buffer.add, sample, buffer.set_priorities)
    return JaxCase(
        functions,
        state,
        lambda n: transitions(rng, (n,)),
        dict,
        batch=batch,
        check=partial(drift, capacity=capacity),
        few=max(2**28 // capacity, 32),  # XLA copies the tree in every cycle: 10 ms at 2^23
        **({"counts": counts} if counts else {}),
    )


def drift(state: Any, capacity: int) -> dict[str, Any]:
    """Relative error of the root, to which differences are added, against the sum of its leaves."""
    tree = state.sum_tree_state
    leaves = np.asarray(tree.nodes[2**tree.tree_depth - 1 :][:capacity], np.float64)
    root = float(tree.nodes[0])
    return {"total": root, "sum": leaves.sum(), "error": abs(root - leaves.sum()) / leaves.sum()}


KINDS = {"prioritized": prioritized}
