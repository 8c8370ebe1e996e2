"""An optimizer, a schedule and a buffer of the user's own: equal to the agents' where they compute the same."""

import json
import signal
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from mistakes import mistake
from tiny_runs import SMALL, digest

import rlkit
from rlkit import cli, envs, replay, training
from rlkit.agents import dqn, ppo, r2d2, sac
from rlkit.agents.common.optimizer import Optimizer
from rlkit.runs import loop, metrics
from rlkit.runs.config.parse import parse
from rlkit.types import ConfigError

OFF = {"capacity": 128, "batch_size": 8, "learning_starts": 16, "replay_ratio": 0.25, "hidden_sizes": (8,)}
ON = {"num_epochs": 1, "num_minibatches": 2, "hidden_sizes": (8,)}


def learned(module, settings, hyper, env="CartPole-v1", steps=5):
    """The parameters after a few updates of 4 environments with 8 steps each."""
    run = make(module, settings, env, steps)

    @jax.jit
    def learn(key):
        start = run.init(module.Hyper(**hyper), key)
        return jax.lax.scan(lambda s, _: (run.step(s)[0], None), start, None, steps)[0].agent.params

    return learn(jax.random.key(0))


def make(module, settings, env="CartPole-v1", steps=5):
    env, params = envs.make(env)
    agent = module.make(module.Config(**settings), env.observation_space(params), env.action_space(params))
    return training.make(agent, env, params, num_envs=4, num_steps=8, total_steps=32 * steps)


def program(module, settings):
    """What an update computes, as text."""
    run = make(module, settings)
    state = jax.eval_shape(lambda key: run.init(module.Hyper(), key), jax.random.key(0))
    return str(jax.make_jaxpr(run.step)(state))


def assert_close(a, b, *, rtol=2e-4):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=1e-6), a, b)


def adam(learning_rate):
    return optax.adam(learning_rate, eps=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("module", "settings", "hyper", "env"), [
    (ppo, ON | {"learning_rate_schedule": "linear"}, {"learning_rate": 1e-2, "target_kl": 0.02}, "CartPole-v1"),
    (sac, OFF, {"adam_eps": 1e-5, "critic_learning_rate": 1e-2, "temperature_learning_rate": 0.0}, "Pendulum-v1"),
])  # fmt: skip
def test_adam_of_optax_is_the_agents_adam(module, settings, hyper, env):
    """With the scheduled rate, the clip, an update that target_kl ends, and rates of groups."""
    own = learned(module, settings | {"optimizer": adam}, hyper, env)
    assert_close(own, learned(module, settings, hyper, env))


PARAMS = {"policy": jnp.ones(2), "critics": jnp.ones(3)}


@partial(jax.jit, static_argnums=(0, 1))
def moved(kind, groups, skip):
    """How far parameters move in two steps along a gradient that is clipped."""
    rates = {"policy": jnp.float32(0.1), "critics": jnp.float32(0.3)} if groups else jnp.float32(0.2)
    optimizer = Optimizer(rates, jnp.float32(1.0), jnp.float32(1e-5), kind=kind)
    after, state = PARAMS, optimizer.init(PARAMS)
    for _ in range(2):
        after, state, _ = optimizer.step(after, state, {"policy": jnp.ones(2), "critics": jnp.full(3, 2.0)}, skip)
    return jax.tree.map(jnp.subtract, after, PARAMS), state


@pytest.mark.parametrize("groups", [False, True])
def test_a_step_is_that_of_the_agents_adam(groups):
    """With rates of groups, and where it is skipped; the next test shows the clip, which Adam hardly does."""
    own, expected = (moved(kind, groups, False)[0] for kind in (adam, "adam"))
    assert_close(own, expected)
    assert np.abs(own["critics"]).min() > 0.1
    skipped, state = moved(adam, groups, True)
    assert not any(np.any(x) for x in jax.tree.leaves((skipped, state)))


