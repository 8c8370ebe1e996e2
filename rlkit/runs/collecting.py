"""Collection of datasets with a trained policy."""

from contextlib import closing
from pathlib import Path
from typing import Any, Unpack

import jax
import numpy as np

from rlkit.runs import files, run_directory
from rlkit.runs.config.own_code import OwnCode
from rlkit.runs.datasets import storage
from rlkit.runs.devices.memory import tree_num_bytes
from rlkit.runs.policy import NO_EVAL_ENV, actor_of, load_state
from rlkit.runs.programs.protocol import Program
from rlkit.spaces import shape_of
from rlkit.types import ConfigError, num_players

_MAX_STEPS, _MAX_BYTES = 1 << 16, 1 << 28  # of one rollout, in all environments


def collect(
    run: str | Path,
    num_steps: int,
    out: str | Path | None = None,
    *,
    num_envs: int | None = None,
    greedy: bool = False,
    step: int | None = None,
    best: bool = False,
    seed: int = 0,
    **own_code: Unpack[OwnCode],
) -> Path:
    """Collect transitions with a run's policy, and write them as a dataset.

    Args:
      run: a run directory.
      num_steps: steps of all environments together, rounded up to a multiple of their number.
      out: the dataset's folder; None for RUN/dataset.
      num_envs: environments side by side, or players of them, see `rlkit.training.worlds`; None for 16, or as many as
        whole worlds have up to there.
      greedy: True to act as in evaluation; False to explore as in training.
      seed: of the environments and of the exploration. Of a run with several seeds, the first seed's policy acts.
      step, best, own_code: as for `rlkit.load`.

    Returns:
      The folder.

    Raises:
      ConfigError: there is no such run or checkpoint, a number is out of range, the folder exists or has no plain name,
        or an environment outside of JAX gives a number that is not finite.
      HostError: an environment outside of JAX fails.
    """
    for name, value in (("steps", num_steps), ("num_envs", num_envs)):
        if value is not None and value < 1:
            raise ConfigError(f"{name}={value} must be at least 1")
    path = run_directory.existing(run)
    folder = Path(out) if out is not None else path / "dataset"
    files.require_plain_name(folder, f"out={str(out)!r}", "offline/first")
    if folder.parent.is_dir():
        files.require_writable(folder.parent, f"out={str(folder)!r}")
    program, state, step = load_state(path, step, best=best, overrides=NO_EVAL_ENV, own_code=own_code)
    with closing(program):
        agent = program.agent._replace(act=program.agent.policy) if greedy else program.agent
        actor = actor_of(program, state, 0)
        players = num_players(program.env)
        num_envs = players * max(1, 16 // players) if num_envs is None else num_envs
        rows = -(-num_steps // num_envs)
        max_steps = min(_MAX_STEPS, _MAX_BYTES // _step_num_bytes(program))
        length = min(rows, max(max_steps // num_envs, 1))
        about: dict[str, Any] = {"env": program.config.run.env, "agent": program.config.run.agent, "step": step}
        with program.rollouts(agent, actor, num_envs=num_envs, num_steps=length, seed=seed) as (shapes, rollouts):
            example = jax.tree.map(lambda x: np.zeros(x.shape[2:], x.dtype), shapes)
            with storage.writer(folder, example, num_envs, extra=about | {"greedy": greedy, "seed": seed}) as writer:
                for first in range(0, rows, length):
                    left = min(length, rows - first)
                    writer.add(jax.tree.map(lambda x, left=left: x[:left], next(rollouts)))
    return folder


def _step_num_bytes(program: Program) -> int:
    """Bytes of a transition: two observations and an action."""
    obs, action = program.env.observation_space(program.params), program.env.action_space(program.params)
    return tree_num_bytes((shape_of(obs), shape_of(obs), shape_of(action)))
