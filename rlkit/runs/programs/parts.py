"""An agent's state in two: its replay buffer, a large thing that is donated, and the rest, which outlives an update."""

from rlkit.types import PyTree


def split(agent: PyTree) -> tuple[PyTree, PyTree]:
    """The state without its replay buffer, and that; () where it has none."""
    return (agent.replace(replay=()), agent.replay) if hasattr(agent, "replay") else (agent, ())


def join(rest: PyTree, replay: PyTree) -> PyTree:
    """The state of which `split` has made these."""
    return rest.replace(replay=replay) if hasattr(rest, "replay") else rest
