"""Emptying of a buffer in place."""

from typing import Any

from rlkit._mesh import vary_like
from rlkit.replay import priorities, slice_index
from rlkit.replay.hindsight import HindsightState


def clear(state: Any) -> Any:
    """Return the state of a buffer without its items: where it is donated, in the same memory.

    The stored steps stay in memory until others overwrite them. Handles of earlier samples are not valid any more. New
    items have the start priority again; the exponent of the importance weights stays as it is.

    Args:
      state: of `uniform`, `prioritized`, `slices` or `hindsight.buffer`, without batch axes (use jax.vmap for several).
    """
    cleared = state.replace(ring=state.ring.replace(cursor=state.ring.cursor.with_counts(slot=0, rows=0)))
    if hasattr(state, "index"):
        cleared = cleared.replace(index=slice_index.clear(state.index))
    if hasattr(state, "priorities"):
        cleared = cleared.replace(priorities=priorities.clear(state.priorities))
    if isinstance(state, HindsightState):
        cleared = cleared.replace(running=0 * state.running)
    return vary_like(cleared)
