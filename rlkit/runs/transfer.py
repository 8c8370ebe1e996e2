"""Transfer of what a run has learned to a new run, without the state of its episodes and its optimizer."""

from operator import attrgetter
from pathlib import Path

from rlkit.runs import run_directory
from rlkit.runs.checkpoints import checkpoint
from rlkit.runs.config.load import read
from rlkit.runs.programs.protocol import Program
from rlkit.types import ConfigError, PyTree

Learned = dict[str, PyTree]  # the fields of `Agent.trained` in an agent's state
# Settings that change what parameters compute, and not their shapes; the first is of networks that a config describes.
_MEANING = ("activation", "squash", "rescale", "v_min", "v_max")


def load(program: Program, source: str | Path) -> Learned:
    """Load what the newest checkpoint of the run `source` has learned, for the agent of `program`.

    Nothing else of that run is made, so its environment and its networks may be the user's own code.

    Raises:
      ConfigError: there is no such run, its arrays differ from the program's, or its networks compute another function
        of the same arrays; the error names the first difference.
    """
    run = run_directory.existing(source)
    if not program.agent.trained:
        raise ConfigError(
            f"init_from={str(source)!r} needs an agent that names the fields of its state to start with, and agent="
            f"{program.config.run.agent!r} names none; make its Agent with trained=('params',)"
        )
    stored, config = read(run / run_directory.CONFIG), program.config
    paths = {field: f"agent.{field}".replace(".", "/") for field in program.agent.trained}
    template = {path: attrgetter(field)(program.template.agent) for field, path in paths.items()}
    try:
        learned, _, _ = checkpoint.Reader(run).restore(template, fields=template)
    except checkpoint.CheckpointError:
        raise
    except ConfigError as error:
        difference = str(error).partition(": the leaf agent/")[2].rpartition("; ")[0]
        other = stored.get("agent") != config.run.agent
        same = f"agent, {stored.get('agent')}," if other else "network, normalize_obs and num_seeds"
        raise ConfigError(
            f"init_from={str(source)!r}: the leaf {difference}; use the {same} of that run, and {stored.get('env')}"
        ) from None
    agent = config.agent.for_observations(program.env.observation_space(program.params))
    for name in _MEANING if config.run.network is None else _MEANING[1:]:
        now, then = getattr(agent, name, None), stored.get(name)
        if name == "activation" and then is None:  # by the observations, whose shapes are the same
            then = _default_activation(program)
        if now != then:
            raise ConfigError(
                f"{name}={now!r} must be that of init_from={str(source)!r}, {then!r}: its parameters would compute "
                f"something else; set {name}={then!r}"
            )
    return {field: learned[path] for field, path in paths.items()}


def _default_activation(program: Program) -> str | None:
    """The activation of a run that leaves it open."""
    config = program.config.agent.model_copy(update={"activation": None})
    return config.for_observations(program.env.observation_space(program.params)).activation


def into(agent_state: PyTree, learned: Learned) -> PyTree:
    """Return an agent's initial state with the fields of another run's."""
    for field, value in learned.items():
        agent_state = _replace(agent_state, field.split("."), value)
    return agent_state


def _replace(record: PyTree, field: list[str], value: PyTree) -> PyTree:
    """A record with another value of a field, named by the fields that lead to it."""
    first, *rest = field
    return record.replace(**{first: _replace(getattr(record, first), rest, value) if rest else value})
