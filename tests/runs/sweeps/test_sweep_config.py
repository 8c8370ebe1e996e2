"""Configs of sweeps: values to try, trials, groups, and every mistake in one line."""

import math
import re

import numpy as np
import pytest
from mistakes import mistake

from rlkit import ConfigError
from rlkit.runs import load_config
from rlkit.runs.config import strict_yaml
from rlkit.runs.sweeps import trials
from rlkit.runs.sweeps.config import load_sweep
from rlkit.runs.sweeps.space import parse_dimension
from rlkit.runs.sweeps.sweep import sweep


def a_sweep(tmp_path, **keys):
    """A sweep over the learning rate, with keys added or, where they are None, left out."""
    number = {"trials": 5} if keys.get("sampler") != "grid" else {}
    values = {"config": "ppo/cartpole", "learning_rate": {"log_uniform": [1e-4, 1e-2]}} | number | keys
    path = tmp_path / "mine.yaml"
    path.write_text(strict_yaml.dump({key: value for key, value in values.items() if value is not None}))
    return path


def drawn(tmp_path, overrides=None, **keys):
    """The trials of a sweep."""
    return trials.draw(load_sweep(a_sweep(tmp_path, **keys), overrides))


def test_whole_numbers_may_be_floats(tmp_path):
    settings = load_sweep(a_sweep(tmp_path, trials=1e1), {"budget": 1e6}).settings
    assert (settings.trials, settings.budget) == (10, 1_000_000)


@pytest.mark.parametrize(
    ("value", "low", "high", "middle"),
    [
        ({"uniform": [2, 4]}, 2, 4, 3),
        ({"log_uniform": [1e-4, 1e-2]}, 1e-4, 1e-2, 1e-3),
        ({"integers": [1, 3]}, 1, 3, 2),
        ({"values": ["a", "b", "c"]}, "a", "c", "b"),
    ],
)
def test_shares_of_a_range(value, low, high, middle):
    dimension = parse_dimension("key", value)
    assert (dimension.at(0.0), dimension.at(0.5)) == (low, middle)
    assert dimension.at(1 - 1e-12) == pytest.approx(high) if not isinstance(high, str) else "c"
    assert [dimension.ends()[0], dimension.ends()[-1]] == [low, high]


def test_draws_are_spread_as_they_should_be():
    rng = np.random.default_rng(0)
    log = [math.log10(parse_dimension("x", {"log_uniform": [1e-4, 1e-2]}).at(rng.random())) for _ in range(2000)]
    assert np.mean(log) == pytest.approx(-3, abs=0.05)
    whole = [parse_dimension("x", {"integers": [1, 4]}).at(rng.random()) for _ in range(2000)]
    assert np.bincount(whole).tolist() == pytest.approx([0, 500, 500, 500, 500], abs=80)


def test_grids():
    assert parse_dimension("x", {"log_uniform": [1e-4, 1e-2, 3]}).grid("x") == [1e-4, 1e-3, 1e-2]
    assert parse_dimension("x", {"uniform": [0, 1, 3]}).grid("x") == [0, 0.5, 1]
    assert parse_dimension("x", {"integers": [1, 4]}).grid("x") == [1, 2, 3, 4]
    assert parse_dimension("x", {"integers": [1, 9, 3]}).grid("x") == [1, 5, 9]
    with pytest.raises(ConfigError, match=r"^x needs a number of points in a grid; write \{uniform: \[0, 1, 5\]\}"):
        parse_dimension("x", {"uniform": [0, 1]}).grid("x")


def test_a_grid_has_all_combinations(tmp_path):
    found = drawn(tmp_path, sampler="grid", learning_rate={"values": [1e-3, 1e-2]}, gamma={"values": [0.9, 0.99]})
    assert [tuple(trial.values.values()) for trial in found] == [(1e-3, 0.9), (1e-3, 0.99), (1e-2, 0.9), (1e-2, 0.99)]
    assert [trial.config.hyper["gamma"] for trial in found] == [0.9, 0.99, 0.9, 0.99]


