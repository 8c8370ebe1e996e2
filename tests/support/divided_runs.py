"""Single runs whose environments are divided over simulated devices: their numbers, checkpoints and refusals.

Run in a process of its own, as the number of devices is set before JAX starts: python divided_runs.py CASE
"""

import sys
import tempfile
from pathlib import Path

import divided_hosts
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from buffer_invariants import check_buffer
from tiny_runs import digest

import rlkit
from rlkit import replay, training
from rlkit.runs import loop
from rlkit.runs.checkpoints import checkpoint
from rlkit.runs.config.parse import parse
from rlkit.runs.programs import shards
from rlkit.runs.programs.agent import make_agent
from rlkit.runs.programs.make import make_program

SIZES = {
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
CARTPOLE = {"env": "CartPole-v1", "env_kwargs": {"max_steps_in_episode": 10}}
BUFFER = {"capacity": 256, "batch_size": 8, "learning_starts": 8, "replay_ratio": 0.25}
CASES = {
    "ppo": {"agent": "ppo", **CARTPOLE, "num_minibatches": 2, "normalize_obs": True, "normalize_reward": True},
    "dqn": {"agent": "dqn", **CARTPOLE, **BUFFER, "replay": "prioritized", "n_step": 2},
    "tqc": {"agent": "tqc", "env": "Pendulum-v1", **BUFFER, "recurrent": "gru", "burn_in": 2, "unroll_len": 2},
}


def config(case, **more):
    return parse(CASES[case] | SIZES | more)


def updates_of_the_library(case):
    """Two updates of a program are those of `training.data_parallel`, on devices that each have their part."""
    program = make_program(config(case))
    run, mesh = program.config.run, training.mesh.make(jax.devices()[:2], "data")
    spaces = program.env.observation_space(program.params), program.env.action_space(program.params)
    agent = make_agent(program.config, *spaces, "data")
    pair = training.make(agent, program.env, program.params, num_envs=run.num_envs, num_steps=run.num_steps)
    init, step = training.data_parallel(pair, mesh, "data")
    hyper = jax.tree.map(lambda x: x[0], program.runs.hyper)
    state = expected = jax.jit(init)(hyper, jax.random.split(jax.random.key(5))[0])
    for _ in range(2):
        state, metrics = jax.jit(step)(state)
    start = program.start()
    assert digest(start) == digest(expected)
    chunk = program.advance(program.advance(start, np.int32(1)).state, np.int32(1))
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(chunk.state), jax.tree.leaves(state), strict=True):
        x, y = (jax.random.key_data(z) if jax.dtypes.issubdtype(z.dtype, jax.dtypes.prng_key) else z for z in (x, y))
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6, err_msg=jax.tree_util.keystr(path))
    for name, x in metrics.items():
        np.testing.assert_allclose(chunk.metrics[name][0], x, rtol=1e-4, atol=1e-5, err_msg=name)
    assert [x.data.shape[0] for x in chunk.state.envs.obs.addressable_shards] == [2, 2]


def stops_where_it_is_not_finite(case):
    """A run that is not finite ends in the first update on all devices, and the environment is named among all."""
    program = make_program(config(case, log_every=64))
    start = program.start()

    def poison(x):  # environment 3, on the second device
        return x.at[3].set(jnp.nan) if jnp.issubdtype(x.dtype, jnp.floating) else x

    broken = start.replace(envs=start.envs.replace(env_state=jax.tree.map(poison, start.envs.env_state)))
    chunk = program.advance(broken, np.int32(2))
    assert (int(chunk.count), bool(chunk.finite)) == (1, False)
    before = program.state_before_last(broken, chunk)
    assert digest(before) == digest(broken)
    assert program.name_non_finite(before, chunk) == "obs of environment 3"


def resumed(case, folder):
    """A run that is stopped and resumed is the uninterrupted one, to the bit; other numbers of devices continue it."""
    whole = loop.train(config(case), out=folder / "whole", show=False)
    run = loop.train(config(case), lambda line, _: line["step"] == 96, out=folder / "run", show=False).run
    assert checkpoint.steps(run)[-1] == 96
    ended = loop.resume(run, show=False)
    assert digest(ended.state) == digest(whole.state)
    assert ended.evaluation == whole.evaluation

    policy = rlkit.load(run)
    (device,) = {device for x in jax.tree.leaves(policy.actor) for device in x.devices()}
    assert device == jax.devices()[0]

    one, two = make_program(config(case, devices=1)), make_program(config(case))
    undivided, _, extra = shards.restore(checkpoint.Reader(run), one)
    assert extra[shards.KEY] == 2
    assert jax.tree.map(np.shape, undivided) == jax.tree.map(np.shape, one.template)
    if case == "dqn":
        buffer, parts = undivided.agent.replay.buffer, ended.state.agent.replay.buffer
        check_buffer(buffer)
        words = np.concatenate(list(parts.ring.stored.words), 1)  # [R, N, W] of [D, R, N / D, W]
        np.testing.assert_array_equal(buffer.ring.stored.words, words)
        mass = np.concatenate([x.reshape(-1, 2) for x in np.asarray(parts.priorities.mass.leaves)[:, :128]], 1)
        np.testing.assert_array_equal(np.asarray(buffer.priorities.mass.leaves)[:256].reshape(-1, 4), mass)
    checkpoint.save(begin(folder / "again"), 0, undivided, {shards.KEY: 1})
    again, _, _ = shards.restore(checkpoint.Reader(folder / "again"), two)
    assert digest(again) == digest(ended.state)
    assert jax.tree.map(lambda x: x.sharding, again) == jax.tree.map(lambda x: x.sharding, two.template)

    for devices, steps in ((1, 192), (4, 224)):
        more = loop.resume(run, overrides={"devices": devices, "total_steps": steps}, show=False)
        assert checkpoint.steps(run)[-1] == steps
        assert {len(x.devices()) for x in jax.tree.leaves(more.state.agent.params)} == {devices}


def begin(folder):
    (folder / "checkpoints").mkdir(parents=True)
    return folder


def refusals():
    """A run that does not divide is one line, before anything is compiled."""
    for case, changed, message in (
        ("ppo", {"num_envs": 6, "devices": 4}, r"^num_envs=6 must be a multiple of the devices .* 4; try 4 or 8$"),
        (
            "ppo",
            {"num_minibatches": 32},
            r"^num_minibatches=32 must divide num_envs \* num_steps / 2 devices = 16; try",
        ),
        ("dqn", {"batch_size": 9}, r"^batch_size=9 must be a multiple of the devices .* 2; try 8 or 10$"),
        ("dqn", {"devices": 9}, r"^devices=9 must be at most 4, as JAX has started with them; .*lower it$"),
        ("dqn", {"replay": replay.uniform(256, 8)}, r"is a buffer of one device; do not divide the run over several$"),
        (
            "dqn",
            {"dataset": "none"},
            r"^devices=2 must be 1 or auto with a dataset and one seed: .*; leave devices out",
        ),
    ):
        with pytest.raises(rlkit.ConfigError, match=message):
            make_program(config(case, **changed))


if __name__ == "__main__":
    jax.config.update("jax_disable_most_optimizations", True)
    assert rlkit.use_cpu_cores(4) == 4
    case = sys.argv[1]
    if case == "refusals":
        refusals()
        divided_hosts.refusals()
    else:
        updates_of_the_library(case)
        if case == "ppo":
            stops_where_it_is_not_finite(case)
        with tempfile.TemporaryDirectory() as folder:
            resumed(case, Path(folder))
    print("agrees:", case)
