"""Rules that several agents share, each with an error that names the field, the value, the rule and a remedy."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from rlkit import agents
from rlkit.agents.base import mistakes
from rlkit.names import ACTION_MASK, GAME_STATE, PRIVILEGED, axes_ambiguous, did_you_mean
from rlkit.networks import views
from rlkit.networks.encoders.combine import choose
from rlkit.networks.encoders.conv import conv_layers, smallest_side
from rlkit.networks.encoders.registry import IMAGES
from rlkit.networks.features import Leaf, image_shape, is_image, leaves, to_normalize
from rlkit.spaces import Box, Dict, Discrete, MultiDiscrete, Space, shape_of
from rlkit.types import ConfigError


def check_action_space(config_class: type, config: Any, space: Space, *, supported: bool, needed: str) -> None:
    """Raise a ConfigError that names the agents for an action space, unless it is `supported`.

    A config of another agent is refused as well.

    Bounds in the wrong order, or whose difference is not a float, are refused as well: actions are scaled by it.

    Args:
      config_class: the agent's class `Config`.
      config: that `make` was given.
      space: an environment's action space.
      supported: True where the agent can act in it.
      needed: the action spaces that the agent supports, in words.
    """
    mistakes.check_config(config_class, config)
    if supported:
        _check_range(space)
        if not (space.n if isinstance(space, Discrete) else math.prod(space.shape)):  # type: ignore[union-attr]
            raise ConfigError(f"the action space must have actions, and {space} has none; give it one")
        return
    if not isinstance(space, Space):
        raise ConfigError(
            f"the action space must be one of rlkit.spaces, and this one is {type(space).__module__}."
            f"{type(space).__qualname__}; adapt the environment: env, params = envs.adapt(env)"
        )
    others = agents.supporting(space)
    remedy = (
        f"use {' or '.join(filter(None, [', '.join(others[:-1]), others[-1]]))}"
        if others
        else "no agent can act in it, so wrap the environment to take a Discrete, MultiDiscrete or float Box action"
    )
    side = _open_side(space) if "bounds" in needed else ""
    if isinstance(space, Box) and space.dtype.kind in "iub" and len(space.shape) > 1:
        side = f", integers of shape {list(space.shape)}, as of a MultiDiscrete or MultiBinary of this shape"
        remedy = f"{remedy}, of one dimension"
    raise ConfigError(
        f"agent={mistakes.agent_name(config_class)!r} needs {needed}, and this one is {space}{side}; {remedy}"
    )


def _open_side(space: Space) -> str:
    """Words about the first dimension of a Box that lacks a bound; none for other spaces."""
    if not isinstance(space, Box) or space.bounded:
        return ""
    index = tuple(np.argwhere(~(space.bounded_below & space.bounded_above))[0].tolist())
    sides = [side for side, has in (("lower", space.bounded_below), ("upper", space.bounded_above)) if not has[index]]
    return f", whose dimension {list(index)} has no {' and no '.join(sides)} bound"


def _check_range(space: Space) -> None:
    """Raise a ConfigError where the bounds of a Box are in the wrong order, or so far apart that actions overflow."""
    if not isinstance(space, Box):
        return
    if not (space.low <= space.high).all():  # NaN included
        raise ConfigError(f"action space {space} must have low <= high in each dimension; swap the bounds")
    with np.errstate(over="ignore", invalid="ignore"):
        width = space.high - space.low
    if not np.isfinite(width[space.bounded_below & space.bounded_above]).all():
        raise ConfigError(
            f"action space {space} must have bounds whose difference is a finite {space.dtype.name}; use bounds within "
            f"+-{np.finfo(space.dtype).max / 2:.2g}, or infinite ones"
        )


def check_box(field: str, space: Space, *, bounded: bool) -> None:
    """Raise a ConfigError unless the action space is a Box, and one with finite bounds where `bounded` is set."""
    if not isinstance(space, Box) or (bounded and not space.bounded):
        kind = "a Box action space with finite bounds" if bounded else "a Box action space"
        side = _open_side(space) if bounded else ""
        raise ConfigError(f"{field}=True needs {kind}, and this one is {space}{side}; use False")


def _check_library(obs_space: Any) -> None:
    """Raise a ConfigError where an observation space, or a part of it, is none of rlkit.spaces, or exceeds int32."""
    for leaf in leaves(obs_space):
        if not isinstance(leaf.space, Space):
            name = f"{type(leaf.space).__module__}.{type(leaf.space).__qualname__}"
            raise ConfigError(
                f"the observation space must be one of rlkit.spaces, and {leaf.name or 'this one'} is {name}; adapt "
                "the environment: env, params = envs.adapt(env)"
            )
        most = np.iinfo(np.int32).max
        nvec = (leaf.space.n,) if isinstance(leaf.space, Discrete) else getattr(leaf.space, "nvec", (0,))
        if max(nvec, default=0) > most:
            raise ConfigError(
                f"{leaf.name or 'the observation'} must be an integer below {most}, the greatest int32, and it has "
                f"{max(nvec)} values; give it as a float Box or as digits (MultiDiscrete)"
            )


def _check_mask(obs_space: Space, action_space: Space) -> None:
    """Raise a ConfigError where the action mask of an observation is not of the actions."""
    if not isinstance(obs_space, Dict) or ACTION_MASK not in obs_space.spaces:
        return
    mask = obs_space.spaces[ACTION_MASK]
    if not isinstance(action_space, Discrete | MultiDiscrete):
        raise ConfigError(
            f"{ACTION_MASK}={mask} marks legal integers of a Discrete or MultiDiscrete, and this action space is "
            f"{action_space}; rename the leaf"
        )
    count = action_space.n if isinstance(action_space, Discrete) else sum(action_space.nvec)
    if getattr(mask, "shape", None) != (count,):  # a Dict or a Tuple has none
        raise ConfigError(f"{ACTION_MASK}={mask} must have the shape ({count},), an entry for each action")


def check_encoder(config: Any, obs_space: Space, action_space: Space) -> None:
    """Raise a ConfigError where an observation is empty, or does not fit the encoder of an agent's Config.

    An action mask of another size than the actions is refused as well, and so is `normalize_obs` without a leaf to
    normalize, except where it is an agent's default.
    """
    _check_library(obs_space)
    obs = shape_of(obs_space)
    if isinstance(obs, dict):
        obs = {name: x for name, x in obs.items() if name not in (ACTION_MASK, GAME_STATE, PRIVILEGED)}
    if not any(math.prod(x.shape) for x in jax.tree.leaves(obs)):
        raise ConfigError(
            f"observations must have numbers to act on, and these have none: {obs_space}; give e.g. a constant 0"
        )
    _check_mask(obs_space, action_space)
    if getattr(config, "shared_torso", False) and views.has_privileged(obs_space):
        raise ConfigError(f"shared_torso=True gives the policy the leaf {PRIVILEGED!r}, which is for values; use False")
    _check_sizes(config)
    _check_names(config.encoders, leaves(obs_space), obs_space)
    images = [
        (leaf, kind)
        for space in (obs_space, views.actor_space(obs_space))
        for leaf, kind in zip(leaves(space), choose(space, config), strict=True)
        if kind in IMAGES
    ]
    if config.encoder in IMAGES and not images:
        raise ConfigError(
            f"encoder={config.encoder!r} needs observations with an image [H, W, C], and this is {obs_space}; use 'mlp'"
        )
    for leaf, kind in images:
        _check_image(config, leaf, kind)
    _check_used(config, leaves(obs_space), [kind for _, kind in images])
    _check_shift(config, obs_space)
    by_default = type(config).model_fields["normalize_obs"].default  # a default is for every observation
    if config.normalize_obs and not by_default and not to_normalize(obs_space, config.image_axes):
        raise ConfigError(
            f"normalize_obs=True needs a Box that is not an image, and this is {obs_space}; use False, as bytes of "
            "images and one-hot integers are from 0 to 1 already"
        )


def _check_names(encoders: Mapping[str, str], found: list[Leaf], obs_space: Space) -> None:
    """Raise a ConfigError where the keys of `encoders` are not the names of leaves."""
    names = [leaf.name for leaf in found if leaf.name]
    for name, kind in encoders.items():
        if not names:
            raise ConfigError(
                f"encoders.{name}={kind!r} needs observations with leaves of their own names, and this is {obs_space}; "
                f"use encoder={kind!r}"
            )
        if name not in names:
            listed = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
            raise ConfigError(
                f"encoders.{name}={kind!r} must name a leaf of the observations, one of {listed}"
                f"{did_you_mean(name, names) or '; leave it out'}"
            )


def _check_sizes(config: Any) -> None:
    """Raise a ConfigError where the convolutions of "conv" have not one kernel and one stride each."""
    count = len(config.channels)
    for name in ("kernels", "strides"):
        sizes = getattr(config, name)
        if sizes is not None and len(sizes) not in (1, count):
            raise ConfigError(
                f"{name}={sizes} must be one number, or {count}, one for each of channels={config.channels}; try "
                f"{(sizes + sizes[-1:] * count)[:count] if sizes else (3,)}"
            )


def _check_used(config: Any, found: list[Leaf], kinds: list[str]) -> None:
    """Raise a ConfigError where convolutions are described, and the images have encoders without such keys.

    Without an image, sizes of convolutions may be there for another environment; `norm` is taken for `layer_norm`.
    """
    fields = type(config).model_fields
    if not (kinds or any(is_image(leaf.space, config.image_axes) for leaf in found)):
        if (norm := config.norm) != fields["norm"].default:
            raise ConfigError(
                f"norm={norm!r} has no effect, as it is of convolutions and observations hold no image; use "
                "layer_norm=True, or leave norm out"
            )
        return
    used_keys = {key for kind in kinds for key in IMAGES[kind].keys}
    for name in IMAGES["conv"].keys:
        if name not in used_keys and (value := getattr(config, name)) != fields[name].default:
            used = f"the encoder of images is {kinds[0]!r}" if kinds else "images are flattened"
            raise ConfigError(f"{name}={value!r} has no effect, as {used}; use encoder='conv', or leave {name} out")


def _check_shift(config: Any, obs_space: Space) -> None:
    """Raise a ConfigError where images are to be shifted, and there are none or they are as small as the shift."""
    if not (pad := getattr(config, "random_shift", 0)):
        return
    spaces = [leaf.space for leaf in leaves(obs_space) if is_image(leaf.space, config.image_axes)]
    sides = [min(shape[:2]) for space in spaces if (shape := image_shape(space, config.image_axes))]
    if not sides:
        raise ConfigError(f"random_shift={pad} needs observations with an image, and this is {obs_space}; use 0")
    if pad >= min(sides):
        raise ConfigError(f"random_shift={pad} must be less than the {min(sides)} pixels of an image's side; try 4")


def _check_image(config: Any, leaf: Leaf, kind: str) -> None:
    """Raise a ConfigError where an encoder of images does not fit a leaf."""
    shape = image_shape(leaf.space, config.image_axes)
    field = f"encoders.{leaf.name}" if leaf.name in config.encoders else "encoder"
    if shape is None:
        raise ConfigError(f"{field}={kind!r} needs an image [H, W, C], and this is {leaf.space}; use 'mlp' or 'none'")
    if config.image_axes == "auto" and axes_ambiguous(leaf.space.shape):
        raise ConfigError(
            f"image_axes='auto' needs images whose first and last axes differ, and {leaf.name or 'the observation'} "
            f"has the shape {leaf.space.shape}; use 'first' or 'last'"
        )
    if min(shape[:2]) < IMAGES[kind].smallest:
        others = [repr(name) for name, other in IMAGES.items() if min(shape[:2]) >= other.smallest]
        raise ConfigError(f"{field}={kind!r} shrinks images of {shape} to nothing; use {', '.join(others)} or 'mlp'")
    if kind != "conv":
        return
    convolutions = conv_layers(config.channels, config.kernels, config.strides, config.padding, shape)
    if smallest_side(shape, convolutions) >= 1:
        return
    strides = "" if config.strides is None else f", strides={config.strides}"
    most = max(n for n in range(len(convolutions)) if smallest_side(shape, convolutions[:n]) >= 1)
    remedy = f"use at most {most} layer{'s' if most > 1 else ''}" if most else "use smaller kernels"
    raise ConfigError(
        f"channels={config.channels} with kernels={config.kernels}{strides} shrinks images of {shape} to nothing; "
        f"{remedy}, or padding='same'"
    )


def check_gsde(config: Any) -> None:
    """Raise a ConfigError where state-dependent exploration has no layer of features to depend on."""
    if config.gsde and getattr(config, "recurrent", "none") == "none" and not config.hidden_sizes:
        raise ConfigError("gsde=True needs a hidden layer whose features it uses; set hidden_sizes, e.g. (64, 64)")
