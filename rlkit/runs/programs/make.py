"""The choice of a config's program, and whether it fits the memory."""

from dataclasses import replace

from rlkit import hosts
from rlkit.agents.common.config import OffPolicyConfig, stores_whole_obs
from rlkit.names import register
from rlkit.runs.config.run_config import RunConfig
from rlkit.runs.devices import memory, require_one_process
from rlkit.runs.programs.host_program import HostProgram
from rlkit.runs.programs.host_seeds_program import HostSeedsProgram
from rlkit.runs.programs.jax_program import JaxProgram
from rlkit.runs.programs.protocol import Program
from rlkit.runs.programs.state import Runs, split
from rlkit.types import ConfigError


def make_program(config: RunConfig, num_streams: int | None = None, runs: Runs | None = None) -> Program:
    """Make the program of a config, for its kind of environment and its source of transitions.

    Args:
      config: a validated config.
      num_streams: streams of the run's dataset where a checkpoint holds their number; then the dataset is not opened.
        None to open the dataset, if the config names one.
      runs: the seed and the Hyper of each run, for a `JaxProgram`; None for those of the config.

    Raises:
      ConfigError: the environment cannot be made or breaks its contract, or it or the dataset does not fit the agent.
      HostError: an environment outside of JAX fails when it is made.
    """
    run = config.run
    own_command = "train each seed by a command of its own (--seed N)"
    if run.dataset is not None:
        require_one_process(f"dataset={run.dataset!r}", own_command)
    if hosts.is_host(run.env) and run.num_seeds > 1:
        require_one_process(f"num_seeds={run.num_seeds} with env={run.env!r}", own_command)
    if run.env.startswith(("ale:", "envpool:")):
        require_one_process(f"env={run.env!r}", "its library seeds all environments together; use atari:NAME")
    register(config.objects)  # as configs that were parsed later may have others of the same names
    if config.run.dataset is not None or not hosts.is_host(config.run.env):
        return JaxProgram(config, runs, num_streams)
    return HostProgram(config) if config.run.num_seeds == 1 else HostSeedsProgram(config)


def require_memory(program: Program) -> None:
    """Raise a ConfigError where a run cannot fit the device's memory."""
    needed, limit = program.num_bytes, memory.available(program.num_devices)
    if limit is None or needed <= limit:
        return
    run, agent = program.config.run, program.config.agent
    field = f"num_envs={run.num_envs}" if agent.replay_capacity is None else f"capacity={agent.replay_capacity}"
    without_replay = memory.tree_num_bytes(split(program.template.agent)[0])
    sizes = getattr(agent, "hidden_sizes", None)  # an agent of the user's own may have none
    if sizes is not None and 2 * without_replay > needed / 2:  # more than half: parameters, in two copies of a state
        field = f"hidden_sizes={list(sizes)}"
    raise ConfigError(
        f"{field} with num_seeds={run.num_seeds} needs about {needed / 2**30:.1f} GiB, and there are "
        f"{limit / 2**30:.1f} GiB of memory; lower it{_smaller_storage(program)}, or train fewer seeds at a time"
    )


def stores_frames(program: Program) -> bool:
    """Return true where the program's replay buffer stores each frame of stacked observations once."""
    ring = getattr(getattr(getattr(program.template.agent, "replay", None), "buffer", None), "ring", None)
    return bool(getattr(ring, "frames", ()))


def _smaller_storage(program: Program) -> str:
    """The setting with which the same steps take less memory, as a part of a sentence; nothing where there is none."""
    config = program.config
    if not isinstance(config.agent, OffPolicyConfig) or stores_whole_obs(config.agent.replay) or stores_frames(program):
        return ""
    by_default = replace(config, agent=config.agent.model_copy(update={"replay_stack": None}))
    if config.frame_stack < by_default.frame_stack:
        return ", leave replay_stack out"
    return "" if config.agent.store_obs_once else ", set store_obs_once=true"
