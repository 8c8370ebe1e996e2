"""A network of the user's own in runs: trained, resumed to the bit, loaded and transferred with its statistics."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import flax.linen as nn
import jax
import numpy as np
import pytest
from mistakes import mistake
from tiny_runs import SMALL, digest

import rlkit
from rlkit.runs import loop
from rlkit.runs.config.parse import parse
from rlkit.types import ConfigError

KEYS = {key: value for key, value in SMALL.items() if key not in ("num_epochs", "num_minibatches")}
SAC = KEYS | {"agent": "sac", "capacity": 128, "batch_size": 8, "learning_starts": 0, "replay_ratio": 0.125}


class Critics(nn.Module):
    """Two critics with batch renormalization, of the values of all actions."""

    @nn.compact
    def __call__(self, obs, train=False):
        hidden = rlkit.networks.BatchRenorm(warmup_steps=3)(nn.relu(nn.Dense(8)(obs)), train)
        return jax.numpy.stack([nn.Dense(2)(hidden), nn.Dense(2)(hidden)])


def critics(obs_space, action_space):
    return {"critics": Critics()}


def other(obs_space, action_space):
    return {"critics": Critics()}


@pytest.mark.thorough
def test_statistics_are_resumed_loaded_and_transferred(tmp_path):
    """A run that is stopped and resumed has the statistics of one that is not, to the bit."""

    def interrupt(line, state):
        if line["step"] == 160:
            signal.raise_signal(signal.SIGTERM)

    config = SAC | {"network": critics}
    whole = loop.train(config, out=tmp_path / "whole", show=False)
    moments = whole.state.agent.stats["critics"]["batch_stats"]["BatchRenorm_0"]
    assert int(moments["steps"]) == 40
    assert np.abs(np.asarray(moments["mean"])).max() > 1e-3
    stopped = loop.train(config, interrupt, out=tmp_path / "run", show=False)
    with pytest.raises(ConfigError, match=r"network=.*critics' is code, and no file may name code to run"):
        loop.resume(stopped.run, show=False)
    resumed = loop.resume(stopped.run, network=critics, show=False)
    assert digest(resumed.state) == digest(whole.state)
    with pytest.raises(ConfigError, match=r"network=.*other' must be that of run="):
        rlkit.load(whole.run, network=other)
    policy = rlkit.load(whole.run, network=critics)
    jax.tree.map(np.testing.assert_array_equal, policy.actor.stats, whole.state.agent.stats["policy"])
    again = config | {"total_steps": 32, "learning_rate": 0.0, "learning_starts": 1000}
    begun = loop.train(again, out=tmp_path / "again", init_from=whole.run, show=False)
    jax.tree.map(np.testing.assert_array_equal, begun.state.agent.stats, whole.state.agent.stats)


@pytest.mark.parametrize(("network", "words"), [
    ("mynet", "network='mynet' must be module:function"),
    ("no_such_module:f", "network='no_such_module:f': there is no module 'no_such_module'"),
    ("math:no", "module 'math' has no attribute 'no'"),
    (lambda obs_space, action_space: 1 / 0, "and it raised ZeroDivisionError"),
    (lambda obs_space, action_space: nn.Dense(3), "networks must be a dict"),
    (lambda obs_space, action_space: None, "and it returned None; add its `return`"),
    (lambda obs_space, action_space: {"critics": None}, "networks['critics'] must be a network, and it is None"),
])  # fmt: skip
def test_a_mistake_is_one_line(network, words, tmp_path):
    with mistake(words):
        loop.train(SAC | {"network": network}, out=tmp_path / "run", show=False)
    assert not (tmp_path / "run").exists()


def test_a_run_of_before_is_refused_in_a_line_that_says_so(tmp_path):
    run = loop.train(SMALL | {"total_steps": 32}, out=tmp_path / "run", show=False).run
    config = run / "config.yaml"
    config.write_text(config.read_text() + "torso: auto\n")
    for use in (rlkit.load, loop.resume):
        with pytest.raises(ConfigError, match=re.escape("was made by an earlier version")):
            use(run)


def test_a_function_has_a_name_in_the_config():
    assert parse(SAC | {"network": critics}).run.network.endswith("test_own_network:critics")


@pytest.mark.slow
def test_every_kind_of_network_with_statistics_trains_on_two_devices():
    """One program for all kinds, as starting it takes longer than training."""
    program = Path(__file__).parents[1] / "support" / "programs" / "own_networks_on_devices.py"
    kinds = ("linen", "nnx", "equinox", "functions")
    command = [sys.executable, str(program), *kinds]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == [f"agrees: {kind}" for kind in kinds]
