"""Wrappers of environments outside of JAX: their effects, their spelling, and code that no file may name."""

import gymnasium
import host_envs
import numpy as np
import pytest
import yaml
from gymnasium import spaces
from host_runs import BRIEF
from mistakes import mistake

from rlkit import hosts, runs
from rlkit.cli import main
from rlkit.hosts.worker import wrapper_names, wrappers
from rlkit.runs.config.parse import parse
from rlkit.spaces import Dict
from rlkit.types import ConfigError

pytestmark = pytest.mark.thorough
PPO = BRIEF | {"env": "gymnasium:CartPole-v1"}
OWN = "gymnasium.wrappers:FlattenObservation"


def counter(*specs, **kwargs):
    """A pool of two environments that count steps; the action is always legal."""
    return hosts.make("host_envs:Counter", num_envs=2, backend="serial", wrappers=specs, **kwargs)


def play(pool, num_steps):
    """The observations before the steps, and the steps."""
    obs, steps = [pool.reset()], []
    for _ in range(num_steps):
        steps.append(pool.step(np.zeros(2, np.int32)))
        obs.append(steps[-1].obs)
    return obs, steps


def test_frames_of_an_episode_are_stacked():
    """They start with the first observation; the last observation of an episode is stacked with those before it."""
    with counter("frame_stack:3", length=4) as pool:
        assert pool.observation_space.shape == (9,)
        obs, steps = play(pool, 5)
    times = [[row[0, 1::3].tolist() for row in rows] for rows in (obs, [step.next_obs for step in steps])]
    assert times[0] == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3], [0, 0, 0], [0, 0, 1]]
    assert times[1] == [[0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [0, 0, 1]]
    assert obs[4][0, ::3].tolist() == [1, 1, 1]  # all three of the second episode


def test_a_mask_is_not_stacked_and_a_reused_array_is_copied():
    class Reusing(gymnasium.Env):
        observation_space = spaces.Dict({"action_mask": spaces.MultiBinary(2), "x": spaces.Box(0, 9, (1,), np.float32)})
        action_space = spaces.Discrete(2)
        obs = {"action_mask": np.ones(2, np.int8), "x": np.zeros(1, np.float32)}  # noqa: RUF012

        def reset(self, *, seed=None, options=None):
            self.obs["x"][:] = 0
            return self.obs, {}

        def step(self, action):
            self.obs["x"] += 1
            return self.obs, 0.0, False, False, {}

    with hosts.make(Reusing, num_envs=1, backend="serial", wrappers=["frame_stack:2"]) as pool:
        pool.reset()
        for _ in range(3):
            obs = pool.step(np.zeros(1, np.int32)).obs
    assert obs["x"].tolist() == [[2, 3]]
    assert obs["action_mask"].shape == (1, 2)


class Pixels(gymnasium.Env):
    """Images [3, 16, 16] of the time."""

    observation_space = spaces.Box(0, 9, (3, 16, 16), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return np.zeros((3, 16, 16), np.uint8), {}

    def step(self, action):
        self.time += 1
        return np.full((3, 16, 16), self.time, np.uint8), 0.0, False, False, {}


def test_images_with_channels_first_are_stacked_along_their_channels():
    with hosts.make(Pixels, num_envs=1, backend="serial", wrappers=["frame_stack:4"]) as pool:
        assert pool.observation_space.shape == (12, 16, 16)
        pool.reset()
        assert pool.step(np.zeros(1, np.int32)).obs[0, :, 0, 0].tolist() == [*[0] * 9, 1, 1, 1]
    with pytest.raises(ConfigError, match=r"wrapper frame_stack: .*set image_axes='first', or frame_stack:6,first"):
        hosts.make(Pixels, num_envs=1, backend="serial", wrappers=["frame_stack:6"])
    with hosts.make(Pixels, num_envs=1, backend="serial", wrappers=["frame_stack:6,first"]) as pool:
        assert pool.observation_space.shape == (18, 16, 16)


def test_a_run_stacks_images_by_its_image_axes():
    config = parse(PPO | {"wrappers": ["time_limit:9", "frame_stack:4"], "image_axes": "first"})
    assert config.task.wrappers == ("time_limit:9", "frame_stack:4,first")
    assert parse(PPO | {"wrappers": ["frame_stack:4"]}).task.wrappers == ("frame_stack:4",)
    with pytest.raises(ConfigError, match=r"^wrapper='frame_stack:4,last' must agree with image_axes='first'; write"):
        _ = parse(PPO | {"wrappers": ["frame_stack:4,last"], "image_axes": "first"}).task


def test_actions_are_repeated_until_the_episode_ends():
    with counter("action_repeat:2", length=3) as pool:
        _, steps = play(pool, 2)
    assert [step.reward[0] for step in steps] == [1 + 2, 3]  # the reward is the time
    assert [bool(step.truncated[0]) for step in steps] == [False, True]


def test_a_time_limit_truncates():
    with counter("time_limit:3", length=3, ends="terminated") as pool:
        _, steps = play(pool, 3)
        assert [(bool(s.terminated[0]), bool(s.truncated[0])) for s in steps] == [(False, False)] * 2 + [(True, True)]
    with counter("time_limit:2", length=50) as pool:
        _, steps = play(pool, 5)
    assert [bool(step.truncated[0]) for step in steps] == [False, True] * 2 + [False]


def test_rewards_are_scaled_and_clipped_from_the_inside_out():
    with counter("scale_reward:-0.5", "clip_reward:-0.75,1", length=9) as pool:
        assert [step.reward[0] for step in play(pool, 3)[1]] == [-0.5, -0.75, -0.75]
    with counter("clip_reward:0,1", "scale_reward:3", length=9) as pool:
        assert [step.reward[0] for step in play(pool, 2)[1]] == [3, 3]


def test_the_previous_action_and_reward_are_seen():
    with counter("previous_action_reward", length=2, ends="terminated") as pool:
        obs = [pool.reset()]
        steps = [pool.step(np.full(2, i, np.int32)) for i in (2, 0, 1)]
    obs += [step.obs for step in steps]
    assert [row["obs"][0, 1] for row in obs] == [0, 1, 0, 1]
    assert [row["previous_action"][0].tolist() for row in obs] == [[0, 0, 0], [0, 0, 1], [0, 0, 0], [0, 1, 0]]
    assert [row["previous_reward"][0].tolist() for row in obs] == [[0], [1], [0], [1]]
    last = steps[1].next_obs  # of the first episode
    assert (last["previous_action"][0].tolist(), last["previous_reward"][0].tolist()) == ([1, 0, 0], [2])
    settings = {"num_envs": 1, "backend": "serial", "wrappers": ["previous_action_reward"]}
    with hosts.make("host_envs:Noise", **settings) as pool:
        assert isinstance(pool.observation_space, Dict)
        spaces_of_leaves = pool.observation_space.spaces
        assert spaces_of_leaves.keys() == {"x", "kind", "previous_action", "previous_reward"}
        assert spaces_of_leaves["previous_action"] == pool.action_space
    with pytest.raises(ConfigError, match="wrapper previous_action_reward: expected"):
        hosts.make("host_envs:Noise", **settings | {"wrappers": ["previous_action_reward"] * 2})


@pytest.mark.parametrize("backend", ["process", "serial"])
def test_a_wrapper_of_gymnasium(backend):
    with hosts.make("host_envs:Noise", num_envs=2, backend=backend, wrappers=[OWN, "frame_stack:2"]) as pool:
        assert pool.observation_space.shape == (14,)  # two numbers, and five kinds one-hot
        assert pool.reset().shape == (2, 14)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("frame_stak:4", "did you mean 'frame_stack'"),
        ("frame_stack", "such as frame_stack:4"),
        ("frame_stack:0", "at least 1"),
        ("frame_stack:1025", "at most 1024"),
        ("time_limit:1,2", "such as time_limit:200"),
        ("clip_reward:1", "such as clip_reward:-1,1"),
        ("clip_reward:1,-1", "the lower one first"),
        ("previous_action_reward:1", "takes no argument; write previous_action_reward"),
        ("scale_reward:nan", "needs finite numbers"),
    ],
)
def test_a_mistake_in_the_spelling_is_one_line(spec, message):
    with mistake(f"wrapper={spec!r}", message):
        counter(spec)


