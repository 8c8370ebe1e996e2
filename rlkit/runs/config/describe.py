"""What a config means, in words: its keys, and what it would run."""

import typing
from contextlib import closing
from typing import Any

import jax

from rlkit.runs import memory, metrics
from rlkit.runs.config.run_config import RunConfig, schema
from rlkit.runs.loop import Schedule
from rlkit.runs.programs.host_program import HostProgram
from rlkit.runs.programs.host_program import program as make_program
from rlkit.runs.programs.jax_program import Program


def keys(config: RunConfig) -> str:
    """The keys of a config with their values, types or ranges, and meaning; one line a key."""
    values, lines = config.flat(), []
    for title, model in zip(("run", "agent", "agent, may be swept"), schema(config.run.agent).models, strict=True):
        lines.append(f"\n{title}:")
        for name, field in model.model_fields.items():
            left = f"  --{name} {_value(values[name])}"
            lines.append(f"{left:<44} {_kind(field)}" + (f"; {field.description}" if field.description else ""))
    return "\n".join(lines).lstrip("\n")


def _value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def _kind(field: Any) -> str:
    """The type of a field and its limits."""
    limits = []
    for note in field.metadata:
        for bound, sign in (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<=")):
            if (limit := getattr(note, bound, None)) is not None:
                limits.append(f"{sign} {limit:.15g}" if isinstance(limit, float) else f"{sign} {limit}")
    return " ".join([_type(field.annotation), ", ".join(limits)]).strip()


def _type(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return " | ".join(map(str, arguments))
    if origin is typing.Annotated:
        return _type(arguments[0])
    if origin is tuple:
        return f"[{_type(arguments[0])}, ...]"
    if arguments and origin is not dict:
        return " | ".join(_type(argument) for argument in arguments)
    return {type(None): "null"}.get(annotation, getattr(origin or annotation, "__name__", str(annotation)))


def describe(config: RunConfig) -> str:
    """What `train` would run: steps, batches, parameters and memory. Compiles nothing.

    Raises:
      ConfigError: what `train` would raise before it starts, but for the environment's own breaches of its contract:
        those are found by stepping it.
    """
    metrics.require(config)
    with closing(make_program(config)) as program:
        return _describe(config, program)


def _describe(config: RunConfig, program: Program | HostProgram) -> str:
    run, schedule = config.run, Schedule(config)
    state = program.template
    steps, line = config.num_updates * config.steps_per_update, config.updates_per_line * config.steps_per_update
    actor = jax.eval_shape(program.agent.actor, state.agent)
    params = sum(x.size for x in jax.tree.leaves(actor.params)) // run.num_seeds
    needed, there = memory.estimate(program), memory.available()
    memory.require(program)
    space = program.env.observation_space(program.params), program.env.action_space(program.params)
    rows = {
        "environment": f"{run.env}: observations {space[0]}, actions {space[1]}",
        "steps": f"{steps:,} ({run.total_steps:,} rounded up to {config.num_updates:,} updates)",
        "batch": f"{run.num_envs:,} envs x {run.num_steps:,} steps = {config.steps_per_update:,}",
        **_learning(config),
        "seeds": f"{run.num_seeds} from {run.seed}",
        "metric line": f"every {line:,} steps",
        "checkpoint": f"every {line * schedule.save_lines:,} steps",
        "evaluation": f"every {line * schedule.eval_lines:,} steps" if schedule.eval_lines else "at the end",
        "parameters": f"{params:,} for each seed",
        "memory": f"about {needed / 2**20:,.1f} MiB"
        + (f" of {there / 2**20:,.0f}" if there else "")
        + ", without the update's temporaries",
    }
    return "\n".join(f"{name + ':':<15} {text}" for name, text in rows.items())


def _learning(config: RunConfig) -> dict[str, str]:
    """What an update learns from at once: minibatches of the rollout, or samples of a replay buffer."""
    settings, run = config.agent, config.run
    if hasattr(settings, "num_minibatches"):
        recurrent = getattr(settings, "recurrent", "none") != "none"
        rows = (run.num_envs if recurrent else config.steps_per_update) // settings.num_minibatches
        what = f"sequences of {run.num_steps:,} steps" if recurrent else "steps"
        epochs = f"{settings.num_epochs:,} epochs of {settings.num_minibatches:,} minibatches"
        return {"an update": f"{epochs} of {rows:,} {what}"}
    count = settings.num_gradient_steps(config.steps_per_update)
    return {
        "an update": f"{count:,} gradient steps, each from a sample of {settings.batch_size:,}",
        "replay buffer": f"the last {settings.capacity:,} steps",
    }
