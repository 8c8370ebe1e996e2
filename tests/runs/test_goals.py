"""Runs that replay with goals in hindsight: in JAX and outside, with the environment's rewards or a function's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from doc_pages import ROOT, blocks
from mistakes import mistake
from tiny_runs import digest

import rlkit
from rlkit.agents.common.off_policy import check_goals
from rlkit.envs import probes
from rlkit.hosts.vector import VectorPool
from rlkit.hosts.worker import group
from rlkit.runs import loop, metrics
from rlkit.runs.config.parse import parse
from rlkit.runs.programs.make import make_program
from rlkit.spaces import Box, Dict
from rlkit.training.rollout import successes
from rlkit.types import ConfigError

RUN = {"agent": "dqn", "env": "Probe-BitFlip", "replay": "hindsight", "num_envs": 4, "num_steps": 4, "capacity": 512}
RUN |= {"hidden_sizes": [16], "batch_size": 16, "learning_starts": 32, "replay_ratio": 0.25, "eval_episodes": 8}
RUN |= {"total_steps": 320, "log_every": 64}


class Line:
    """A point on a line, which an action moves; Gymnasium-Robotics' interface, and an end at the goal."""

    def __init__(self, batched=True, success=None):
        import gymnasium

        goal = gymnasium.spaces.Box(-4, 4, (1,), np.float32)
        names = ("observation", "achieved_goal", "desired_goal")
        self.observation_space = gymnasium.spaces.Dict(dict.fromkeys(names, goal))
        self.action_space = gymnasium.spaces.Discrete(3)
        self.batched, self.success = batched, success

    def _obs(self):
        return {"observation": self.at, "achieved_goal": self.at, "desired_goal": self.goal}

    def reset(self, *, seed=None, options=None):
        self.rng = np.random.default_rng(seed) if seed is not None or not hasattr(self, "rng") else self.rng
        self.at, self.goal, self.time = *self.rng.uniform(-4, 4, (2, 1)).astype(np.float32), 0
        return self._obs(), {}

    def step(self, action):
        self.at, self.time = np.clip(self.at + int(action) - 1, -4, 4).astype(np.float32), self.time + 1
        reward = float(self.compute_reward(self.at, self.goal, {}))
        reached = self.compute_terminated(self.at, self.goal, {})
        return self._obs(), reward, reached, self.time == 8, {self.success: reached} if self.success else {}

    def compute_reward(self, achieved, desired, info):
        assert self.batched or np.ndim(achieved) == 1
        return (np.abs(achieved - desired).max(-1) < 0.5) - 1.0

    def compute_terminated(self, achieved, desired, info):
        assert np.ndim(achieved) == 1
        return bool(np.abs(achieved - desired).max() < 0.5)

    def close(self): ...


LINE = RUN | {"env": f"{__name__}:Line", "backend": "serial", "num_envs": 2, "num_steps": 1}
LINE |= {"replay_ratio": 0.5, "total_steps": 96, "eval_episodes": 2}


