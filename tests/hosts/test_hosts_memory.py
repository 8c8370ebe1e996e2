"""SAC and TQC with a memory in environments outside of JAX: the memories that are stored, and a run that goes on."""

from contextlib import closing

import jax
import numpy as np
import pytest
from host_runs import lines

from rlkit import runs
from rlkit.agents.common.recurrent import sequences
from rlkit.runs.programs import host_program

pytestmark = pytest.mark.thorough
SAC = {
    "agent": "sac",
    "env": "gymnasium:Pendulum-v1",
    "wrappers": ["time_limit:5"],
    "backend": "serial",
    "num_envs": 2,
    "num_steps": 8,
    "total_steps": 256,
    "log_every": 32,
    "checkpoint_every": 32,
    "eval_episodes": 2,
    "hidden_sizes": [8],
    "memory_size": 4,
    "recurrent": "gru",
    "burn_in": 2,
    "unroll_len": 6,
    "capacity": 256,
    "batch_size": 192,
    "replay_ratio": 0.125,
    "learning_starts": 64,
}
TQC = {"agent": "tqc", "recurrent": "mingru", "n_step": 2}


def sampled(agent, state):
    """Steps [L, B, ...] of a sample of the buffer, and where an episode ended or was left."""
    sample = jax.jit(agent.static.buffer.sample)(state.agent.replay.buffer, jax.random.key(0))
    assert np.asarray(sample.mask).all()
    item = jax.tree.map(lambda x: np.swapaxes(np.asarray(x), 0, 1), sample.item)
    return item, item.terminated | item.truncated


def is_at_the_start_after_ends(agent, item, done):
    for start, x in zip(jax.tree.leaves(agent.memory), jax.tree.leaves(item.extras), strict=True):
        after = x[1:][done[:-1]]
        assert len(after) > 10
        np.testing.assert_array_equal(after, np.broadcast_to(start, after.shape))


@pytest.mark.parametrize("change", [{}, pytest.param(TQC, marks=pytest.mark.slow)], ids=["sac", "tqc"])
def test_the_stored_memories_are_those_before_the_step(change):
    """Over several rollouts, and before learning starts, when actions are random, but no parameters change."""
    values = SAC | change | {"learning_starts": 10**6}
    with closing(host_program.HostProgram(runs.parse(values))) as program:
        state = program.advance(program.start(), np.int32(6)).state
        agent = program.agent
    item, done = sampled(agent, state)
    is_at_the_start_after_ends(agent, item, done)
    networks, params = agent.static.networks, state.agent.params

    @jax.jit
    def step(memory, obs, action):
        policy = networks.policy.apply(params["policy"], (), obs, memory.policy)[0][-1]
        critics = networks.critics.apply(params["critics"], (), obs, action / 2, memory.critics)[0][-1]
        return sequences.Memory(policy, critics)

    after = step(item.extras, item.obs, item.action)
    for stored, expected in zip(jax.tree.leaves(item.extras), jax.tree.leaves(after), strict=True):
        np.testing.assert_allclose(stored[1:][~done[:-1]], np.asarray(expected)[:-1][~done[:-1]], atol=1e-5)
        assert np.abs(stored).max() > 1e-3


@pytest.mark.parametrize("change", [{}, pytest.param(TQC, marks=pytest.mark.slow)], ids=["sac", "tqc"])
def test_a_run_goes_on_with_new_episodes(tmp_path, change):
    """The first memory after the checkpoint is that of a start, and the step before is the last of its episode."""
    values = SAC | change
    stopped = runs.train(values, lambda line, _: line["step"] >= 128, out=tmp_path / "run", show=False)
    assert lines(stopped.run)[-1]["step"] == 128
    resumed = runs.resume(stopped.run, show=False)
    rows = lines(resumed.run)
    assert [line["step"] for line in rows] == list(range(32, 257, 32))
    assert all(np.isfinite(line["critic_loss"]) for line in rows if line["step"] > 64)
    assert resumed.evaluation["episodes"] == 2
    before, after = (jax.tree.leaves(jax.device_get(x.state.agent.params)) for x in (stopped, resumed))
    assert not any(np.array_equal(x, y) for x, y in zip(before, after, strict=True))
    with closing(host_program.HostProgram(runs.parse(values))) as program:
        agent = program.agent
    is_at_the_start_after_ends(agent, *sampled(agent, resumed.state))


@pytest.mark.slow
@pytest.mark.parametrize("change", [{}, TQC], ids=["sac", "tqc"])
def test_the_same_seed_gives_the_same_run(tmp_path, change):
    """Without overlap, whatever the backend."""
    values = SAC | change | {"overlap": False, "num_workers": 1}
    ends = [
        runs.train(values | {"backend": backend}, out=tmp_path / backend, show=False).state
        for backend in ("serial", "process")
    ]
    first, same = (jax.tree.leaves(jax.device_get(state.agent.params)) for state in ends)
    assert all(np.array_equal(a, b) for a, b in zip(first, same, strict=True))
