"""Recording of a policy as a GIF, a video, or the drawing of a game."""

import math
import os
import re
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.envs.last_state import LAST_STATE, keep_last_state
from rlkit.hosts import registry
from rlkit.hosts.failure import HostError
from rlkit.hosts.placeholder import HostEnv
from rlkit.hosts.pool import Pool
from rlkit.hosts.worker.group import READY, fault
from rlkit.runs import files, run_directory
from rlkit.runs.config.errors import plain_value
from rlkit.runs.config.load import read
from rlkit.runs.config.own_code import OwnCode
from rlkit.runs.pictures.frames import frame, inner_state, save_gif, save_mp4, save_svg
from rlkit.runs.policy import Policy, load
from rlkit.runs.versions import require
from rlkit.types import ConfigError, PyTree, num_players

_FPS = 30.0  # of an environment that declares none

# Python's errors for a class or function without that argument, and for a class without a constructor.
_NO_RENDER_MODE = re.compile(r"TypeError: .*(keyword argument 'render_mode'|\(\) takes no (keyword )?arguments)")


# Words in the errors of MuJoCo's ways to render: GLFW needs a screen, EGL a driver, OSMesa its library.
_RENDERING = re.compile(r"opengl|glfw|\begl\b|osmesa|gladLoadGL|MUJOCO_GL|DISPLAY environment", re.IGNORECASE)


def render(
    run: str | Path,
    out: str | Path | None = None,
    *,
    seed: int | None = None,
    step: int | None = None,
    best: bool = False,
    max_steps: int = 500,
    **own_code: Unpack[OwnCode],
) -> Path:
    """Record one greedy episode of a run's newest checkpoint, or of another, as a GIF, an MP4, or an SVG of pgx.

    Frames of an environment of several players show the view of player 0. An SVG shows the whole game, which is
    played as in training.

    Args:
      run: a run directory.
      out: the file; a name that ends in .mp4 gives a video, which needs the extra `video`, one that ends in .svg an
        animation of a board or card game by pgx, and any other a GIF. None for RUN/policy.svg of such a game, and
        RUN/policy.gif of any other environment.
      max_steps: largest number of steps; there is a frame before the first one, and one after each.
      seed, step, best, own_code: as for `rlkit.load`.

    Returns:
      The path of the file.

    Raises:
      ConfigError: there is no such run or seed, `max_steps` is not positive, the environment has no picture, the
        file cannot be written, or the package for videos is not installed.
      HostError: an environment outside of JAX fails.
    """
    if max_steps < 1:
        raise ConfigError(f"max_steps={max_steps} must be at least 1; try 500")
    folder = run_directory.existing(run)
    env = str(read(folder / run_directory.CONFIG).get("env"))
    is_game = env.startswith("pgx:") and not env.startswith("pgx:minatar-")  # pgx animates all but these
    name = "policy.svg" if is_game else "policy.gif"
    path = Path(out) if out is not None else folder / name
    if path.is_dir():
        raise ConfigError(f"out={str(path)!r} must be a file, and it is a directory; try {path / name}")
    suffix = path.suffix.lower()
    if suffix == ".svg" and not is_game:
        raise ConfigError(
            f"out={str(path)!r} must end in .gif or .mp4: only board and card games of pgx are drawn as SVG, and the "
            f"run's env is {env!r}; try {path.with_suffix('.gif')}"
        )
    if suffix == ".mp4":
        require("imageio_ffmpeg", f"out={str(path)!r}", "video")
    policy = load(run, seed=seed, step=step, best=best, **own_code)
    files.require_writable(path.parent, f"out={str(path)!r}")
    if suffix == ".svg":
        states, _ = _record_jax(policy, max_steps, lambda name, state, obs: inner_state(state))
        save_svg(states, path)
        return path
    frames, fps = _record_host(policy, max_steps) if isinstance(policy.env, HostEnv) else _record_jax(policy, max_steps)
    (save_mp4 if suffix == ".mp4" else save_gif)(frames, path, fps)
    return path


def frame_rate(env: Any) -> float:
    """Return the frames per second that an environment declares as `metadata["render_fps"]`; 30 without one."""
    while env is not None:
        metadata = getattr(env, "metadata", None)
        fps = metadata.get("render_fps") if isinstance(metadata, Mapping) else None
        if isinstance(fps, int | float | np.number) and math.isfinite(fps) and fps > 0:
            return float(fps)
        env = getattr(env, "env", None)
    return _FPS


