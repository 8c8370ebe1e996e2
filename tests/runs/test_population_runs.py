"""Runs of a population: its record, resuming to the byte, its best member, and members that are not finite."""

import itertools
import json
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from doc_pages import unexplained
from tiny_runs import FOUR, digest, shared_compilations, without_clock

import rlkit
from rlkit.runs import files, loop
from rlkit.runs.config.parse import parse
from rlkit.runs.config.schedule import Schedule
from rlkit.runs.pictures import lineage
from rlkit.runs.population import evolution, record
from rlkit.runs.programs.make import make_program
from rlkit.types import ConfigError


@pytest.fixture(scope="module", autouse=True)
def _compiled_once(tmp_path_factory):
    with shared_compilations(tmp_path_factory.getbasetemp() / "xla"):
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return loop.train(FOUR, out=tmp_path_factory.mktemp("runs") / "first", show=False)


def test_the_record_and_the_metric_lines_agree(trained):
    evolutions, lines = record.read(trained.run), without_clock(trained.run)
    assert [line["step"] for line in evolutions] == [0, 64, 128, 192, 256]
    assert evolutions[0]["parents"] == [0, 1, 2, 3]
    assert any(line["parents"] != [0, 1, 2, 3] for line in evolutions)
    for line in lines:  # of values that were in effect until its step
        before = [evolution for evolution in evolutions if evolution["step"] < line["step"]][-1]
        assert {name: line[f"hyper_{name}"] for name in ("gamma", "learning_rate")} == before["hyper"]
        assert unexplained(line) == []
    for before, now in itertools.pairwise(evolutions):
        interval = [line for line in lines if before["step"] < line["step"] <= now["step"]]
        np.testing.assert_array_equal(now["scores"], record.numbers(record.scores(interval, 4)))
        for member, parent in enumerate(now["parents"]):
            rate, inherited = now["hyper"]["learning_rate"][member], before["hyper"]["learning_rate"][parent]
            factors = (1.0,) if parent == member else (0.8, 1.25)
            assert any(rate == pytest.approx(min(max(inherited * f, 1e-4), 1e-1), rel=1e-5) for f in factors)
            if parent != member:
                assert now["scores"][parent] >= (now["scores"][member] or 0.0)
    state = trained.state.agent.hyper
    np.testing.assert_allclose(state.learning_rate, evolutions[-1]["hyper"]["learning_rate"], rtol=1e-6)
    assert (trained.run / "population.png").read_bytes().startswith(b"\x89PNG")


def test_stopping_and_resuming_changes_nothing(trained, tmp_path):
    """Stopped between two evolutions; tests/runs/test_population_resume.py has the others."""
    stop = 96

    def interrupt(line, state):
        if line["step"] == stop:
            signal.raise_signal(signal.SIGTERM)

    stopped = loop.train(FOUR, interrupt, out=tmp_path / "run", show=False)
    assert record.read(stopped.run)[-1]["step"] == stop // 64 * 64
    with (stopped.run / record.FILE).open("a") as file:  # what a killed run wrote after its last checkpoint
        entry = json.dumps(record.read(stopped.run)[-1] | {"step": stop + 64})
        file.write(f'{entry}\n{{"step": {stop + 128}, "half')
    resumed = loop.resume(stopped.run, show=False)
    assert digest(resumed.state) == digest(trained.state)
    assert (resumed.run / record.FILE).read_bytes() == (trained.run / record.FILE).read_bytes()
    assert without_clock(resumed.run) == without_clock(trained.run)
    assert resumed.evaluation == trained.evaluation


def test_the_best_member_is_the_one_that_is_loaded(trained):
    means = trained.evaluation["mean_of_seed"]
    best = int(np.argmax(means))
    assert (trained.evaluation["best_member"], trained.evaluation["best_mean"]) == (best, means[best])
    assert record.best_member(trained.run, 320) == best
    for seed, member in ((None, best), (2, 2)):
        actor = rlkit.load(trained.run, seed=seed).actor
        jax.tree.map(
            lambda x, y, member=member: np.testing.assert_array_equal(x, y[member]),
            actor.params,
            trained.state.agent.params,
        )
    scores = next(line["scores"] for line in record.read(trained.run) if line["step"] == 256)
    assert record.best_member(trained.run, 256) == int(np.argmax([score or 0.0 for score in scores]))
    assert record.best_member(trained.run.parent, 320) == 0  # no such files