def test_a_transformation_that_is_made_has_its_own_learning_rate():
    np.testing.assert_allclose(moved(optax.sgd(0.5), False, False)[0]["policy"], [-1 / 14**0.5] * 2, rtol=1e-5)
    run = make(ppo, ON | {"optimizer": optax.sgd(0.5)})
    metrics = jax.eval_shape(lambda key: run.step(run.init(ppo.Hyper(), key))[1], jax.random.key(0))
    assert "loss" in metrics
    assert "learning_rate" not in metrics


def test_a_schedule_is_a_function_of_environment_steps():
    hyper = ppo.Hyper(learning_rate=1e-2, learning_rate_end=1e-3, schedule_steps=160.0, warmup_steps=0.0)
    for schedule in ("linear", optax.linear_schedule(1e-2, 1e-3, 160)):
        config = ppo.Config(learning_rate_schedule=schedule)
        found = [Optimizer.scheduled_rate(config, hyper, jnp.float32(n), jnp.float32(n + 32)) for n in (0, 32, 160)]
        np.testing.assert_allclose(found, [1e-2, 8.2e-3, 1e-3], rtol=1e-5)


def uniform(config):
    return replay.uniform(config.capacity, config.batch_size, length=config.n_step)


def slices(config):
    return replay.slices(config.capacity, config.batch_size, config.item_length, cross_episodes=True)


def test_a_buffer_is_made_of_the_config():
    """An update with it is the same program as with the agent's."""
    assert program(dqn, OFF | {"n_step": 3, "replay": uniform}) == program(dqn, OFF | {"n_step": 3})
    assert program(dqn, OFF | {"replay": replay.uniform(128, 8)}) == program(dqn, OFF)
    assert program(dqn, OFF | {"replay": replay.uniform(128, 4)}) != program(dqn, OFF)
    small = OFF | {"burn_in": 0, "unroll_len": 2, "n_step": 1}
    assert program(r2d2, small | {"replay": slices}) == program(r2d2, small | {"replay": "uniform"})


@pytest.mark.parametrize(("settings", "words"), [
    ({"optimizer": "adamm"}, "optimizer='adamm' must be 'adam', 'adamw', 'radam', 'rmsprop' or 'sgd'"),
    ({"optimizer": "optax:no_such"}, "optimizer='optax:no_such': module 'optax' has no attribute 'no_such'"),
    ({"optimizer": lambda rate: rate}, "must be a transformation of optax, or a function of the learning rate"),
    ({"replay": lambda config: 3}, "must return an rlkit.types.Buffer, and it returned 3"),
    ({"replay": 3}, "replay=3 must be 'uniform', 'prioritized' or 'hindsight'"),
])  # fmt: skip
def test_a_mistake_is_one_line(settings, words):
    with mistake(words):
        program(dqn, OFF | settings)


def test_a_run_names_its_parts_and_takes_them_again(tmp_path):
    def interrupt(line, state):
        if line["step"] == 160:
            signal.raise_signal(signal.SIGTERM)

    own = {"optimizer": adam, "learning_rate_schedule": optax.cosine_decay_schedule(1e-2, 320), "replay": uniform}
    config = {key: value for key, value in SMALL.items() if key not in ON} | OFF | {"agent": "dqn"} | own
    stopped = loop.train(config, interrupt, out=tmp_path / "run", show=False).run
    assert f"optimizer: {__name__}:adam" in (stopped / "config.yaml").read_text()
    with pytest.raises(ConfigError, match=r"optimizer=.*:adam' is code, and no file may name code to run"):
        loop.resume(stopped, show=False)
    loop.resume(stopped, show=False, **own)
    rates = {line["step"]: line["learning_rate"] for line in metrics.read(stopped)}
    np.testing.assert_allclose(rates[320], own["learning_rate_schedule"](288), rtol=1e-4)
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
    assert rlkit.runs.collect(run, 64, tmp_path / "rows").exists()


def test_keys_that_own_parts_do_not_read_have_no_effect():
    own = {"optimizer": adam, "learning_rate_schedule": optax.constant_schedule(1e-3), "replay": uniform}
    keys = {key: value for key, value in SMALL.items() if key not in ON}
    unused = parse(keys | OFF | {"agent": "dqn"} | own).unused()
    assert {"learning_rate", "schedule_steps", "adam_eps", "alpha", "beta", "store_obs_once"} <= unused.keys()
