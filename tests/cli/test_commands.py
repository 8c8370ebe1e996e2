"""The command line without a run: what list, check and help print, which words are refused, and exit codes."""

import re
import sys

import jax
import pytest
from command_line import compilations_of_commands, fails

from rlkit import cli
from rlkit.cli import list as list_command
from rlkit.cli.command import parse_overrides
from rlkit.hosts import HostError
from rlkit.runs import loop
from rlkit.runs.programs.jax_program import JaxProgram
from rlkit.types import ConfigError


@pytest.fixture(scope="module", autouse=True)
def _compilations_in_a_folder_of_the_tests():
    with compilations_of_commands():
        yield


def test_list(capsys):
    assert cli.main(["list"]) == 0
    words = capsys.readouterr().out.split()
    assert {"ppo", "CartPole-v1", "Breakout-MinAtar", "ppo/cartpole"} <= set(words)
    assert {"brax:TASK,", "gymnasium:NAME,"} <= set(words)


def test_list_of_a_suite(capsys):
    assert cli.main(["list", "pgx"]) == 0
    assert "pgx:tic_tac_toe" in capsys.readouterr().out.split()
    assert "suite='brex' is not the name of a suite; did you mean 'brax'" in fails(capsys, "list", "brex")
    assert "atari, ale, envpool" in fails(capsys, "list", "foo")


def test_check_compiles_nothing(capsys, monkeypatch):
    def forbidden(*arguments, **options):
        raise AssertionError("compiled")

    monkeypatch.setattr(jax.stages.Lowered, "compile", forbidden)
    monkeypatch.setattr(JaxProgram, "start", forbidden)
    assert cli.main(["check", "ppo/cartpole", "--seeds", "3"]) == 0
    out = capsys.readouterr().out
    assert "100,096 (100,000 rounded up to 391 updates)" in out
    assert "8 envs x 32 steps = 256" in out
    assert "10 epochs of 2 minibatches of 128 steps" in out
    assert "3 from 0" in out
    assert re.search(r"parameters: +[\d,]+ for each seed", out)
    assert re.search(r"memory: +about [\d.]+ MiB", out)


def test_check_counts_the_parameters_of_all_networks(capsys):
    """Two critics of 4 inputs beside a policy of 3, and the temperature; the parts of one network where that is all."""
    assert cli.main(["check", "sac/pendulum", "--hidden-sizes", "8"]) == 0
    policy, critics = 3 * 8 + 8 + 2 * (8 + 1), 2 * (4 * 8 + 8 + 8 + 1)
    text = f"{policy + critics + 1} for each seed: critics {critics}, log_temperature 1, policy {policy}\n"
    assert text in capsys.readouterr().out
    assert cli.main(["check", "dqn/cartpole", "--layer-norm", "false", "--hidden-sizes", "8", "--seeds", "2"]) == 0
    assert f"{4 * 8 + 8 + 2 * 9} for each seed: " in capsys.readouterr().out


@pytest.mark.parametrize(("words", "said"), [
    (["c51/cartpole", "--capacity", "800"], "100 of each environment, and an episode of the full 500 does not fit"),
    (["c51/cartpole", "--v-min", "0", "--v-max", "100", "--gamma", "0.99"],
     "clipped to 0 to 100; rewards of 0 to 1.01 in every step fit"),
    (["sac/pendulum", "--store-obs-once", "true", "--capacity", "32768", "--wrappers", "[time_limit:8]"],
     "keeps 2,048 final observations, and episodes of 8 steps have up to 4,096"),
    (["dqn/rainbow_breakout_minatar"], "by noisy layers alone; the keys epsilon_* have no effect"),
])  # fmt: skip
def test_check_warns_of_what_does_not_fit(words, said, capsys):
    assert cli.main(["check", *words]) == 0
    assert said in capsys.readouterr().out


def test_help_lists_a_configs_keys_with_values_ranges_and_meanings(capsys):
    assert cli.main(["train", "ppo/cartpole", "--help"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"--num_envs 8 +int >= 1.*environments that step at once", out)
    assert re.search(r"--gamma 0\.98 +float >= 0, <= 1; discount per step", out)
    assert re.search(r"--encoder auto +auto \| mlp \| conv", out)
    assert re.search(r"--hidden_sizes null +\[int.*, \.\.\.\] \| null", out)
    assert re.search(r"--num_workers null +int \| null > 0; ", out)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "ppo/cartpol"], "did you mean 'ppo/cartpole'"),
        (["train", "ppo/cartpole", "--gamma"], "--gamma needs a value"),
        (["train", "ppo/cartpole", "gamma", "2"], "'gamma' must be a flag"),
        (["train", "ppo/cartpole", "--gamma", "[1"], "--gamma='[1' must be one YAML value"),
        (["train", "ppo/cartpole", "--seed", "1", "--seed", "2"], "given twice"),
        (["train", "ppo/cartpole", "--seeds", "0"], "num_seeds=0"),
        (["train", "ppo/cartpole", "--num-minibatches", "7"], "num_minibatches=7 must divide"),
        (["train", "ppo/cartpole", "--env", "MNISTBandit-bsuite"], "downloads"),
        (["train", "ppo/cartpole", "--wrappers", "[stack]"], "stack"),
        (["train", "ppo/cartpole", "--out", "/proc/x/y"], "writable"),
        (["train", "ppo/cartpole", "--init-from", "nowhere"], "nowhere"),
        (["resume", "nowhere"], "nowhere"),
        (["eval", "nowhere"], "nowhere"),
        (["check", "ppo/cartpole", "--tensorboard", "true"], "rlkit-jax[tensorboard]"),
        (["plot", "nowhere"], "nowhere"),
        (["render", "nowhere"], "nowhere"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    assert said in fails(capsys, *arguments)
    assert list(tmp_path.iterdir()) == [], "something was written"


@pytest.mark.parametrize(
    "arguments", [[], ["trian"], ["train"], ["plot"], ["list", "pgx", "extra"], ["train", "--seed", "3"]]
)
def test_usage_errors_exit_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert re.fullmatch(r"rlkit[a-z ]*: [^\n]+; see rlkit[a-z ]* --help\n", capsys.readouterr().err)


def test_negative_and_infinite_values_are_values():
    values, special = parse_overrides(["--a", "-1", "--b=-.inf", "--c", "null", "--out", "3"], ("out",))
    assert values == {"a": -1, "b": float("-inf"), "c": None}
    assert special == {"out": "3"}


def test_exit_codes(monkeypatch, capsys):
    def failing(error):
        def command(options):
            raise error

        return command

    for error, code in [
        (ConfigError("x=1 must be 2; try 2"), 2),
        (loop.NonFiniteError("loss is not finite"), 1),
        (HostError("environment 3 failed"), 1),
        (OSError(28, "No space left on device", "/runs/x"), 1),
        (KeyboardInterrupt(), 130),
    ]:
        monkeypatch.setattr(list_command, "run", failing(error))
        assert cli.main(["list"]) == code
        err = capsys.readouterr().err
        assert len(err.splitlines()) == 1
        assert err.startswith("rlkit: ")
    with monkeypatch.context() as patch:  # as where a command needs no training
        patch.delitem(sys.modules, "rlkit.runs.loop")
        patch.setattr(list_command, "run", failing(HostError("environment 3 failed")))
        assert cli.main(["list"]) == 1
        assert capsys.readouterr().err == "rlkit: environment 3 failed\n"
    monkeypatch.setattr(list_command, "run", failing(ZeroDivisionError("a bug")))
    with pytest.raises(ZeroDivisionError):  # a bug keeps its traceback
        cli.main(["list"])
