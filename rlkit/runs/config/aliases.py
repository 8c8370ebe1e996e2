"""Names that other libraries give to the keys of a config, for suggestions."""

from collections.abc import Mapping
from typing import Any

from rlkit import agents
from rlkit.names import did_you_mean
from rlkit.runs.config.schema import schema

# By answer: the words that Stable-Baselines3, CleanRL, PureJaxRL and others use. An answer is a key, with a note where
# its value differs from that of the word, or the reason why there is no such key. A word of several keys is the first
# one that the agent has. `did_you_mean` finds words that are spelled alike.
_WORDS = {
    "agent": "algo algorithm",
    "env": "env_name environment task",
    "env_kwargs": "env_params environment_kwargs",
    "wrappers": "env_wrappers wrapper_class frame_stack framestack time_limit max_episode_steps action_repeat",
    "num_envs": "n_env n_envs nenvs num_actors num_env",
    "num_steps": "horizon n_steps rollout_length rollout_steps unroll_length update_every",
    "num_steps (steps of each environment between updates)": "train_freq train_frequency",
    "total_steps": "max_steps n_timesteps num_iterations num_timesteps num_updates steps timesteps total_timesteps",
    "num_seeds": "n_seeds seeds",
    "log_every": "log_freq log_interval",
    "eval_every": "eval_freq eval_interval",
    "eval_episodes": "num_eval_episodes",
    "checkpoint_every": "save_freq save_interval",
    "tensorboard (true)": "tensorboard_log",
    "wandb": "wandb_project wandb_project_name",
    "wandb (the name of a project)": "track",
    "optimizer (a name, such as adam)": "optimizer_class",
    "learning_rate": "lr step_size",
    "learning_rate_schedule": "lr_decay lr_schedule lr_scheduler schedule",
    "learning_rate_schedule (linear)": "anneal_lr",
    "actor_learning_rate": "actor_lr lr_actor pi_lr policy_learning_rate policy_lr",
    "critic_learning_rate": "critic_lr lr_critic q_lr qf_learning_rate qf_lr",
    "temperature_learning_rate": "alpha_lr",
    "adam_b1": "beta1 beta_1",
    "adam_eps": "adam_epsilon optimizer_eps",
    "max_grad_norm": "clip_grad_norm grad_clip gradient_clip",
    "gamma": "discount discount_factor",
    "encoder": "features_extractor_class policy_type torso",
    "encoder (mlp or conv)": "policy",
    "hidden_sizes": "h_dim hidden_size layers net_arch num_units",
    "hidden_sizes (and activation, and others: keys of their own)": "policy_kwargs",
    "recurrent": "add_rnn lstm rnn rnn_type use_lstm use_rnn",
    "memory_size": "lstm_hidden_size rnn_hidden_size",
    "memory_layers": "lstm_num_layers n_lstm_layers num_rnn_layers rnn_layers rnn_num_layers",
    "critic_dropout": "dropout dropout_rate",
    "compute_dtype": "dtype precision",
    "normalize_obs": "norm_obs normalize normalize_observations",
    "normalize_reward": "norm_reward normalize_rewards",
    "normalize_advantage": "norm_adv normalize_advantages",
    "num_epochs": "epochs k_epochs n_epochs ppo_epochs update_epochs",
    "num_minibatches": "minibatches n_minibatch n_minibatches num_mini_batch num_mini_batches",
    "clip_eps": "clip clip_coef clip_epsilon clip_param clip_range clip_ratio",
    "vf_clip_eps": "clip_range_vf vf_clip",
    "vf_clip_eps (a number)": "clip_vloss",
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
    "replay_ratio": "updates_per_step utd utd_ratio",
    "replay_ratio (gradient steps for each environment step)": "gradient_steps",
    "learning_starts": "learning_start random_steps start_steps warmup",
    "target_every": "target_network_frequency target_update_freq target_update_frequency target_update_interval",
    "tau (1 - polyak)": "polyak",
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
    "; a minibatch has num_envs * num_steps / num_minibatches steps; set num_minibatches": "batch_size minibatch_size",
    "; `rlkit render RUN` makes a GIF of a run, and with --out x.mp4 a video": "capture_video",
    "; the environment variable JAX_PLATFORMS, such as cpu or cuda, chooses it": "cuda device",
    "; `rlkit train --out DIR` names the run": "exp_name",
    "; populations are in Python: rlkit.training.population, notebook 05": "population",
    "; every run has checkpoints; see checkpoint_every": "save_model",
    "; there is no torch here": "torch_deterministic",
    "; in Python, runs.train(..., show=False) shows nothing": "verbose",
    "; the environment variable WANDB_ENTITY names it": "wandb_entity",
}


def suggestion(word: object, agent: str, known: Mapping[str, Any]) -> str:
    """Return what to write for a word that is no key, as text to be appended to an error message.

    Args:
      word: as it was given.
      agent: the agent's name.
      known: the fields of the agent's config by key.
    """
    plain = str(word).lower().replace("-", "_")
    answers = [answer for answer, words in _WORDS.items() if plain in words.split()]
    keys = {answer.partition(" ")[0]: answer.partition(" ")[2] for answer in answers}
    for key, note in keys.items():
        if key in known:
            return f"; did you mean {key!r}{f' {note}' if note else ''}?"
    for answer in answers:
        if answer.startswith(";"):
            return answer
    for key in () if plain in known else (plain, *keys):
        if others := [name for name in agents.names() if name != agent and key in schema(name).fields]:
            return f"; {f'as {key!r} ' if key != plain else ''}it is a key of {', '.join(others)}"
    return did_you_mean(word, known)
