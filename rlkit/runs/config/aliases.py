"""Names that other libraries give to keys of a config, for suggestions."""

from collections.abc import Iterable

from rlkit.names import did_you_mean

_ALIASES = {
    "algo": "agent",
    "algorithm": "agent",
    "batch": "batch_size",
    "buffer_size": "capacity",
    "clip": "clip_eps",
    "clip_coef": "clip_eps",
    "clip_range": "clip_eps",
    "discount": "gamma",
    "ent": "ent_coef",
    "entropy_coef": "ent_coef",
    "env_id": "env",
    "environment": "env",
    "epochs": "num_epochs",
    "exploration_final_eps": "epsilon_end",
    "hidden": "hidden_sizes",
    "hidden_dims": "hidden_sizes",
    "lam": "gae_lambda",
    "lambda": "gae_lambda",
    "layers": "hidden_sizes",
    "lr": "learning_rate",
    "max_steps": "total_steps",
    "minibatches": "num_minibatches",
    "n_envs": "num_envs",
    "n_epochs": "num_epochs",
    "n_minibatch": "num_minibatches",
    "n_steps": "num_steps",
    "net_arch": "hidden_sizes",
    "polyak": "tau",
    "rollout_length": "num_steps",
    "steps": "total_steps",
    "target_network_frequency": "target_every",
    "target_update_interval": "target_every",
    "timesteps": "total_steps",
    "total_timesteps": "total_steps",
    "update_epochs": "num_epochs",
    "utd": "replay_ratio",
    "value_coef": "vf_coef",
    "warmup": "learning_starts",
}


def similar_key(key: object, known: Iterable[str]) -> str:
    """Return a suggestion for an unknown key, as `names.did_you_mean` does, from other libraries' names as well."""
    known = list(known)
    alias = _ALIASES.get(str(key).lower().replace("-", "_"))
    if alias is None:
        return did_you_mean(key, known)
    return f"; did you mean {alias!r}?" if alias in known else ""  # this agent has no such thing
