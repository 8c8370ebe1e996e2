"""Environments of the user's own in JAX: by name and as objects, in every command and in `runs`."""

from contextlib import closing

import jax
import jax.numpy as jnp
import jax_envs
import numpy as np
import pytest
import yaml

import rlkit
from rlkit import envs, hosts, runs, training
from rlkit.agents import ppo
from rlkit.cli import main
from rlkit.runs.programs.make import make_program
from rlkit.types import Agent, ConfigError

PPO = {
    "agent": "ppo",
    "num_envs": 4,
    "num_steps": 16,
    "total_steps": 256,
    "hidden_sizes": [8],
    "num_minibatches": 2,
    "eval_episodes": 4,
}


def test_a_name_is_told_from_one_of_a_gymnasium_class():
    in_jax = ("jax_envs:Reach", "jax_envs:Walk", "jax_envs:instance")
    assert not any(hosts.is_host(name) for name in in_jax)
    assert all(hosts.is_host(name) for name in ("host_envs:Counter", "jax_envs:missing", "no_such_module:Env"))


@pytest.mark.parametrize(
    "name", ["jax_envs:Reach", *(pytest.param(f"jax_envs:{x}", marks=pytest.mark.slow) for x in ("Walk", "instance"))]
)
def test_an_own_environment_keeps_the_contract(name):
    env, params = envs.make(name)
    envs.check(env, params, jax.random.key(0), name=name)


def test_arguments_are_those_of_the_constructor_or_of_the_parameters():
    env, _ = envs.make("jax_envs:Reach", limit=3)
    assert env.limit == 3
    _, params = envs.make("jax_envs:Walk", goal=0.25)
    assert params.goal == 0.25
    with pytest.raises(ConfigError, match=r"gaol=1.*did you mean 'goal'"):
        envs.make("jax_envs:Walk", gaol=1)


class Pair(jax_envs.Walk):
    """Two players in gymnax's style, who walk on their own lines; its end is one flag of both."""

    num_players = 2

    def reset_env(self, key, params):
        state = jax_envs.State(time=0, x=jax.random.uniform(key, (2, 1)))
        return state.x, state

    def step_env(self, key, state, action, params):
        x = state.x + 0.1 * (2 * action[:, None] - 1)
        end = jnp.abs(x[0, 0] - x[1, 0]) > 1
        return x, jax_envs.State(time=state.time + 1, x=x), -jnp.abs(x[:, 0] - params.goal), end, {}


class OldPair(Pair):
    """That as before gymnax 1, where an end by the limit of steps is one flag too."""

    is_truncated = None

    def is_terminal(self, state, params):
        return (jnp.abs(state.x[0, 0] - state.x[1, 0]) > 1) | (state.time >= params.max_steps_in_episode)

    def step_env(self, key, state, action, params):
        obs, state, reward, _, info = super().step_env(key, state, action, params)
        return obs, state, reward, self.is_terminal(state, params), info


@pytest.mark.parametrize("kind", [Pair, OldPair])
def test_one_flag_of_several_players_in_the_style_of_gymnax(kind):
    """Players on both sides of 0.5 walk apart to a terminal state; others walk together to the limit of steps."""
    env, params = envs.adapt(kind())
    envs.check(env, params, jax.random.key(0))
    act = lambda actor, memory, obs, key: (memory, (obs[0] > 0.5).astype(jnp.int32), ())  # noqa: E731
    agent = Agent(init=None, actor=lambda s: s, act=act, policy=act, update=None, memory=())

    @jax.jit
    def play(key):
        return training.rollout(agent, env, params, (), training.reset(agent, env, params, key, 16), key, 40)

    _, steps, episodes = jax.device_get(play(jax.random.key(0)))
    x, terminated, truncated = steps.next_obs.reshape(40, 8, 2), steps.terminated, steps.truncated
    apart = np.repeat(abs(x[..., 0] - x[..., 1]) > 1, 2, 1)
    np.testing.assert_array_equal(terminated, apart)
    np.testing.assert_array_equal(truncated & ~apart, (episodes.lengths == 10) & ~apart)
    assert terminated.any()
    assert (truncated & ~terminated).any()


