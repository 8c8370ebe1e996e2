"""Runs that learn from a dataset alone, datasets that a run leaves, and the memory that a run needs."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from rlkit import cli, runs, training
from rlkit.agents import iql
from rlkit.runs import datasets
from rlkit.runs.config.load import read
from rlkit.runs.devices import memory
from rlkit.runs.programs.make import make_program
from rlkit.types import ConfigError

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("compiled_once")]

TINY = {
    "env": "Probe-Continuous",
    "num_envs": 4,
    "num_steps": 8,
    "hidden_sizes": [8],
    "batch_size": 16,
    "capacity": 512,
    "eval_episodes": 4,
}
ONLINE = TINY | {"agent": "sac", "total_steps": 64, "learning_starts": 0, "replay_ratio": 0.125}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """A dataset of 256 steps that a run's policy made."""
    folder = tmp_path_factory.mktemp("offline")
    run = runs.train(ONLINE, out=folder / "run", show=False).run
    assert cli.main(["collect", str(run), "--steps", "250", "--num-envs", "4", "--out", str(folder / "data")]) == 0
    return folder / "data"


def offline(dataset, **changes):
    return TINY | {"agent": "iql", "dataset": str(dataset), "total_steps": 96, "replay_ratio": 0.25} | changes


def test_a_dataset_holds_what_the_policy_did(dataset):
    found = datasets.load(dataset, verify=True)
    assert (found.num_rows, found.num_envs) == (63, 4)
    assert found.steps.extras == ()
    assert found.extra["env"] == "Probe-Continuous"
    steps = jax.tree.map(np.asarray, found.steps)
    np.testing.assert_allclose(steps.reward, 1 - (steps.action[..., 0] - steps.obs[..., 0]) ** 2, rtol=1e-5)
    assert np.std(steps.action) > 0.1  # it explores
    assert steps.terminated.all()


def test_a_greedy_dataset_does_not_explore(dataset, tmp_path):
    run = dataset.parent / "run"
    folders = [runs.collect(run, 8, tmp_path / name, num_envs=2, greedy=True, seed=int(name == "c")) for name in "abc"]
    first, again, other = (jax.tree.map(np.array, datasets.load(folder).steps) for folder in folders)
    np.testing.assert_array_equal(first.action, again.action)
    assert np.any(first.obs != other.obs)
    policy = runs.load(run)
    action, _ = policy.act(first.obs[0, 0], jax.random.key(0))
    np.testing.assert_allclose(first.action[0, 0], action, rtol=1e-5)


