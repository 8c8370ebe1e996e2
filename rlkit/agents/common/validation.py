"""Rules that several agents share, each with an error that names the field, the value, the rule and a remedy."""

from typing import Any

import numpy as np

from rlkit.networks.features import image_shape
from rlkit.spaces import Box, Discrete, MultiDiscrete, Space
from rlkit.types import ConfigError, Network


def divides(name: str, value: int, of: str, total: int) -> None:
    """Raise a ConfigError unless `value` divides `total`; it names the nearest values that do."""
    if total % value:
        divisors = [d for d in range(1, total + 1) if total % d == 0]
        below, above = [d for d in divisors if d < value][-1:], [d for d in divisors if d > value][:1]
        remedy = " or ".join(str(d) for d in below + above)
        raise ConfigError(f"{name}={value} must divide {of} = {total}; try {remedy}")


def cannot_act(agent: str, needs: str, space: Space) -> ConfigError:
    """The error of an agent that needs another action space; it names the agents that can act in this one."""
    return ConfigError(f"agent={agent!r} needs {needs}, and this one is {space}; {_remedy(space)}")


def _remedy(space: Space) -> str:
    if isinstance(space, Discrete):
        return "use dqn, sac or ppo"
    if isinstance(space, Box) and np.issubdtype(space.dtype, np.floating):
        return "use sac, td3 or ppo" if space.bounded else "use ppo"
    if isinstance(space, MultiDiscrete):
        return "use ppo"
    return "no agent here can act in it, so wrap the environment to take a Discrete, MultiDiscrete or float Box action"


def needs_box(field: str, space: Space, *, bounded: bool) -> None:
    """Raise a ConfigError unless the action space is a Box, and one with finite bounds where `bounded` is set."""
    if not isinstance(space, Box) or (bounded and not space.bounded):
        kind = "a Box action space with finite bounds" if bounded else "a Box action space"
        raise ConfigError(f"{field}=True needs {kind}, and this one is {space}; use False")


def fits_network(config: Any, obs_space: Space) -> None:
    """Raise a ConfigError where the observation does not fit the torso that an agent's Config describes."""
    shape = image_shape(obs_space)
    if config.torso == "conv" and shape is None:
        raise ConfigError(f"torso='conv' needs one image [H, W, C] to look at, and this is {obs_space}; use 'mlp'")
    if config.torso != "mlp" and shape is not None and smallest_side(shape, len(config.channels)) < 1:
        most = max(n for n in range(len(config.channels)) if smallest_side(shape, n) >= 1)
        raise ConfigError(f"channels={config.channels} shrinks images of {shape} to nothing; use at most {most} layers")


def gsde_has_features(config: Any) -> None:
    """Raise a ConfigError where state-dependent exploration has no layer whose features it could depend on."""
    if config.gsde and getattr(config, "recurrent", "none") == "none" and not config.hidden_sizes:
        raise ConfigError("gsde=True needs a hidden layer to look at, and hidden_sizes=() has none; try (64, 64)")


def own_network(network: Any, **described: Any) -> Network:
    """A user's network as a `Network`: one already, a pair of functions, or an object with `init` and `apply`.

    Raises:
      ConfigError: one of the `described` settings is on, which only a network made from the Config can follow.
    """
    for field, value in described.items():
        if value not in (False, "none"):
            raise ConfigError(
                f"{field}={value!r} needs the network that Config describes; leave it out with a network of your own"
            )
    if isinstance(network, Network):
        return network
    if isinstance(network, tuple):
        return Network(*network)
    return Network(network.init, network.apply, getattr(network, "memory", ()))


def smallest_side(shape: tuple[int, ...], layers: int) -> int:
    """The smaller side of an image after `layers` convolutions of `networks.Conv`, 0 and less where none is left."""
    side = min(shape[:2])
    for i in range(layers):
        stride = 2 if shape[0] >= 32 and i < layers - 1 else 1
        side = (side - 3) // stride + 1
    return side