def _record_jax(
    policy: Policy, max_steps: int, draw: Callable[[str, Any, PyTree], Any] | None = None
) -> tuple[list[Any], float]:
    """Pictures of each step of an episode by `draw`, by default frames [height, width, 3] uint8; their rate per second.

    `draw` maps the environment's name, its state, and an observation, that of player 0, to a picture.
    """
    name, step = policy.config.run.env, jax.jit(keep_last_state(policy.env).step)
    draw, players = draw or frame, num_players(policy.env)
    reset_key, key = jax.random.split(jax.random.key(policy.config.run.seed))
    obs, state = jax.jit(policy.env.reset)(reset_key, policy.params)
    act, memory = policy.act if players == 1 else jax.vmap(policy.act), None
    frames, done = [draw(name, state, _first(obs, players))], False
    while not done and len(frames) <= max_steps:
        key, act_key, env_key = jax.random.split(key, 3)
        keys = act_key if players == 1 else jax.random.split(act_key, players)
        action, memory = act(obs, keys, memory)
        obs, state, _, terminated, truncated, info = step(env_key, state, action, policy.params)
        done = bool((terminated | truncated).any())
        frames.append(draw(name, info.get(LAST_STATE, state), _first(info["final_observation"], players)))
    return frames, frame_rate(policy.env)


def _first(obs: PyTree, players: int) -> PyTree:
    """The observation of player 0."""
    return obs if players == 1 else jax.tree.map(lambda x: x[0], obs)


class _Camera:
    """An environment that renders itself after each reset and each step; all else is the environment's."""

    def __init__(self, env: Any):
        self.env = env
        self.pictures: list[Any] = []  # what it rendered, or the exception that it raised

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, **arguments: Any) -> Any:
        return self._filmed(self.env.reset(**arguments))

    def step(self, action: Any) -> Any:
        return self._filmed(self.env.step(action))

    def _filmed(self, result: Any) -> Any:
        try:
            self.pictures.append(self.env.render())
        except Exception as error:
            self.pictures.append(error)
        return result

    def take(self, name: str) -> list[np.ndarray]:
        """Return the pictures since the last call. Raises the error that names the environment by `name`."""
        taken, self.pictures = self.pictures, []
        return [_checked(picture, name) for picture in taken]


def _record_host(policy: Policy, max_steps: int) -> tuple[list[np.ndarray], float]:
    """The frames [height, width, 3] uint8 of an episode, by the environment's own `render`, and their rate."""
    run, (env, kwargs, wrappers) = policy.config.run, policy.config.task
    kwargs = {**plain_value(kwargs), "render_mode": "rgb_array"}
    game = re.sub("^ale:", "atari:", env)  # the same game, of which the vector environment has no picture
    players = num_players(policy.env)
    memory = jax.tree.map(lambda x: jnp.stack([x] * players), policy.memory)
    act = jax.vmap(policy.policy, (None, 0, 0, 0))
    try:
        options = {"backend": "serial", "seed": run.seed, "restarts": 0, "wrappers": wrappers}
        pool = registry.pool(game, kwargs, num_envs=players, **options)
    except HostError as error:
        if not _NO_RENDER_MODE.search(str(error)):
            raise HostError(f"{error}{_headless_remedy(str(error))}") from error
        raise ConfigError(
            f"env={run.env!r} must be made with render_mode='rgb_array' for a picture, and it has no such argument; "
            "take render_mode in the constructor"
        ) from None
    with closing(pool):
        if not isinstance(pool, Pool):
            raise ConfigError(f"env={run.env!r} is a vector environment, which has no picture; use gymnasium:NAME")
        envs = pool.workers.group.envs  # type: ignore[union-attr]
        camera = envs[0] = _Camera(envs[0])
        obs, key = pool.reset(), jax.random.key(run.seed)
        frames = camera.take(run.env)
        for _ in range(max_steps):
            key, act_key = jax.random.split(key)
            memory, action, _ = act(policy.actor, memory, obs, jax.random.split(act_key, players))
            step = pool.step(jax.tree.map(np.asarray, action))
            obs, pictures = step.obs, camera.take(run.env)
            if step.lengths[0]:  # the environment has been reset since
                return [*frames, pictures[0]], frame_rate(camera)
            frames += pictures
    return frames, frame_rate(camera)


def _headless_remedy(text: str) -> str:
    """Return how MuJoCo renders without a screen, where an error is one of its rendering."""
    chosen = f"; it is {value}" if (value := os.environ.get("MUJOCO_GL")) else ""
    remedy = f"; without a screen, set MUJOCO_GL to egl or osmesa{chosen}"
    return remedy if _RENDERING.search(text) else ""


def _checked(picture: Any, env: str) -> np.ndarray:
    """Return what an environment rendered. Raises an error where it is no frame, or an exception."""
    if isinstance(picture, Exception):
        text = fault(picture, 0, READY).text
        raise HostError(f"env={env!r}: failed in render: {text}{_headless_remedy(text)}") from picture
    if not isinstance(picture, np.ndarray) or picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
        raise ConfigError(
            f"env={env!r} must render uint8[height, width, 3] where it is made with render_mode='rgb_array', "
            f"and it rendered {type(picture).__name__}; mend its render"
        )
    return picture