def test_gymnax_1_needs_no_is_terminated():
    env, params = envs.adapt(jax_envs.Walk())
    _, state = env.reset(jax.random.key(0), params)
    ends = []
    for key in jax.random.split(jax.random.key(1), 10):
        _, state, _, terminated, truncated, _ = env.step(key, state, 1, params)
        ends.append((bool(terminated), bool(truncated)))
    assert ends == [(False, False)] * 9 + [(False, True)]
    plain = jax_envs.Walk()
    with pytest.raises(ConfigError, match=r"action space.*gymnax.*envs\.adapt"):
        ppo.make(ppo.Config(), plain.observation_space(params), plain.action_space(params))


@pytest.mark.slow
def test_every_command_takes_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(PPO | {"env": "CartPole-v1"}))
    own = ["--env", "jax_envs:Walk"]
    assert main(["train", "config.yaml", *own, "--env_kwargs.goal", "0.5", "--out", "run"]) == 0
    assert main(["resume", "run"]) == 2
    assert "no file may name code to run; add --env jax_envs:Walk" in capsys.readouterr().err
    assert main(["resume", "run", *own, "--total_steps", "512"]) == 0
    for command in (["eval", "run"], ["render", "run"], ["collect", "run", "--steps", "8", "--out", "data"]):
        assert main([*command, *own]) == 0
    assert main(["check", "config.yaml", *own]) == 0
    assert main(["train", "config.yaml", *own, "--seeds", "2", "--out", "seeds"]) == 0
    assert main(["plot", "run", "seeds"]) == 0
    (tmp_path / "sweep.yaml").write_text("config: config.yaml\ntrials: 2\nlearning_rate: {log_uniform: [1e-4, 1e-2]}\n")
    assert main(["sweep", "sweep.yaml", *own, "--out", "sweep"]) == 0


@pytest.mark.thorough
def test_an_object_is_an_environment_of_runs(tmp_path):
    env = jax_envs.Reach(limit=5)
    run = runs.train(PPO | {"env": env}, out=tmp_path / "run", show=False).run
    policy = rlkit.load(run, env=env)
    assert policy.env is env
    assert policy.config.run.env == "jax_envs:Reach_instance"
    with pytest.raises(ConfigError, match="add --env jax_envs:Reach_instance"):
        rlkit.load(run)
    longer = runs.resume(run, env=env, overrides={"total_steps": 320}, show=False)
    assert [line["length_mean"] for line in runs.metrics.read(longer.run) if line["episodes"]][-1] == 5
    assert np.isfinite(longer.evaluation["mean"])


@pytest.mark.parametrize("env", [object(), {1: 2}.keys()])
def test_an_object_that_is_no_environment_is_refused(env):
    with pytest.raises(ConfigError, match=r"must be a name, an environment or its class, or a function that makes one"):
        runs.parse(PPO | {"env": env})


def test_two_objects_of_one_class_are_two_environments():
    """A run may be evaluated in another object of its environment's class, and configs keep their own objects."""
    train, evaluation, other = (jax_envs.Reach(limit=limit) for limit in (5, 7, 9))
    config = runs.parse(PPO | {"env": train, "eval_env": evaluation})
    again = runs.parse(PPO | {"env": other})
    named = runs.parse(PPO | {"env": "jax_envs:Reach", "eval_env": evaluation})
    same = runs.parse(PPO | {"env": train, "eval_env": train})
    assert config.run.env == again.run.env == same.run.eval_env == "jax_envs:Reach_instance"
    assert config.run.eval_env == "jax_envs:Reach_instance_eval"
    assert named.run.eval_env == "jax_envs:Reach_instance"
    for which, env, eval_env in ((config, train, evaluation), (again, other, other), (same, train, train)):
        with closing(make_program(which)) as program:
            assert (program.env, program.environments.eval_env) == (env, eval_env)
