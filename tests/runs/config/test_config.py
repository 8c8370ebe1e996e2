"""Configs: every mistake is one clear line, and what is accepted means what it says."""

import enum
import math
import random
import string

import jax
import numpy as np
import pytest
from mistakes import assert_mistake

from rlkit import agents
from rlkit.runs.config import strict_yaml
from rlkit.runs.config.load import load_config
from rlkit.runs.config.parse import parse
from rlkit.runs.config.schema import schema
from rlkit.runs.config.settings import Settings
from rlkit.types import ConfigError

SMALL = {"agent": "ppo", "env": "CartPole-v1", "num_envs": 4, "num_steps": 8, "total_steps": 320}


def message(values):
    with pytest.raises(ConfigError) as caught:
        parse(values)
    assert_mistake(caught.value)
    assert "pydantic" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", agents.names())
def test_the_keys_of_run_config_and_hyper_do_not_collide(name):
    models = schema(name).models
    assert len(schema(name).fields) == sum(len(model.model_fields) for model in models)
    assert list(models[2].model_fields) == [*agents.get(name).Hyper.__dataclass_fields__]


def test_defaults_come_from_the_agent():
    config = parse(SMALL)
    assert config.agent == agents.get("ppo").Config()
    assert config.hyper["gamma"] == agents.get("ppo").Hyper().gamma
    assert (config.run.seed, config.run.num_seeds, config.run.eval_episodes) == (0, 1, 128)


def test_updates_are_rounded_up():
    assert parse(SMALL).num_updates == 10
    assert parse(SMALL | {"total_steps": 321}).num_updates == 11


def test_schedules_end_with_the_run_unless_told():
    assert parse(SMALL).hyper["schedule_steps"] == 320
    assert parse(SMALL | {"schedule_steps": 64}).hyper["schedule_steps"] == 64
    assert parse(SMALL | {"schedule_steps": None}) == parse(SMALL)
    assert parse(SMALL | {"schedule_steps": math.inf}).hyper["schedule_steps"] == math.inf


def small(agent, **change):
    return SMALL | {"agent": agent} | change


def test_a_target_network_is_copied_where_it_is_updated_now_and_then():
    assert parse(small("dqn")).hyper["tau"] == 0.005
    assert parse(small("dqn", target_every=64)).hyper["tau"] == 1.0
    assert parse(small("dqn", target_every=64, tau=0.5)).hyper["tau"] == 0.5
    assert parse(small("r2d2")).hyper["epsilon_end"] == 0.4
    assert parse(small("r2d2", num_envs=1)).hyper["epsilon_end"] == 0.05
    assert parse(small("dqn", tau=None)).hyper["tau"] == 0.005
    again = parse(parse(small("dqn", target_every=64)).flat())
    assert again.hyper["tau"] == 1.0


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (small("dqn", batch_size=65, capacity=64), ["batch_size=65", "capacity=64", "try 64"]),
        (small("sac", target_entropy_total=math.inf), ["=.inf must be finite; the default is null"]),
        (small("dqn", gamma=None), ["gamma=null must be a number; the default is 0.99"]),
        (small("dqn", learning_rate_schedule="linear", schedule_steps=math.inf), ["needs schedule_steps"]),
        (small("dqn", beta_end=math.inf), ["beta_end=.inf must be at least 0 and finite; the default is 1.0"]),
        (small("ppo", clip_schedule="linear", schedule_steps=math.inf), ["clip_schedule='linear' needs"]),
        (small("ppo", kl_target=0.01), ["kl_target=0.01 needs kl_penalty=True", "target_kl"]),
        (small("sac", log_std_init=3.0), ["log_std_init=3.0", "must be", "the default is null"]),
        (small("ppo", env_kwargs={"length": math.nan}), ["env_kwargs.length=.nan must not be NaN"]),
    ],
)
def test_values_without_a_meaning_are_refused(values, said):
    text = message(values)
    assert "default is inf" not in text
    for words in said:
        assert words in text