def drawn(program, state, batch=64):
    """Items of a program's buffer: (achieved, desired, reward, terminated)."""
    agent, items = program.agent, []
    for seed in range(batch // 16):
        item = agent.static.buffer.sample(state.agent.replay.buffer, jax.random.key(seed)).item
        items.append((item.next_obs["achieved_goal"], item.next_obs["desired_goal"], item.reward, item.terminated))
    return [np.concatenate(x) for x in zip(*items, strict=True)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return loop.train(RUN, out=tmp_path_factory.mktemp("goals") / "run", show=False)


def test_a_run_in_jax_learns_from_the_rewards_of_its_environment(trained):
    run = trained
    achieved, desired, reward, terminated = drawn(make_program(parse(RUN)), run.state)
    reached = (achieved == desired).all(-1)
    np.testing.assert_array_equal(reward, np.where(reached, 0.0, -1.0))
    np.testing.assert_array_equal(terminated, reached)
    assert reached.mean() > 0.2
    assert "goal_reward: environment" in (run.run / "config.yaml").read_text()


@pytest.mark.parametrize(("seeds", "name"), [(1, "is_success"), pytest.param(2, "success", marks=pytest.mark.slow)])
def test_success_rates_are_of_the_last_steps_of_episodes(tmp_path, monkeypatch, seeds, name):
    monkeypatch.setattr(probes, "SUCCESS", name)  # as the environment calls it
    run = loop.train(RUN | {"num_seeds": seeds, "eval_every": 320}, out=tmp_path / "run", show=False)
    assert run.evaluation is not None
    reached = [np.mean(np.array(returns) > -8) for returns in run.evaluation["returns"]]  # else 8 steps of -1
    assert run.evaluation["success_rate_of_seed"] == pytest.approx(reached)
    lines = metrics.read(run.run)
    assert np.atleast_1d(lines[-1]["eval_success_rate"]) == pytest.approx(reached)
    for line in lines:
        rates, returns = np.atleast_1d(line["success_rate"]), np.atleast_1d(line["return_mean"])
        assert rates.shape == (seeds,)
        assert ((rates >= 0) & (rates <= 1)).all()
        assert ((rates == 0) == (returns == -8)).all()


@pytest.mark.parametrize("batched", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_outside_of_jax_rewards_are_those_of_compute_reward_and_successes_of_the_infos(tmp_path, batched):
    config = LINE | {"env_kwargs": {"success": "is_success", "batched": batched}}
    run = loop.train(config, out=tmp_path / "run", show=False)
    program = make_program(parse(config))
    achieved, desired, reward, terminated = drawn(program, run.state)
    program.close()
    near = np.abs(achieved - desired).max(-1) < 0.5
    np.testing.assert_array_equal(reward, near - 1.0)
    np.testing.assert_array_equal(terminated, near)
    assert near.mean() > 0.2
    rlkit.load(run.run, env=config["env"]).act(program.env.obs.sample(jax.random.key(0)), jax.random.key(0))
    assert run.evaluation is not None
    reached = np.mean(np.array(run.evaluation["returns"][0]) > -8)
    assert run.evaluation["success_rate_of_seed"] == pytest.approx([reached])
    ended = [line for line in metrics.read(run.run) if line["episodes"]]
    assert ended
    assert all((line["success_rate"] == 0) == (line["return_max"] == -8) for line in ended)


def test_another_success_in_an_info_is_none():
    for value in (None, "no", np.ones(2), np.array([]), {"a": 1}):
        assert np.isnan(group._success({"success": value})), value
    for value in (True, np.True_, 1, 1.0, np.ones(1)):
        assert group._success({"success": value}) == 1
    assert group._success({"success": np.array(False), "is_success": True}) == 1
    ones = np.ones(3)
    np.testing.assert_array_equal(successes({"is_success": ones > 0}, (3,)), ones)
    assert successes({"success": ones[:, None]}, (3,)) is successes({"success": {}}, (3,)) is None
    np.testing.assert_array_equal(successes({"success": ones > 0}, (3,)), ones)


@pytest.mark.parametrize("name", ["success", "is_success"])
@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_successes_of_vector_environments(mode, name):
    import gymnasium

    autoreset = gymnasium.vector.AutoresetMode[mode]

    class Task(Line, gymnasium.Env): ...

    def make(seed):
        return gymnasium.vector.SyncVectorEnv([lambda: Task(success=name)] * 3, autoreset_mode=autoreset)

    with VectorPool(make, name="line") as pool:
        pool.reset(0)
        rng, found = np.random.default_rng(0), []
        for _ in range(40):
            step = pool.step(rng.integers(3, size=3))
            ended = step.lengths > 0
            assert np.isnan(step.successes[~ended]).all()
            np.testing.assert_array_equal(step.successes[ended], step.returns[ended] > -step.lengths[ended])
            found += step.successes[ended].tolist()
    assert 0 in found
    assert 1 in found


def test_a_run_goes_on_to_the_bit(trained, tmp_path):
    half = loop.train(RUN, lambda line, state: line["step"] >= 128, out=tmp_path / "half", show=False)
    assert digest(loop.resume(half.run, show=False).state) == digest(trained.state)


def far(achieved, desired):
    return jnp.abs(achieved - desired).sum()


def test_a_function_of_the_users_gives_the_rewards(tmp_path):
    config = RUN | {"goal_reward": far}
    run = loop.train(config, out=tmp_path / "run", show=False)
    achieved, desired, reward, terminated = drawn(make_program(parse(config)), run.state)
    other = reward >= 0  # the environment's own are -1, or 0 at its goal
    np.testing.assert_allclose(reward[other], np.abs(achieved - desired).sum(-1)[other])
    assert other.mean() > 0.5
    assert not terminated[other & (reward > 0)].any()
    assert f"goal_reward: {__name__}:far" in (run.run / "config.yaml").read_text()
    with pytest.raises(ConfigError, match="goal_reward"):
        loop.resume(run.run, overrides={"total_steps": 448}, show=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env": "CartPole-v1"}, "has no method compute_reward; set goal_reward"),
        ({"env": "CartPole-v1", "goal_reward": far}, "achieved_goal and desired_goal"),
        ({"n_step": 3}, "n_step=3 must be 1 with replay='hindsight'"),
        ({"store_obs_once": True}, "store_obs_once=True must be False with replay='hindsight'"),
        ({"wrappers": ["scale_reward:2"]}, "wrapper 'scale_reward:2' may change observations or rewards"),
        ({"goal_reward": lambda achieved, desired: achieved}, "must return a reward [] for one pair"),
        ({"relabel_ratio": 1.5}, "relabel_ratio=1.5"),
    ],
)
def test_what_does_not_fit_is_named(changes, message):
    def traced():
        program = make_program(parse(RUN | changes))
        jax.eval_shape(program.agent.static.buffer.sample, program.template.agent.replay.buffer, jax.random.key(0))

    with mistake(message):
        traced()


def test_goals_are_of_one_shape():
    box = Box(-1, 1, (2,))
    check_goals(Dict({"achieved_goal": box, "desired_goal": box}))
    with pytest.raises(ConfigError, match=r"achieved_goal of shape \(2,\) must have the shape of desired_goal, \(3,\)"):
        check_goals(Dict({"achieved_goal": box, "desired_goal": Box(-1, 1, (3,))}))


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / "docs").exists(), reason="a source distribution has no docs/")
def test_the_example_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = blocks(ROOT / "docs/goals.md", "python")
    names = {"__name__": "page"}
    exec(block, names)
    achieved, desired, reward, _ = drawn(make_program(parse(names["config"])), names["trained"].state)
    distance = np.linalg.norm(achieved - desired, axis=-1)
    np.testing.assert_array_equal((reward == 0)[distance < 0.019], True)
    np.testing.assert_array_equal((reward == -1)[distance > 0.101], True)
    assert ((reward == 0) & (distance > 0.021)).any()  # by the function of the page
