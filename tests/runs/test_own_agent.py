"""An agent of the user's own in runs: trained, resumed to the bit, loaded, exported, swept, and mistakes."""

import sys
import types
from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from mistakes import mistake
from pydantic import Field
from tiny_runs import SMALL, digest

import rlkit
from rlkit import cli, envs
from rlkit.agents import base, ppo
from rlkit.runs import loop, sweep
from rlkit.runs.config.parse import parse
from rlkit.runs.programs.agent import make_agent
from rlkit.runs.sweeps.config import load_sweep
from rlkit.types import Agent, ConfigError, Scalar

THIS = f"{__name__}:make"
RUN = {key: SMALL[key] for key in ("env", "env_kwargs", "num_envs", "num_steps", "eval_episodes", "checkpoint_every")}
RUN |= {"total_steps": 160, "keep_checkpoints": 10}


class Config(base.Config):
    """A linear policy that imitates its own rewarded actions."""

    scale: Annotated[float, base.Interval(gt=0.0)] = Field(default=0.1, description="of the parameters at the start")


class Hyper(base.Hyper):
    learning_rate: Annotated[Scalar, base.Interval(ge=0.0), base.LearningRate] = 0.1
    decay: Annotated[Scalar, base.Interval(ge=0.0, le=1.0), "of the parameters", base.Unused(scale=1.0)] = 0.0


class State(struct.PyTreeNode):
    hyper: Hyper
    params: Any


def init(config, hyper, key, example, num_envs):
    params = config.scale * jax.random.normal(key, (4, 2))
    return State(base.as_arrays(hyper, config, num_envs), params)


def act(params, memory, obs, key):
    return memory, jax.random.categorical(key, obs @ params), ()


def policy(params, memory, obs, key):
    return memory, jnp.argmax(obs @ params), ()


def loss(params, rollout):
    log_prob = jax.nn.log_softmax(rollout.obs @ params)
    return -jnp.mean(jnp.take_along_axis(log_prob, rollout.action[..., None], axis=-1)[..., 0] * rollout.reward)


def update(state, rollout, key):
    value, gradient = jax.value_and_grad(loss)(state.params, rollout)
    params = state.params * (1.0 - state.hyper.decay) - state.hyper.learning_rate * gradient
    return state.replace(params=params), {"loss": value}


def make(config, obs_space, action_space):
    return Agent(
        init=partial(init, config), actor=lambda state: state.params, act=act, policy=policy, update=update,
        trained=("params",), finite=("loss",),
    )  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return loop.train(RUN | {"agent": make, "num_seeds": 2}, out=tmp_path_factory.mktemp("own") / "run", show=False)


def test_it_is_named_by_its_function_and_is_resumed_to_the_bit(trained, tmp_path):
    stopped = loop.train(
        RUN | {"agent": make, "num_seeds": 2}, lambda line, _: line["step"] == 96, out=tmp_path / "run", show=False
    ).run
    resumed = loop.resume(stopped, agent=make, show=False)
    assert digest(resumed.state.agent) == digest(trained.state.agent)
    assert parse(RUN | {"agent": make}).run.agent == THIS
    with mistake(f"agent='{THIS}' is code", "add --agent"):
        loop.resume(stopped, show=False)


def test_a_module_and_its_function_are_one_agent_and_another_object_has_a_name_of_its_own(trained):
    for agent in (sys.modules[__name__], make, THIS):
        loaded = rlkit.load(trained.run, seed=1, agent=agent)
        np.testing.assert_array_equal(loaded.actor, trained.state.agent.params[1])
    other = types.SimpleNamespace(Config=Config, Hyper=Hyper, make=make)
    assert parse(RUN | {"agent": other}).run.agent == f"{THIS}_instance"


def test_a_shipped_module_has_its_plain_name():
    assert parse(SMALL | {"agent": ppo}).run.agent == "ppo"


def test_it_is_exported(trained, tmp_path):
    out = rlkit.runs.export(trained.run, None, tmp_path / "policy.stablehlo", agent=make).path
    exported = jax.export.deserialize(bytearray(out.read_bytes()))
    obs = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    action = exported.call({"obs": obs})["action"]
    np.testing.assert_array_equal(action, np.argmax(obs @ np.asarray(trained.state.agent.params[0]), axis=-1))


