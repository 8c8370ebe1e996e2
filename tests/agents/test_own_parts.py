"""An optimizer, a schedule and a buffer of the user's own: equal to the agents' where they compute the same."""

import json
import re
import signal

import jax
import numpy as np
import optax
import pytest
from tiny_runs import SMALL, digest

import rlkit
from rlkit import cli, envs, replay, training
from rlkit.agents import dqn, ppo, r2d2, sac
from rlkit.runs import datasets, loop
from rlkit.runs.config.parse import parse
from rlkit.types import ConfigError

OFF = {"capacity": 128, "batch_size": 8, "learning_starts": 16, "replay_ratio": 0.25, "hidden_sizes": (8,)}
ON = {"num_epochs": 1, "num_minibatches": 2, "hidden_sizes": (8,)}


def learned(module, settings, hyper, env="CartPole-v1", steps=5):
    """The parameters after a few updates of 4 environments with 8 steps each."""
    env, params = envs.make(env)
    agent = module.make(module.Config(**settings), env.observation_space(params), env.action_space(params))
    run = training.make(agent, env, params, num_envs=4, num_steps=8, total_steps=32 * steps)
    state = run.init(module.Hyper(**hyper), jax.random.key(0))
    state, metrics = jax.jit(lambda s: jax.lax.scan(lambda s, _: run.step(s), s, None, steps))(state)
    return state.agent.params, metrics


def assert_close(a, b, *, rtol=2e-4):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=1e-6), a, b)


def adam(learning_rate):
    return optax.adam(learning_rate, eps=1e-5)


@pytest.mark.parametrize(("module", "settings", "hyper", "env"), [
    (ppo, ON | {"learning_rate_schedule": "linear"}, {"learning_rate": 1e-2, "target_kl": 0.02}, "CartPole-v1"),
    (sac, OFF, {"adam_eps": 1e-5, "critic_learning_rate": 1e-2, "temperature_learning_rate": 0.0}, "Pendulum-v1"),
])  # fmt: skip
def test_adam_of_optax_is_the_agents_adam(module, settings, hyper, env):
    """With the scheduled rate, the clip, an update that target_kl ends, and rates of groups."""
    params, _ = learned(module, settings, hyper, env)
    own, _ = learned(module, settings | {"optimizer": adam}, hyper, env)
    assert_close(own, params)


def test_a_transformation_that_is_made_has_its_own_learning_rate():
    still, metrics = learned(ppo, ON | {"optimizer": optax.set_to_zero()}, {})
    assert "learning_rate" not in metrics
    moved, _ = learned(ppo, ON | {"optimizer": optax.adam(1e-3)}, {"learning_rate": 0.0})
    start, _ = learned(ppo, ON, {"learning_rate": 0.0})
    assert_close(still, start)
    with pytest.raises(AssertionError):
        assert_close(moved, start)


@pytest.mark.parametrize(("module", "settings"), [(ppo, ON), (dqn, OFF)])
def test_a_schedule_is_a_function_of_environment_steps(module, settings):
    end = {"learning_rate": 1e-2, "learning_rate_end": 1e-3}
    params, metrics = learned(module, settings | {"learning_rate_schedule": "linear"}, end)
    own = optax.linear_schedule(1e-2, 1e-3, 160)
    params_of_own, metrics_of_own = learned(module, settings | {"learning_rate_schedule": own}, {})
    assert_close(metrics_of_own["learning_rate"], metrics["learning_rate"])
    assert_close(params_of_own, params)


def uniform(config):
    return replay.uniform(config.capacity, config.batch_size, length=config.n_step)


def slices(config):
    return replay.slices(config.capacity, config.batch_size, config.item_length, cross_episodes=True)


