"""The command line: a run trained, resumed, evaluated, drawn and shown, and what a mistake in it costs."""

import importlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from command_line import TINY, compilations_of_commands, fails
from PIL import Image

from rlkit import cli
from rlkit.cli.jax_settings import enable_compilation_cache
from rlkit.runs import loop, metrics, scores
from rlkit.runs.checkpoints import checkpoint
from rlkit.runs.config.settings import Task
from rlkit.runs.scores import evaluation_line
from rlkit.training import Evaluation


@pytest.fixture(scope="module", autouse=True)
def _compilations_in_a_folder_of_the_tests():
    with compilations_of_commands():
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run, made through the command line."""
    path = tmp_path_factory.mktemp("runs") / "tiny"
    assert cli.main(["train", "ppo/cartpole", *TINY, "--out", str(path)]) == 0
    return path


def test_train_says_how_good_it_is_and_where_it_lies(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("ppo-cartpole", "ppo-cartpole-2"):
        assert cli.main(["train", "ppo/cartpole", *TINY]) == 0
        out, err = capsys.readouterr()
        said, where = out.splitlines()
        assert re.fullmatch(r"step 64: greedy return \S+, IQM \S+ \[\S+, \S+\] over 1 seed\(s\) and 4 episodes", said)
        assert where == f"runs/{name}"
        assert "64/64 steps" in err
        assert (tmp_path / where / "eval.json").exists()


def test_the_cache_is_private(run):
    folder = Path(os.environ["RLKIT_CACHE"])
    assert folder.stat().st_mode & 0o777 == 0o700
    assert any(folder.iterdir())


def test_a_cache_that_others_may_write_is_not_used(tmp_path, monkeypatch, capsys):
    before = jax.config.jax_compilation_cache_dir
    monkeypatch.setenv("RLKIT_CACHE", str(tmp_path))
    tmp_path.chmod(0o777)
    enable_compilation_cache()
    assert "chmod 700" in capsys.readouterr().err
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.setenv("RLKIT_CACHE", str(tmp_path / "link"))
    enable_compilation_cache()
    monkeypatch.setenv("RLKIT_CACHE", "off")
    enable_compilation_cache()
    assert jax.config.jax_compilation_cache_dir == before


@pytest.mark.parametrize("batched", [False, True])
def test_returns_that_are_no_numbers(batched):
    """They are null in eval.json and in metric lines, which stay JSON, and the command says what they are."""
    returns = np.array([[np.nan, 1.0], [np.inf, -np.inf]], np.float32)
    lengths = np.full((2, 2), 3, np.int32)
    result = Evaluation(returns, lengths, lengths > 0)
    found, short = scores.report(result, batched), scores.summary(result, batched)
    json.dumps([found, short], allow_nan=False)
    assert found["mean"] is found["iqm"] is found["min"] is found["max"] is None
    assert (found["episodes"], found["length_mean"]) == (4, 3.0)
    assert found["mean_of_seed"] == [None] * (2 if batched else 1)
    assert found["returns"] == ([[None, 1.0], [None, None]] if batched else [[None, 1.0, None, None]])
    assert short["return_mean"] == ([None, None] if batched else None)
    said = "greedy return not finite, IQM not finite [not finite, not finite] over 1 seed(s) and 4 episodes"
    assert said in evaluation_line(found | {"step": 8, "seeds": [0]})


def test_infinite_parameters_of_an_environment_leave_eval_json_json(tmp_path):
    kwargs = {"gravity": math.inf, "levels": (1.0, -math.inf), "name": "x"}
    run = SimpleNamespace(eval_task=Task("E", kwargs, ()), agent="ppo")
    result = Evaluation(np.ones((2, 2), np.float32), np.ones((2, 2), np.int32), np.ones((2, 2), bool))
    program = SimpleNamespace(config=SimpleNamespace(run=run), seeds=np.arange(1), batched=False, eval_env=None)
    program.evaluate = lambda state: result
    scores.save(tmp_path, scores.evaluate(program, None, 8))
    found = json.loads((tmp_path / "eval.json").read_text(), parse_constant=pytest.fail)
    assert found["env_kwargs"] == {"gravity": "inf", "levels": [1.0, "-inf"], "name": "x"}


def test_resume_of_a_finished_run_and_eval_agree(run, capsys):
    assert cli.main(["resume", str(run)]) == 0
    resumed = capsys.readouterr().out.splitlines()[0]
    (run / "eval.json").unlink()
    assert cli.main(["eval", str(run)]) == 0
    assert capsys.readouterr().out.splitlines() == [resumed]
    assert (run / "eval.json").exists()


def test_plot(run, tmp_path, capsys):
    assert cli.main(["plot", str(run), "--out", str(tmp_path / "curve")]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "curve.png"), str(tmp_path / "curve.svg")]


def test_render(run, capsys):
    assert cli.main(["render", str(run), "--max-steps", "5"]) == 0
    path = run / "policy.gif"
    assert capsys.readouterr().out.strip() == str(path)
    with Image.open(path) as picture:
        assert 2 <= picture.n_frames <= 6
    assert "max_steps=0" in fails(capsys, "render", str(run), "--max-steps", "0")


def test_a_video_needs_the_extra(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    monkeypatch.setattr("rlkit.runs.pictures.rendering.load", None)  # found out before anything is loaded
    line = fails(capsys, "render", str(run), "--out", str(tmp_path / "x.mp4"))
    assert "pip install 'rlkit-jax[video]'" in line
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_ends_in_mp4_gives_a_video(run, tmp_path, capsys):
    pytest.importorskip("imageio_ffmpeg")
    path = tmp_path / "x.MP4"
    assert cli.main(["render", str(run), "--max-steps", "5", "--out", str(path)]) == 0
    assert capsys.readouterr().out.strip() == str(path)
    assert path.read_bytes()[4:8] == b"ftyp"  # every MP4 begins so


@pytest.mark.parametrize(
    ("words", "outs", "said"),
    [
        (("plot",), (".", "..", "/", ""), "must end in a name"),
        (("render",), (".", "..", "/", ""), "must be a file, and it is a directory"),
        (("collect", "--steps", "8"), (".", "..", "/", ""), "must end in a name"),
    ],
)
def test_an_out_without_a_name_is_refused_before_the_work(run, tmp_path, capsys, monkeypatch, words, outs, said):
    def forbidden(*arguments, **options):
        raise AssertionError("worked")

    for module, name in (("pictures.curves", "curve"), ("pictures.rendering", "load"), ("collecting", "load_state")):
        monkeypatch.setattr(importlib.import_module(f"rlkit.runs.{module}"), name, forbidden)
    monkeypatch.chdir(tmp_path)
    for out in outs:
        assert said in fails(capsys, *words, str(run), "--out", out)
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_can_be_written_nothing_is_lost(run, tmp_path, capsys, monkeypatch):
    missing = tmp_path / "missing" / "x.gif"
    assert f"out='{missing}' must be in a writable folder" in fails(capsys, "render", str(run), "--out", str(missing))

    def refused(dir):
        raise PermissionError(13, "Permission denied", str(dir))

    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    assert "writable folder: Permission denied" in fails(capsys, "resume", str(run))
    assert cli.main(["eval", str(run)]) == 2
    out, err = capsys.readouterr()
    assert "greedy return" in out, "what was computed is said before it is kept"
    assert "writable folder: Permission denied" in err


def test_the_command_finds_ones_own_code_in_the_current_folder(tmp_path):
    """A command's own folder is where Python looks, not the current one."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "reach.py").write_text("from gymnasium.envs.classic_control import CartPoleEnv as Reach\n")
    script = tmp_path / "rlkit"
    script.write_text("import sys\nfrom rlkit.cli import main\nsys.exit(main())\n")
    words = ["check", "ppo/cartpole_gymnasium", "--env", "reach:Reach", "--num-workers", "1"]
    found = subprocess.run([sys.executable, script, *words], cwd=tmp_path / "here", capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert "environment:" in found.stdout


def test_a_truncated_checkpoint_is_one_line(run, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    for step in checkpoint.steps(copy):
        path = copy / "checkpoints" / f"{step:012d}" / "leaves.bin"
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="damaged"):
        assert "leaves.bin" in fails(capsys, "eval", str(copy))


@pytest.mark.thorough
def test_ctrl_c_saves_and_ends_cleanly_and_the_run_goes_on(tmp_path):
    """With a real signal to a real process."""
    run = tmp_path / "a folder" / "run"
    run.parent.mkdir()
    arguments = ["train", "ppo/cartpole", *TINY, "--total_steps=3e6", "--log_every=3200", "--out", str(run)]
    arguments = [word for word in arguments if word not in ("--total_steps", "64")]
    process = subprocess.Popen([sys.executable, "-m", "rlkit", *arguments], stderr=subprocess.PIPE, text=True)
    lines = run / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (lines.exists() and lines.stat().st_size) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert f"rlkit resume '{run}'" in err
    last = checkpoint.steps(run)[-1]
    assert 0 < last < 3_000_000
    assert last == metrics.read(run)[-1]["step"]
    stopped = loop.resume(run, lambda line, state: True, show=False)
    assert int(stopped.state.step) == (last // 3200 + 1) * 100  # at the next metric line