@pytest.mark.parametrize("num_seeds", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_run_learns_from_a_dataset_and_takes_no_step(dataset, tmp_path, num_seeds):
    config = runs.parse(offline(dataset, num_seeds=num_seeds))
    trained = runs.train(config, out=tmp_path / "run", show=False)
    replay, gradient_steps = trained.state.agent.replay, 96 * 0.25
    stored = np.asarray(replay.buffer.ring.steps.reward).reshape(num_seeds, -1, 4)[:, :63]
    np.testing.assert_array_equal(stored, np.broadcast_to(datasets.load(dataset).steps.reward, stored.shape))
    assert np.all(np.asarray(replay.num_steps) == 96)
    moments = jax.tree.leaves(trained.state.agent.opt_state)
    counts = [x for x in moments if np.issubdtype(x.dtype, np.integer)]
    assert counts
    assert all(np.all(np.asarray(x) == gradient_steps) for x in counts)
    assert json.loads((tmp_path / "run" / "eval.json").read_text())["mean"] is not None
    normalizer = trained.state.agent.normalizer.obs
    assert np.all(np.asarray(normalizer.count) == 252)


def test_an_offline_run_is_drawn_from_its_evaluations(dataset, tmp_path):
    run = runs.train(offline(dataset, log_every=32, eval_every=32), out=tmp_path / "run", show=False).run
    assert (run / "curve.png").exists()
    assert cli.main(["plot", str(run), "--out", str(tmp_path / "curve")]) == 0


def test_a_stopped_offline_run_goes_on_as_if_it_had_not(dataset, tmp_path):
    config = offline(dataset, log_every=32, checkpoint_every=32)
    whole = runs.train(config, out=tmp_path / "whole", show=False).state
    runs.train(config, lambda line, state: line["step"] >= 32, out=tmp_path / "part", show=False)
    resumed = runs.resume(tmp_path / "part", show=False).state
    jax.tree.map(np.testing.assert_array_equal, whole.agent.params, resumed.agent.params)


def test_what_was_learned_needs_its_dataset_no_more(dataset, tmp_path, monkeypatch):
    """A path as it was typed, relative; from elsewhere, and after the dataset is gone, the policy is still there."""
    shutil.copytree(dataset, tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    runs.train(offline("data", log_every=32), lambda line, _: line["step"] >= 32, out="run", show=False)
    assert read(Path("run/config.yaml"))["dataset"] == str(tmp_path / "data")
    shutil.rmtree("data")
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path / "else")
    assert cli.main(["eval", "../run"]) == 0
    action, _ = runs.load("../run").act(np.zeros(1, np.float32), jax.random.key(0))
    assert np.isfinite(action).all()
    assert runs.resume("../run", show=False).signal is None
    with pytest.raises(ConfigError, match="dataset"):
        runs.train(read(Path("../run/config.yaml")), out="again", show=False)


def test_an_archive_is_a_dataset_too(dataset, tmp_path):
    steps = jax.tree.map(lambda x: np.asarray(x[:, 0]), datasets.load(dataset).steps)
    path = tmp_path / "data.npz"
    np.savez(path, observations=steps.obs, actions=steps.action, rewards=steps.reward, terminals=steps.terminated,
             next_observations=steps.next_obs)  # fmt: skip
    program = make_program(runs.parse(offline(path)))
    assert (program.stored.dataset.num_rows, program.num_streams) == (63, 1)
    stored = program.start().agent.replay.buffer.ring.steps.reward[:63, 0]
    np.testing.assert_array_equal(stored, steps.reward)


@pytest.mark.parametrize(("changes", "message"), [
    ({"capacity": 200}, "capacity=200 must be at least 252, for all steps of dataset"),
    ({"capacity": 502}, "must be a multiple of the 4 streams"),
    ({"env": "Pendulum-v1"}, r"must hold obs of float32\[3\], as Pendulum-v1 has, and it holds float32\[1\]"),
    ({"agent": "ppo", "capacity": None, "batch_size": None, "replay_ratio": None}, "'ppo' does not"),
    ({"agent": "r2d2", "env": "Probe-ActionReward"}, "'r2d2' does not"),
    ({"dataset": "nowhere"}, "nowhere"),
    ({"dataset": "minari:a/b-v0"}, "minari"),
])  # fmt: skip
def test_what_does_not_fit_is_named(dataset, changes, message):
    values = {k: v for k, v in (offline(dataset) | changes).items() if v is not None}
    with pytest.raises(ConfigError, match=message):
        make_program(runs.parse(values))


@pytest.mark.parametrize(("agent", "settings"), [
    ("td3_bc", {}), ("sac", {"gsde": True}),
    *(pytest.param(name, {}, marks=pytest.mark.slow) for name in ("td3", "ddpg", "bc", "rebrac")),
])  # fmt: skip
def test_agents_that_replay_single_steps_learn_from_a_dataset(dataset, tmp_path, agent, settings):
    """Also those that explore by noise with a memory, as TD3 and gSDE do: nothing of it is replayed."""
    config = offline(dataset, agent=agent, learning_starts=0, **settings)
    trained = runs.train(config, out=tmp_path / "run", show=False)
    assert trained.evaluation["episodes"] == 4 * settings.get("num_seeds", 1)


@pytest.mark.parametrize(("field", "change", "message"), [
    ("reward", lambda x: x.astype(np.int32), "must hold reward of a float dtype, and it holds int32"),
    ("next_obs", lambda x: np.concatenate([x, x], axis=-1), r"must hold next_obs of float32\[1\]"),
])  # fmt: skip
def test_rewards_and_next_observations_must_fit(dataset, tmp_path, field, change, message):
    steps = jax.tree.map(np.asarray, datasets.load(dataset).steps)
    steps = steps._replace(**{field: change(getattr(steps, field))})
    with datasets.writer(tmp_path / "data", jax.tree.map(lambda x: x[0, 0], steps), 4) as writer:
        writer.add(steps)
    with pytest.raises(ConfigError, match=message):
        make_program(runs.parse(offline(tmp_path / "data")))


@pytest.mark.parametrize(("lowest", "held"), [(-1, "-1 to 0"), (0, None), (1, "1 to 2")])
def test_integers_of_a_dataset_must_be_in_their_space(tmp_path, lowest, held):
    """An index of -1 would be the last action: learning would go on with other actions than those of the data."""
    arrays = {"observations": np.zeros((8, 1), np.float32), "rewards": np.zeros(8), "terminals": np.ones(8)}
    np.savez(tmp_path / "data.npz", **arrays, timeouts=np.zeros(8), actions=lowest + np.arange(8) % 2)
    config = runs.parse(offline(tmp_path / "data.npz", env="Probe-ActionReward"))
    if held is None:
        make_program(config)
        return
    with pytest.raises(ConfigError, match=f"must hold action from 0 to 1, and it holds {held}"):
        make_program(config)


@pytest.mark.parametrize(("scale", "fits"), [(1.0, True), (1.00001, True), (2.0, False)])
def test_actions_of_a_dataset_must_be_within_their_bounds(tmp_path, scale, fits):
    arrays = {"observations": np.zeros((8, 1), np.float32), "rewards": np.zeros(8), "terminals": np.ones(8)}
    actions = scale * np.linspace(-2, 2, 8, dtype=np.float32)[:, None]
    np.savez(tmp_path / "data.npz", **arrays, timeouts=np.zeros(8), actions=actions)
    config = runs.parse(offline(tmp_path / "data.npz"))
    if fits:
        make_program(config)
        return
    with pytest.raises(ConfigError, match=r"action from \[-2\.0\] to \[2\.0\], and it holds \[-4\.0\] to \[4\.0\]"):
        make_program(config)


@pytest.mark.parametrize(("name", "terminal", "is_read"), [
    ("observations", 1, True), ("actions", 1, True), ("rewards", 1, True),
    ("next_observations", 0, True), ("next_observations", 1, False),
])  # fmt: skip
def test_a_number_that_is_not_finite_is_named(tmp_path, name, terminal, is_read):
    """Otherwise a loss is not finite some time later, and a smaller learning rate would be the remedy."""
    arrays = {field: np.zeros((8, 1), np.float32) for field in ("observations", "actions", "next_observations")}
    arrays |= {"rewards": np.zeros(8), "terminals": np.full(8, terminal)}
    arrays[name][5] = np.nan
    np.savez(tmp_path / "data.npz", **arrays)
    program = make_program(runs.parse(offline(tmp_path / "data.npz")))
    fields = {"observations": "obs", "actions": "action", "rewards": "reward", "next_observations": "next_obs"}
    if not is_read:
        program.start()
        return
    with pytest.raises(ConfigError, match=f"dataset=.* finite numbers, and 1 of {fields[name]} are not, such as nan"):
        program.start()


def test_only_agents_with_a_buffer_learn_offline():
    with pytest.raises(ConfigError, match="not from a dataset"):
        training.offline(iql.make(iql.Config(), *spaces())._replace(learn=None), None, (), num_envs=1, num_steps=1)


def spaces():
    from rlkit import envs

    env, params = envs.make("Probe-Continuous")
    return env.observation_space(params), env.action_space(params)


def test_memory_is_known_before_anything_is_compiled(tmp_path, monkeypatch):
    """Seeds are counted, and so is every byte of the buffer, twice."""
    one, three = (make_program(runs.parse(ONLINE | {"num_seeds": n})).num_bytes for n in (1, 3))
    assert 2.9 < three / one < 3.1
    step = 4 + 4 + 4 + 4 + 4  # obs, action, reward, two flags in a word, next_obs
    large, small = (make_program(runs.parse(ONLINE | {"capacity": c})).num_bytes for c in (4096, 512))
    assert large - small == 2 * (4096 - 512) * step
    assert cli.main(["check", str(config_file(tmp_path))]) == 0
    monkeypatch.setattr(memory, "available", lambda num_devices=1: one // 2)
    with pytest.raises(ConfigError, match=r"capacity=512 with num_seeds=1 needs about .* lower it"):
        runs.train(ONLINE, out=tmp_path / "run", show=False)
    assert not (tmp_path / "run").exists()
    assert cli.main(["check", str(config_file(tmp_path))]) == 2


def config_file(folder):
    path = folder / "tiny.yaml"
    path.write_text(json.dumps(ONLINE))
    return path