def test_a_member_that_is_not_finite_is_replaced(trained, tmp_path):
    """With the environments of its parent; the others keep theirs, also one without a score."""
    program = make_program(parse(FOUR | {"exploit": "truncation"}))
    state = program.start()

    def poison(x):
        return x.at[1].set(jnp.nan) if jnp.issubdtype(x.dtype, jnp.floating) else x

    agent = state.agent.replace(params=jax.tree.map(poison, state.agent.params))
    broken = state.replace(agent=agent, envs=jax.tree.map(poison, state.envs))
    chunk = program.advance(broken, np.int32(1))
    assert (int(chunk.count), bool(chunk.finite)) == (1, True)  # the other members go on
    files.append(tmp_path / "metrics.jsonl", b"")
    evolves = evolution.Evolution(program, tmp_path, chunk.state, 0)
    np.testing.assert_array_equal(evolves.finite(chunk.state), [True, False, True, True])
    line = {"step": 64, "return_mean": [10.0, 50.0, None, 30.0], "episodes": [2, 2, 0, 1]}
    after = evolves.after(line, chunk.state, 2)
    written = record.read(tmp_path)[-1]
    assert written["scores"] == [10.0, None, None, 30.0]
    assert written["parents"] == [0, 3, 2, 3]
    np.testing.assert_array_equal(evolves.finite(after), [True] * 4)
    np.testing.assert_array_equal(after.envs.obs, np.asarray(chunk.state.envs.obs)[[0, 3, 2, 3]])


def test_a_run_whose_members_are_all_not_finite_ends(tmp_path):
    config = FOUR | {"population_ranges": {"learning_rate": [1e37, 3e38]}, "max_grad_norm": float("inf")}
    with pytest.raises(
        loop.NonFiniteError, match=r"all members are not finite after step \d+; the state of step \d+ was"
    ):
        loop.train(config, out=tmp_path / "run", show=False)


def test_scores_by_hand():
    lines = [
        {"return_mean": [1.0, None, 3.0], "episodes": [1, 0, 2]},
        {"return_mean": [4.0, None, None], "episodes": [2, 0, 0]},
    ]
    np.testing.assert_array_equal(record.scores(lines, 3), [3.0, np.nan, 3.0])
    np.testing.assert_array_equal(record.scores([], 2), [np.nan, np.nan])
    evaluated = [lines[0] | {"eval_return_mean": [5.0, 6.0, None]}, lines[1]]
    np.testing.assert_array_equal(record.scores(evaluated, 3), [5.0, 6.0, np.nan])


def test_ancestors_by_hand():
    """Member 2 is a copy of 0 since the last evolution, and that one of 1 since the first."""
    parents = ([0, 1, 2], [1, 1, 2], [0, 1, 0])
    evolutions = [{"parents": row} for row in parents]
    assert lineage.ancestors(evolutions, 2) == [1, 0, 2]
    assert lineage.ancestors(evolutions, 1) == [1, 1, 1]


def test_a_line_has_the_color_of_its_score_at_that_time():
    """Also where all members end with the same score; gray without one."""
    scores = ([None, None], [1.0, None], [500.0, 1.0])
    rows = [{"step": 100 * i, "scores": s, "parents": [0, 1], "hyper": {"x": [1.0, 2.0]}} for i, s in enumerate(scores)]
    axes = lineage.figure(rows, np.array([500.0, 500.0]), 300).axes[0]
    colors = {
        (value, step): line.get_color()
        for line in axes.lines
        for step, value in [(line.get_xdata()[0], line.get_ydata()[0])]
    }
    low, high = colors[1.0, 0], colors[1.0, 200]
    assert low != high
    assert [colors[1.0, step] for step in (0, 100, 200)] == [low, high, high]
    assert [colors[2.0, step] for step in (0, 100, 200)] == ["#999999", low, high]