def test_a_grid_has_each_combination_once(tmp_path):
    """Numbers that are equal, values written twice, and points of a range that six digits do not tell apart."""
    keys = {"num_minibatches": {"values": [2, 2.0, 4, 2]}, "learning_rate": {"values": [1e-3, 1e-3]}}
    found = drawn(tmp_path, sampler="grid", **keys)
    assert [trial.values["num_minibatches"] for trial in found] == [2, 4]
    assert parse_dimension("x", {"values": [True, 1, "1", 1.0, [8], [8.0]]}).values == (True, 1, "1", [8])
    assert parse_dimension("x", {"log_uniform": [1, 1.000001, 9]}).grid("x") == [1.0]


def test_more_trials_begin_with_the_same(tmp_path):
    few, many = drawn(tmp_path, trials=3), drawn(tmp_path, trials=7)
    assert [trial.values for trial in few] == [trial.values for trial in many[:3]]
    assert len({trial.values["learning_rate"] for trial in many}) == 7
    other = drawn(tmp_path, sampler_seed=1)
    assert other[0].values != few[0].values


def test_keys_of_hyper_are_one_group_and_others_more(tmp_path):
    hyper = drawn(tmp_path, gamma={"uniform": [0.9, 1.0]})
    assert len({trials.group_key(trial.config) for trial in hyper}) == 1
    shaped = drawn(tmp_path, trials=20, num_minibatches={"values": [2, 4]}, total_steps={"values": [50_000, 100_000]})
    assert len({trials.group_key(trial.config) for trial in shaped}) == 4


def test_flags_replace_keys(tmp_path):
    found = load_sweep(a_sweep(tmp_path), {"trials": 2, "num_seeds": 4, "gamma": 0.9, "ent_coef": {"uniform": [0, 1]}})
    assert (found.settings.trials, found.settings.seeds_per_trial, found.base["gamma"]) == (2, 4, 0.9)
    assert list(found.dimensions) == ["learning_rate", "ent_coef"]
    inner = drawn(tmp_path, {"env_kwargs.max_steps_in_episode": {"values": [100, 200]}})
    assert {trial.config.run.env_kwargs["max_steps_in_episode"] for trial in inner} == {100, 200}


@pytest.mark.parametrize(("number", "expected"), [(64, [64, 22, 8]), (9, [9, 3, 1]), (2, [2, 1, 1])])
def test_rungs_of_halving(number, expected):
    shares, counts = trials.rungs(3, 3, number)
    assert counts == expected
    assert shares == pytest.approx([1 / 9, 1 / 3, 1])


def test_a_budget_bounds_the_trials(tmp_path):
    steps = 100_096  # of a run, in whole updates
    keys = {"total_steps": 100_000, "seeds_per_trial": 2}
    assert len(drawn(tmp_path, budget=7 * steps, **keys)) == 3
    assert len(drawn(tmp_path, budget=10**9, **keys)) == 5
    # With halving 5 trials take 1 + 1/3 + 3/9 runs' steps.
    assert len(drawn(tmp_path, budget=int(3.4 * steps), halving=3, **keys)) == 5
    with pytest.raises(ConfigError, match=r"^budget=1000 must allow one trial, which takes 200192 steps"):
        drawn(tmp_path, budget=1000, **keys)


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"halving": 3, "rungs": 4},
        {"sampler": "optuna", "num_envs": {"values": [4, 12]}},
        {"sampler": "grid", "learning_rate": {"values": [1e-3, 1e-2]}, "num_envs": {"values": [12, 4]}},
    ],
)
def test_the_suggested_budget_fits_a_trial(tmp_path, keys):
    def number_within(budget):
        found = load_sweep(a_sweep(tmp_path, **keys, budget=budget))
        if keys.get("sampler") == "optuna":
            return trials.within_budget(found).settings.trials
        return len(trials.draw(found))

    with pytest.raises(ConfigError, match=r"^budget=9 must allow one trial, which takes \d+ steps; try \d+$") as error:
        number_within(9)
    least, suggested = (int(word) for word in re.findall(r"\d+", str(error.value))[-2:])
    assert number_within(least) == 1
    assert number_within(suggested) >= 1
    with pytest.raises(ConfigError):
        number_within(least - 1)