def test_observations_without_an_axis_cannot_be_stacked():
    with mistake("wrapper frame_stack: expected", "arrays"):
        hosts.make("host_envs:Noise", num_envs=1, backend="serial", wrappers=["frame_stack:2"])


def test_a_stack_of_more_numbers_than_are_supported_is_refused():
    class Wide(gymnasium.Env):
        observation_space = spaces.Box(0, 255, (256, 257), np.uint8)
        action_space = spaces.Discrete(2)

    with pytest.raises(ConfigError, match="wrapper frame_stack: expected at most 67108864 numbers, got 1024 times "):
        hosts.make(Wide, num_envs=1, backend="serial", wrappers=["frame_stack:1024"])


def test_a_violation_behind_a_wrapper_is_reported():
    settings = {"num_envs": 1, "backend": "serial", "how": "late shape", "wrappers": ["frame_stack:2"]}
    with hosts.make("host_envs:Wrong", **settings) as pool:
        pool.reset()
        message = r"expected float32\[4\], as observation_space declares, got float32\[3\]"
        with pytest.raises(ConfigError, match=message):  # noqa: PT012
            for _ in range(5):
                pool.step(np.zeros(1, np.int32))


def test_a_vector_environment_refuses_wrappers(monkeypatch):
    monkeypatch.setattr(hosts.registry, "_check_installed", lambda *args: None)
    with pytest.raises(ConfigError, match=r"wrappers=\['time_limit:5'\] do not go with env='ale:Pong'; .* atari:NAME"):
        hosts.make("ale:Pong", num_envs=1, wrappers=["time_limit:5"])


