"""Separation of the replay buffer from the rest of an agent's state.

The buffer is large and is donated to an update; the rest must outlive the update.
"""

from rlkit.types import PyTree


def split(agent_state: PyTree) -> tuple[PyTree, PyTree]:
    """Return the state without its replay buffer, and the buffer; () where there is none."""
    if hasattr(agent_state, "replay"):
        return agent_state.replace(replay=()), agent_state.replay
    return agent_state, ()


def join(rest: PyTree, replay: PyTree) -> PyTree:
    """Return the state that `split` separated."""
    return rest.replace(replay=replay) if hasattr(rest, "replay") else rest
