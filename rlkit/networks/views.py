"""Parts of an observation that a role sees: an actor does without the leaf `privileged`, a critic has it.

No network has the leaf `game_state`, which is for the model of an agent that plans.

Acting, evaluation and a loaded policy therefore take observations without that leaf as well.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from rlkit.names import GAME_STATE, PRIVILEGED
from rlkit.spaces import Dict, Space, shape_of
from rlkit.types import Key, Network, PyTree


def actor_space(space: Space) -> Space:
    """Return the space of observations as an actor sees them."""
    return _space_without(space, PRIVILEGED, GAME_STATE)


def critic_space(space: Space) -> Space:
    """Return the space of observations as a critic sees them."""
    return _space_without(space, GAME_STATE)


def _space_without(space: Space, *names: str) -> Space:
    if not isinstance(space, Dict) or not space.spaces.keys() & set(names):
        return space
    return Dict({name: child for name, child in space.spaces.items() if name not in names})


def has_privileged(space: Space) -> bool:
    """True for a Dict with a leaf, or a part, named `privileged`."""
    return isinstance(space, Dict) and PRIVILEGED in space.spaces


def is_complete(space: Space, obs: PyTree) -> bool:
    """True for an observation that has the leaf `privileged` if its space has it."""
    return not has_privileged(space) or PRIVILEGED in obs


def actor_obs(obs: PyTree) -> PyTree:
    """Return an observation as an actor sees it."""
    return _without(obs, PRIVILEGED, GAME_STATE)


def lacks_game_state(space: Space, obs: PyTree) -> bool:
    """True for an observation that lacks the leaf `game_state` of its space."""
    return isinstance(space, Dict) and GAME_STATE in space.spaces and GAME_STATE not in obs


def critic_obs(obs: PyTree) -> PyTree:
    """Return an observation as a critic sees it."""
    return _without(obs, GAME_STATE)


def _without(obs: PyTree, *names: str) -> PyTree:
    if not isinstance(obs, dict) or not obs.keys() & set(names):
        return obs
    return {name: x for name, x in obs.items() if name not in names}


def with_zeros(space: Space, obs: PyTree) -> PyTree:
    """Return an observation [...] with zeros in place of a leaf `privileged` that it lacks."""
    if is_complete(space, obs):
        return obs
    shapes = shape_of(space)
    name = next(name for name in obs if name != PRIVILEGED)
    first, shape = jax.tree.leaves(obs[name])[0], jax.tree.leaves(shapes[name])[0].shape
    batch = jnp.shape(first)[: jnp.ndim(first) - len(shape)]
    return {**obs, PRIVILEGED: jax.tree.map(lambda x: jnp.zeros(batch + x.shape, x.dtype), shapes[PRIVILEGED])}


def of_view(network: Network, view: Callable[[PyTree], PyTree]) -> Network:
    """Return a network, with a memory or without, that is applied to `actor_obs` or `critic_obs` of observations."""

    def init(key: Key, obs: PyTree, *inputs: PyTree) -> tuple[PyTree, PyTree]:
        return network.init(key, view(obs), *inputs)

    def apply(params: PyTree, stats: PyTree, obs: PyTree, *inputs: PyTree, **training) -> tuple[PyTree, PyTree]:
        return network.apply(params, stats, view(obs), *inputs, **training)

    parts = network.parts
    if parts is not None:
        encode = parts.encode

        def encode_view(params: PyTree, stats: PyTree, obs: PyTree, **training) -> tuple[PyTree, PyTree]:
            return encode(params, stats, view(obs), **training)

        parts = parts._replace(encode=encode_view)
    return Network(init, apply, network.memory, parts)


def joined(policy: Network, value: Network, space: Space) -> Network:
    """Return a network of a policy's outputs and a value [...], from one network of each.

    The policy does without the leaf `privileged`. The value of an observation that lacks it is NaN.
    """

    def init(key: Key, obs: PyTree) -> tuple[PyTree, PyTree]:
        policy_key, value_key = jax.random.split(key)
        made = policy.init(policy_key, actor_obs(obs)), value.init(value_key, obs)
        return tuple({"policy": a, "value": b} for a, b in zip(*made, strict=True))  # type: ignore[return-value]

    def apply(params: PyTree, stats: PyTree, obs: PyTree, *, train=False, key=None) -> tuple[PyTree, PyTree]:
        keys = (None, None) if key is None else jax.random.split(key)
        output, policy_stats = policy.apply(params["policy"], stats["policy"], actor_obs(obs), train=train, key=keys[0])
        rated, value_stats = value.apply(
            params["value"], stats["value"], with_zeros(space, obs), train=train, key=keys[1]
        )
        if not is_complete(space, obs):
            rated, value_stats = jnp.full_like(rated, jnp.nan), stats["value"]
        return (output, rated), {"policy": policy_stats, "value": value_stats}

    return Network(init, apply)
