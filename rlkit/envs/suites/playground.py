"""MuJoCo Playground in rlkit's protocol; its environments have the interface of Brax."""

from typing import Any

from rlkit.envs.adapter import TimeLimitParams, construct, known_task, library, positive_integer
from rlkit.envs.suites.brax import PhysicsEnv
from rlkit.types import ConfigError


def names() -> list[str]:
    """Return Playground's names: CartpoleBalance, CheetahRun, Go1JoystickFlatTerrain, ..."""
    return sorted(_playground().registry.ALL_ENVS)


def make(task: str, /, *, max_steps_in_episode: int | None = None, **kwargs: Any) -> tuple[PhysicsEnv, TimeLimitParams]:
    """Make a MuJoCo Playground environment and its parameters.

    Args:
      task: a name of Playground, such as CartpoleBalance.
      max_steps_in_episode: number of steps after which an episode is truncated; by default that of Playground's config.
      kwargs: entries of Playground's config (ctrl_dt=0.02, or nested ones by {"reward_config.scales.x": 1}).

    Raises:
      ConfigError: Playground is not installed, the name is unknown, an argument does not fit, or the robot's model is
        missing: Playground downloads it when such an environment is first made, and rlkit downloads nothing. Also for
        impl="warp", whose environments cannot be reset one by one.
    """
    name = f"playground:{known_task(task, names(), 'playground:')}"
    playground = _playground()
    models = library("mujoco_playground._src.mjx_env", "playground").MENAGERIE_PATH
    if task not in playground.dm_control_suite.ALL_ENVS and not models.exists():
        raise ConfigError(
            f"env={name!r} needs robot models, and rlkit downloads nothing; python -c "
            f"'from mujoco_playground import registry; registry.load(\"{task}\")' gets them once"
        )
    config = playground.registry.get_default_config(task)
    if max_steps_in_episode is None:
        max_steps_in_episode = int(config.episode_length)
    limit = TimeLimitParams(positive_integer(f"{name}.max_steps_in_episode", max_steps_in_episode))
    if kwargs.setdefault("impl", "jax") != "jax":
        raise ConfigError(f"{name}.impl={kwargs['impl']!r} cannot reset environments one by one; use 'jax'")
    if "impl" not in config:
        del kwargs["impl"]
    known = {*(key for key in config if key != "episode_length"), "max_steps_in_episode"}
    top_level = {key.partition(".")[0]: value for key, value in kwargs.items()}

    def load(**top_level: Any) -> Any:
        del top_level  # checked by `construct`; nested keys are passed on whole
        changes = {"episode_length": max_steps_in_episode, **kwargs}
        return playground.registry.load(task, config_overrides=changes)

    return PhysicsEnv(name, construct(name, load, top_level, known)), limit


def _playground() -> Any:
    return library("mujoco_playground", "playground")
