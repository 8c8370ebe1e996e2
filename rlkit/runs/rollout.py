"""A picture of what a policy does."""

from pathlib import Path

import jax

from rlkit.runs import files, render
from rlkit.runs.policy import load
from rlkit.types import ConfigError


def record(run: str | Path, out: str | Path | None = None, *, seed: int | None = None, max_steps: int = 500) -> Path:
    """Write a GIF of one greedy episode of a run's newest checkpoint.

    Args:
      run: a run directory.
      out: the GIF; None for RUN/policy.gif.
      seed: which seed's policy; None for the first.
      max_steps: frames at most.

    Returns:
      The path of the GIF.

    Raises:
      ConfigError: there is no such run or seed, `max_steps` is not positive, the environment has no picture, or the GIF
        cannot be written.
    """
    if max_steps < 1:
        raise ConfigError(f"max_steps={max_steps} must be at least 1; try 500")
    agent = load(run, seed=seed)
    path = Path(out) if out is not None else files.open_run(run) / "policy.gif"
    files.require_writable(path.parent, f"out={str(path)!r}")
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
    render.save_gif(frames, path)
    return path