def test_a_budget_counts_whole_metric_lines(tmp_path):
    """The first rung of two ends at a quarter of four lines of 12,288 steps, the last one after all."""
    keys = {"total_steps": 40_000, "log_every": 12_288, "seeds_per_trial": 1, "halving": 4, "rungs": 2}
    runs = {"num_envs": 8, "num_steps": 128, "num_minibatches": 4}
    whole, rung = 40_960, 12_288
    assert len(drawn(tmp_path, **keys, **runs, budget=whole + 3 * rung)) == 4
    assert len(drawn(tmp_path, **keys, **runs, budget=whole + 3 * rung - 1)) == 3


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"learning_rate": {"uniform": [1, 0]}}, "learning_rate={uniform: [1, 0]} must"),
        ({"learning_rate": {"log_uniform": [0, 1]}}, "ends above 0"),
        ({"learning_rate": {"uniform": 3}}, "must hold a list; write e.g."),
        ({"learning_rate": {"integers": [0.5, 2]}}, "must have whole numbers as its ends"),
        ({"learning_rate": {"uniform": [0, 1, 1]}}, "must have 2 to 10000 points in a grid"),
        ({"learning_rate": {"uniform": [-1, 1]}}, "learning_rate=-1.0 must be"),
        ({"learning_rate": 1e-3}, "a sweep needs a key with values to try"),
        ({"lerning_rate": {"uniform": [0, 1]}}, "did you mean 'learning_rate'"),
        ({"trails": 3}, "did you mean 'trials'"),
        ({"sampler": "tpe"}, "sampler='tpe' must be"),
        ({"config": None}, "config is missing; add the base config"),
        ({"num_seeds": 3}, "num_seeds is not a key of a sweep; write seeds_per_trial"),
        ({"objective": "best"}, "objective=best needs evaluations along the runs; add e.g. eval_every"),
        ({"halving": 3, "sampler": "optuna"}, "halving does not go with sampler=optuna"),
        ({"halving": 3, "total_steps": {"values": [50_000, 100_000]}}, "total_steps cannot be swept with halving"),
        ({"learning_rate": {"uniform": [1]}}, "must hold two finite numbers"),
        ({"batch": 2}, "batch=2 needs sampler: optuna; leave it out"),
        ({"sampler": "grid", "learning_rate": {"values": [0.1]}, "sampler_seed": 3}, "sampler_seed=3 needs a sampler"),
        ({"rungs": 2}, "rungs=2 needs halving; leave it out"),
        ({"sampler": "grid", "learning_rate": {"values": [0.1]}, "trials": 3}, "trials=3 needs a sampler other than"),
        ({"wandb": "mine"}, "wandb='mine' does not go with a sweep"),
        ({"objective": "best", "total_steps": 10_200, "eval_every": 10_200}, "eval_every=10200 leaves no"),
        ({"storage": "sqlite:///x.db"}, "storage='sqlite:///x.db' needs sampler: optuna"),
        ({"eval_episodes": 0}, "eval_episodes=0 does not go with a sweep"),
        ({"env": {"values": ["CartPole-v1", "my_module:Class"]}}, "is code, and no file may name code to run"),
        ({"sampler": "grid", "gamma": {"integers": [0, 1]}}, "learning_rate needs a number of points in a grid"),
    ],
)
def test_mistakes_are_one_line(tmp_path, keys, message):
    with mistake(message):
        drawn(tmp_path, **keys)


def test_the_name_of_an_environment_outside_of_jax_is_no_code(tmp_path):
    assert load_sweep(a_sweep(tmp_path, env="atari:Breakout")).base["env"] == "atari:Breakout"
    assert load_sweep(a_sweep(tmp_path), {"env": "atari:Breakout", "wrappers": ["time_limit:9"]}).own_code == {}
    assert load_sweep(a_sweep(tmp_path), {"env": "mine:Breakout"}).own_code == {"env": "mine:Breakout"}


def test_programs_are_made_before_anything_is_written(tmp_path):
    path = a_sweep(tmp_path, num_minibatches={"values": [4, 7]})
    with pytest.raises(ConfigError, match="num_minibatches=7 must divide num_envs"):
        sweep(path, out=tmp_path / "out", show=False)
    assert not (tmp_path / "out").exists()


def test_a_config_of_a_run_is_no_sweep():
    with pytest.raises(ConfigError, match="must be a sweep, and it is a run's; try rlkit train"):
        load_sweep("ppo/cartpole")
    with pytest.raises(ConfigError, match="config is a key of a sweep, and this is one run"):
        load_config("sweeps/ppo_cartpole")


def test_the_sweep_that_ships_is_valid(tmp_path):
    found = load_sweep("sweeps/ppo_cartpole")
    assert found.settings.trials * found.settings.seeds_per_trial == 256
    assert found.name == "sweep-ppo_cartpole"
