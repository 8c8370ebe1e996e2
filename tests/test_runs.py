"""Runs from config to files: what they write, that they resume to the bit, and how they stop."""

import hashlib
import itertools
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlkit
from rlkit import envs, runs
from rlkit.ops.statistics import iqm
from rlkit.runs import checkpoint, curves, files, loop, metrics, program, progress
from rlkit.runs.config import load_config, parse
from rlkit.types import ConfigError

SMALL = {
    "agent": "ppo",
    "env": "CartPole-v1",
    "env_kwargs": {"max_steps_in_episode": 20},
    "num_envs": 4,
    "num_steps": 8,
    "total_steps": 320,
    "num_epochs": 1,
    "num_minibatches": 1,
    "hidden_sizes": [8],
    "normalize_obs": True,
    "eval_episodes": 4,
    "checkpoint_every": 96,
    "keep_checkpoints": 10,
}
THREE = SMALL | {"num_seeds": 3, "total_steps": 96, "seed": 5}


@pytest.fixture(scope="module", autouse=True)
def compile_each_program_once(tmp_path_factory):
    """Runs with equal shapes share their compiled programs through a cache on the disk."""
    from jax.experimental.compilation_cache import compilation_cache

    wanted = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("xla")),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_numpy_dtype_promotion": "standard",  # optax's adam raises a Python float to an int32
    }
    before = {name: getattr(jax.config, name) for name in wanted}
    for name, value in wanted.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run of ten updates, and the metric lines that on_chunk saw."""
    seen = []
    out = tmp_path_factory.mktemp("runs") / "first"
    return loop.train(SMALL, lambda line, state: seen.append(line), out=out, show=False), seen


def digest(state):
    total = hashlib.sha256()
    for leaf in jax.tree.leaves(state):
        leaf = jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        total.update(np.asarray(leaf).tobytes())
    return total.hexdigest()


def without_clock(run):
    return [{k: v for k, v in line.items() if k not in ("seconds", "steps_per_second")} for line in metrics.read(run)]


def test_a_run_directory_holds_what_it_should(trained):
    run, state, evaluation, stopped = trained[0]
    assert stopped is None
    assert {path.name for path in run.iterdir()} == {
        *("config.yaml", "versions.json", "metrics.jsonl", "checkpoints", "eval.json", "curve.png")
    }
    config = load_config(run / "config.yaml")
    assert config.flat() == parse(SMALL).flat()
    assert json.loads((run / "versions.json").read_text())["jax"] == jax.__version__
    assert json.loads((run / "eval.json").read_text()) == evaluation
    assert (run / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert checkpoint.steps(run) == [0, 96, 192, 288, 320]
    assert int(state.step) == 10


def test_a_metric_line_says_what_the_issue_asks_for(trained):
    lines = metrics.read(trained[0].run)
    assert lines == trained[1]
    assert [line["step"] for line in lines] == list(range(32, 321, 32))
    wanted = (
        "step seconds steps_per_second episodes return_mean return_iqm return_min return_max length_mean approx_kl "
    )
    wanted += "policy_loss value_loss clip_fraction entropy explained_variance grad_norm learning_rate"
    assert set(wanted.split()) <= set(lines[0])
    for before, after in itertools.pairwise(lines):
        assert before["seconds"] <= after["seconds"]
    finished = [line for line in lines if line["episodes"]]
    assert finished
    for line in finished:
        assert 1 <= line["return_min"] <= line["return_iqm"] <= line["return_max"] <= 20
        assert line["length_mean"] == line["return_mean"], "CartPole pays 1 a step"
    assert all(line["return_mean"] is None for line in lines if not line["episodes"])


def test_the_evaluation_says_how_it_was_made(trained):
    found = trained[0].evaluation
    assert (found["greedy"], found["seeds"], found["episodes"], found["unfinished"]) == (True, [0], 4, 0)
    assert (found["env"], found["env_kwargs"], found["step"]) == ("CartPole-v1", {"max_steps_in_episode": 20}, 320)
    low, high = found["interval"]
    assert found["min"] <= low <= found["iqm"] <= high <= found["max"]
    assert found["mean"] == found["length_mean"]


def test_summaries_worked_by_hand():
    returns = np.full((2, 3, 2), np.nan, np.float32)
    lengths = np.zeros((2, 3, 2), np.int32)
    for place, value in zip(np.ndindex(2, 2, 2), [0.0, 0.0, 0.0, 100.0, 1.0, 2.0, 3.0, 4.0], strict=True):
        returns[place], lengths[place] = value, 5
    found = metrics.summarize(
        {"returns": returns, "lengths": lengths, "loss": np.array([1.0, 3.0]), "odd": np.array([np.nan, 2.0])}, 1
    )
    assert found["episodes"] == 8
    assert found["return_mean"] == 13.75
    assert found["return_iqm"] == np.mean([0, 1, 2, 3]) == float(iqm(returns[lengths > 0]))
    assert (found["return_min"], found["return_max"], found["length_mean"]) == (0, 100, 5)
    assert (found["loss"], found["odd"]) == (2.0, 2.0)
    nothing = metrics.summarize({"returns": returns[:, 2:], "lengths": lengths[:, 2:], "loss": np.array([np.inf])}, 1)
    assert (nothing["episodes"], nothing["return_mean"], nothing["return_min"], nothing["loss"]) == (
        0,
        None,
        None,
        None,
    )
    both = metrics.summarize({"returns": returns[None], "lengths": lengths[None], "loss": np.ones((1, 2))}, 2)
    assert both["return_mean"] == [25.0, 2.5]
    assert both["loss"] == [1.0, 1.0]


def test_a_resolved_config_trains_again_to_the_bit(trained, tmp_path):
    again = loop.train(trained[0].run / "config.yaml", out=tmp_path / "again", show=False)
    assert digest(again.state) == digest(trained[0].state)
    assert without_clock(again.run) == without_clock(trained[0].run)
    assert again.evaluation == trained[0].evaluation


def test_stopping_and_resuming_changes_nothing(trained, tmp_path):
    """Stopped by a signal in mid-run, and killed after a later metric line: state and files are as if never stopped."""

    def interrupt(line, state):
        if line["step"] == 160:
            signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    stopped = loop.train(SMALL, interrupt, out=tmp_path / "run", show=False)
    assert signal.getsignal(signal.SIGTERM) is before
    assert (stopped.signal, stopped.evaluation) == (signal.SIGTERM, None)
    assert checkpoint.steps(stopped.run)[-1] == 160
    assert not (stopped.run / "eval.json").exists()
    with (stopped.run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 192, "half')  # what a killed run wrote after its last checkpoint
    resumed = loop.resume(stopped.run, show=False)
    assert digest(resumed.state) == digest(trained[0].state)
    assert without_clock(resumed.run) == without_clock(trained[0].run)
    assert resumed.evaluation == trained[0].evaluation
    assert digest(loop.resume(stopped.run, show=False).state) == digest(resumed.state), (
        "a finished run is left as it is"
    )


def test_a_damaged_newest_checkpoint_costs_only_time(trained, tmp_path):
    stopped = loop.train(SMALL, lambda line, state: line["step"] == 224, out=tmp_path / "run", show=False)
    (stopped.run / "checkpoints" / "000000000224" / "leaves.bin").write_bytes(b"")
    with pytest.warns(UserWarning, match="000000000224.*damaged"):
        resumed = loop.resume(stopped.run, show=False)
    assert digest(resumed.state) == digest(trained[0].state)
    assert without_clock(resumed.run) == without_clock(trained[0].run)


def test_a_run_that_was_stopped_before_its_first_step_starts(trained, tmp_path):
    run = files.new_run(tmp_path / "run")
    (run / "config.yaml").write_text(parse(SMALL).resolved())
    assert digest(loop.resume(run, show=False).state) == digest(trained[0].state)
    for path in (run / "checkpoints").iterdir():
        files.remove(path)
    with pytest.raises(ConfigError, match="must hold a checkpoint"):
        loop.resume(run, show=False)


CHILD = """
import hashlib, sys, jax, numpy as np
from rlkit.runs import loop
config, run, stop, show = {config!r}, {run!r}, {stop!r}, False
if stop is None:
    trained = loop.resume(run, show=show)
