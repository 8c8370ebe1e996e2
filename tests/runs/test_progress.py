"""Progress in a notebook, whose kernel has IPython and nothing else to display with."""

import os

import nbformat
import pytest
from nbclient import NotebookClient

CELLS = (
    "from rlkit.runs import loop",
    """config = {"agent": "ppo", "env": "CartPole-v1", "num_envs": 2, "num_steps": 16, "total_steps": 96}
config |= {"num_minibatches": 1, "hidden_sizes": [4], "eval_episodes": 0, "devices": 1}
trained = loop.train(config, out="run")""",
)


@pytest.fixture
def outputs(tmp_path, monkeypatch):
    """The outputs of a cell that trains, in a kernel with ipykernel and without ipywidgets."""
    for variable in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable.lower()))
    if "PYTEST_XDIST_WORKER" in os.environ:  # other tests run on the other cores
        monkeypatch.setenv("NPROC", "1")  # number of XLA's threads
    (tmp_path / "empty").mkdir()
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path / "empty")}}).execute()
    return notebook.cells[1].outputs


@pytest.mark.thorough
def test_a_notebook_shows_one_line_of_progress_and_replaces_it(outputs):
    lines = [output.data["text/plain"] for output in outputs if output.output_type == "display_data"]
    assert len(lines) == 1
    assert lines[0].startswith("96/96 steps")  # the last state of the line
    streams = "".join(output.text for output in outputs if output.output_type == "stream")
    assert "install" not in streams
    assert "96 steps" not in streams
