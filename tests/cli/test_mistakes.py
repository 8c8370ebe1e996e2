"""What a mistake on the command line or in a config costs: one line with a remedy."""

import re

import pytest

import rlkit
from rlkit import cli
from rlkit.cli.command import integer, parse_overrides
from rlkit.runs.config.load import load_config
from rlkit.runs.config.parse import parse
from rlkit.runs.programs.make import make_program
from rlkit.types import ConfigError

BASE = {"agent": "ppo", "env": "CartPole-v1", "num_envs": 4, "num_steps": 8, "total_steps": 320}


def refused(capsys, *words):
    """The one line of a command line that argparse refuses."""
    with pytest.raises(SystemExit) as error:
        cli.main(list(words))
    assert error.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"rlkit[^\n]*\n", err), err
    return err


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit) as error:
        cli.main(["--version"])
    assert error.value.code == 0
    assert re.fullmatch(rf"rlkit {rlkit.__version__} \(jax [\d.]+, jaxlib [\d.]+\)\n", capsys.readouterr().out)


def test_a_misspelled_command_gets_a_suggestion(capsys):
    assert "command='trian' must be one of train, check," in (said := refused(capsys, "trian", "ppo/cartpole"))
    assert "did you mean 'train'?" in said
    assert "did you mean" not in refused(capsys, "x")


def test_a_missing_argument_is_named_and_no_other(capsys):
    said = refused(capsys, "train")
    assert "required: CONFIG;" in said
    assert "rest" not in said
    assert "rest" not in refused(capsys, "eval")


def test_key_equals_value_is_explained():
    with pytest.raises(ConfigError, match=r"^'learning_rate=0\.1' must be a flag; write --learning_rate 0\.1$"):
        parse_overrides(["learning_rate=0.1"])


def test_entries_of_a_mapping_that_the_file_leaves_out_can_be_given(tmp_path):
    """As in the config of a run, where `eval_env_kwargs: null` is written out."""
    file = tmp_path / "mine.yaml"
    file.write_text("".join(f"{key}: {value}\n" for key, value in BASE.items()) + "eval_env_kwargs: null\n")
    config = load_config(file, {"eval_env_kwargs.max_steps_in_episode": 7})
    assert config.run.eval_env_kwargs == {"max_steps_in_episode": 7}


def test_whole_numbers_may_be_written_as_in_a_config(capsys):
    assert [integer(text) for text in ("1e3", "1_000", "-2", "3.0")] == [1000, 1000, -2, 3]
    for text in ("1.5", "true", "x", "inf", "nan", "[1]"):
        assert f"argument --steps: invalid integer value: {text!r}" in refused(
            capsys, "collect", "runs/x", "--steps", text
        )
    length = {"env_kwargs": {"max_steps_in_episode": 1e3}}
    assert make_program(parse(BASE | length)).params.max_steps_in_episode == 1000


def test_help_about_a_config_with_ones_own_code(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_env_of_help.py").write_text("")
    file = tmp_path / "mine.yaml"
    file.write_text("".join(f"{key}: {value}\n" for key, value in (BASE | {"env": "own_env_of_help:Env"}).items()))
    assert cli.main(["train", str(file), "--env", "own_env_of_help:Env", "--num_envs", "4", "--help"]) == 0
    assert "learning_rate" in capsys.readouterr().out


def test_a_long_value_is_cut():
    with pytest.raises(ConfigError) as error:
        parse_overrides(["--learning_rate", "[" * 4000])
    assert len(str(error.value)) < 200
    with pytest.raises(ConfigError) as error:
        parse_overrides(["x" * 4000])
    assert len(str(error.value)) < 200


@pytest.mark.parametrize(
    ("given", "sizes"),
    [("64,32", (64, 32)), (64, (64,)), ([64], (64,)), ("128, 64", (128, 64)), ((8, 8), (8, 8))],
)
def test_lists_are_accepted_as_on_other_command_lines(given, sizes):
    assert parse(BASE | {"hidden_sizes": given}).agent.hidden_sizes == sizes
    assert parse(BASE | {"wrappers": "time_limit:9"}).run.wrappers == ("time_limit:9",)


def test_the_line_of_a_mistake_is_named(tmp_path):
    file = tmp_path / "mine.yaml"
    lines = ["# a config", *(f"{key}: {value}" for key, value in BASE.items()), "", "gamma: 7", ""]
    file.write_text("\n".join(lines))
    with pytest.raises(ConfigError, match=rf"^{re.escape(str(file))}, line 8: gamma=7"):
        load_config(file)
    with pytest.raises(ConfigError, match=r"^gamma=9"):  # not from the file
        load_config(file, {"gamma": 9})
    file.write_text(file.read_text().replace("gamma", "gama"))
    with pytest.raises(ConfigError, match="line 8: gama is not a key of a ppo config; did you mean 'gamma'"):
        load_config(file)


def test_check_accepts_the_flags_of_train(capsys):
    words = ["--out", "runs/x", "--num_envs", "4", "--num_steps", "8", "--total_steps", "64", "--num_minibatches", "1"]
    assert cli.main(["check", "ppo/cartpole", *words]) == 0
    assert "num_envs" not in capsys.readouterr().err


def test_windows_is_refused_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(cli.os, "name", "nt")
    assert cli.main(["list"]) == 2
    assert re.fullmatch(r"rlkit: [^\n]*WSL[^\n]*\n", capsys.readouterr().err)