else:
    trained = loop.train(config, lambda line, state: line["step"] >= stop, out=run, show=show)
leaves = [jax.random.key_data(x) if jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key) else x
          for x in jax.tree.leaves(trained.state)]
print(hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in leaves)).hexdigest(), len(leaves))
"""


def child(cwd, hash_seed, **values):
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path(rlkit.__file__).parents[1])}
    cwd.mkdir(exist_ok=True)
    code = CHILD.format(**values)
    return subprocess.Popen([sys.executable, "-c", code], cwd=cwd, env=environment, stdout=subprocess.PIPE, text=True)


def answer(process):
    out, _ = process.communicate(timeout=240)
    assert process.returncode == 0
    return out.split()


def test_twenty_updates_are_ten_and_ten_in_fresh_processes(tmp_path):
    """TRAPS 58 and PROMISES 14: another process, hash seed and working directory; every leaf bitwise equal."""
    config = SMALL | {"total_steps": 640, "num_minibatches": 2, "num_epochs": 2, "normalize_reward": True}
    whole = child(tmp_path / "a", "1", config=config, run=str(tmp_path / "whole"), stop=10**9)
    half = child(tmp_path / "b", "2", config=config, run=str(tmp_path / "half"), stop=320)
    whole, half = answer(whole), answer(half)
    assert checkpoint.steps(tmp_path / "half")[-1] == 320
    assert half != whole
    assert answer(child(tmp_path / "c", "3", config=config, run=str(tmp_path / "half"), stop=None)) == whole
    assert without_clock(tmp_path / "half") == without_clock(tmp_path / "whole")


def test_seeds_are_one_program_and_equal_single_runs(tmp_path):
    """PROMISES 15: the environments' integers exactly, parameters to float rounding after one update."""
    many, one = [], []
    together = loop.train(THREE, lambda line, state: many.append(state), out=tmp_path / "many", show=False)
    alone = loop.train(SMALL | {"seed": 6}, lambda line, state: one.append(state), out=tmp_path / "one", show=False)
    second, one = jax.tree.map(lambda x: x[1], many[0]), one[0]
    np.testing.assert_array_equal(second.envs.episode_length, one.envs.episode_length)
    for a, b in zip(jax.tree.leaves(second.agent.params), jax.tree.leaves(one.agent.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    first, *_, last = metrics.read(together.run)
    assert len(first["return_mean"]) == len(first["policy_loss"]) == 3
    assert first["episodes"][1] == metrics.read(alone.run)[0]["episodes"]
    assert together.evaluation["seeds"] == [5, 6, 7]
    assert together.evaluation["interval_over"] == "seeds"
    assert len(together.evaluation["mean_of_seed"]) == 3
    policy = runs.load(together.run, seed=6)
    final = jax.tree.map(lambda x: x[1], together.state.agent.params)
    assert digest(policy.actor.params) == digest(final)
    with pytest.raises(ConfigError, match="seed=8 must be one of the run's, 5 to 7"):
        runs.load(together.run, seed=8)
    drawn = curves.curve(metrics.read(together.run))
    assert (drawn.seeds, drawn.step[-1]) == (3, last["step"])
    assert all(drawn.low <= drawn.center)
    assert all(drawn.center <= drawn.high)


def test_the_step_compiles_once_for_chunks_of_every_length(tmp_path):
    """PROMISES 16: lines of 3 updates, a last chunk of 1, and a resume."""
    names = []
    jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **k: names.append((name, k.get("fun_name"))))
    config = SMALL | {"log_every": 96, "checkpoint_every": 96}
    stopped = loop.train(config, lambda line, state: line["step"] == 192, out=tmp_path / "run", show=False)
    traced = [fun for name, fun in names if "jaxpr_trace" in name and fun and "advance" in fun]
    assert len(traced) == 1
    del names[:]
    resumed = loop.resume(stopped.run, show=False)
    assert [line["step"] for line in metrics.read(resumed.run)] == [96, 192, 288, 320]
    assert len([fun for name, fun in names if "jaxpr_trace" in name and fun and "advance" in fun]) == 1


def test_evaluations_come_at_their_steps_and_change_nothing(trained, tmp_path):
    run = loop.train(SMALL | {"eval_every": 96}, out=tmp_path / "run", show=False)
    lines = metrics.read(run.run)
    assert [line["step"] for line in lines if "eval_return_mean" in line] == [96, 192, 288]
    assert digest(run.state) == digest(trained[0].state)


class TimeBomb:
    """An environment whose rewards are NaN from its 21st step on, which is in the third update."""

    def __init__(self, env):
        self.env = env

    def __getattr__(self, name):
        return getattr(self.env, name)

    def reset(self, key, params):
        obs, state = self.env.reset(key, params)
        return obs, (state, jnp.zeros((), jnp.int32))

    def step(self, key, state, action, params):
        obs, inner, reward, *rest = self.env.step(key, state[0], action, params)
        return obs, (inner, state[1] + 1), jnp.where(state[1] >= 20, jnp.nan, reward), *rest


def test_the_state_before_the_first_bad_update_of_a_chunk_is_kept(trained, tmp_path, monkeypatch):
    """PROMISES 9: the step, the quantity and the environment are named, and the last finite state is a checkpoint."""
    make = envs.make
    monkeypatch.setattr(envs, "make", lambda name, **kwargs: (TimeBomb((made := make(name, **kwargs))[0]), made[1]))
    monkeypatch.setattr(envs, "check", lambda *args, **kwargs: None)
    with pytest.raises(
        loop.NonFiniteError, match="reward of environment 0 is not finite after step 96; the state of step 64"
    ):
        loop.train(SMALL | {"log_every": 320}, out=tmp_path / "run", show=False)
    found, step, _ = checkpoint.restore(tmp_path / "run", program.Program(parse(SMALL)).template)
    assert step == 64
    reference = loop.train(SMALL, lambda line, state: line["step"] == 64, out=tmp_path / "reference", show=False)
    for a, b in zip(jax.tree.leaves(found.agent), jax.tree.leaves(reference.state.agent), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_the_environment_of_what_is_not_finite_is_named(tmp_path):
    stopped = loop.train(SMALL, lambda line, state: line["step"] == 64, out=tmp_path / "run", show=False)

    def poison(x):
        return x.at[2].set(jnp.nan) if jnp.issubdtype(x.dtype, jnp.floating) else x

    poisoned = stopped.state.envs.replace(env_state=jax.tree.map(poison, stopped.state.envs.env_state))
    extra = checkpoint.restore(stopped.run, stopped.state)[2]
    checkpoint.save(stopped.run, 72, stopped.state.replace(envs=poisoned), extra)
    with pytest.raises(loop.NonFiniteError, match="obs of environment 2 is not finite after step 96"):
        loop.resume(stopped.run, show=False)


def test_a_loss_or_a_parameter_that_overflows_is_named(tmp_path):
    config = THREE | {"learning_rate": 1e38, "max_grad_norm": math.inf}
    with pytest.raises(loop.NonFiniteError, match=r"(loss|grad_norm|params) of seed 5 is not finite after step \d+"):
        loop.train(config, out=tmp_path / "run", show=False)
    assert checkpoint.steps(tmp_path / "run")


def test_a_loaded_policy_acts(trained):
    """The example in the docstring of `rlkit.load`."""
    agent = rlkit.load(trained[0].run)
    obs, state = agent.env.reset(jax.random.key(0), agent.params)
    action, memory = agent.act(obs, jax.random.key(1))
    assert agent.env.action_space(agent.params).contains(action)
    assert jax.tree.structure(memory) == jax.tree.structure(agent.memory)
    assert (agent.step, agent.config.run.env) == (320, "CartPole-v1")
    assert digest(agent.actor.params) == digest(trained[0].state.agent.params)
    agent.env.step(jax.random.key(2), state, action, agent.params)


def test_a_run_starts_from_anothers_parameters(trained, tmp_path):
    config = SMALL | {"total_steps": 32, "seed": 9, "learning_rate": 0.0}
    started = loop.train(config, out=tmp_path / "a", init_from=trained[0].run, show=False)
    assert digest(started.state.agent.params) == digest(trained[0].state.agent.params)
    assert float(started.state.agent.normalizer.obs.count) > float(trained[0].state.agent.normalizer.obs.count)
    with pytest.raises(ConfigError, match=r"init_from=.* must have params/.* = float32\[16\], and it has float32\[8\]"):
        loop.train(config | {"hidden_sizes": [16]}, out=tmp_path / "b", init_from=trained[0].run, show=False)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_minibatches": 5}, "num_minibatches=5 must divide"),
        ({"env_kwargs": {"no_such": 1}}, "no_such"),
        ({"wrappers": ["frame_stak:4"]}, "frame_stack"),
        ({"tensorboard": True}, r"pip install 'rlkit-jax\[tensorboard\]'"),
        ({"wandb": "x"}, r"pip install 'rlkit-jax\[wandb\]'"),
    ],
)
def test_a_mistake_writes_nothing(tmp_path, monkeypatch, change, said):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=said) as caught:
        loop.train(SMALL | change, out=tmp_path / "run", show=False)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_tensorboard_gets_every_line(trained, tmp_path, monkeypatch):
    calls = []

    class SummaryWriter:
        def __init__(self, folder, purge_step=None):
            calls.append(("open", folder, purge_step))

        def add_scalar(self, name, value, step):
            calls.append((name, value, step))

        def close(self):
            calls.append(("close",))

    monkeypatch.setitem(sys.modules, "tensorboardX", type(sys)("tensorboardX"))
    sys.modules["tensorboardX"].SummaryWriter = SummaryWriter
    run = loop.train(SMALL | {"tensorboard": True, "total_steps": 64}, out=tmp_path / "run", show=False).run
    assert calls[0] == ("open", str(run / "tensorboard"), None)
    assert calls[-1] == ("close",)
    losses = [(value, step) for name, value, step in calls[1:-1] if name == "policy_loss"]
    assert losses == [(line["policy_loss"], line["step"]) for line in metrics.read(run)]


def test_plain_progress_is_plain(capsys):
    display = progress.progress(1000)
    assert isinstance(display, progress.Plain)
    line = {"return_mean": [10.0, None], "seconds": 2.0, "steps_per_second": 1234567.0}
    with display:
        display.update(100, line)
        display.update(200, line)  # too soon after the one before
        display.update(1000, line | {"return_mean": None})
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "100/1k steps, 1.23M/s, return 10, 18 s left",
        "1k/1k steps, 1.23M/s, no episode yet, 0 s left",
    ]


def test_the_bar_shows_steps_speed_return_and_time_left():
    import io

    from rich.console import Console

    out = io.StringIO()
    with progress.Bar(1000, Console(file=out, force_terminal=True, width=120)) as bar:
        bar.update(500, {"return_mean": 10.0, "seconds": 2.0, "steps_per_second": 5000.0})
    assert "500/1k steps, 5k/s, return 10" in out.getvalue()
