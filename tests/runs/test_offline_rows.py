"""Rows of datasets in a replay buffer: rows that do not follow each other, and more truncated ends than are kept."""

import host_envs
import jax
import numpy as np
import pytest
from mistakes import mistake

from rlkit import runs
from rlkit.runs import datasets
from rlkit.runs.programs import offline
from rlkit.runs.programs.make import make_program
from rlkit.types import ConfigError

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("compiled_once")]

CONFIG = {
    "agent": "td3_bc",
    "env": "Probe-Continuous",
    "num_envs": 1,
    "num_steps": 8,
    "total_steps": 96,
    "hidden_sizes": [8],
    "batch_size": 16,
    "capacity": 4096,
    "eval_episodes": 4,
}


def arrays(num_steps, length):
    """Episodes of `length` steps, each cut by a time limit; the observations are all different."""
    obs = np.arange(num_steps, dtype=np.float32)
    ends = np.arange(num_steps) % length == length - 1
    return {
        "observations": obs[:, None],
        "next_observations": (obs + np.where(ends, 1.5, 1).astype(np.float32))[:, None],
        "actions": np.zeros((num_steps, 1), np.float32),
        "rewards": np.zeros(num_steps),
        "terminals": np.zeros(num_steps),
    }


@pytest.mark.parametrize(("length", "fits"), [(4, True), (2, False)])
def test_more_truncated_ends_than_are_kept_are_refused(tmp_path, length, fits):
    """A buffer of 4096 steps keeps 1024 final observations; the first steps of 2048 ends were never drawn."""
    np.savez(tmp_path / "data.npz", **arrays(4096, length))
    config = CONFIG | {"dataset": str(tmp_path / "data.npz")}
    make_program(runs.parse(config))
    if fits:
        agent = make_program(runs.parse(config | {"store_obs_once": True})).start().agent
        assert int(agent.replay.buffer.ring.final_obs.count) == agent.replay.buffer.ring.final_obs.capacity == 1024
        return
    with mistake("store_obs_once=True", "1024", "2048", "set store_obs_once=false"):
        make_program(runs.parse(config | {"store_obs_once": True}))


@pytest.mark.parametrize("settings", [{}, {"n_step": 3}, {"store_obs_once": True}])
@pytest.mark.parametrize("shuffled", [False, True])
def test_rows_of_a_folder_must_follow_each_other_where_they_are_joined(tmp_path, monkeypatch, settings, shuffled):
    """Also at the border of the parts in which a buffer is filled. Single steps may come in any order.

    The last digits may differ, as where a program computes the two observations apart.
    """
    steps = datasets.from_arrays(**arrays(64, 8))
    steps = steps._replace(next_obs=np.nextafter(steps.next_obs, np.float32(np.inf)))
    if shuffled:
        steps = jax.tree.map(lambda x: np.concatenate([x[:34], x[36:], x[34:36]]), steps)
    with datasets.writer(tmp_path / "data", jax.tree.map(lambda x: x[0, 0], steps), 1) as writer:
        writer.add(steps)
    monkeypatch.setattr(offline, "_STEPS_AT_ONCE", 34)
    program = make_program(runs.parse(CONFIG | settings | {"dataset": str(tmp_path / "data")}))
    if not (shuffled and settings):
        program.start()
        return
    with pytest.raises(ConfigError, match=r"consecutive steps .* next_obs of 1 steps is not the obs of the next row"):
        program.start()


def test_actions_of_an_archive_for_an_environment_that_counts_from_1(tmp_path):
    """The actions 1 and 2 of Discrete(3, start=1) are the first two; as they stand they would be the last two."""
    with host_envs_pool() as pool:
        obs = np.asarray(pool.reset())
    data = {
        "observations": np.repeat(obs, 4, 0), "next_observations": np.repeat(obs, 4, 0), "rewards": np.zeros(4),
        "terminals": np.zeros(4), "actions": np.array([1, 2, 2, 1]),
    }  # fmt: skip
    config = CONFIG | {"agent": "iql", "env": "host_envs:Counter", "capacity": 64, "backend": "serial"}
    np.savez(tmp_path / "data.npz", **data)
    parsed = runs.parse(config | {"dataset": str(tmp_path / "data.npz")})
    with pytest.raises(ConfigError, match="must hold action_start, as integers of host_envs:Counter start at 1"):
        make_program(parsed)
    np.savez(tmp_path / "data.npz", **data, action_start=1)
    program = make_program(parsed)
    try:
        stored = program.start().agent.replay.buffer.ring.steps.action[:4, 0]
    finally:
        program.close()
    assert np.asarray(stored).tolist() == [0, 1, 1, 0]


def host_envs_pool():
    from rlkit import hosts

    return hosts.make(host_envs.Counter, num_envs=1, backend="serial")
