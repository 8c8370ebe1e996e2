"""Actions that are a Dict or a Tuple in environments outside of JAX, from training to an exported policy."""

import jax
import numpy as np
import pytest
from host_envs import Hybrid
from host_runs import PPO

from rlkit import runs
from rlkit.runs.config.parse import parse
from rlkit.runs.exporting.export import export
from rlkit.runs.programs.make import make_program
from rlkit.types import ConfigError

pytestmark = pytest.mark.thorough


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dict", "tuple"])
def test_ppo_learns_and_its_policy_acts(tmp_path, kind):
    env = "host_envs:Hybrid"
    more = {"env": env, "env_kwargs": {"kind": kind}, "total_steps": 6400, "log_std_init": -0.5, "num_steps": 32}
    more["backend"] = "serial"
    trained = runs.train(PPO | more, out=tmp_path / "run", show=False)
    assert trained.evaluation["mean"] > 0.9
    policy, own = runs.load(trained.run, env=env), Hybrid(kind)
    obs, _ = own.reset(seed=0)
    action, _ = policy.act(obs, jax.random.key(0))
    assert own.step(action)[1] > 0.8
    data = runs.datasets.load(runs.collect(trained.run, 64, env=env))
    assert jax.tree.map(np.shape, data.steps.action) == jax.tree.map(lambda x: (4, 16, *np.shape(x)), action)
    exported = export(trained.run, "stablehlo", tmp_path / "policy.stablehlo", env=env)
    names = ("amount", "side") if kind == "dict" else ("0", "1")
    assert [value.name for value in exported.outputs] == [f"action/{name}" for name in names]


def test_other_agents_are_refused():
    values = {"agent": "sac", "env": "host_envs:Hybrid", "num_envs": 1, "num_steps": 1, "total_steps": 8}
    with pytest.raises(ConfigError, match=r"^agent='sac' needs .*, and this one is Dict\(.*; use ppo$"):
        make_program(parse(values | {"backend": "serial"}))
