"""Transfer of what a run has learned to a new run, without the state of its episodes and its optimizer."""

from pathlib import Path
from typing import NamedTuple

import jax

from rlkit.hosts.registry import is_own
from rlkit.runs import run_directory
from rlkit.runs.config.load import read
from rlkit.runs.policy import NO_EVAL_ENV, load_state
from rlkit.runs.programs.protocol import Program
from rlkit.types import ConfigError, PyTree


class Learned(NamedTuple):
    """The parts of an agent's state that another run can start with."""

    networks: dict[str, PyTree]  # parameters and statistics, and those of the target networks where there are any
    statistics: dict[str, PyTree]  # of observations and returns, without the unfinished returns


def load(program: Program, source: str | Path) -> Learned:
    """Load what the newest checkpoint of the run `source` has learned, for the agent of `program`.

    Raises:
      ConfigError: there is no such run, or its arrays differ from the program's; the error names the first.
    """
    run, env = run_directory.existing(source), program.config.run.env
    # Where both runs have the same environment of the user's own code, the user has named it for this run already. So
    # with wrappers.
    stored, wrappers = read(run / run_directory.CONFIG), list(program.config.run.wrappers)
    same_code = is_own(env) and stored.get("env") == env
    same_wrappers = wrappers if stored.get("wrappers") == wrappers else None
    source_program, state, _ = load_state(
        run, env=env if same_code else None, wrappers=same_wrappers, overrides=NO_EVAL_ENV
    )
    source_program.close()
    learned = _learned(state.agent)
    expected, actual = _describe(_learned(program.template.agent)), _describe(learned)
    for leaf in [*expected, *actual]:
        if expected.get(leaf) != actual.get(leaf):
            raise ConfigError(
                f"init_from={str(source)!r} must have {leaf} = {expected.get(leaf, 'nothing')}, and it has "
                f"{actual.get(leaf, 'nothing')}; use the network and num_seeds of that run, and "
                f"{source_program.config.run.env}"
            )
    return learned


def into(agent_state: PyTree, learned: Learned) -> PyTree:
    """Return an agent's initial state with the parameters and statistics of another run."""
    if learned.statistics:
        agent_state = agent_state.replace(normalizer=agent_state.normalizer.replace(**learned.statistics))
    return agent_state.replace(**learned.networks)


def _learned(agent_state: PyTree) -> Learned:
    """The parts of an agent's state that can be transferred."""
    names = ("params", "stats", "target_params", "target_stats")
    networks = {name: getattr(agent_state, name) for name in names if hasattr(agent_state, name)}
    normalizer = getattr(agent_state, "normalizer", None)
    statistics = {} if normalizer is None else {name: getattr(normalizer, name) for name in ("obs", "returns")}
    return Learned(networks, statistics)


def _describe(learned: Learned) -> dict[str, str]:
    """The dtype and shape of each array, by its name."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): f"{leaf.dtype}{list(leaf.shape)}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(learned.networks | {"normalizer": learned.statistics})
    }