def test_a_buffer_is_made_of_the_config():
    params, _ = learned(dqn, OFF | {"n_step": 3}, {})
    own, _ = learned(dqn, OFF | {"n_step": 3, "replay": uniform}, {})
    jax.tree.map(np.testing.assert_array_equal, own, params)
    made, _ = learned(dqn, OFF | {"replay": replay.uniform(128, 8)}, {})
    jax.tree.map(np.testing.assert_array_equal, made, learned(dqn, OFF, {})[0])
    small = OFF | {"burn_in": 0, "unroll_len": 2, "n_step": 1}
    of_slices, _ = learned(r2d2, small | {"replay": slices}, {})
    jax.tree.map(np.testing.assert_array_equal, of_slices, learned(r2d2, small | {"replay": "uniform"}, {})[0])


@pytest.mark.parametrize(("settings", "words"), [
    ({"optimizer": "adamm"}, "optimizer='adamm' must be 'adam', 'adamw', 'radam', 'rmsprop' or 'sgd'"),
    ({"optimizer": "optax:no_such"}, "optimizer='optax:no_such': module 'optax' has no attribute 'no_such'"),
    ({"optimizer": lambda rate: rate}, "must be a transformation of optax, or a function of the learning rate"),
    ({"replay": lambda config: 3}, "must return an rlkit.types.Buffer, and it returned 3"),
    ({"replay": 3}, "replay=3 must be 'uniform', 'prioritized' or 'hindsight'"),
])  # fmt: skip
def test_a_mistake_is_one_line(settings, words):
    with pytest.raises(ConfigError, match=re.escape(words)) as error:
        learned(dqn, OFF | settings, {})
    assert "\n" not in str(error.value)


def test_a_run_names_its_parts_and_takes_them_again(tmp_path):
    def interrupt(line, state):
        if line["step"] == 160:
            signal.raise_signal(signal.SIGTERM)

    own = {"optimizer": adam, "learning_rate_schedule": optax.cosine_decay_schedule(1e-2, 320), "replay": uniform}
    config = {key: value for key, value in SMALL.items() if key not in ON} | OFF | {"agent": "dqn"} | own
    whole = loop.train(config, out=tmp_path / "whole", show=False)
    stopped = loop.train(config, interrupt, out=tmp_path / "run", show=False).run
    assert f"optimizer: {__name__}:adam" in (stopped / "config.yaml").read_text()
    with pytest.raises(ConfigError, match=r"optimizer=.*:adam' is code, and no file may name code to run"):
        loop.resume(stopped, show=False)
    assert digest(loop.resume(stopped, show=False, **own).state) == digest(whole.state)
    assert_acts_without_its_parts(stopped, own, tmp_path)
    with pytest.raises(ConfigError, match=r"replay=.*slices' must be that of run="):
        rlkit.load(stopped, **(own | {"replay": slices}))


def assert_acts_without_its_parts(run, own, tmp_path):
    """Evaluate, load, export and collect with a run: what only learning uses is not asked for again."""
    with_parts, without = rlkit.load(run, **own), rlkit.load(run)
    assert without.step == with_parts.step == 320
    assert digest(without.actor) == digest(with_parts.actor)
    assert cli.main(["eval", str(run), "--episodes", "2"]) == 0
    assert json.loads((run / "eval.json").read_text())["episodes"] == 2
    rlkit.runs.export(run, None, tmp_path / "policy.stablehlo")
    rows = [
        datasets.load(rlkit.runs.collect(run, 64, tmp_path / name, **given)).steps
        for name, given in (("a", own), ("b", {}))
    ]
    assert digest(rows[0]) == digest(rows[1])


def test_keys_that_own_parts_do_not_read_have_no_effect():
    own = {"optimizer": adam, "learning_rate_schedule": optax.constant_schedule(1e-3), "replay": uniform}
    keys = {key: value for key, value in SMALL.items() if key not in ON}
    unused = parse(keys | OFF | {"agent": "dqn"} | own).unused()
    assert {"learning_rate", "schedule_steps", "adam_eps", "alpha", "beta", "store_obs_once"} <= unused.keys()
