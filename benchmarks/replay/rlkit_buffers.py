"""rlkit's prioritized buffer and buffer of slices, for run.py."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax_case import Functions, JaxCase, donated
from trees import Trees
from workload import ALPHA, BETA, EPS, bytes_of_steps, filling, slices_filling, transitions

from rlkit import replay
from rlkit.replay import segment_tree
from rlkit.replay.windows import Handle
from rlkit.types import Buffer, Transition

SLICE_COUNTS = {"jit": 120, "python": 80}  # few enough that 5M of 6M are not full after a dozen rounds


def functions(buffer: Buffer, *, priorities: bool) -> Functions:
    def sample(state: Any, key: Any) -> tuple[Any, Any]:
        drawn = buffer.sample(state, key)
        return (drawn.item, drawn.weight), drawn.index

    return Functions(buffer.add, sample, buffer.update if priorities else None)


def example(leaves: dict[str, np.ndarray]) -> Transition:
    """One step from leaves [1, ...]."""
    return record(**{name: x[0] for name, x in leaves.items()})


def record(**leaves: Any) -> Transition:
    return Transition(**({"action": (), "next_obs": ()} | leaves))


def prioritized(capacity: int, batch: int, **counts: int) -> JaxCase:
    """A full prioritized buffer of one environment; steps are added one at a time."""
    buffer, rng = replay.prioritized(capacity, batch, alpha=ALPHA, beta=BETA, eps=EPS), np.random.default_rng(0)
    add, update = donated(buffer.add), donated(buffer.update)
    state = buffer.init(example(transitions(rng, (1,))), 1)
    for places, steps, priority in filling(rng, capacity):
        rows = np.arange(places.start, places.stop, dtype=np.uint32)
        state = add(state, record(**{name: x[:, None] for name, x in steps.items()}))
        state = update(state, Handle(jnp.asarray(rows), jnp.zeros(rows.shape, jnp.int32)), priority)
    return JaxCase(
        functions(buffer, priorities=True),
        state,
        lambda n: transitions(rng, (n, 1, 1)),
        record,
        batch=batch,
        check=exact,
        **({"counts": counts} if counts else {}),
    )


def exact(state: Any) -> dict[str, Any]:
    """Assert that the roots of the tree agree with all leaves in float64."""
    tree = state.priorities.mass
    leaves, known = np.asarray(segment_tree.values(tree), np.float64), np.asarray(tree.leaves).max()
    total, least, greatest = (
        float(of(tree)) for of in (segment_tree.total, segment_tree.minimum, segment_tree.maximum)
    )
    error = abs(total - leaves.sum()) / leaves.sum()
    assert error < 1e-6, f"the total is {total}, the sum of the leaves {leaves.sum()}"
    assert least == leaves.min(), f"the minimum is {least}, the least leaf {leaves.min()}"
    assert greatest == known, f"the maximum is {greatest}, the greatest measured leaf {known}"
    return {"total": total, "sum": leaves.sum(), "error": error, "least": least, "greatest": greatest}


def slices(
    stored: int,
    capacity: int,
    slices: int,
    slice_len: int,
    rows: int,
    envs: int = 1,
    sampling: str = "slice",
    **counts: int,
) -> JaxCase:
    """A buffer of slices; `rows` steps of each of `envs` environments are added at a time.

    `stored` and `capacity` are rounded down to a multiple of `envs`.
    """
    stored, capacity = (size // envs * envs for size in (stored, capacity))
    buffer, rng = replay.slices(capacity, slices, slice_len, sampling=sampling), np.random.default_rng(0)
    state, add = buffer.init(example(bytes_of_steps(rng, (1,))), envs), donated(buffer.add)
    for steps in slices_filling(rng, stored, envs):
        state = add(state, record(**steps))
    return JaxCase(
        functions(buffer, priorities=False),
        jax.block_until_ready(state),
        lambda n: bytes_of_steps(rng, (n, rows, envs)),
        record,
        batch=1,
        check=lambda state: {"can be drawn": int(buffer.size(state))},
        counts=SLICE_COUNTS | counts,
    )


KINDS = {"prioritized": prioritized, "slices": slices, "trees": Trees}
