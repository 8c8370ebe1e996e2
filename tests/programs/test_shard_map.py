"""Public functions inside of `jax.shard_map` with its checks on, one seed a device: the numbers of `jax.vmap`."""

import os
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest

from rlkit._mesh import vary_like

PROGRAMS = Path(__file__).parents[1] / "support" / "sharded.py"
THOROUGH = ("primitives",)
SLOW = ("permutations", "structures", "buffers", "slice_buffers", "more_buffers", "agents", "more_agents")


@pytest.mark.parametrize(
    "programs",
    [pytest.param(name, marks=pytest.mark.slow if name in SLOW else pytest.mark.thorough) for name in THOROUGH + SLOW],
)
def test_sharded_seeds_are_those_of_vmap(programs):
    command = [sys.executable, str(PROGRAMS), programs]
    done = subprocess.run(
        command, env=os.environ | {"JAX_PLATFORMS": "cpu"}, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "agrees" in done.stdout


def test_vary_like_is_the_identity_elsewhere():
    tree = {"x": jnp.ones(3), "n": 2}
    assert vary_like(tree, jnp.zeros(2)) is tree
