"""The code of docs/your-own-network.md, run from top to bottom."""

from pathlib import Path

import jax
import numpy as np
import pytest
from doc_pages import blocks

PAGE = Path(__file__).parents[2] / "docs" / "your-own-network.md"


@pytest.mark.thorough
def test_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where a run of the page is written
    names = {"__name__": "page"}
    with jax.numpy_rank_promotion("allow"):
        for block in blocks(PAGE, "python"):
            exec(block, names)
    assert np.isfinite(names["metrics"]["loss"])
    assert names["trained"].evaluation["episodes"]
    assert jax.tree.leaves(names["state"].agent.stats)
