"""Keys that are unknown or missing: all of them in one error, each with the key that was meant or a reason."""

import pytest
from mistakes import assert_mistake

from rlkit import agents
from rlkit.runs.config import aliases
from rlkit.runs.config.parse import parse
from rlkit.runs.config.schema import schema
from rlkit.types import ConfigError

RUN = {"env": "CartPole-v1", "num_envs": 4, "num_steps": 8, "total_steps": 64}


def message(**values) -> str:
    with pytest.raises(ConfigError) as error:
        parse(values)
    assert_mistake(error.value)
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
        ("ppo", "TOTAL_TIMESTEPS", "'total_steps'"),
        ("ppo", "batch_size", "num_envs * num_steps / num_minibatches"),
        ("ppo", "gradient_steps", "as 'replay_ratio' it is a key of bc"),
        ("ppo", "anneal_lr", "'learning_rate_schedule' (linear)"),
        ("ppo", "tau", "it is a key of bc"),
        ("ppo", "device", "JAX_PLATFORMS"),
        ("pqn", "gae_lambda", "'q_lambda'"),
        ("dqn", "gae_lambda", "it is a key of ppo"),
        ("dqn", "gradient_steps", "'replay_ratio' (gradient steps for each environment step)"),
        ("sac", "ent_coef", "'temperature'"),
        ("sac", "policy_frequency", "as 'policy_delay' it is a key of ddpg, rebrac, td3, td3_bc"),
    ],
)
def test_words_of_other_libraries_have_a_suggestion_or_a_reason(agent, word, said):
    text = message(agent=agent, **RUN, **{word: 1})
    assert text.startswith(f"{word} is not a key of a {agent} config; ")
    assert (f"did you mean {said}" if said.startswith("'") else said) in text


def test_every_answer_is_a_key_of_some_agent_or_a_reason():
    known = {key for name in agents.names() for key in schema(name).fields}
    answers = {answer.partition(" ")[0] for answer in aliases._WORDS}
    assert answers <= known | {";"}
    reasons = " ".join(words for answer, words in aliases._WORDS.items() if answer.startswith(";"))
    assert not set(reasons.split()) & set(schema("ppo").fields)
