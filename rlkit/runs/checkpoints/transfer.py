"""What a new run takes over from another: all that learning has made, and nothing of the episodes that it came from."""

from pathlib import Path
from typing import NamedTuple

import jax

from rlkit.hosts.registry import is_own
from rlkit.runs import files
from rlkit.runs.config.run_config import read
from rlkit.runs.policy import load_state
from rlkit.runs.programs.host_program import HostProgram
from rlkit.runs.programs.jax_program import Program
from rlkit.types import ConfigError, PyTree


class Taken(NamedTuple):
    """Parts of an agent's state."""

    networks: dict[str, PyTree]  # the parameters, and those of the target networks where there are any
    statistics: dict[str, PyTree]  # of observations and returns; the unfinished returns stay behind


def of(program: Program | HostProgram, other: str | Path) -> Taken:
    """What the newest checkpoint of the run `other` holds for `program`.

    Raises:
      ConfigError: there is no such run, or its arrays are not like the program's; it names the first that is not.
    """
    run, env = files.open_run(other), program.config.run.env
    same = is_own(env) and read(run / files.CONFIG).get("env") == env  # then this call has named that code itself
    source, found, _ = load_state(run, env=env if same else None)
    source.close()
    theirs = _parts(found.agent)
    want, have = map(_described, (_parts(program.template.agent), theirs))
    for leaf in [*want, *have]:
        if want.get(leaf) != have.get(leaf):
            raise ConfigError(
                f"init_from={str(other)!r} must have {leaf} = {want.get(leaf, 'nothing')}, and it has "
                f"{have.get(leaf, 'nothing')}; use the network and num_seeds of that run, and {source.config.run.env}"
            )
    return theirs


def into(agent: PyTree, taken: Taken) -> PyTree:
    """The state of an agent that has learned nothing, with what was taken in its place."""
    if taken.statistics:
        agent = agent.replace(normalizer=agent.normalizer.replace(**taken.statistics))
    return agent.replace(**taken.networks)


def _parts(agent: PyTree) -> Taken:
    networks = {name: getattr(agent, name) for name in ("params", "target_params") if hasattr(agent, name)}
    normalizer = getattr(agent, "normalizer", None)
    statistics = {} if normalizer is None else {name: getattr(normalizer, name) for name in ("obs", "returns")}
    return Taken(networks, statistics)


def _described(taken: Taken) -> dict[str, str]:
    """Each array's dtype and shape by its name."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): f"{leaf.dtype}{list(leaf.shape)}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(taken.networks | {"normalizer": taken.statistics})
    }
