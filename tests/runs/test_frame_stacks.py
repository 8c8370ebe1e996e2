"""Replay buffers of runs store each frame of stacked observations once, without being told."""

from contextlib import closing

import jax
import numpy as np
import pytest
from mistakes import mistake

from rlkit import runs
from rlkit.runs.config.parse import parse
from rlkit.runs.describe import describe
from rlkit.runs.devices import memory
from rlkit.runs.programs.make import make_program, require_memory, stores_frames

STACKED = {"agent": "dqn", "env": "jax_envs:Pictures", "wrappers": ["frame_stack:4", "time_limit:50"]}
STACKED |= {"num_envs": 4, "num_steps": 8, "capacity": 512, "total_steps": 1536, "eval_episodes": 0}
STACKED |= {
    "schedule_steps": 1536.0,
    "learning_starts": 128,
    "replay_ratio": 0.25,
    "batch_size": 16,
    "hidden_sizes": [16],
}
WHOLE = {"replay_stack": 1, "store_obs_once": True}


@pytest.mark.parametrize(
    ("changes", "stack"),
    [
        ({}, 4),
        ({"replay_stack": 1}, 1),
        ({"replay_stack": 2, "wrappers": []}, 2),
        ({"wrappers": []}, 1),
        ({"wrappers": ["frame_stack:3,last", "clip_reward:-1,1"]}, 3),
        ({"wrappers": ["frame_stack:4", "flatten"]}, 1),
        ({"env": "ale:Pong", "wrappers": []}, 4),
        ({"env": "atari:Pong", "wrappers": ["clip_reward:-1,1"], "env_kwargs": {"stack": 2}}, 2),
        ({"env": "atari:Pong", "wrappers": ["previous_action_reward"]}, 1),
        ({"env": "gymnasium:CartPole-v1", "wrappers": []}, 1),
    ],
)
def test_the_stack_is_that_of_the_environment(changes, stack):
    assert parse(STACKED | changes).frame_stack == stack


@pytest.mark.thorough
@pytest.mark.parametrize("settings", [{}, pytest.param({"n_step": 3, "num_seeds": 2}, marks=pytest.mark.slow)])
def test_a_run_learns_the_same_from_frames(tmp_path, settings):
    """The buffer is overwritten twice; with `store_obs_once` the same steps are drawn."""
    config = STACKED | settings
    frames = runs.train(config, out=tmp_path / "frames", show=False).state.agent
    whole = runs.train(config | WHOLE, out=tmp_path / "whole", show=False).state.agent
    assert frames.replay.buffer.ring.frames[0].counts.ravel()[0] > 1024
    for x, y in zip(*map(jax.tree.leaves, (frames.params, whole.params)), strict=True):
        np.testing.assert_allclose(x, y, rtol=0.0, atol=1e-3)


@pytest.mark.thorough
def test_a_run_goes_on_with_its_frames(tmp_path):
    whole = runs.train(STACKED, out=tmp_path / "whole", show=False).state
    runs.train(STACKED | {"total_steps": 768}, out=tmp_path / "half", show=False)
    resumed = runs.resume(tmp_path / "half", overrides={"total_steps": 1536}, env=STACKED["env"], show=False).state
    for x, y in zip(*map(jax.tree.leaves, (whole.agent.replay.buffer, resumed.agent.replay.buffer)), strict=True):
        np.testing.assert_array_equal(x, y)


def test_frames_are_described_and_what_makes_a_buffer_fit_is_named(monkeypatch):
    assert "the last 512 steps, each frame stored once" in describe(parse(STACKED))
    monkeypatch.setattr(memory, "available", lambda devices: 2**10)
    remedies = ({}, None), (WHOLE, "replay_stack out"), ({"wrappers": []}, "set store_obs_once=true")
    for changes, remedy in remedies:
        with closing(make_program(parse(STACKED | changes))) as program:
            assert stores_frames(program) == (not changes)
            with mistake() as caught:
                require_memory(program)
            assert (remedy is None and "once" not in str(caught.value)) or remedy in str(caught.value)
