"""A picture of what a policy does."""

import re
from contextlib import closing
from pathlib import Path

import jax
import numpy as np

from rlkit.hosts import registry
from rlkit.hosts.placeholder import HostEnv
from rlkit.hosts.pool import HostError, Pool
from rlkit.hosts.worker.group import READY, fault
from rlkit.runs import files
from rlkit.runs.pictures import render
from rlkit.runs.policy import Policy, load
from rlkit.types import ConfigError

# What Python says of a class or function that does not take it; the latter where there is no constructor at all.
_NO_RENDER_MODE = re.compile(r"TypeError: .*(keyword argument 'render_mode'|\(\) takes no (keyword )?arguments)")


def record(
    run: str | Path,
    out: str | Path | None = None,
    *,
    seed: int | None = None,
    max_steps: int = 500,
    env: str | None = None,
) -> Path:
    """Write a GIF of one greedy episode of a run's newest checkpoint.

    Args:
      run: a run directory.
      out: the GIF; None for RUN/policy.gif.
      seed: which seed's policy; None for the first.
      max_steps: frames at most.
      env: the run's environment once more, where it is code of one's own, `module:Class`.

    Returns:
      The path of the GIF.

    Raises:
      ConfigError: there is no such run or seed, `max_steps` is not positive, the environment has no picture, or the GIF
        cannot be written.
      HostError: the environment, one outside of JAX, fails.
    """
    if max_steps < 1:
        raise ConfigError(f"max_steps={max_steps} must be at least 1; try 500")
    path = Path(out) if out is not None else files.open_run(run) / "policy.gif"
    if path.is_dir():
        raise ConfigError(f"out={str(path)!r} must be a file, and it is a directory; try {path / 'policy.gif'}")
    agent = load(run, seed=seed, env=env)
    files.require_writable(path.parent, f"out={str(path)!r}")
    frames = _on_a_host(agent, max_steps) if isinstance(agent.env, HostEnv) else _in_jax(agent, max_steps)
    render.save_gif(frames, path)
    return path


def _in_jax(agent: Policy, max_steps: int) -> list[np.ndarray]:
    """The frames [height, width, 3] of an episode."""
    step = jax.jit(agent.env.step)
    reset_key, key = jax.random.split(jax.random.key(agent.config.run.seed))
    obs, state = jax.jit(agent.env.reset)(reset_key, agent.params)
    frames, memory, done = [], agent.memory, False
    while not done and len(frames) < max_steps:
        frames.append(render.frame(agent.config.run.env, state, obs))
        key, act_key, env_key = jax.random.split(key, 3)
        action, memory = agent.act(obs, act_key, memory)
        obs, state, _, terminated, truncated, _ = step(env_key, state, action, agent.params)
        done = bool(terminated | truncated)
    return frames


def _on_a_host(agent: Policy, max_steps: int) -> list[np.ndarray]:
    """As `_in_jax`, by the environment's own `render`."""
    run = agent.config.run
    kwargs = {**run.env_kwargs, "render_mode": "rgb_array"}
    frames, memory, done = [], agent.memory, False
    try:
        made = registry.pool(run.env, kwargs, num_envs=1, backend="serial", seed=run.seed, restarts=0)
    except HostError as error:
        if not _NO_RENDER_MODE.search(str(error)):
            raise
        raise ConfigError(
            f"env={run.env!r} must be made with render_mode='rgb_array' for a picture, and it does not take that; "
            "take render_mode in the constructor"
        ) from None
    with closing(made) as pool:
        if not isinstance(pool, Pool):
            raise ConfigError(
                f"env={run.env!r} comes as a vector environment, which has no picture; use gymnasium:NAME"
            )
        obs, key = pool.reset(), jax.random.key(run.seed)
        while not done and len(frames) < max_steps:
            frames.append(_picture(pool, run.env))
            key, act_key = jax.random.split(key)
            action, memory = agent.act(jax.tree.map(lambda x: x[0], obs), act_key, memory)
            step = pool.step(jax.tree.map(lambda x: np.asarray(x)[None], action))
            obs, done = step.obs, bool((step.terminated | step.truncated)[0])
    return frames


def _picture(pool: Pool, env: str) -> np.ndarray:
    """What the only environment of a serial pool shows."""
    try:
        found = pool.workers.groups[0].envs[0].render()  # type: ignore[union-attr]
    except Exception as error:
        raise HostError(f"env={env!r}: failed in render: {fault(error, 0, READY).text}") from error
    if not isinstance(found, np.ndarray) or found.ndim != 3 or found.shape[2] != 3 or found.dtype != np.uint8:
        raise ConfigError(
            f"env={env!r} must have a render that gives uint8[height, width, 3] where it was made with "
            f"render_mode='rgb_array', and it gave {type(found).__name__}; there is no picture of it"
        )
    return found
