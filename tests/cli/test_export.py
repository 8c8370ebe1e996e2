"""`rlkit export`: files that the programs of docs/export.md act with, in processes without rlkit."""

import json
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from command_line import fails
from tiny_runs import SMALL

import rlkit
from rlkit import cli, runs
from rlkit.runs import loop

pytestmark = pytest.mark.usefixtures("compiled_once")

PAGE = Path(__file__).parents[2] / "docs/export.md"
needs_page = pytest.mark.skipif(not PAGE.exists(), reason="a source distribution has no docs/")
MEMORY = {
    "agent": "r2d2",
    "replay": "uniform",
    "burn_in": 2,
    "unroll_len": 4,
    "n_step": 1,
    "memory_size": 8,
    "recurrent": "gru",
}
RECURRENT = {"env": "CartPole-v1", "num_envs": 4, "num_steps": 8, "total_steps": 32, "hidden_sizes": [8], **MEMORY}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "cart"
    return loop.train(SMALL | {"total_steps": 32, "eval_episodes": 0}, out=path, show=False).run


def programs(heading):
    """The Python programs below a heading of the page, as one."""
    section = PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


def act_without(modules, program, folder):
    """The last line that a program prints as JSON, in a process that imports none of the modules."""
    check = f"import sys; assert not set({modules}) & {{name.partition('.')[0] for name in sys.modules}}"
    done = subprocess.run([sys.executable, "-c", f"{program}\n{check}"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def greedy(run, obs):
    policy = rlkit.load(run)
    return [int(policy.act(x, jax.random.key(1))[0]) for x in obs]


CASES = {  # format: heading of the page, how its program acts on `obs`, modules that it does without
    "stablehlo": ("JAX", 'policy({"obs": obs})["action"]', ("rlkit", "flax")),
    "onnx": ("ONNX", 'session.run(["action"], {"obs": obs})[0]', ("rlkit", "jax")),
}


@needs_page
@pytest.mark.parametrize("format", CASES)
def test_the_program_of_the_page_acts_as_the_policy(run, tmp_path, capsys, format):
    if format == "onnx":
        pytest.importorskip("jax2onnx")
        pytest.importorskip("onnxruntime")
    heading, call, without = CASES[format]
    out = tmp_path / f"cartpole.{format}"
    assert cli.main(["export", str(run), "--out", str(out)]) == 0
    line = capsys.readouterr().out
    assert line.startswith(f"{out} ({format}): obs float32[B, 4] -> action int32[B]; {out.stat().st_size} bytes")
    obs = np.random.default_rng(0).normal(0, 2, (20, 4)).astype(np.float32)
    np.save(tmp_path / "obs.npy", obs)
    acting = f"import json\nobs = np.load('obs.npy')\nprint(json.dumps(np.asarray({call}).tolist()))"
    assert act_without(without, f"{programs(heading)[0]}\n{acting}", tmp_path) == greedy(run, obs)


def test_a_file_of_stablehlo_names_its_run_inputs_and_outputs(run, tmp_path):
    runs.export(run, "stablehlo", tmp_path / "a.stablehlo")
    exported = jax.export.deserialize(bytearray((tmp_path / "a.stablehlo").read_bytes()))
    assert exported.fun_name == "cart"
    assert exported.platforms == ("cpu", "cuda", "tpu")
    products = [line for line in exported.mlir_module().splitlines() if "stablehlo.dot_general" in line]
    assert products
    assert all("HIGHEST" in line for line in products), "a GPU would round the operands to 10 bits"
    ((inputs,), _), outputs = (
        jax.tree.unflatten(*pair)
        for pair in ((exported.in_tree, exported.in_avals), (exported.out_tree, exported.out_avals))
    )
    assert {name: (x.shape[1:], str(x.dtype)) for name, x in (inputs | outputs).items()} == {
        "obs": ((4,), "float32"),
        "action": ((), "int32"),
    }


@pytest.mark.thorough
def test_the_metadata_of_onnx(run, tmp_path):
    pytest.importorskip("jax2onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    runs.export(run, "onnx", tmp_path / "a.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "a.onnx")
    assert session.get_modelmeta().custom_metadata_map == {
        "run": "cart",
        "agent": "ppo",
        "env": "CartPole-v1",
        "step": "32",
    }
    assert [(x.name, x.shape, x.type) for x in session.get_inputs()] == [("obs", ["B", 4], "tensor(float)")]
    assert [(x.name, x.shape, x.type) for x in session.get_outputs()] == [("action", ["B"], "tensor(int32)")]


@needs_page
@pytest.mark.thorough
def test_a_recurrent_policy_of_stablehlo_and_onnx_in_a_loop(tmp_path):
    """Its memory and actions are those of `rlkit.load`, over three steps, of ONNX and of JAX."""
    run = loop.train(RECURRENT | {"eval_episodes": 0}, out=tmp_path / "memory", show=False).run
    runs.export(run, "stablehlo", tmp_path / "recurrent.stablehlo")
    call = jax.export.deserialize(bytearray((tmp_path / "recurrent.stablehlo").read_bytes())).call
    policy, memory, after = rlkit.load(run), None, np.ones((1, 8), np.float32)  # which `first` leaves unread
    for step in range(3):
        obs = np.full(4, step + 0.5, np.float32)
        action, memory = policy.act(obs, jax.random.key(0), memory)
        outputs = call({"obs": obs[None], "first": np.array([step == 0]), "memory/core": after})
        after = outputs["next_memory/core"]
        assert int(outputs["action"][0]) == int(action)
        np.testing.assert_allclose(after[0], memory.core, rtol=1e-5, atol=1e-6)
    pytest.importorskip("jax2onnx")
    pytest.importorskip("onnxruntime")
    runs.export(run, "onnx", tmp_path / "recurrent.onnx")
    program = programs("ONNX")[1] + "\nimport json\nprint(json.dumps([x.tolist() for x in memory.values()]))"
    policy, memory = rlkit.load(run), None
    for _ in range(3):
        _, memory = policy.act(np.zeros(4, np.float32), jax.random.key(0), memory)
    np.testing.assert_allclose(act_without(("rlkit", "jax"), program, tmp_path)[0][0], memory.core, atol=1e-5)


def test_mistakes_are_one_line(run, tmp_path, capsys, monkeypatch):
    out = str(tmp_path / "policy")
    assert "keep_best" in fails(capsys, "export", str(run), "--format", "stablehlo", "--out", out, "--best")
    assert "directory" in fails(capsys, "export", str(run), "--format", "stablehlo", "--out", str(tmp_path))
    assert "writable" in fails(capsys, "export", str(run), "--format", "stablehlo", "--out", str(tmp_path / "no" / "a"))
    monkeypatch.setitem(sys.modules, "jax2onnx", None)
    assert "rlkit-jax[onnx]" in fails(capsys, "export", str(run), "--format", "onnx", "--out", out)
    with pytest.raises(rlkit.ConfigError, match="did you mean 'onnx'"):
        runs.export(run, "onx", out)
    with pytest.raises(rlkit.ConfigError, match="format='npz' must be one of onnx, stablehlo"):
        runs.export(run, None, tmp_path / "policy.npz")
    assert list(tmp_path.iterdir()) == []