@pytest.mark.slow
def test_a_run_with_wrappers(tmp_path, monkeypatch, capsys):
    """Code of a wrapper comes from the command line or from Python, and with every command again."""
    monkeypatch.chdir(tmp_path)
    values = PPO | {"wrappers": ["time_limit:7", OWN, "frame_stack:2"]}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    assert main(["train", "config.yaml"]) == 2
    refused = f"wrapper='{OWN}' is code, and no file may name code to run; add --wrappers \"['time_limit:7', "
    assert refused in capsys.readouterr().err
    words = ["--wrappers", f"['time_limit:7', '{OWN}', 'frame_stack:2']"]
    assert main(["train", "config.yaml", *words, "--out", "run"]) == 0
    for command in (["eval", "run"], ["render", "run"], ["resume", "run"], ["collect", "run", "--steps", "8"]):
        assert main(command) == 2
        assert refused in capsys.readouterr().err
    assert main(["eval", "run", "--wrappers", "['time_limit:8']"]) == 2
    assert "must be that of run='run'" in capsys.readouterr().err
    assert main(["eval", "run", *words]) == 0
    assert "greedy return 7" in capsys.readouterr().out
    assert main(["collect", "run", "--steps", "8", *words]) == 0
    assert main(["resume", "run", "--total_steps", "32", *words]) == 0
    assert runs.train(values | {"wrappers": [OWN]}, out="python", init_from=None, show=False).evaluation is not None
    assert runs.resume("python", wrappers=[OWN], overrides={"total_steps": 64}, show=False).evaluation is not None


def test_own_code_is_recognized():
    assert wrapper_names.is_own("my.module:Wrapper")
    assert not wrapper_names.is_own("time_limit:abc")


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_an_action_that_the_environment_writes_into_is_passed_on_unchanged(backend):
    settings = {"num_envs": 2, "backend": backend}
    actions = np.full((2, 1), 0.5, np.float32)
    with hosts.make("host_envs:Writes", wrappers=["action_repeat:3"], **settings) as pool:
        pool.reset()
        step = pool.step(actions)
    assert step.obs.tolist() == [[1.5], [1.5]]
    assert step.reward.tolist() == [0.5 + 1.0 + 1.5] * 2
    with hosts.make("host_envs:Writes", wrappers=["previous_action_reward"], **settings) as pool:
        pool.reset()
        obs = pool.step(actions).obs
    assert obs["previous_action"].tolist() == [[0.5], [0.5]]
    assert actions.tolist() == [[0.5], [0.5]]


def test_a_wrapper_around_the_previous_action_may_write_into_it():
    class Writing(wrappers.Wrapper):
        def reset(self, **arguments):
            obs, info = self.env.reset(**arguments)
            found.append(obs["previous_action"].tolist())
            obs["previous_action"] += 1
            return obs, info

    found = []
    env = Writing(wrappers.PreviousActionReward(host_envs.Writes()))
    env.reset()
    env.reset()
    assert found == [[0.0], [0.0]]


def test_a_wrapper_or_an_environment_that_returns_nothing_is_named():
    settings = {"num_envs": 1, "backend": "serial"}
    wraps = ["host_envs:forgets_return", "time_limit:3"]
    with pytest.raises(ConfigError, match="wrapper host_envs:forgets_return: expected an environment, got None"):
        hosts.make("host_envs:Counter", wrappers=wraps, **settings)
    with pytest.raises(ConfigError, match=r"the constructor: expected a Gymnasium environment, .* got NoneType"):
        hosts.make("host_envs:forgets_return", wrappers=["time_limit:3"], **settings)
