"""Programs of several runs on 1, 2 and 8 simulated devices, which must agree; also where devices do not divide runs.

Run in a process of its own, as the number of devices is set before JAX starts: python sharded_runs.py CASE
"""

import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlkit
from rlkit import training
from rlkit.runs import datasets, loop, scores
from rlkit.runs.checkpoints import checkpoint
from rlkit.runs.collecting import collect
from rlkit.runs.config.parse import parse
from rlkit.runs.programs.make import make_program

OFF_POLICY = {"hidden_sizes": [8], "capacity": 256, "batch_size": 8, "learning_starts": 8, "replay_ratio": 0.25}
CASES = {
    "ppo": {"agent": "ppo", "env": "CartPole-v1", "num_minibatches": 2, "hidden_sizes": [8], "normalize_obs": True},
    "dqn": {"agent": "dqn", "env": "CartPole-v1", "replay": "prioritized", **OFF_POLICY},
    "sac": {"agent": "sac", "env": "Pendulum-v1", **OFF_POLICY},
}


def config(case, num_seeds, **more):
    """A run of two updates a metric line."""
    sizes = {"num_envs": 4, "num_steps": 8, "total_steps": 128, "log_every": 64, "eval_episodes": 2, "seed": 5}
    return parse(CASES[case] | sizes | {"num_seeds": num_seeds} | more)


def assert_equal(actual, expected, rtol):
    """Integers, flags and keys exactly, floats to `rtol`."""
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        if jnp.issubdtype(b.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert a.shape == b.shape
        exact = not jnp.issubdtype(b.dtype, jnp.floating)
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=0 if exact else rtol, atol=0 if exact else 1e-6)