@pytest.mark.parametrize("name", agents.names())
def test_infinity_is_a_value_where_it_switches_something_off(name):
    fields = schema(name).models[2].model_fields
    for key in ("learning_rate", "adam_eps", "gamma"):
        assert key in fields
        assert f"{key}=.inf must be" in message(small(name, **{key: math.inf}))
    off = {key: math.inf for key in ("max_grad_norm", "schedule_steps", "huber_delta", "clip_eps") if key in fields}
    assert parse(small(name, **off)).hyper["max_grad_norm"] == math.inf


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_envs": "4"}, ["num_envs='4'", "whole number"]),
        ({"num_envs": None}, ["num_envs=null", "whole number"]),
        ({"num_envs": 0}, ["num_envs=0", "must be"]),
        ({"learning_rate": -1.0}, ["learning_rate=-1.0", "must be", "default is"]),
        ({"gamma": 1.5}, ["gamma=1.5", "must be"]),
        ({"clip_eps": math.nan}, ["clip_eps=.nan"]),
        ({"learning_rate": 10**400}, ["learning_rate="]),
        ({"learning_rate": "fast"}, ["learning_rate='fast'", "number"]),
        ({"learning_rate": 1e39}, ["learning_rate=1e+39", "float32"]),
        ({"hidden_sizes": [64, "x"]}, ["hidden_sizes.1='x'", "whole number"]),
        ({"hidden_sizes": {"a": 64}}, ["hidden_sizes=", "list"]),
        ({"activation": "tann"}, ["activation='tann'", "'tanh'"]),
        ({"recurrent": "minigru"}, ["recurrent='minigru'", "'none'", "'mingru'"]),
        ({"normalize_obs": "yes"}, ["normalize_obs='yes'", "true or false"]),
        ({"agent": "pop"}, ["agent='pop'", "ppo"]),
        ({"env_kwargs": {"x": {"y": object()}}}, ["env_kwargs.x", "and it is a object"]),
        ({"env_kwargs": {"x": [10**50]}}, ["env_kwargs.x", "numbers of up to 40 digits"]),
        ({"env_kwargs": {"x": "\ud800"}}, ["env_kwargs.x", "cannot be written to a config file"]),
        ({"wandb": "a\ud800"}, ["wandb=", "must be printable text"]),
        ({"total_steps": 31}, ["total_steps=31", "num_envs * num_steps = 32", "try 32"]),
        ({"num_envs": 2**20, "num_steps": 2**20, "total_steps": 2**40}, ["num_envs=1048576", "num_steps", "try"]),
        ({"seed": 2**31 - 1, "num_seeds": 2}, ["seed=2147483647", "num_seeds=2", "try"]),
        ({3: 4}, ["3 is not a key"]),
        ({"a\nb": 4}, [r"'a\nb' is not a key"]),
        ({"num_steps": 10**400}, ["num_steps="]),
    ],
)
def test_a_mistake_is_one_line_that_names_key_value_and_rule(change, said):
    text = message(SMALL | change)
    assert len(text) < 300
    for words in said:
        assert words in text


@pytest.mark.parametrize("devices", [3, "all"])
def test_seeds_outside_of_jax_are_not_spread_over_devices(devices):
    host = SMALL | {"env": "gymnasium:CartPole-v1", "num_seeds": 3}
    assert f"devices={devices!r} must be 1 or auto" in message(host | {"devices": devices})
    for accepted in (1, "auto"):
        assert parse(host | {"devices": accepted}).run.devices == accepted


def test_a_missing_key_is_named():
    assert "env is missing" in message({key: value for key, value in SMALL.items() if key != "env"})
    assert "agent" in message({})


def test_the_rules_of_an_agents_config_are_one_line_too(monkeypatch):
    from pydantic import BaseModel, ConfigDict, model_validator

    class Config(BaseModel):
        model_config = ConfigDict(frozen=True, extra="forbid")
        a: int = 1
        b: int = 2

        @model_validator(mode="after")
        def order(self):
            if self.a > self.b:
                raise ConfigError(f"a={self.a} must not exceed b={self.b}; try {self.b}")
            return self

    monkeypatch.setattr(agents.get("ppo"), "Config", Config)
    assert message(SMALL | {"a": 5}) == "a=5 must not exceed b=2; try 2"


def test_whole_floats_are_ints_where_an_int_is_asked_for():
    config = parse(SMALL | {"total_steps": 1e6, "hidden_sizes": [32.0], "learning_rate": 1})
    assert (config.run.total_steps, type(config.run.total_steps)) == (1_000_000, int)
    assert config.agent.hidden_sizes == (32,)
    assert config.hyper["learning_rate"] == 1.0
    assert type(parse(SMALL | {"env_kwargs": {"length": 2.0}}).run.env_kwargs["length"]) is float


