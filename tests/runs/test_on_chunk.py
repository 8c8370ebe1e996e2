"""The function of a user that is called with each metric line: it adds numbers, or ends the run."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from doc_pages import blocks
from tiny_runs import SMALL, THREE

from rlkit import runs
from rlkit.runs import metrics
from rlkit.types import ConfigError

pytestmark = pytest.mark.usefixtures("compiled_once")

PAGE = Path(__file__).parents[2] / "docs" / "training-from-python.md"


def train(path, on_chunk, **keys):
    return runs.train(SMALL | keys, on_chunk, out=path / "run", show=False)


def test_numbers_that_are_returned_are_in_the_written_lines_and_do_not_end_the_run(tmp_path):
    def on_chunk(line, state):
        assert line.seeds == [line]
        line["changed"] = 1  # of a copy
        return {"twice": 2 * line["step"], "array": jnp.float32(0.5), "none": float("nan"), "yes": np.bool_(True)}

    trained = train(tmp_path, on_chunk)
    lines = metrics.read(trained.run)
    assert [line["twice"] for line in lines] == [2 * step for step in range(32, 321, 32)]
    assert all((line["array"], line["none"], line["yes"]) == (0.5, None, 1.0) for line in lines)
    assert not any("changed" in line for line in lines)


def test_an_entry_is_a_number_whatever_the_number_of_seeds(tmp_path):
    seen = []

    def on_chunk(line, state):
        seen.append(line)
        return {"own": np.arange(3), "one": 1} if line["step"] > 32 else {}

    trained = runs.train(THREE, on_chunk, out=tmp_path / "run", show=False)
    assert [line.get("own") for line in metrics.read(trained.run)] == [None, [0.0, 1.0, 2.0], [0.0, 1.0, 2.0]]
    assert [line.get("one") for line in metrics.read(trained.run)] == [None, 1.0, 1.0]
    for line, written in zip(seen, metrics.read(trained.run), strict=True):
        returns = [x for x in written["return_mean"] if x is not None]
        assert line["return_mean"] == (pytest.approx(np.mean(returns)) if returns else None)
        assert [seed["return_mean"] for seed in line.seeds] == written["return_mean"]
        assert {seed["step"] for seed in line.seeds} == {line["step"]}
        assert len(line.seeds) == 3


def test_true_ends_the_run_after_its_line(tmp_path):
    trained = train(tmp_path, lambda line, state: line["step"] >= 64)
    assert [line["step"] for line in metrics.read(trained.run)] == [32, 64]
    assert trained.evaluation is not None
    assert trained.evaluation["step"] == 64


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"return_mean": 1.0}, "'return_mean', and needs a new name"),
        ({3: 1.0}, "entry 3, and needs a new name"),
        ({"word": "1.5"}, "word='1.5', which must be a number$"),
        ({"many": [1.0, 2.0]}, "must be a number$"),
    ],
)
def test_what_cannot_be_written_is_named_in_one_line(entries, said):
    line = {"return_mean": None, "step": 32}
    with pytest.raises(ConfigError, match=said):
        metrics.additional(entries, line, 1)


def test_a_line_whose_entries_cannot_be_written_is_written_without_them(tmp_path):
    with pytest.raises(ConfigError, match="which must be a number"):
        train(tmp_path, lambda line, state: {"word": "1.5"})
    assert len(metrics.read(tmp_path / "run")) == 1


def test_the_examples_of_the_page_run(tmp_path, monkeypatch):
    """With the config of the other tests, whose program is compiled already, and whose episodes have 20 steps."""
    monkeypatch.chdir(tmp_path)
    original = runs.train
    monkeypatch.setattr(runs, "train", lambda config, *args, **kwargs: original(config | SMALL, *args, **kwargs))
    names: dict = {}
    for block in blocks(PAGE, "python"):
        exec(compile(block.replace("mean > 60", "mean > 6"), str(PAGE), "exec"), names)
    first, stopped, logged = (metrics.read(Path("runs") / name) for name in ("from-python", "good-enough", "logged"))
    assert len(stopped) < len(first) == len(logged)
    assert all(line["largest_param"] > 0 for line in logged)
    assert len(Path("my_log.csv").read_text().splitlines()) == len(logged)
