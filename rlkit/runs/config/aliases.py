"""Names that other libraries give to the keys of a config, for suggestions."""

from collections.abc import Mapping
from typing import Any

from rlkit import agents
from rlkit.names import did_you_mean
from rlkit.runs.config.schema import schema

# By key: the words that Stable-Baselines3, CleanRL, PureJaxRL and others use. A word of several keys is the first one
# that the agent has.
_WORDS = {
    "agent": "algo algorithm",
    "env": "env_id env_name environment task",
    "env_kwargs": "env_params environment_kwargs",
    "wrappers": "env_wrappers wrapper_class frame_stack framestack time_limit max_episode_steps action_repeat",
    "num_envs": "n_env n_envs nenvs num_actors num_env",
    "num_steps": "horizon n_steps rollout_length rollout_steps train_freq train_frequency unroll_length update_every",
    "total_steps": "max_steps n_timesteps num_iterations num_timesteps num_updates steps timesteps total_timesteps",
    "num_seeds": "n_seeds seeds",
    "log_every": "log_freq log_interval",
    "eval_every": "eval_freq eval_interval",
    "eval_episodes": "n_eval_episodes num_eval_episodes",
    "checkpoint_every": "checkpoint_interval save_freq save_interval",
    "tensorboard": "tensorboard_log",
    "wandb": "track use_wandb wandb_project wandb_project_name",
    "optimizer": "optimizer_class",
    "learning_rate": "lr step_size",
    "learning_rate_schedule": "anneal_lr lr_decay lr_schedule lr_scheduler schedule",
    "actor_learning_rate": "actor_lr lr_actor pi_lr policy_learning_rate policy_lr",
    "critic_learning_rate": "critic_lr lr_critic q_lr qf_learning_rate qf_lr",
    "temperature_learning_rate": "alpha_lr",
    "adam_b1": "beta1 beta_1",
    "adam_eps": "adam_epsilon optimizer_eps",
    "max_grad_norm": "clip_grad_norm grad_clip gradient_clip",
    "gamma": "discount discount_factor",
    "encoder": "features_extractor_class policy policy_type torso",
    "hidden_sizes": "h_dim hidden hidden_dim hidden_dims hidden_size layers net_arch num_units policy_kwargs",
    "activation": "activation_fn activation_function",
    "recurrent": "lstm rnn use_rnn",
    "memory_size": "lstm_hidden_size rnn_hidden_size",
    "critic_dropout": "dropout dropout_rate",
    "compute_dtype": "dtype precision",
    "normalize_obs": "norm_obs normalize normalize_observations",
    "normalize_reward": "norm_reward normalize_rewards",
    "normalize_advantage": "norm_adv normalize_advantages",
    "num_epochs": "epochs k_epochs n_epochs ppo_epochs update_epochs",
    "num_minibatches": "minibatches n_minibatch n_minibatches num_mini_batch num_mini_batches",
    "clip_eps": "clip clip_coef clip_epsilon clip_param clip_range clip_ratio",
    "vf_clip_eps": "clip_range_vf clip_vloss vf_clip",
    "vf_coef": "critic_coef value_coef value_loss_coef",
    "ent_coef": "ent entropy_coef entropy_coefficient",
    "temperature": "ent ent_coef entropy_coef entropy_coefficient init_temperature",
    "learn_temperature": "auto_alpha automatic_entropy_tuning autotune",
    "gae_lambda": "lam lambda",
    "q_lambda": "gae_lambda lam lambda",
    "gsde": "use_sde",
    "gsde_steps": "sde_sample_freq",
    "capacity": "buffer_size memory_capacity replay_buffer_size replay_size",
    "store_obs_once": "optimize_memory_usage",
    "batch_size": "batch minibatch_size",
    "replay_ratio": "gradient_steps updates_per_step utd utd_ratio",
    "learning_starts": "learning_start random_steps start_steps warmup",
    "target_every": "target_network_frequency target_update_freq target_update_frequency target_update_interval",
    "tau": "polyak",
    "n_step": "multi_step nstep",
    "replay": "buffer per prioritized prioritized_replay replay_buffer replay_buffer_class",
    "alpha": "per_alpha prioritized_replay_alpha",
    "beta": "per_beta prioritized_replay_beta prioritized_replay_beta0",
    "epsilon_start": "eps_start exploration_initial_eps start_e",
    "epsilon_end": "end_e eps_end exploration_final_eps",
    "epsilon_fraction": "exploration_fraction",
    "epsilon_steps": "eps_decay epsilon_decay epsilon_decay_steps",
    "double": "double_dqn double_q",
    "dueling": "dueling_dqn",
    "noisy": "noisy_net noisy_nets",
    "num_atoms": "n_atoms",
    "drop_quantiles": "top_quantiles_to_drop_per_net",
    "num_quantiles": "n_quantiles",
    "num_critics": "n_critics num_qs",
    "policy_delay": "policy_freq policy_frequency",
    "exploration_noise": "action_noise expl_noise",
    "target_noise": "policy_noise target_policy_noise",
    "target_noise_clip": "noise_clip",
}

_NOTES = {  # on a suggestion whose value differs from that of the word
    "anneal_lr": "linear",
    "clip_vloss": "a number",
    "gradient_steps": "gradient steps for each environment step",
    "optimizer_class": "a name, such as adam",
    "policy": "mlp or conv",
    "polyak": "1 - polyak",
    "policy_kwargs": "and activation, and others: keys of their own",
    "tensorboard_log": "true",
    "track": "the name of a project",
    "train_freq": "steps of each environment between updates",
    "train_frequency": "steps of each environment between updates",
}

_PLATFORM = "the environment variable JAX_PLATFORMS, such as cpu or cuda, chooses it"
_MINIBATCH = "a minibatch has num_envs * num_steps / num_minibatches steps; set num_minibatches"
_REASONS = {  # there is no such key of the agent, because of this
    "batch_size": _MINIBATCH,
    "minibatch_size": _MINIBATCH,
    "capture_video": "`rlkit render RUN` makes a GIF of a run, and with --out x.mp4 a video",
    "cuda": _PLATFORM,
    "device": _PLATFORM,
    "exp_name": "`rlkit train --out DIR` names the run",
    "population": "populations are in Python: rlkit.training.population, notebook 05",
    "save_model": "every run has checkpoints; see checkpoint_every",
    "torch_deterministic": "there is no torch here",
    "verbose": "in Python, runs.train(..., show=False) shows nothing",
    "wandb_entity": "the environment variable WANDB_ENTITY names it",
}


def suggestion(word: object, agent: str, known: Mapping[str, Any]) -> str:
    """Return what to write for a word that is no key, as text to be appended to an error message.

    Args:
      word: as it was given.
      agent: the agent's name.
      known: the fields of the agent's config by key.
    """
    plain = str(word).lower().replace("-", "_")
    keys = [key for key, words in _WORDS.items() if plain in words.split()]
    if own := [key for key in keys if key in known]:
        return f"; did you mean {own[0]!r}{f' ({_NOTES[plain]})' if plain in _NOTES else ''}?"
    if plain in _REASONS:
        return f"; {_REASONS[plain]}"
    if plain not in known:
        for key in (plain, *keys):
            if others := [name for name in agents.names() if name != agent and key in schema(name).fields]:
                return f"; {f'as {key!r} ' if key != plain else ''}it is a key of {', '.join(others)}"
    return did_you_mean(word, known)
