"""Datasets and environments outside of JAX: collecting, learning, evaluating and rendering."""

import json
import re
import sys

import host_envs
import jax
import numpy as np
import pytest
from PIL import Image

from rlkit import cli, runs
from rlkit.hosts.collect import Collector
from rlkit.runs import collecting, datasets
from rlkit.runs.checkpoints import checkpoint
from rlkit.types import ConfigError

pytestmark = pytest.mark.thorough

SAC = {
    "agent": "sac",
    "env": "gymnasium:Pendulum-v1",
    "num_envs": 2,
    "num_steps": 4,
    "total_steps": 64,
    "hidden_sizes": [8],
    "batch_size": 8,
    "capacity": 512,
    "learning_starts": 16,
    "replay_ratio": 0.25,
    "eval_episodes": 2,
    "backend": "serial",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return runs.train(SAC, out=tmp_path_factory.mktemp("online") / "run", show=False).run


@pytest.fixture(scope="module")
def dataset(run):
    """Collect 450 steps of two environments, whose episodes end after 200."""
    assert cli.main(["collect", str(run), "--steps", "450", "--num-envs", "2"]) == 0
    return run / "dataset"


def test_a_dataset_holds_the_transitions_of_the_environment(dataset):
    loaded = datasets.load(dataset, verify=True)
    assert (loaded.num_rows, loaded.num_envs) == (225, 2)
    assert loaded.extra["env"] == "gymnasium:Pendulum-v1"
    steps = jax.tree.map(np.asarray, loaded.steps)
    assert steps.truncated[199].all()
    assert steps.truncated.sum() == 2
    joined = (steps.next_obs[:-1] == steps.obs[1:]).all(-1)
    np.testing.assert_array_equal(joined, ~steps.truncated[:-1])
    speed, torque = steps.obs[..., 2], steps.action[..., 0]
    angle = np.arctan2(steps.obs[..., 1], steps.obs[..., 0])
    np.testing.assert_allclose(steps.reward, -(angle**2 + 0.1 * speed**2 + 0.001 * torque**2), atol=1e-3)


@pytest.mark.thorough
def test_large_steps_are_collected_in_smaller_parts(run, tmp_path, monkeypatch):
    """The dataset is the same with a buffer of 40 steps of 3 + 3 + 1 numbers, of two environments."""
    whole = runs.collect(run, 100, tmp_path / "whole", num_envs=2, greedy=True)
    sizes = []
    take_rollout = Collector._take_rollout
    monkeypatch.setattr(
        Collector, "_take_rollout", lambda self, *args: sizes.append(self.num_steps) or take_rollout(self, *args)
    )
    monkeypatch.setattr(collecting, "_MAX_BYTES", 40 * 28)
    parts = runs.collect(run, 100, tmp_path / "parts", num_envs=2, greedy=True)
    assert sizes == [20, 20, 20]
    for x, y in zip(*(jax.tree.leaves(datasets.load(folder).steps) for folder in (whole, parts)), strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_policy_for_a_host_is_learned_from_a_dataset(dataset, tmp_path):
    offline = SAC | {"agent": "iql", "dataset": str(dataset), "num_envs": 1, "total_steps": 64, "log_every": 16}
    offline |= {"checkpoint_every": 16, "learning_starts": 0}
    whole = runs.train(offline, out=tmp_path / "whole", show=False)
    ring = whole.state.agent.replay.buffer.ring
    np.testing.assert_array_equal(ring.steps.reward[:225], datasets.load(dataset).steps.reward)
    assert int(whole.state.agent.replay.num_steps) == 64
    assert json.loads((tmp_path / "whole" / "eval.json").read_text())["mean"] < 0
    runs.train(offline, lambda line, state: line["step"] >= 32, out=tmp_path / "part", show=False)
    assert checkpoint.steps(tmp_path / "part")[-1] == 32
    resumed = runs.resume(tmp_path / "part", show=False).state
    jax.tree.map(np.testing.assert_array_equal, whole.state.agent.params, resumed.agent.params)


def test_a_dataset_of_another_environment_is_refused(dataset, tmp_path):
    config = SAC | {"agent": "iql", "dataset": str(dataset), "env": "gymnasium:MountainCarContinuous-v0"}
    with pytest.raises(ConfigError, match=r"must hold obs of float32\[2\], as gymnasium:MountainCarContinuous-v0 has"):
        runs.train(config, out=tmp_path / "run", show=False)
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def pictured(tmp_path_factory):
    """Train in an environment of this process, which a test can change."""
    config = {key: SAC[key] for key in ("num_envs", "num_steps", "hidden_sizes", "eval_episodes", "backend")}
    config |= {"agent": "ppo", "env": "host_envs:Picture", "total_steps": 8, "num_minibatches": 1}
    return runs.train(config, out=tmp_path_factory.mktemp("pictured") / "run", show=False).run


def line(capsys, code, *words):
    """Run a command that exits with `code`, as in a process that has never trained; return its line of errors."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(sys.modules, "rlkit.runs.loop", raising=False)
        assert cli.main([*words, "--env", "host_envs:Picture"]) == code
    err = capsys.readouterr().err.removeprefix("compiling ...\n")  # on a busy machine
    assert err.startswith("rlkit: env='host_envs:Picture'")
    assert err.count("\n") == 1
    return err


def raises(*args, **kwargs):
    raise RuntimeError("broken on purpose")


def test_a_dataset_holds_only_finite_rewards(pictured, tmp_path, monkeypatch, capsys):
    step = host_envs.Picture.step
    monkeypatch.setattr(host_envs.Picture, "step", lambda self, a: (*step(self, a)[:1], float("inf"), False, False, {}))
    err = line(capsys, 2, "collect", str(pictured), "--steps", "8", "--out", str(tmp_path / "data"))
    assert re.search(r"reward of environment 0 of worker 0, seed \d+, inf, must be finite in a dataset", err)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [("collect", "--steps", "8"), ("render",)])
def test_a_host_that_fails_is_one_line(pictured, monkeypatch, capsys, words):
    monkeypatch.setattr(host_envs.Picture, "step", raises)
    assert "failed in step: RuntimeError: broken on purpose" in line(capsys, 1, *words, str(pictured))
    assert not (pictured / "dataset").exists()


def test_lists_of_a_config_reach_the_environment_as_lists(tmp_path):
    """In training and in rendering."""
    config = {key: SAC[key] for key in ("num_envs", "num_steps", "hidden_sizes", "eval_episodes", "backend")}
    config |= {"agent": "ppo", "env": "host_envs:Listed", "total_steps": 8, "num_minibatches": 1}
    run = runs.train(config | {"env_kwargs": {"sizes": [[1, 2], [3]]}}, out=tmp_path / "run", show=False).run
    assert runs.render(run, env="host_envs:Listed").is_file()


def test_a_render_that_fails_is_one_line(pictured, monkeypatch, capsys):
    monkeypatch.setattr(host_envs.Picture, "render", raises)
    assert "failed in render: RuntimeError: broken on purpose" in line(capsys, 1, "render", str(pictured))
    monkeypatch.setattr(host_envs.Picture, "render", lambda self: None)
    assert "uint8[height, width, 3]" in line(capsys, 2, "render", str(pictured))
    assert not (pictured / "policy.gif").exists()


@pytest.mark.parametrize("bare", [False, True])
def test_a_picture_needs_render_mode(pictured, monkeypatch, capsys, bare):
    """The error is clear for a class without that argument, and for one without a constructor."""

    def refuses(**kwargs):
        if kwargs:
            raise TypeError("Picture() takes no arguments")
        return host_envs.Counter()

    monkeypatch.setattr(host_envs, "Picture", refuses if bare else lambda: host_envs.Counter())
    assert "take render_mode in the constructor" in line(capsys, 2, "render", str(pictured))


@pytest.mark.thorough
@pytest.mark.parametrize(("declared", "milliseconds"), [(None, 30), (50, 20), (15, 70)])
def test_a_picture_of_a_host(pictured, tmp_path, monkeypatch, declared, milliseconds):
    """It has a frame after each step, the last one included, at the rate that the environment declares."""
    monkeypatch.setattr(host_envs.Picture, "metadata", host_envs.Picture.metadata | {"render_fps": declared})
    path = tmp_path / "policy.gif"
    assert cli.main(["render", str(pictured), "--env", "host_envs:Picture", "--out", str(path)]) == 0
    with Image.open(path) as picture:
        assert picture.size == (30, 20)
        grays = []
        for frame in range(picture.n_frames):
            picture.seek(frame)
            grays.append(picture.convert("RGB").getpixel((0, 0))[0])
            assert picture.info["duration"] == milliseconds
    assert grays == [0, 50, 100, 150, 200]