def test_schedules_that_end_with_the_run_do_so_when_it_is_made_longer(tmp_path):
    (tmp_path / "config.yaml").write_text(parse(SMALL).resolved())
    assert load_config(tmp_path / "config.yaml", {"total_steps": 4096}).hyper["schedule_steps"] == 4096
    for steps in (777, SMALL["total_steps"]):
        fixed = parse(SMALL | {"schedule_steps": steps})
        (tmp_path / "config.yaml").write_text(fixed.resolved())
        assert load_config(tmp_path / "config.yaml", {"total_steps": 4096}).hyper["schedule_steps"] == steps


SCALARS = ["", "x", "é\u202e", "\ud800", "1e-3", "nan", 0, -1, 1, 2**31, 2**63, 10**400, 0.5, -0.0, 1e308, 1e-320]
SCALARS += [
    math.nan,
    math.inf,
    -math.inf,
    True,
    False,
    None,
    [],
    {},
    [1],
    [[]],
    {"a": 1},
    {1: 2},
    [math.nan],
    b"x",
    (1,),
]


def mutant(rng, base, keys):
    """A config with one to three mistakes, or none by luck."""
    values = dict(base)
    for _ in range(rng.randint(1, 3)):
        match rng.randrange(6):
            case 0:
                values.pop(rng.choice([*values] or ["agent"]), None)
            case 1:
                key = rng.choice(keys)
                position = rng.randrange(len(key))
                values[key[:position] + rng.choice(string.printable) + key[position + 1 :]] = rng.choice(SCALARS)
            case 2:
                values[rng.choice(SCALARS[:22])] = rng.choice(SCALARS)
            case 3:
                nested = rng.choice(SCALARS)
                for _ in range(rng.randrange(30)):
                    nested = [nested] if rng.random() < 0.5 else {"k": nested}
                values[rng.choice(keys)] = nested
            case _:
                values[rng.choice(keys)] = rng.choice(SCALARS)
    return values


def test_thousands_of_mutants_give_only_config_errors():
    """A bad config gets a clear error, in about a millisecond, with nothing traced or compiled."""
    rng, base, events = random.Random(0), parse(SMALL).flat(), []
    keys, refused = [*schema("ppo").fields], 0
    jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: events.append(name))
    text = parse(SMALL).resolved()
    for trial in range(2_000):
        if trial % 4:
            values = mutant(rng, base, keys)
        else:
            position, end = sorted(rng.choices(range(len(text)), k=2))
            junk = "".join(rng.choices(string.printable + "é\u2028\x00{[&*!", k=rng.randrange(4)))
            try:
                values = strict_yaml.parse(text[:position] + junk + text[min(end, position + 8) :])
            except ConfigError:
                pytest.fail("the parser does not know of configs; `read` says where the text came from")
            except ValueError:
                continue
        try:
            config = parse(values if isinstance(values, dict) else {})
            assert parse(config.flat()).flat() == config.flat()
        except ConfigError as error:
            refused += 1
            said = str(error)
            assert 0 < len(said) < 400
            assert len(said.splitlines()) == 1
    assert refused > 1_000
    assert not [name for name in events if "compile" in name or "trace" in name]


def test_settings_are_all_described():
    assert all(field.description for field in Settings.model_fields.values())


class Mode(enum.IntEnum):
    EASY = 1


def test_values_of_numpy_and_enums_are_taken_by_value():
    """Whatever is accepted can be written into a config file, and reads back as the same config."""
    kwargs = {
        "a": np.float64(0.5),
        "b": np.int64(3),
        "c": Mode.EASY,
        "d": np.arange(2),
        "e": None,
        "f": {"g": [np.bool_(True), Mode.EASY]},
        "h": np.str_("x"),
    }
    values = {"num_envs": np.int64(4), "learning_rate": np.float32(0.5), "normalize_obs": np.bool_(False)}
    config = parse(SMALL | values | {"env_kwargs": kwargs})
    plain = {"a": 0.5, "b": 3, "c": 1, "d": (0, 1), "e": None, "f": {"g": (True, 1)}, "h": "x"}
    assert config.run.env_kwargs == plain
    assert [type(x) for x in config.run.env_kwargs.values()] == [type(x) for x in plain.values()]
    assert (type(config.run.num_envs), config.hyper["learning_rate"]) == (int, 0.5)
    assert parse(strict_yaml.parse(config.resolved())).run == config.run
