"""Runs of several seeds in environments outside of JAX: one run, whose seeds are those of single runs."""

import json
import signal
from functools import partial

import jax
import numpy as np
import pytest
from host_runs import DQN, PPO, lines
from tiny_datasets import write

import rlkit
from rlkit import runs
from rlkit.cli import main
from rlkit.hosts import HostError
from rlkit.runs import loop
from rlkit.runs.checkpoints import checkpoint
from rlkit.runs.programs import host_seeds_program, make

SMALL = {"backend": "serial", "total_steps": 256, "log_every": 64, "eval_episodes": 4, "seed": 5}
RUNS = {"ppo": PPO | SMALL, "dqn": DQN | SMALL, "dqn after every step": DQN | SMALL | {"num_steps": 1}}
MEASURED = ("seconds", "steps_per_second", "update_seconds", "envs_idle", "learner_idle")


def assert_equal(tree, other):
    for a, b in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True):
        if jax.numpy.issubdtype(getattr(a, "dtype", None), jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_array_equal(a, b)


def counted(line):
    """A metric line without measured times."""
    return {name: value for name, value in line.items() if name not in MEASURED}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", ["dqn", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ppo", "dqn after every step"))]
)
def test_each_seed_is_a_run_of_its_own(tmp_path, name):
    """States, metric lines and evaluations are those of single runs; DQN stores several updates before it learns."""
    config = RUNS[name]
    both = loop.train(config | {"num_seeds": 2}, out=tmp_path / "both", show=False)
    for index, seed in enumerate((5, 6)):
        single = loop.train(config | {"seed": seed}, out=tmp_path / str(seed), show=False)
        assert_equal(jax.tree.map(lambda x, index=index: x[index], both.state), single.state)
        assert both.evaluation["mean_of_seed"][index] == single.evaluation["mean"]
        for line, of_single in zip(lines(both.run), lines(single.run), strict=True):
            of_seed = {key: value[index] if key != "step" else value for key, value in counted(line).items()}
            assert of_seed == counted(of_single)
    assert both.evaluation["seeds"] == [5, 6]
    assert (both.run / "curve.png").exists()


@pytest.mark.thorough
def test_such_a_run_is_resumed_evaluated_and_loaded(tmp_path):
    config = RUNS["dqn"] | {"num_seeds": 2}
    stopped = loop.train(config, lambda line, state: line["step"] == 128, out=tmp_path / "run", show=False)
    assert stopped.state.step.tolist() == [8, 8]
    resumed = loop.resume(stopped.run, env="host_envs:Target", show=False)
    assert [line["step"] for line in lines(resumed.run)] == [64, 128, 192, 256]
    single = loop.train(RUNS["dqn"] | {"seed": 6}, lambda line, _: line["step"] == 128, out=tmp_path / "6", show=False)
    single = loop.resume(single.run, env="host_envs:Target", show=False)
    assert_equal(jax.tree.map(lambda x: x[1], resumed.state), single.state)
    assert main(["eval", str(resumed.run), "--env", "host_envs:Target"]) == 0
    assert json.loads((resumed.run / "eval.json").read_text()) == resumed.evaluation
    policy = rlkit.load(resumed.run, seed=6, env="host_envs:Target")
    assert_equal(policy.actor, rlkit.load(single.run, env="host_envs:Target").actor)


