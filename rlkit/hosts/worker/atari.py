"""Atari games with the preprocessing of DQN (Mnih et al. 2015), of `atari:` and of the vector environment `ale:`."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rlkit.hosts.worker import wrapper_names

# Names of other libraries' arguments with the same meaning.
_OTHER_NAMES = {
    "reward_clipping": "clip_reward",
    "episodic_life": "terminal_on_life_loss",
    "use_fire_reset": "fire_reset",
    "frameskip": "frame_skip",
    "stack_num": "stack",
    "img_height": "screen_size",
    "img_width": "screen_size",
}


class Preprocessing(NamedTuple):
    """Keys of `env_kwargs` that `atari:` and `ale:` have in common."""

    terminal_on_life_loss: bool = True  # for learning only
    clip_reward: bool = True  # to -1, 0 or 1, for learning only
    fire_reset: bool = False  # press FIRE where an episode begins, in games that have it
    repeat_action_probability: float = 0.0  # sticky actions; Machado et al. 2018 have 0.25
    full_action_space: bool = False
    noop_max: int = 30  # a game begins with up to so many frames without an action
    frame_skip: int = 4  # of which the last two are combined by their maximum
    screen_size: int = 84  # pixels a side
    stack: int = 4


_LEAST = {"noop_max": 0, "frame_skip": 1, "screen_size": 1, "stack": 1}


def preprocessing(kwargs: Mapping[str, Any]) -> tuple[Preprocessing, dict[str, Any]]:
    """Return the settings of an environment's arguments, and the other arguments, which are the emulator's.

    Raises:
      ValueError: a value has the wrong type or range, or a key another library's name; the text is one line.
    """
    for name, value in kwargs.items():
        if name in _OTHER_NAMES:
            raise ValueError(f"env_kwargs.{name}={value!r} has another name here; use {_OTHER_NAMES[name]}")
        default = Preprocessing._field_defaults.get(name)
        if isinstance(default, bool) and not isinstance(value, bool):
            raise ValueError(f"env_kwargs.{name}={value!r} must be true or false; use {str(default).lower()}")
        if name in _LEAST and (type(value) is not int or value < _LEAST[name]):
            raise ValueError(f"env_kwargs.{name}={value!r} must be an integer >= {_LEAST[name]}; try {default}")
        if isinstance(default, float) and (type(value) not in (int, float) or not 0 <= value <= 1):
            raise ValueError(f"env_kwargs.{name}={value!r} must be a number from 0 to 1; try 0.25")
    given = {name: value for name, value in kwargs.items() if name in Preprocessing._fields}
    return Preprocessing(**given), {name: value for name, value in kwargs.items() if name not in given}


def constructor(game: str, kwargs: Mapping[str, Any]) -> Callable[[], Any]:
    """Return a function that makes a game with gray images [84, 84, 4] uint8, of which the last is the newest.

    Inside of the stack, from the outside in: FIRE where an episode begins, the end of an episode at a lost life, and
    the clipped reward. Those are for learning only.
    """
    import ale_py  # pyright: ignore[reportMissingImports]
    import gymnasium

    from rlkit.hosts.worker.wrappers import ClipReward, EndOnLifeLoss, FireReset, GrayStack

    gymnasium.register_envs(ale_py)
    settings, others = preprocessing(kwargs)
    others = dict[str, Any](obs_type="grayscale") | others  # without the colors of each frame, which nothing reads
    others |= {name: getattr(settings, name) for name in ("repeat_action_probability", "full_action_space")}
    images = {name: getattr(settings, name) for name in ("noop_max", "frame_skip", "screen_size")}
    images |= {"scale_obs": others.pop("scale_obs")} if "scale_obs" in others else {}
    clip_reward, end_on_life_loss, fire_reset, gray_stack = map(
        wrapper_names.as_env, (ClipReward, EndOnLifeLoss, FireReset, GrayStack)
    )

    def make() -> Any:
        env = gymnasium.make(f"ALE/{game}-v5", disable_env_checker=True, frameskip=1, **others)
        env = gymnasium.wrappers.AtariPreprocessing(env, **images)
        env = clip_reward(env, -1.0, 1.0) if settings.clip_reward else env
        if settings.terminal_on_life_loss:  # that of Gymnasium starts a new game, so that later lives are never played
            env = end_on_life_loss(env)
        env = fire_reset(env) if settings.fire_reset else env
        return gray_stack(env, settings.stack)

    return make
