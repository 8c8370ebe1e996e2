"""Runs resume to the bit, compile once, and stop where something is not finite."""

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
from compilations import remembered_programs
from mistakes import mistake
from tiny_runs import SMALL, THREE, digest, without_clock

import rlkit
from rlkit import envs
from rlkit.runs import files, loop, metrics, run_directory
from rlkit.runs.checkpoints import checkpoint
from rlkit.runs.config.parse import parse
from rlkit.runs.programs import jax_program
from rlkit.types import ConfigError

pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.fixture(scope="module")
def known():
    """The programs of `trained` and `remembered`."""
    return {}


@pytest.fixture(scope="module")
def trained(tmp_path_factory, known):
    """A finished run of ten updates, and the metric lines that on_chunk saw."""
    seen = []
    out = tmp_path_factory.mktemp("runs") / "first"
    with remembered_programs(known):
        return loop.train(SMALL, lambda line, state: seen.append(line), out=out, show=False), seen


@pytest.fixture
def remembered(known):
    """Runs of this test share their programs; those of others trace and compile them anew."""
    with remembered_programs(known):
        yield


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


@pytest.mark.thorough
@pytest.mark.usefixtures("remembered")
def test_a_damaged_newest_checkpoint_costs_only_time(trained, tmp_path):
    stopped = loop.train(SMALL, lambda line, state: line["step"] == 224, out=tmp_path / "run", show=False)
    (stopped.run / "checkpoints" / "000000000224" / "leaves.bin").write_bytes(b"")
    with pytest.warns(UserWarning, match="000000000224.*damaged"):
        resumed = loop.resume(stopped.run, show=False)
    assert digest(resumed.state) == digest(trained[0].state)
    assert without_clock(resumed.run) == without_clock(trained[0].run)


def test_a_resume_reads_each_file_of_the_checkpoint_once(trained, monkeypatch):
    """Also tree.json, which gives the program its number of streams before the leaves can be read."""
    opened, open_regular = [], files.open_regular

    def count(path, flags):
        opened.append(path)
        return open_regular(path, flags)

    monkeypatch.setattr(files, "open_regular", count)
    loop.resume(trained[0].run, show=False)
    folder = trained[0].run / run_directory.CHECKPOINTS
    read = [path.relative_to(folder).as_posix() for path in opened if folder in path.parents]
    newest = f"{checkpoint.steps(trained[0].run)[-1]:012d}"
    assert sorted(read) == [f"{newest}/leaves.bin", f"{newest}/manifest.json", f"{newest}/tree.json"]


def test_a_run_that_was_stopped_before_its_first_step_starts(trained, tmp_path):
    run = run_directory.create(tmp_path / "run")
    (run / "config.yaml").write_text(parse(SMALL).resolved())
    assert digest(loop.resume(run, show=False).state) == digest(trained[0].state)
    for path in (run / "checkpoints").iterdir():
        files.remove(path)
    with pytest.raises(ConfigError, match="must hold a checkpoint"):
        loop.resume(run, show=False)


