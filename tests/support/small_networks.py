"""A small network of an actor and critics."""

from rlkit.networks.encoders import combine
from rlkit.networks.heads import actor_critic
from rlkit.spaces import Box, Discrete


def small_settings(**settings):
    return {
        "obs_space": Box(-1, 1, (3,)), "action_space": Discrete(2), "encoder": "mlp", "hidden_sizes": (8, 8),
        "channels": (4,), "activation": "tanh", "layer_norm": False, "shared_torso": False, "recurrent": "none",
        "memory_size": 4, "memory_layers": 1, "log_std_init": -1.0, "gsde": False, "compute_dtype": "float32",
        **settings,
    }  # fmt: skip


def small_network(**settings):
    """-> the module, and as a network."""
    described = small_settings(**settings)
    obs_space = described.pop("obs_space")
    make_encoder, heads = combine.split_settings(obs_space, described)
    module = actor_critic.ActorCritic(obs_space, make_encoder, described["hidden_sizes"][-1], **heads)
    return module, actor_critic.actor_critic(**small_settings(**settings))
