"""Every notebook runs from top to bottom in a fresh kernel and an empty directory."""

import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
LONG = ("01_ppo_from_pieces", "03_off_policy", "04_your_own_environment", "05_sweeps_and_populations")
by_name = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=pytest.mark.slow if path.stem in LONG else pytest.mark.thorough)
        for path in NOTEBOOKS
    ],
)
def test_runs(path, tmp_path, monkeypatch):
    for variable in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable.lower()))
    if "PYTEST_XDIST_WORKER" in os.environ:  # other tests run on the other cores
        monkeypatch.setenv("NPROC", "1")  # number of XLA's threads
    (tmp_path / "empty").mkdir()
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path / "empty")}}).execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    assert code
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert [output for cell in code for output in cell.outputs if output.output_type == "error"] == []


@by_name
def test_is_committed_clean(path):
    """With the outputs of one run from top to bottom, without an error or a path of the author's machine."""
    assert re.findall(r"(?:/(?:home|root|Users|work|tmp)/|[A-Z]:\\\\)\w+", path.read_text()) == []
    code = [
        cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code" and cell.source.strip()
    ]
    outputs = [output for cell in code for output in cell.outputs]
    assert outputs
    assert [output for output in outputs if output.output_type == "error"] == []
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
