"""The choice of a program, and what `rlkit check` describes."""

import jax
import numpy as np
import pytest
from tiny_datasets import write

from rlkit.runs import describe
from rlkit.runs.config.parse import parse
from rlkit.runs.programs import host_program, make
from rlkit.runs.programs.protocol import Program
from rlkit.types import ConfigError

PPO = {
    "agent": "ppo",
    "env": "CartPole-v1",
    "num_envs": 8,
    "num_steps": 16,
    "total_steps": 256,
    "hidden_sizes": [8],
    "backend": "serial",
}
IQL = {
    "agent": "iql",
    "env": "Pendulum-v1",
    "num_envs": 2,
    "num_steps": 4,
    "total_steps": 64,
    "hidden_sizes": [8],
    "capacity": 512,
    "batch_size": 16,
    "backend": "serial",
}


@pytest.fixture
def dataset(tmp_path):
    """A dataset of Pendulum's shapes."""
    obs = np.zeros((6, 2, 3), np.float32)
    return write(tmp_path / "data", obs=obs, next_obs=obs, action=np.zeros((6, 2, 1), np.float32))


def members(protocol):
    return {name for name in [*vars(protocol), *protocol.__annotations__] if not name.startswith("_")}


@pytest.mark.parametrize(
    ("name", "env", "from_dataset"),
    [
        ("JaxProgram", "Pendulum-v1", False),
        ("HostProgram", "gymnasium:Pendulum-v1", False),
        ("JaxProgram", "Pendulum-v1", True),
        ("JaxProgram", "gymnasium:Pendulum-v1", True),
    ],
)
def test_the_program_of_a_config_has_all_of_the_protocol(dataset, name, env, from_dataset):
    values = IQL | {"env": env} | ({"dataset": str(dataset)} if from_dataset else {})
    program = make.make_program(parse(values))
    try:
        assert type(program).__name__ == name
        assert [member for member in sorted(members(Program)) if not hasattr(program, member)] == []
        assert program.num_streams == (2 if from_dataset else None)
        assert program.num_bytes > sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(program.template))
    finally:
        program.close()


@pytest.mark.parametrize("env", ["Pendulum-v1", "gymnasium:Pendulum-v1"])
def test_with_the_number_of_streams_the_dataset_is_not_opened(dataset, env):
    values = IQL | {"env": env, "dataset": str(dataset)}
    whole = make.make_program(parse(values))
    known = make.make_program(parse(values | {"dataset": "nowhere"}), num_streams=2)
    assert jax.tree.leaves(known.template) == jax.tree.leaves(whole.template)
    for program in (whole, known):
        program.close()


def test_overlap_keeps_the_log_probs_of_collection(monkeypatch):
    """Without a second device there is no overlap, and nothing is changed."""
    monkeypatch.setattr(host_program.devices, "acting", lambda learning: (jax.devices()[0], None))
    for overlap, old_log_prob in ((True, "collected"), (False, "recompute")):
        config = parse(PPO | {"env": "gymnasium:CartPole-v1", "overlap": overlap})
        program = host_program.HostProgram(config)
        program.close()
        assert program.config.agent.old_log_prob == old_log_prob
        assert config.agent.old_log_prob == "recompute"


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        ({}, ["an update:      4 epochs of 4 minibatches of 32 steps"]),
        ({"recurrent": "gru"}, ["an update:      4 epochs of 4 minibatches of 2 sequences of 16 steps"]),
        (
            {"agent": "dqn", "capacity": 4096, "batch_size": 16, "replay_ratio": 0.125, "learning_starts": 0},
            ["an update:      16 gradient steps, each from a sample of 16", "replay buffer:  the last 4,096 steps"],
        ),
    ],
)
def test_an_update_is_described(change, lines):
    described = describe.describe(parse(PPO | change)).splitlines()
    assert [line for line in described if line.startswith(("an update", "replay buffer"))] == lines


def test_a_buffer_that_cannot_hold_a_dataset(dataset):
    for capacity, rule in (
        (10, "at least 36, for all steps of dataset"),
        (37, "a multiple of the 2 streams of dataset"),
    ):
        with pytest.raises(ConfigError, match=f"capacity={capacity} must be {rule}"):
            make.make_program(parse(IQL | {"dataset": str(dataset), "capacity": capacity, "batch_size": 8}))