@pytest.mark.thorough
def test_a_signal_stops_all_seeds_at_the_same_update(tmp_path, monkeypatch):
    """It comes in an update of the second of three seeds, which is made to its end with all of them."""
    iterate, updates = host_seeds_program.HostProgram.iterate, []

    def interrupted(self, state, most):
        if self.config.run.seed == 6:
            updates.append(int(state.step) + 1)
            if len(updates) == 2:
                signal.raise_signal(signal.SIGINT)
        return iterate(self, state, most)

    monkeypatch.setattr(host_seeds_program.HostProgram, "iterate", interrupted)
    stopped = loop.train(RUNS["ppo"] | {"num_seeds": 3}, out=tmp_path / "run", show=False)
    assert stopped.signal == signal.SIGINT
    assert stopped.state.step.tolist() == [updates[1]] * 3


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "raised"),
    [
        pytest.param(
            name,
            HostError("broken on purpose") if fails else None,
            id=f"{name}-{'fails' if fails else 'not finite'}",
            marks=() if (name, fails) == ("dqn", True) else pytest.mark.slow,
        )
        for name in RUNS
        for fails in (False, True)
    ],
)
def test_what_goes_wrong_in_one_seed_keeps_the_states_before_it(tmp_path, monkeypatch, name, raised):
    """The second seed fails when the first one has made the update, which has taken over the replay buffer."""
    config, iterate = RUNS[name] | {"num_seeds": 2}, host_seeds_program.HostProgram.iterate

    def fail(self, state, most):
        fails = self.config.run.seed == 6 and (int(state.step) + 1) * self.config.steps_per_update == 192
        if fails and raised is not None:
            raise raised
        new, rows, finite = iterate(self, state, most)
        if fails:
            self.non_finite, finite = "loss", False
        return new, rows, finite

    monkeypatch.setattr(host_seeds_program.HostProgram, "iterate", fail)
    error = HostError if raised else loop.NonFiniteError
    with pytest.raises(error, match=r"broken on purpose|loss of seed 6 is not finite after step 192"):
        loop.train(config, out=tmp_path / "run", show=False)
    program = make.make_program(runs.parse(config))
    state, step, _ = checkpoint.restore(tmp_path / "run", program.template)
    program.close()
    assert step == 192 - program.config.steps_per_update
    assert np.asarray(state.step).tolist() == [step // program.config.steps_per_update] * 2
    assert np.isfinite(np.concatenate([np.ravel(x) for x in jax.tree.leaves(state.agent.params)])).all()
    # The first seed's buffer holds one more rollout, and the step that was held back before it is no longer held back.
    monkeypatch.undo()
    single = loop.train(RUNS[name], lambda line, _: line["step"] == 192, out=tmp_path / "single", show=False).state
    first = jax.tree.map(lambda x: x[0], state)
    assert_equal(first.envs, single.envs)
    assert_equal(getattr(first.agent, "replay", ()), getattr(single.agent, "replay", ()))


def test_workers_of_other_seeds_start_when_they_are_needed():
    """The first states need none: two threads, of which one compiles, would start them twice."""
    program = host_seeds_program.HostSeedsProgram(runs.parse(RUNS["ppo"] | {"num_seeds": 3}))
    assert len(program.start()) == 3
    assert program._others == []
    assert [one.config.run.seed for one in program.programs] == [5, 6, 7]
    assert len({id(one.updates._update) for one in program.programs}) == 1  # compiled once
    assert len({id(one.collector.act) for one in program.programs}) == 1
    program.close()
    assert all(one.pool.closed for one in program.programs)


@pytest.mark.slow
def test_several_seeds_learn_from_a_dataset(tmp_path):
    """Their states are those of single runs, but for rounding under vmap; evaluations and metric lines too."""
    obs = np.eye(2, dtype=np.float32)[np.random.default_rng(0).integers(2, size=(6, 2))]
    action, ones = np.zeros((6, 2), np.int32), np.ones((6, 2), bool)
    flags = {"terminated": ones, "truncated": ~ones, "reward": obs[..., 0]}
    data = write(tmp_path / "data", 20, obs=obs, next_obs=obs, action=action, **flags)
    config = RUNS["dqn"] | {"dataset": str(data), "learning_starts": 0}
    both = loop.train(config | {"num_seeds": 2}, out=tmp_path / "both", show=False)
    single = loop.train(config | {"seed": 6}, out=tmp_path / "6", show=False)
    of_seed = jax.tree.map(lambda x: x[1], both.state)
    assert_equal(of_seed.agent.replay.buffer.ring, single.state.agent.replay.buffer.ring)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6), of_seed.agent.params, single.state.agent.params)
    assert both.evaluation["mean_of_seed"][1] == single.evaluation["mean"]
    for index in range(2):
        assert [line["update_seconds"][index] > 0 for line in lines(both.run)] == [True] * 4
    stopped = loop.train(
        config | {"num_seeds": 2}, lambda line, _: line["step"] == 128, out=tmp_path / "part", show=False
    )
    resumed = loop.resume(stopped.run, env="host_envs:Target", show=False)
    assert_equal(resumed.state, both.state)