@pytest.mark.thorough
@pytest.mark.usefixtures("remembered")
def test_a_run_that_was_stopped_while_compiling_starts_from_where_it_was_told_to(trained, tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    config = SMALL | {"total_steps": 32, "seed": 9, "learning_rate": 0.0}
    monkeypatch.chdir(trained[0].run.parent)
    with monkeypatch.context() as patch:
        patch.setattr(jax_program.JaxProgram, "start", killed)
        with pytest.raises(KeyboardInterrupt):
            loop.train(config, out=tmp_path / "run", init_from=trained[0].run.name, show=False)
    assert not checkpoint.steps(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    resumed = loop.resume(tmp_path / "run", show=False)
    assert digest(resumed.state.agent.params) == digest(trained[0].state.agent.params)


def test_ctrl_c_while_compiling_is_kept_until_the_run_can_be_resumed(trained, tmp_path, monkeypatch):
    start, before = jax_program.JaxProgram.start, signal.getsignal(signal.SIGINT)

    def interrupted(self):
        os.kill(os.getpid(), signal.SIGINT)
        return start(self)

    with monkeypatch.context() as patch:
        patch.setattr(jax_program.JaxProgram, "start", interrupted)
        stopped = loop.train(SMALL, out=tmp_path / "run", show=False)
    assert (stopped.signal, stopped.evaluation, checkpoint.steps(stopped.run)) == (signal.SIGINT, None, [0])
    assert signal.getsignal(signal.SIGINT) is before
    resumed = loop.resume(stopped.run, show=False)
    assert digest(resumed.state) == digest(trained[0].state)
    assert without_clock(resumed.run) == without_clock(trained[0].run)


@pytest.mark.thorough
@pytest.mark.usefixtures("remembered")
def test_a_run_is_trained_by_one_process_at_a_time(trained, tmp_path):
    """And the next one may, whether the one before came to its end, failed or was killed."""

    def again(line, state):
        before = without_clock(tmp_path / "run")
        with pytest.raises(ConfigError, match=r"run='.*run' must not be trained twice.*; wait for it or stop it"):
            loop.resume(tmp_path / "run", show=False)
        assert without_clock(tmp_path / "run") == before
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        loop.train(SMALL, again, out=tmp_path / "run", show=False)
    with pytest.raises(RuntimeError, match="mine"):
        loop.resume(tmp_path / "run", again, show=False)
    loop.resume(tmp_path / "run", show=False)
    assert without_clock(tmp_path / "run") == without_clock(trained[0].run)
    assert not (tmp_path / "run" / run_directory.LOCK).exists()


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
    with process:
        out, _ = process.communicate(timeout=240)
    assert process.returncode == 0
    return out.split()


@pytest.mark.slow
def test_twenty_updates_are_ten_and_ten_in_fresh_processes(tmp_path):
    """Another process, hash seed and working directory; every leaf bitwise equal."""
    config = SMALL | {"total_steps": 640, "num_minibatches": 2, "num_epochs": 2, "normalize_reward": True}
    whole = child(tmp_path / "a", "1", config=config, run=str(tmp_path / "whole"), stop=10**9)
    half = child(tmp_path / "b", "2", config=config, run=str(tmp_path / "half"), stop=320)
    half, whole = answer(half), answer(whole)
    assert checkpoint.steps(tmp_path / "half")[-1] == 320
    assert half != whole
    assert answer(child(tmp_path / "c", "3", config=config, run=str(tmp_path / "half"), stop=None)) == whole
    assert without_clock(tmp_path / "half") == without_clock(tmp_path / "whole")


@pytest.mark.thorough
def test_the_step_compiles_once_for_chunks_of_every_length(tmp_path):
    """Lines of 3 updates, a last chunk of 1, and a resume."""
    names = []
    jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **k: names.append((name, k.get("fun_name"))))
    config = SMALL | {"log_every": 96, "checkpoint_every": 96}
    stopped = loop.train(config, lambda line, state: line["step"] == 192, out=tmp_path / "run", show=False)
    traced = [fun for name, fun in names if "jaxpr_trace" in name and fun == "_loop"]
    assert len(traced) == 1
    del names[:]
    resumed = loop.resume(stopped.run, show=False)
    assert [line["step"] for line in metrics.read(resumed.run)] == [96, 192, 288, 320]
    assert len([fun for name, fun in names if "jaxpr_trace" in name and fun == "_loop"]) == 1


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


@pytest.mark.thorough
def test_the_state_before_the_first_bad_update_of_a_chunk_is_kept(known, tmp_path, monkeypatch):
    """The step, the quantity and the environment are named, and the last finite state is a checkpoint."""
    make = envs.make
    monkeypatch.setattr(envs, "make", lambda name, **kwargs: (TimeBomb((made := make(name, **kwargs))[0]), made[1]))
    monkeypatch.setattr(envs, "check", lambda *args, **kwargs: None)
    with mistake("reward of environment 0", "after step 96", "step 64", kind=loop.NonFiniteError):
        loop.train(SMALL | {"log_every": 320}, out=tmp_path / "run", show=False)
    found, step, _ = checkpoint.restore(tmp_path / "run", jax_program.JaxProgram(parse(SMALL)).template)
    assert step == 64
    monkeypatch.undo()
    with remembered_programs(known):
        finite = loop.train(SMALL, lambda line, state: line["step"] == 64, out=tmp_path / "finite", show=False)
    for a, b in zip(jax.tree.leaves(found.agent), jax.tree.leaves(finite.state.agent), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)  # of a line of one update XLA makes another program


@pytest.mark.thorough
@pytest.mark.usefixtures("remembered")
def test_the_environment_of_what_is_not_finite_is_named(tmp_path):
    stopped = loop.train(SMALL, lambda line, state: line["step"] == 64, out=tmp_path / "run", show=False)

    def poison(x):
        return x.at[2].set(jnp.nan) if jnp.issubdtype(x.dtype, jnp.floating) else x

    poisoned = stopped.state.envs.replace(env_state=jax.tree.map(poison, stopped.state.envs.env_state))
    extra = checkpoint.restore(stopped.run, stopped.state)[2]
    checkpoint.save(stopped.run, 72, stopped.state.replace(envs=poisoned), extra)
    with pytest.raises(loop.NonFiniteError, match="obs of environment 2 is not finite after step 96"):
        loop.resume(stopped.run, show=False)


@pytest.mark.thorough
def test_a_loss_or_a_parameter_that_overflows_is_named(tmp_path):
    config = THREE | {"learning_rate": 1e38, "max_grad_norm": math.inf}
    with pytest.raises(loop.NonFiniteError, match=r"(loss|grad_norm|params) of seed 5 is not finite after step \d+"):
        loop.train(config, out=tmp_path / "run", show=False)
    assert checkpoint.steps(tmp_path / "run")
