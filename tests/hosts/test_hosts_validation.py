"""The check of an environment outside of JAX before training: its actions, its errors, its switch."""

from functools import partial

import gymnasium
import jax
import numpy as np
import pytest
from host_envs import OwnGenerator
from host_runs import BRIEF

from rlkit import hosts, runs
from rlkit.hosts import validation
from rlkit.runs import loop
from rlkit.types import ConfigError


@pytest.mark.parametrize("kind", ["discrete", "multi_discrete"])
def test_actions_of_the_check_are_legal(kind):
    with hosts.make("host_envs:Masked", num_envs=8, backend="serial", restarts=0, kind=kind) as pool:
        validation.check(pool, 0)


@pytest.mark.parametrize("kind", ["discrete", "multi_discrete"])
def test_every_legal_action_is_drawn(kind):
    with hosts.make("host_envs:Masked", num_envs=400, backend="serial", kind=kind) as pool:
        obs, sampler = pool.reset(0), validation.make_sampler(pool)
        mask = obs["action_mask"].copy()
        mask[:] = [False, True, True, True] if kind == "discrete" else [False, True, True, True, False, True, True]
        actions = np.asarray(sampler(jax.random.key(0), obs | {"action_mask": mask}))
        expected = [{1, 2, 3}] if kind == "discrete" else [{1, 2}, {0, 2, 3}]
        assert actions.dtype == np.int32
        columns = actions.reshape(400, -1).T
        assert [set(column.tolist()) for column in columns] == expected
        nothing = np.asarray(sampler(jax.random.key(1), obs | {"action_mask": mask & False}))
        assert set(nothing.reshape(400, -1)[:, -1].tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("kind", ["discrete", "multi_discrete"])
@pytest.mark.parametrize("closed", [0, 3])
def test_a_mask_without_a_legal_action_is_named(kind, closed):
    """In a MultiDiscrete space each part needs one. The observation that ends an episode, at step 5, needs none."""
    where = f"obs of step {closed}" if closed else "obs of reset"
    message = rf"env='host_envs:Masked': {where}\['action_mask'\] of environment 0 .*: expected a legal action"
    settings = {"num_envs": 2, "backend": "serial", "kind": kind}
    with hosts.make("host_envs:Masked", **settings, closed=closed) as pool, pytest.raises(ConfigError, match=message):
        validation.check(pool, 0)
    with hosts.make("host_envs:Masked", **settings, closed=5) as pool:
        validation.check(pool, 0)


def test_a_mask_of_another_size_is_named():
    with hosts.make("host_envs:Masked", num_envs=2, backend="serial", entries=5) as pool:
        message = r"env='host_envs:Masked': obs\['action_mask'\]: expected one entry for each action, \[4\], got \[5\]"
        with pytest.raises(ConfigError, match=message):
            validation.check(pool, 0)


@pytest.mark.parametrize("env", ["host_envs:Target", "Probe-ObservationAction"])
def test_the_check_can_be_switched_off(tmp_path, monkeypatch, capsys, env):
    """A line names the environment before it is stepped; with env_check: false nothing but training steps it."""

    class CheckedError(Exception):
        pass

    class StartedError(Exception):
        pass

    def check():
        raise CheckedError

    def start():
        raise StartedError

    def make_program(config):
        program = original(config)
        program.check, program.start = check, start
        return program

    values, original = BRIEF | {"env": env}, loop.make_program
    monkeypatch.setattr(loop, "make_program", make_program)
    with pytest.raises(CheckedError):
        runs.train(values, out=tmp_path / "checked")
    shown = capsys.readouterr().err
    assert ("checking env='host_envs:Target' by a few random steps" in shown) == (":" in env)
    with pytest.raises(StartedError):
        runs.train(values | {"env_check": False}, out=tmp_path / "unchecked", show=False)


@pytest.mark.parametrize(
    ("backend", "where"),
    [
        *(("serial", where) for where in ("step", "constructor", "reset")),
        *(("process", "constructor"), ("process", "step")),
        pytest.param("process", "reset", marks=pytest.mark.slow),
    ],
)
def test_an_environment_that_leaves_python_fails_by_itself(backend, where):
    def play():
        settings = {"num_envs": 2, "restarts": 0, "backend": backend}
        with hosts.make("host_envs:Breaks", how="sys.exit", where=where, **settings) as pool:
            pool.reset()
            for _ in range(12):
                pool.step(np.zeros(2, np.int32))

    with pytest.raises(hosts.HostError, match="SystemExit: 3"):
        play()


def hints(env, num_envs=4, **kwargs):
    with hosts.make(env, num_envs=num_envs, backend="serial", **kwargs) as pool:
        found = validation.check(pool, 0)
        validation.check(pool, 0)  # in whatever state the first left them
        return found


def test_copies_that_share_the_state_of_a_generator_are_named():
    wrapped = gymnasium.wrappers.TimeLimit(OwnGenerator(), 5)
    fixed = [lambda: OwnGenerator(3), lambda: gymnasium.wrappers.TimeLimit(OwnGenerator(3), 5)]
    for env in (OwnGenerator(), wrapped, *fixed):
        (hint,) = hints(env)
        assert "all 4 environments" in hint
        assert "instance" in hint
    assert len(hints("host_envs:OwnGenerator", state=3)) == 1


def test_environments_that_differ_or_always_begin_alike_get_no_hint():
    made = [OwnGenerator, lambda: gymnasium.wrappers.TimeLimit(OwnGenerator(), 5), "host_envs:OwnGenerator"]
    for env in (*made, "host_envs:Target", "host_envs:Writes", "host_envs:Noise", "gymnasium:CliffWalking-v1"):
        assert hints(env) == []
    assert hints(OwnGenerator(), num_envs=1) == []
    # Two states that are equal by chance in one of two resets, again and again.
    assert [hints(partial(OwnGenerator, kinds=2), num_envs=2) for _ in range(8)] == [[]] * 8


@pytest.mark.parametrize(
    ("actions", "named"),
    [
        (np.array([0.9, 0.1]), "integers"),
        (np.array([2, 0]), "0 ... 1"),
        (np.array([0, -1]), "0 ... 1"),
        ([0, 1], "numpy.asarray"),
        (0, r"\[2\]"),
    ],
)
def test_actions_that_do_not_exist_are_named(actions, named):
    with hosts.make("gymnasium:CartPole-v1", num_envs=2, backend="serial") as pool:
        pool.reset(0)
        with pytest.raises(ConfigError, match=f"^actions .*{named}"):
            pool.step(actions)
        assert pool.step(np.array([0, 1], np.int64)).real.all()


class RaisesOnce(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 2:
            raise KeyError("a mistake of the user's")
        return np.zeros(2, np.float32), 1.0, False, False, {}


def test_a_pool_warns_of_a_failure_and_a_step_that_was_not_taken_has_no_reward():
    with hosts.make(RaisesOnce, num_envs=1, backend="serial") as pool:
        pool.reset(0)
        assert pool.step(np.zeros(1, int)).reward == 1
        with pytest.warns(UserWarning, match="a mistake of the user's"):
            step = pool.step(np.zeros(1, int))
        assert not step.real[0]
        assert step.reward == 0
