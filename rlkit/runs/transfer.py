"""Transfer of what a run has learned to a new run, without the state of its episodes and its optimizer."""

from operator import attrgetter
from pathlib import Path

import jax

from rlkit.hosts.registry import is_own
from rlkit.runs import run_directory
from rlkit.runs.config.load import read
from rlkit.runs.policy import NO_EVAL_ENV, load_state
from rlkit.runs.programs.protocol import Program
from rlkit.types import Agent, ConfigError, PyTree

Learned = dict[str, PyTree]  # the fields of `Agent.trained` in an agent's state
# Settings that change what parameters compute, and not their shapes; the first is of networks that a config describes.
_MEANING = ("activation", "squash", "rescale", "v_min", "v_max")


def load(program: Program, source: str | Path) -> Learned:
    """Load what the newest checkpoint of the run `source` has learned, for the agent of `program`.

    Raises:
      ConfigError: there is no such run, its arrays differ from the program's, or its networks compute another function
        of the same arrays; the error names the first difference.
    """
    run = run_directory.existing(source)
    # Where both runs have the same environment of the user's own code, the user has named it for this run already. So
    # with wrappers and the network.
    stored, present = read(run / run_directory.CONFIG), program.config.flat()
    own_code = {key: present[key] for key in ("env", "wrappers", "network") if stored.get(key) == present[key]}
    for key in sorted({"env", "network"} - own_code.keys()):
        if isinstance(word := stored.get(key), str) and is_own(word):
            raise ConfigError(
                f"init_from={str(source)!r} has {key}={word!r}, which is code, and no file may name code to run: only "
                f"a run with the same {key} can start from it, and this one has {present[key]!r}"
            )
    source_program, state, _ = load_state(run, overrides=NO_EVAL_ENV, own_code=own_code)
    source_program.close()
    source_run, learned = source_program.config.run, _learned(source_program.agent, state.agent)
    is_same_agent = source_run.agent == program.config.run.agent
    same = "network, normalize_obs and num_seeds" if is_same_agent else f"agent, {source_run.agent},"
    template = _learned(program.agent, program.template.agent)
    expected, actual = _describe(template), _describe(learned)
    for leaf in [*expected, *actual]:
        if expected.get(leaf) != actual.get(leaf):
            raise ConfigError(
                f"init_from={str(source)!r} must have {leaf} = {expected.get(leaf, 'nothing')}, and it has "
                f"{actual.get(leaf, 'nothing')}; use the {same} of that run, and {source_run.env}"
            )
    for name in _MEANING if program.config.run.network is None else _MEANING[1:]:
        now, then = (getattr(config.agent, name, None) for config in (program.config, source_program.config))
        if now != then:
            raise ConfigError(
                f"{name}={now!r} must be that of init_from={str(source)!r}, {then!r}: its parameters would compute "
                f"something else; set {name}={then!r}"
            )
    return jax.tree.map(_place, learned, template)


def _place(x: jax.Array, like: jax.ShapeDtypeStruct) -> jax.Array:
    """An array on the devices of the new run; the other run may be spread over more of them, or fewer."""
    if like.sharding is None and len(x.devices()) == 1:
        return x
    return jax.device_put(x, like.sharding or jax.devices()[0])


def into(agent_state: PyTree, learned: Learned) -> PyTree:
    """Return an agent's initial state with the fields of another run's."""
    for field, value in learned.items():
        agent_state = _replace(agent_state, field.split("."), value)
    return agent_state


def _learned(agent: Agent, agent_state: PyTree) -> Learned:
    """The fields of an agent's state that another run can start with."""
    return {field: attrgetter(field)(agent_state) for field in agent.trained}


def _replace(record: PyTree, field: list[str], value: PyTree) -> PyTree:
    """A record with another value of a field, named by the fields that lead to it."""
    first, *rest = field
    return record.replace(**{first: _replace(getattr(record, first), rest, value) if rest else value})


def _describe(learned: Learned) -> dict[str, str]:
    """The dtype and shape of each array, by its name."""
    named = {field.replace(".", "/"): value for field, value in learned.items()}
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): f"{leaf.dtype}{list(leaf.shape)}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(named)
    }
