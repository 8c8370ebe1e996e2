"""The run that a config describes, in text, without training it: for `rlkit check`."""

import math
from collections.abc import Mapping
from contextlib import closing

import jax

from rlkit import agents
from rlkit.agents import ppo
from rlkit.agents.common.config import MinibatchConfig, OffPolicyConfig
from rlkit.hosts.gymnasium_names import in_gymnasium_too
from rlkit.networks.table import table
from rlkit.replay import final_observations
from rlkit.replay.validation import default_final_obs
from rlkit.runs.config.errors import plain_value, show_value
from rlkit.runs.config.run_config import RunConfig
from rlkit.runs.config.schedule import Schedule
from rlkit.runs.devices import memory
from rlkit.runs.hints import costly_resets, on_defaults, on_settings
from rlkit.runs.metrics import require_writers
from rlkit.runs.programs.make import make_program, require_memory, stores_frames
from rlkit.runs.programs.protocol import Program
from rlkit.spaces import Space
from rlkit.types import PyTree


def describe(config: RunConfig) -> str:
    """Return the steps, batches, parameters and memory of a run. Compiles nothing.

    Raises:
      ConfigError: as `train` does before it starts; only a breach of the environment's contract, which is found by
        stepping it, is not.
    """
    require_writers(config)
    with closing(make_program(config)) as program:
        return _describe(program)


def _describe(program: Program) -> str:
    config = program.config
    run, schedule = config.run, Schedule(config)
    steps, line = config.num_updates * config.steps_per_update, config.updates_per_line * config.steps_per_update
    require_memory(program)
    limit = memory.available(program.num_devices)
    observations, actions = program.env.observation_space(program.params), program.env.action_space(program.params)
    at_end = "at the end" if run.eval_episodes else "none, as eval_episodes is 0"
    other = f" (in JAX; Gymnasium's own is gymnasium:{run.env})" if in_gymnasium_too(run.env) else ""
    rows = {
        "environment": f"{run.env}{other}: observations {observations}, actions {actions}",
        **dict(zip(("defaults", "config"), on_defaults(config), strict=False)),
        "steps": f"{steps:,} ({run.total_steps:,} rounded up to {config.num_updates:,} updates)",
        "batch": f"{run.num_envs:,} envs x {run.num_steps:,} steps = {config.steps_per_update:,}",
        **_sizes(program),
        "seeds": f"{run.num_seeds} from {run.seed}"
        + (f", on {program.num_devices} devices" if program.num_devices > program.num_shards else ""),
        **_mesh(program),
        "metric line": f"every {line:,} steps",
        "checkpoint": f"every {line * schedule.save_lines:,} steps",
        "evaluation": f"every {line * schedule.eval_lines:,} steps" if schedule.eval_lines else at_end,
        **_networks(config, observations),
        "parameters": _parameters(program.template.agent.params, run.num_seeds),
        "memory": f"about {program.num_bytes / 2**20:,.1f} MiB"
        + (f" of {limit / 2**20:,.0f}" if limit else "")
        + ", without the update's temporaries",
    }
    lines = [(f"{name}:", text) for name, text in rows.items()]
    lines += [("warning:", text) for text in on_settings(program)]
    lines += [("hint:", text) for text in [costly_resets(program)] if text]
    text = "\n".join(f"{name:<15} {text}" for name, text in lines)
    layers = table(program.agent, agents.get(run.agent).Hyper(**config.hyper), observations, actions, run.num_envs)
    return f"{text}\n\n{layers}" if layers else text


def _mesh(program: Program) -> dict[str, str]:
    """The devices over which a single run is divided, and what each has; nothing for one device."""
    run, agent, devices = program.config.run, program.config.agent, program.num_shards
    if devices == 1:
        return {}
    text = f"data={devices}, on each device {run.num_envs // devices:,} of {run.num_envs:,} environments"
    if isinstance(agent, OffPolicyConfig):
        text += f" and {agent.capacity // devices:,} of {agent.capacity:,} steps of the replay buffer"
    return {"mesh": text}


