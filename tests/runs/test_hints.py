"""A run with slow environments shows once how they may be stepped faster, and only where that can help."""

import pytest
from host_runs import PPO
from tiny_runs import SMALL

from rlkit.runs import hints, loop
from rlkit.runs.config.parse import parse

SLOW = PPO | {"num_envs": 8, "num_workers": 2}  # four environments a worker: 100 ms a step of all for 25 ms of each
LINE = {"step": 1024, "envs_idle": 0.05, "steps_per_second": 0.95 * 8 / 0.1}
DQN = {"agent": "dqn", "num_steps": 1, "num_minibatches": None, "capacity": 512, "batch_size": 16}
DQN |= {"learning_starts": 64}


def hint(line, **values):
    """The hint of a config, or "" without one."""
    config = parse({key: value for key, value in (SLOW | values).items() if value is not None})
    return hints.slow_environments(config, line) or ""


def test_the_hint_has_the_seconds_of_a_step_and_the_number_of_workers():
    text = hint(LINE, overlap=True)
    assert text.startswith("environments take 25 ms a step: ")
    assert "num_workers: 8 (one for each environment)" in text
    assert "overlap" not in text  # it does already
    assert "backend" not in text


def test_the_players_of_a_world_are_one_environment():
    """Of 4 worlds of 2 players a worker steps two; with a worker for each there is no hint."""
    config = parse(SLOW)
    text = hints.slow_environments(config, LINE, 2) or ""
    assert text.startswith("environments take 50 ms a step: ")
    assert "num_workers: 4 (one for each environment)" in text
    assert hints.slow_environments(parse(SLOW | {"num_workers": 4}), LINE, 2) is None


def test_in_one_process_it_is_another_backend_that_helps():
    text = hint(LINE, backend="serial")
    assert text.startswith("environments take 12.5 ms a step: ")
    assert "backend: process and num_workers: 8" in text


@pytest.mark.parametrize(("overlap", "why", "named"), [(None, None, True), (False, None, False), (None, "x", False)])
@pytest.mark.parametrize("agent", [{}, DQN], ids=["ppo", "dqn"])
def test_an_agent_that_takes_turns_may_overlap(monkeypatch, agent, overlap, why, named):
    monkeypatch.setattr(hints.devices, "acting", lambda: (None, why))
    assert ("so may overlap: true" in hint(LINE, **agent, overlap=overlap)) == named


def test_seeds_are_averaged():
    assert hint(LINE | {"envs_idle": [0.0, 0.1]}) == hint(LINE)


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ({}, {"num_workers": 8}),  # one for each already
        ({}, {"env": "envpool:Pong-v5", "env_kwargs": {}}),  # stepped in its own threads
        ({"envs_idle": 0.3}, {}),  # learning takes its time as well
        ({"steps_per_second": 10000.0}, {}),  # fast
        ({"envs_idle": None}, {}),  # learns from a dataset, or in JAX
        ({"step": 64}, DQN),  # learning has not started
    ],
)
def test_there_is_no_hint_where_more_workers_cannot_help(line, values):
    assert hint(LINE | line, **values) == ""


@pytest.mark.thorough
def test_rates_that_include_the_start_up_give_no_hint(tmp_path, monkeypatch):
    """Those of a session's first line, and of its last line, which is the mean over the session."""
    steps = []
    monkeypatch.setattr(hints, "slow_environments", lambda config, line, players: steps.append(line["step"]))
    values = SLOW | {"num_envs": 4, "num_workers": 1, "num_steps": 2, "eval_episodes": 0, "log_every": 8}
    run = loop.train(values | {"total_steps": 32}, out=tmp_path / "run", show=False).run
    assert steps == [16, 24]
    loop.resume(run, env=SLOW["env"], overrides={"total_steps": 56}, show=False)
    assert steps == [16, 24, 48]


@pytest.mark.thorough
def test_a_run_shows_it_once(tmp_path, capsys):
    values = SLOW | {"env_kwargs": {"sleep": 0.02}, "num_envs": 4, "num_workers": 1, "num_steps": 2, "eval_episodes": 0}
    loop.train(values | {"total_steps": 48, "log_every": 8}, out=tmp_path / "run")
    shown = [line for line in capsys.readouterr().err.splitlines() if "ms a step" in line]
    assert len(shown) == 1
    assert "num_workers: 4 (one for each environment)" in shown[0]


def test_evaluations_that_take_much_of_the_time_are_named_with_their_cost():
    assert "take 25% of the time, 5 s each" in (hints.costly_evaluations(30.0, 10.0, 2) or "")
    assert hints.costly_evaluations(95.0, 5.0, 2) is None
    assert hints.costly_evaluations(0.1, 0.5, 1) is None  # not worth a word


def test_a_run_shows_the_cost_of_its_evaluations_once(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(hints, "costly_evaluations", lambda training, evaluating, count: f"{count} evaluations")
    loop.train(SMALL | {"eval_every": 64, "total_steps": 128}, out=tmp_path / "run")
    assert capsys.readouterr().err.count("evaluations\n") == 1
