"""Single runs in Gymnasium that are divided over simulated devices: their numbers, checkpoints and refusals.

Run in a process of its own, as the number of devices is set before JAX starts: python divided_hosts.py CASE
"""

import sys
import tempfile
from contextlib import closing
from pathlib import Path

import jax
import numpy as np
import pytest
from buffer_invariants import check_buffer
from tiny_runs import digest

import rlkit
from rlkit.runs import loop
from rlkit.runs.checkpoints import checkpoint
from rlkit.runs.config.parse import parse
from rlkit.runs.programs import shards
from rlkit.runs.programs.make import make_program

SIZES = {
    "env": "gymnasium:CartPole-v1",
    "wrappers": ["time_limit:10"],
    "backend": "serial",
    "num_envs": 4,
    "num_steps": 8,
    "total_steps": 160,
    "log_every": 32,
    "checkpoint_every": 32,
    "keep_checkpoints": 10,
    "eval_every": 64,
    "eval_episodes": 2,
    "keep_best": True,
    "seed": 5,
    "hidden_sizes": [8],
    "devices": 2,
}
BUFFER = {"capacity": 256, "batch_size": 8, "learning_starts": 72, "replay_ratio": 0.25}
CASES = {
    "ppo": {"agent": "ppo", "num_epochs": 2, "num_minibatches": 1, "normalize_obs": True, "normalize_reward": True},
    "dqn": {"agent": "dqn", **BUFFER, "replay": "prioritized", "n_step": 2},
    "sac": {"agent": "sac", **BUFFER, "env": "gymnasium:Pendulum-v1", "num_steps": 1, "log_every": 16},
    "sac-gru": {
        "agent": "sac",
        **BUFFER,
        "env": "gymnasium:Pendulum-v1",
        "recurrent": "gru",
        "burn_in": 2,
        "unroll_len": 2,
    },
}


def config(case, **more):
    return parse(SIZES | CASES[case] | more)


def updates_of_one_device(case):
    """Two updates on two devices are those of one, as far as they do not draw rows; all rollouts have the same keys."""
    results = {}
    for devices in (1, 2):
        with closing(make_program(config(case, devices=devices, overlap=False))) as program:
            chunk = program.advance(program.start(), np.int32(2))
            assert {len(x.devices()) for x in jax.tree.leaves(chunk.state.agent.params)} == {devices}
            results[devices] = chunk
    one, two = results[1], results[2]
    assert one.metrics.keys() == two.metrics.keys()
    for name, x in one.metrics.items():
        if not name.endswith(("_seconds", "_idle")):
            np.testing.assert_allclose(two.metrics[name], x, rtol=1e-4, atol=1e-5, err_msg=name)
    for x, y in zip(jax.tree.leaves(one.state.agent.params), jax.tree.leaves(two.state.agent.params), strict=True):
        np.testing.assert_allclose(y, x, rtol=1e-4, atol=1e-5)
    if case == "ppo":
        assert one.metrics["lengths"].any()
        running = two.state.agent.normalizer.running_return
        assert [x.data.shape for x in running.addressable_shards] == [(2,), (2,)]
        np.testing.assert_allclose(running, one.state.agent.normalizer.running_return, rtol=1e-5)
    else:
        words = np.concatenate(list(two.state.agent.replay.buffer.ring.stored.words), 1)
        np.testing.assert_array_equal(one.state.agent.replay.buffer.ring.stored.words, words)


def resumed(case, folder):
    """A run that is stopped goes on with other numbers of devices, and is read on one."""
    run = loop.train(config(case), lambda line, _: line["step"] == 96, out=folder / "run", show=False).run
    assert checkpoint.steps(run)[-1] == 96
    policy = rlkit.load(run)
    (device,) = {device for x in jax.tree.leaves(policy.actor) for device in x.devices()}
    assert device == jax.devices()[0]
    with closing(make_program(config(case, devices=1))) as one, closing(make_program(config(case))) as two:
        undivided, _, extra = shards.restore(checkpoint.Reader(run), one)
        assert extra[shards.KEY] == 2
        assert jax.tree.map(np.shape, undivided) == jax.tree.map(np.shape, one.template)
        if case != "ppo":
            check_buffer(undivided.agent.replay.buffer)
        (folder / "again" / "checkpoints").mkdir(parents=True)
        checkpoint.save(folder / "again", 0, undivided, {shards.KEY: 1})
        again, _, _ = shards.restore(checkpoint.Reader(folder / "again"), two)
        assert digest(again) == digest(shards.restore(checkpoint.Reader(run), two)[0])
    for devices, steps in ((2, 160), (1, 192), (4, 256)):
        more = loop.resume(run, overrides={"devices": devices, "total_steps": steps}, show=False)
        assert checkpoint.steps(run)[-1] == steps
        assert more.evaluation["episodes"] == 2
        assert {len(x.devices()) for x in jax.tree.leaves(more.state.agent.params)} == {devices}


def refusals():
    """A run that does not divide is one line, before anything is compiled."""
    for case, changed, message in (
        ("ppo", {"num_envs": 6, "devices": 4}, r"^num_envs=6 must be a multiple of the devices .* 4; try 4 or 8$"),
        ("ppo", {"num_minibatches": 32}, r"^num_minibatches=32 must divide num_envs \* num_steps / 2 devices = 16"),
        ("dqn", {"batch_size": 9}, r"^batch_size=9 must be a multiple of the devices .* 2; try 8 or 10$"),
        ("ppo", {"num_seeds": 2}, r"^devices=2 must be 1 or auto with env='gymnasium:CartPole-v1' and num_seeds=2"),
    ):
        with pytest.raises(rlkit.ConfigError, match=message):
            make_program(config(case, **changed))


if __name__ == "__main__":
    jax.config.update("jax_disable_most_optimizations", True)
    assert rlkit.use_cpu_cores(4) == 4
    case = sys.argv[1]
    updates_of_one_device(case)
    with tempfile.TemporaryDirectory() as folder:
        if case == "sac":
            trained = loop.train(config(case), out=Path(folder) / "run", show=False)
            assert trained.state.step == 40
        else:
            resumed(case, Path(folder))
    print("agrees:", case)