def _sizes(program: Program) -> dict[str, str]:
    """The sizes of an update and of the replay buffer, and warnings of settings that have no effect, by title."""
    config, agent, static = program.config, program.config.agent, program.agent.static
    num_envs, num_steps = config.run.num_envs, config.run.num_steps
    episode_length, by_frames = _episode_length(program), stores_frames(program)
    rows: dict[str, str] = {}
    if isinstance(agent, MinibatchConfig):
        sequences = isinstance(static, ppo.Static) and static.policy.recurrent
        size = (num_envs if sequences else num_envs * num_steps) // agent.num_minibatches
        items = f"sequences of {num_steps:,} steps" if sequences else "steps"
        rows["an update"] = f"{agent.num_epochs:,} epochs of {agent.num_minibatches:,} minibatches of {size:,} {items}"
    elif isinstance(agent, OffPolicyConfig):
        count, steps = agent.num_gradient_steps(config.steps_per_update), agent.capacity // num_envs
        rows["an update"] = f"{count:,} gradient steps, each from a sample of {agent.batch_size:,}"
        rows["replay buffer"] = f"the last {agent.capacity:,} steps"
        if by_frames:
            rows["replay buffer"] += ", each frame stored once"
        if episode_length is not None and steps < episode_length:
            rows["replay buffer"] += (
                f"; warning: {steps:,} of each environment, and an episode of the full {episode_length:,} does not fit"
            )
        kept = final_observations.size_of(default_final_obs(agent.capacity))
        ends = agent.capacity // episode_length if episode_length else 0
        if agent.store_obs_once and not by_frames and ends > kept:
            rows["replay buffer"] += (
                f"; warning: store_obs_once keeps {kept:,} final observations, and episodes of {episode_length:,} "
                f"steps have up to {ends:,}; truncated steps without one are not drawn"
            )
    if getattr(agent, "noisy", False):
        rows["exploration"] = "by noisy layers alone; the keys epsilon_* have no effect"
    if hasattr(config.agent, "v_min"):
        least, most = config.agent.v_min, config.agent.v_max
        length, gamma = math.inf if episode_length is None else episode_length, config.hyper["gamma"]
        summed = length if gamma == 1.0 else (1.0 - gamma**length) / (1.0 - gamma)  # of rewards of 1
        fitting = f"; rewards of {least / summed:.3g} to {most / summed:.3g} in every step fit"
        rows["returns"] = f"clipped to {least:g} to {most:g}" + (fitting if summed < math.inf else "")
    return rows


def _networks(config: RunConfig, observations: Space) -> dict[str, str]:
    """The settings of the agent that follow from the observations, as the config leaves them open."""
    found = config.agent.for_observations(observations)
    chosen = [f"{name}={show_value(plain_value(x))}" for name, x in found if x != getattr(config.agent, name)]
    return {"networks": f"{', '.join(chosen)}, by the observations"} if chosen and not config.run.network else {}


def _parameters(params: PyTree, num_seeds: int) -> str:
    """The number of all trained parameters of a seed, and of each part of the networks."""

    def count(tree: PyTree) -> int:
        return sum(x.size for x in jax.tree.leaves(tree)) // num_seeds

    parts = params
    while isinstance(parts, Mapping) and len(parts) == 1:  # such as `params` of a flax module
        (parts,) = parts.values()
    named = parts.items() if isinstance(parts, Mapping) else ()
    text = ", ".join(f"{name} {count(part):,}" for name, part in sorted(named))
    return f"{count(params):,} for each seed" + (f": {text}" if text else "")


def _episode_length(program: Program) -> int | None:
    """The most steps of an episode, by the environment and the wrappers `time_limit`; None where it is not known."""
    length = getattr(program.params, "max_steps_in_episode", None)
    for spec in program.config.run.wrappers:
        name, _, count = spec.partition(":")
        if name == "action_repeat":
            length = None
        elif name == "time_limit":
            length = int(count) if length is None else min(int(length), int(count))
    return None if length is None else int(length)