def test_another_run_starts_with_it_and_a_learning_rate_of_0_keeps_it(trained, tmp_path):
    again = RUN | {"agent": make, "num_seeds": 2, "learning_rate": 0.0}
    begun = loop.train(again, out=tmp_path / "run", init_from=trained.run, show=False)
    np.testing.assert_array_equal(begun.state.agent.params, trained.state.agent.params)


def test_its_keys_are_swept(tmp_path):
    base_config = tmp_path / "base.yaml"
    base_config.write_text("".join(f"{key}: {value}\n" for key, value in RUN.items()) + "agent: ppo\n")
    (tmp_path / "sweep.yaml").write_text("config: base.yaml\nlearning_rate: {values: [0.1, 0.2]}\nsampler: grid\n")
    swept = sweep(tmp_path / "sweep.yaml", {"agent": THIS}, out=tmp_path / "sweep", show=False)
    assert sorted(result.trial.values["learning_rate"] for result in swept.results) == [0.1, 0.2]


@pytest.mark.parametrize(("values", "words"), [
    ({"scale": 0}, "scale=0 must be greater than 0; the default is 0.1"),
    ({"decay": 2.0}, "decay=2.0 must be at least 0 and at most 1; the default is 0.0"),
    ({"learning_rat": 0.1}, f"learning_rat is not a key of a {THIS} config; did you mean 'learning_rate'?"),
    ({"agent": THIS[:-1]}, f"agent={THIS[:-1]!r}: module {__name__!r} has no attribute 'mak'; did you mean 'make'"),
    ({"agent": "no_such_module:make"}, "there is no module 'no_such_module'"),
    ({"agent": np.array}, "agent='numpy:array' needs a class Config in module 'numpy', derived from rlkit.agents.base"),
    ({"agent": types.SimpleNamespace(Config=Config, Hyper=dict, make=make)}, "needs a class Hyper in"),
    ({"agent": 3}, "agent=3 must be the name of an agent"),
])  # fmt: skip
def test_a_mistake_is_one_line(values, words):
    with mistake(words):
        parse(RUN | {"agent": THIS} | values)


def test_a_state_without_its_hyper_is_refused(tmp_path):
    def without(config, obs_space, action_space):
        return make(config, obs_space, action_space)._replace(init=lambda *arguments: {"params": jnp.zeros((4, 2))})

    agent = types.SimpleNamespace(Config=Config, Hyper=Hyper, make=without)
    with pytest.raises(ConfigError, match="the state of its agent must have the field hyper, a Hyper"):
        loop.train(RUN | {"agent": agent}, out=tmp_path / "run", show=False)


def test_a_run_beyond_the_memory_is_refused_by_a_key_that_the_agent_has(tmp_path, monkeypatch):
    monkeypatch.setattr("rlkit.runs.programs.make.memory.available", lambda num_devices: 1)
    with pytest.raises(ConfigError, match="num_envs=4 with num_seeds=1 needs about"):
        loop.train(RUN | {"agent": make}, out=tmp_path / "run", show=False)


def test_no_file_makes_a_command_import_code(tmp_path, monkeypatch, capsys):
    """Neither a run's config, with --help too, nor a sweep's base does; on the command line its name is enough."""
    (tmp_path / "evil.py").write_text(f"from {__name__} import *\nopen('imported', 'w').close()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    run.mkdir()
    text = "".join(f"{key}: {value}\n" for key, value in RUN.items()) + "agent: evil:make\n"
    (run / "config.yaml").write_text(text)
    (tmp_path / "sweep.yaml").write_text("config: run/config.yaml\nscale: {values: [0.1, 0.2]}\nsampler: grid\n")
    for command in (["train", "run"], ["train", "run", "--help"], ["check", "run"], ["resume", "run", "--help"],
                    ["resume", "run"], ["eval", "run"], ["sweep", "sweep.yaml"]):  # fmt: skip
        assert cli.main(command) == 2
        assert "is code, and no file may name code to run" in capsys.readouterr().err
    assert not (tmp_path / "imported").exists()
    assert load_sweep("sweep.yaml", {"agent": "evil:make"}).dimensions.keys() == {"scale"}
    assert cli.main(["resume", "run", "--help", "--agent", "evil:make"]) == 0
    assert "--decay" in capsys.readouterr().out


def test_an_agent_without_an_axis_is_not_divided_over_devices():
    env, params = envs.make("CartPole-v1")
    spaces = env.observation_space(params), env.action_space(params)
    with pytest.raises(ConfigError, match="its function make has no argument axis_name; leave devices out"):
        make_agent(parse(RUN | {"agent": THIS}), *spaces, "data")