def test_evolutions_are_not_more_frequent_than_evaluations():
    for settings, updates in (
        ({"evolve_every": None, "total_steps": 3200}, [5, 10]),
        ({"evolve_every": None, "total_steps": 3200, "eval_every": 320}, [10, 20]),
        ({"evolve_every": 96}, [3, 6, 9]),
        ({"evolve_every": 1}, list(range(1, 10))),
    ):
        schedule = Schedule(parse(FOUR | settings))
        due = [update for update in range(1, schedule.total + 1) if schedule.evolves(update)]
        assert due[: len(updates)] == updates
        assert schedule.total not in due


@pytest.mark.parametrize(
    "text",
    [
        "no json",
        "[]",
        "{}",
        '{"step": 0, "scores": [], "parents": [0], "hyper": {"gamma": [0.9]}}',
        '{"step": 0, "scores": [null], "parents": [1], "hyper": {"gamma": [0.9]}}',
        '{"step": 0, "scores": ["a"], "parents": [0], "hyper": {"gamma": [0.9]}}',
    ],
)
def test_a_damaged_record_is_one_line(tmp_path, text):
    (tmp_path / record.FILE).write_text(f"{text}\n")
    for function in (record.read, lambda run: record.cut(run, 0)):
        with pytest.raises(ConfigError, match=r"must hold one evolution in each line: .*; train the run anew$"):
            function(tmp_path)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"population": 1}, "population=1 must be"),
        ({"num_seeds": 3}, "num_seeds=3 does not go with population=4, .*; leave out one of them"),
        ({"env": "gymnasium:CartPole-v1", "env_kwargs": {}}, "population=4 needs an environment in JAX, .*'gymnasium"),
        ({"population": None}, "evolve_every=64 needs a population; add e.g. population: 16"),
        ({"population_ranges": {"gamma": [0.9, 1.1]}}, "population_ranges.gamma=1.1 must be"),
        ({"population_ranges": {"kl_coef": [0.1, 1.0]}}, "population_ranges.kl_coef=.* the start of a value"),
        ({"population_ranges": {"gama": [0.9, 1.0]}}, "population_ranges.gama=.* did you mean 'gamma'"),
        (
            {"population_ranges": {"weight_decay": [0.0, 1.0]}},
            "population_ranges.weight_decay=1 needs optimizer='adamw'",
        ),
        ({"population_ranges": None, "learning_rate": 0.0}, "population_ranges=null must name what evolves"),
        ({"evolve_every": 320}, "evolve_every=320 must be less than total_steps=320; try 16"),
        ({"eval_every": 96}, "evolve_every=64 must be at least eval_every=96, .*; try 96"),
        ({"dataset": "somewhere", "agent": "iql"}, "population=4 needs scores, .*; add e.g. eval_every: 16"),
    ],
)
def test_a_mistake_is_one_line(change, text):
    keys = ("env", "num_envs", "num_steps", "total_steps", "population") if "agent" in change else FOUR
    with pytest.raises(ConfigError, match=f"^{text}") as caught:
        parse({key: FOUR[key] for key in keys} | change)
    assert "\n" not in str(caught.value)


def test_default_ranges_are_a_factor_of_ten():
    config = parse({key: value for key, value in FOUR.items() if key != "population_ranges"} | {"ent_coef": 0.01})
    assert config.run.population_ranges == {"learning_rate": (3e-5, 3e-3), "ent_coef": (1e-3, 0.1)}
    assert parse(config.flat()).flat() == config.flat()
    assert config.run.num_seeds == 4


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"evolve_every": None, "eval_every": 320}, "eval_every=320 leaves population=4 no evolution"),
        ({"evolve_every": 300, "log_every": 64}, "evolve_every=300 leaves population=4 no evolution.*evolve_every: 16"),
    ],
)
def test_a_population_that_would_never_evolve_is_refused(tmp_path, keys, said):
    """Evolutions come at multiples of metric lines and of evaluations: 300 steps are rounded to 320, the end."""
    with pytest.raises(ConfigError, match=said):
        loop.train(FOUR | keys, out=tmp_path / "run", show=False)
    assert not (tmp_path / "run").exists()