def resave(state, template):
    """What a checkpoint of the state holds, read for a template."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "checkpoints").mkdir()
        checkpoint.save(Path(folder), 0, state, {})
        return checkpoint.restore(Path(folder), template)[0]


def agree(case, num_seeds, devices):
    """The state after one update and the metrics and scores after two are those of one device."""
    one = make_program(config(case, num_seeds, devices=1))
    start = one.start()
    first, second = one.advance(start, np.int32(1)), one.advance(start, np.int32(2))
    expected = scores.report(one.evaluate(second.state), one.batched)
    many = make_program(config(case, num_seeds, devices=devices))
    assert many.mesh is not None
    assert len({leaf.sharding for leaf in jax.tree.leaves(many.start())}) == 1
    exported = many.export(many.start())
    assert_equal(exported, start, 1e-5)
    if num_seeds % many.num_devices:  # without a slice over devices, which would exchange every leaf
        spread = [x for x in jax.tree.leaves(exported) if isinstance(x, jax.Array) and len(x.devices()) > 1]
        assert spread == []
    for state in (many.start(), start):  # of its own, and as it was saved by one device
        chunk = many.advance(state, np.int32(1))
        assert (int(chunk.count), bool(chunk.finite)) == (1, True)
        assert_equal(many.export(chunk.state), first.state, 1e-5)
        assert jax.tree.map(lambda x: x.shape, many.export(chunk.state)) == jax.tree.map(
            lambda x: x.shape, many.template
        )
        metrics = jax.tree.map(lambda x: x[:1, :num_seeds], (chunk.metrics, first.metrics))
        assert_equal(*metrics, 1e-4)
    saved = many.export(chunk.state)
    for other in (one, many):  # a checkpoint is that of any number of devices
        restored = resave(saved, other.template)
        assert_equal(restored, saved, 0)
        assert_equal(other.export(other.advance(restored, np.int32(1)).state), second.state, 1e-5)
    report = scores.report(many.evaluate(second.state), many.batched)
    assert report == expected, (report, expected)
    print("agrees:", case, num_seeds, devices, flush=True)


def counts(case):
    """A checkpoint of eight devices is gone on with on one, two, four and eight, and from each of them on eight."""
    programs = [make_program(config(case, 8, devices=number)) for number in (1, 2, 4, 8)]
    many = programs[-1]
    states = [many.start()]
    for _ in range(3):
        states.append(many.advance(states[-1], np.int32(1)).state)
    _, saved, second, third = map(many.export, states)
    for program in programs:
        restored = resave(saved, program.template)
        assert_equal(restored, saved, 0)
        after = program.export(program.advance(restored, np.int32(1)).state)
        assert_equal(after, second, 1e-5)
        back = resave(after, many.template)
        assert_equal(back, after, 0)
        assert_equal(many.export(many.advance(back, np.int32(1)).state), third, 1e-5)
        print("agrees: a checkpoint of 8 devices on", program.num_devices, flush=True)


def stops_at_a_run_that_is_not_finite(case):
    """Where one run is not finite, all runs stop there, and it is named."""
    program = make_program(config(case, 3, devices=2))
    start = program.start()

    def poison(x):
        return x.at[1].set(jnp.nan) if jnp.issubdtype(x.dtype, jnp.floating) else x

    broken = start.replace(agent=start.agent.replace(params=jax.tree.map(poison, start.agent.params)))
    chunk = program.advance(broken, np.int32(2))
    assert (int(chunk.count), bool(chunk.finite)) == (1, False)
    assert np.asarray(chunk.state.step).tolist() == [1, 1, 1, 1]  # the last one fills up the second device
    name = program.name_non_finite(program.state_before_last(broken, chunk), chunk)
    assert name.endswith(" of seed 6"), name
    print("stops:", name)


def over_runs():
    """`training.over_runs` has the numbers of `jax.vmap`."""

    def one(key, scale, run):
        def body(x):
            return x + scale, jax.random.uniform(key)

        last, draws = jax.lax.scan(lambda x, _: body(x), run["start"], None, length=5)
        return last, draws

    for num_runs in (1, 3, 8, 10):
        keys, run = jax.random.split(jax.random.key(0), num_runs), {"start": jnp.arange(float(num_runs))}
        axes, outs = (0, None, 0), (0, 1)
        expected = jax.vmap(one, axes, outs)(keys, 2.0, run)
        for devices in (1, 2, 8):
            mesh = training.mesh.make(jax.local_devices()[:devices])
            spread = jax.jit(training.over_runs(one, mesh, in_axes=axes, out_axes=outs))
            assert_equal(spread(keys, 2.0, run), expected, 1e-6)
    print("agrees: over_runs")


def policies():
    """A policy of a run that is spread over devices acts on one, and so does another run that starts with it."""
    small = config("ppo", 2, devices=2, total_steps=64, eval_episodes=0).flat()
    del small["schedule_steps"]
    with tempfile.TemporaryDirectory() as folder:
        run, later = Path(folder) / "run", Path(folder) / "later"
        trained = loop.train(small, out=run, show=False)
        assert {len(x.devices()) for x in jax.tree.leaves(trained.state)} == {2}
        policy = rlkit.load(run, seed=6)
        expected = jax.tree.map(lambda x: x[1], trained.state.agent.params)
        assert_equal(policy.actor.params, expected, 0)
        first = jax.devices()[0]
        action, _ = policy.act(jax.device_put(jnp.zeros(4), first), jax.random.key(0))
        assert action.devices() == {first}
        dataset = datasets.load(collect(run, 8, num_envs=2))
        assert dataset.num_rows == 4
        for number in (1, 2):
            out = later.with_name(f"later-{number}")
            state = loop.train(small | {"devices": number}, out=out, init_from=run, show=False).state
            assert {len(x.devices()) for x in jax.tree.leaves(state)} == {number}
    print("placed: policies")


def too_late():
    """A number of devices that cannot be had any more is one clear line."""
    for call in (lambda: rlkit.use_cpu_cores(3), lambda: make_program(config("ppo", 4, devices=9))):
        with pytest.raises(rlkit.ConfigError, match=r"use_cpu_cores\(\) before anything else of JAX"):
            call()
    assert rlkit.use_cpu_cores(8) == 8  # what there is already


if __name__ == "__main__":
    jax.config.update("jax_disable_most_optimizations", True)
    assert rlkit.use_cpu_cores(8) == jax.device_count() == 8
    case = sys.argv[1]
    if case == "over_runs":
        over_runs()
        too_late()
    elif case == "policies":
        policies()
    elif case == "counts":
        counts("ppo")
    else:
        if case == "ppo":
            agree(case, 8, "auto")
        agree(case, 3, 2)
        stops_at_a_run_that_is_not_finite(case)
