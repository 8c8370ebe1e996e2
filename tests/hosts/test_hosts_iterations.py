"""Iterations of runs in environments outside of JAX: updates that act in the same call, and steps before learning."""

from contextlib import closing

import jax
import numpy as np
import pytest
from host_runs import DQN, PPO, lines

from rlkit import runs
from rlkit.runs.programs import host_program

pytestmark = pytest.mark.thorough
EACH_STEP = DQN | {"num_envs": 1, "num_steps": 1, "learning_starts": 16, "log_every": 64, "total_steps": 64}
R2D2 = {"agent": "r2d2", "burn_in": 1, "unroll_len": 2}
SAC = EACH_STEP | {"agent": "sac", "env": "gymnasium:Pendulum-v1"}


def advance(values, count):
    program = host_program.HostProgram(runs.parse(values))
    chunk = program.advance(program.start(), np.int32(count))
    program.close()
    return program, chunk


@pytest.mark.parametrize(
    "values", [EACH_STEP, *(pytest.param(x, marks=pytest.mark.slow) for x in (SAC, EACH_STEP | R2D2))]
)
def test_an_update_that_acts_is_an_update_and_then_acting(values, monkeypatch):
    _, together = advance(values, 40)
    monkeypatch.setattr(host_program.HostProgram, "in_one_call", False)
    _, in_turn = advance(values, 40)
    assert int(together.count) == int(in_turn.count) == 40
    for name in ("returns", "lengths", "reward_mean", "buffer_size"):
        np.testing.assert_array_equal(together.metrics[name], in_turn.metrics[name])
    params = (jax.tree.leaves(chunk.state.agent.params) for chunk in (together, in_turn))
    for x, y in zip(*params, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)


def test_overlap_is_on_by_default_where_an_agent_with_replay_learns_after_several_steps(monkeypatch):
    monkeypatch.setattr(host_program.devices, "acting", lambda learning: (jax.devices()[0], None))
    cases = ((EACH_STEP, False), (EACH_STEP | {"overlap": True}, True), (DQN, True), (DQN | {"overlap": False}, False))
    for values, expected in (*cases, (PPO, False), (PPO | {"overlap": True}, True)):
        program = host_program.HostProgram(runs.parse(values | {"backend": "serial"}))
        program.close()
        assert program.overlap == expected


@pytest.mark.parametrize(
    ("agent", "num_envs", "num_steps"),
    [
        ("sac", 2, 3),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("dqn", 1, 1), ("dqn", 2, 3), ("sac", 1, 1))),
    ],
)
def test_steps_before_learning_are_collected_together(agent, num_envs, num_steps, monkeypatch):
    """The buffer holds each step once and in order; uniform actions need no call of the policy."""
    monkeypatch.setattr(host_program, "_WAIT_STEPS", 15)
    values = {"dqn": EACH_STEP | {"env": "host_envs:Counter"}, "sac": SAC | {"env": "gymnasium:Pendulum-v1"}}[agent]
    values |= {"num_envs": num_envs, "num_steps": num_steps, "learning_starts": 100, "overlap": False}
    program = host_program.HostProgram(runs.parse(values))
    acts, act = [], program.collector.act
    program.collector.act = lambda *args: acts.append(None) or act(*args)
    count = 60 // (num_envs * num_steps)
    chunk = program.advance(program.start(), np.int32(count))
    program.close()
    replay, buffer = chunk.state.agent.replay, program.agent.static.buffer
    assert int(replay.num_steps) == 60
    assert int(chunk.count) == int(chunk.state.step) == count
    assert chunk.metrics["lengths"].shape == (count, num_steps, num_envs)
    assert int(buffer.size(replay.buffer)) == 60
    assert not acts
    batches = [buffer.batch_of_pass(replay.buffer, jax.random.key(0), k) for k in range(-(-60 // values["batch_size"]))]
    stored = [jax.tree.map(lambda x, mask=batch.mask: np.asarray(x)[np.asarray(mask)], batch.item) for batch in batches]
    total = np.sum(np.concatenate([item.reward for item in stored]))
    np.testing.assert_allclose(total, chunk.metrics["reward_mean"].sum() * num_envs * num_steps, rtol=1e-5)
    if agent == "sac":
        actions = np.concatenate([item.action for item in stored])
        assert len(np.unique(actions)) == 60
        assert (np.abs(actions) <= 2).all()
        assert np.std(actions) == pytest.approx(4 / np.sqrt(12), rel=0.25)


def test_an_overlapped_run_collects_together_again_after_a_single_update(monkeypatch):
    """What is left over of a metric line is made one by one, and acts; the next line's steps need no policy."""
    monkeypatch.setattr(host_program, "_WAIT_STEPS", 16)
    monkeypatch.setattr(host_program.devices, "acting", lambda learning: (jax.devices()[0], None))
    values = DQN | {"env": "host_envs:Counter", "backend": "serial", "overlap": True}
    values |= {"learning_starts": 1000, "total_steps": 2048, "log_every": 512}
    program = host_program.HostProgram(runs.parse(values))
    assert program.wait_count > 1
    chunk, acts = program.advance(program.start(), np.int32(1)), []
    act = program.collector.act
    program.collector.act = lambda *args: acts.append(None) or act(*args)
    chunk = program.advance(chunk.state, np.int32(program.wait_count))
    program.close()
    assert not acts
    assert int(chunk.state.step) == 1 + program.wait_count


def test_nothing_is_acted_on_after_steps_that_were_collected_together(monkeypatch):
    """A wait between updates that act: each of those is on the newest observation, which its transition begins with."""
    monkeypatch.setattr(host_program, "_WAIT_STEPS", 16)
    program = host_program.HostProgram(runs.parse(EACH_STEP | {"env": "host_envs:Counter", "learning_starts": 64}))
    chunk, acts = program.advance(program.start(), np.int32(3)), []
    act = program.collector.act
    program.collector.act = lambda *args: acts.append(jax.device_get(args[3])) or act(*args)
    chunk = program.advance(chunk.state, np.int32(16))
    assert not acts
    chunk = program.advance(chunk.state, np.int32(1))  # no longer together, and nothing is acted on beforehand
    program.close()
    assert len(acts) == 1
    assert int(chunk.state.agent.replay.num_steps) == 20


@pytest.mark.parametrize(("line", "together"), [(150, 150), (1000, 250), (3000, 250), (257, 128), (1, 0)])
def test_steps_before_learning_starts_are_taken_together_for_lines_of_any_length(line, together):
    config = runs.parse(EACH_STEP | {"log_every": line, "learning_starts": 5000, "total_steps": 6000, "capacity": 6000})
    with closing(host_program.HostProgram(config)) as program:
        assert program.wait_count == together


@pytest.mark.slow
def test_the_last_line_has_the_speed_of_the_whole_run(tmp_path):
    """With overlap its rollout was collected before its time began."""
    run = runs.train(PPO | {"backend": "serial"}, out=tmp_path / "run", show=False).run
    last = lines(run)[-1]
    assert last["steps_per_second"] == pytest.approx(last["step"] / last["seconds"], rel=0.02)
