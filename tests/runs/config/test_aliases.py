"""Keys that are unknown or missing: all of them in one error, each with the key that was meant or a reason."""

import pytest

from rlkit import agents
from rlkit.runs.config import aliases
from rlkit.runs.config.parse import parse
from rlkit.runs.config.schema import schema
from rlkit.types import ConfigError

RUN = {"env": "CartPole-v1", "num_envs": 4, "num_steps": 8, "total_steps": 64}


def message(**values) -> str:
    with pytest.raises(ConfigError) as error:
        parse(values)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_all_unknown_and_missing_keys_are_named_at_once_with_a_suggestion_each():
    text = message(agent="dqn", train_freq=4, policy="MlpPolicy", buffer_size=10, gama=0.9, zzz=1)
    assert text.startswith("train_freq is not a key of a dqn config; did you mean 'num_steps' (")
    for words in (
        "policy is not one either; did you mean 'encoder'",
        "buffer_size is not one either; did you mean 'capacity'?",
        "gama is not one either; did you mean 'gamma'?",
        "zzz is not one either.",
        "env is missing; add it",
    ):
        assert words in text


def test_an_error_names_twenty_mistakes_at_most():
    text = message(agent="ppo", **RUN, **{f"zz{number}": 1 for number in range(30)})
    assert "zz19" in text
    assert "zz20" not in text
    assert text.endswith("(and 10 more)")


@pytest.mark.parametrize(
    ("agent", "word", "said"),
    [
        ("ppo", "torso", "'encoder'"),
        ("ppo", "n_steps", "'num_steps'"),
        ("ppo", "TOTAL_TIMESTEPS", "'total_steps'"),
        ("ppo", "update_epochs", "'num_epochs'"),
        ("ppo", "batch_size", "num_envs * num_steps / num_minibatches"),
        ("ppo", "gradient_steps", "as 'replay_ratio' it is a key of bc"),
        ("ppo", "clip_range", "'clip_eps'"),
        ("ppo", "clip_vloss", "'vf_clip_eps' (a number)"),
        ("ppo", "norm_adv", "'normalize_advantage'"),
        ("ppo", "anneal_lr", "'learning_rate_schedule' (linear)"),
        ("ppo", "use_sde", "'gsde'"),
        ("ppo", "track", "'wandb' (the name of a project)"),
        ("ppo", "tau", "it is a key of bc"),
        ("ppo", "device", "JAX_PLATFORMS"),
        ("ppo", "cuda", "JAX_PLATFORMS"),
        ("ppo", "verbose", "show=False"),
        ("ppo", "population", "rlkit.training.population"),
        ("ppo", "capture_video", "rlkit render"),
        ("ppo", "torch_deterministic", "no torch"),
        ("pqn", "gae_lambda", "'q_lambda'"),
        ("dqn", "gae_lambda", "it is a key of ppo"),
        ("dqn", "gradient_steps", "'replay_ratio' (gradient steps for each environment step)"),
        ("dqn", "exploration_fraction", "'epsilon_fraction'"),
        ("dqn", "start_e", "'epsilon_start'"),
        ("dqn", "end_e", "'epsilon_end'"),
        ("dqn", "target_network_frequency", "'target_every'"),
        ("sac", "ent_coef", "'temperature'"),
        ("sac", "autotune", "'learn_temperature'"),
        ("sac", "q_lr", "'critic_learning_rate'"),
        ("sac", "policy_frequency", "as 'policy_delay' it is a key of ddpg, rebrac, td3, td3_bc"),
        ("td3", "policy_noise", "'target_noise'"),
        ("td3", "noise_clip", "'target_noise_clip'"),
        ("td3", "policy_kwargs", "'hidden_sizes'"),
    ],
)
def test_words_of_other_libraries_have_a_suggestion_or_a_reason(agent, word, said):
    text = message(agent=agent, **RUN, **{word: 1})
    assert text.startswith(f"{word} is not a key of a {agent} config; ")
    assert (f"did you mean {said}" if said.startswith("'") else said) in text


def test_every_key_of_the_table_is_a_key_of_some_agent():
    known = {key for name in agents.names() for key in schema(name).fields}
    assert set(aliases._WORDS) <= known
    words = {word for text in aliases._WORDS.values() for word in text.split()}
    assert set(aliases._NOTES) <= words
    assert not set(aliases._REASONS) & set(schema("ppo").fields)
