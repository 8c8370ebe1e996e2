"""Transfer between runs: every field that an agent declares, under any name."""

import hashlib
import json
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_runs import SMALL

from rlkit.agents import ppo
from rlkit.runs import loop, transfer
from rlkit.runs.checkpoints import checkpoint, states
from rlkit.runs.config.parse import parse
from rlkit.runs.programs.make import make_program
from rlkit.types import Array, ConfigError


class State(ppo.State):
    """PPO's state with another network."""

    second_critic: dict[str, Array]


@pytest.mark.parametrize("declared", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_network_of_another_name_is_transferred_where_it_is_declared(monkeypatch, tmp_path, declared):
    make = ppo.make

    def with_second_critic(*arguments, **settings):
        agent = make(*arguments, **settings)

        def init(*arguments):
            return State(**vars(agent.init(*arguments)), second_critic={"w": jnp.zeros(3)})

        def update(state, rollout, key):
            state, metrics = agent.update(state, rollout, key)
            return state.replace(second_critic={"w": state.second_critic["w"] + 1.0}), metrics

        trained = (*agent.trained, "second_critic") if declared else agent.trained
        return agent._replace(init=init, update=update, trained=trained)

    monkeypatch.setattr(ppo, "make", with_second_critic)
    source = loop.train(SMALL | {"total_steps": 64}, out=tmp_path / "a", show=False)
    config = SMALL | {"total_steps": 32, "seed": 9}
    started = loop.train(config, out=tmp_path / "b", init_from=source.run, show=False).state.agent
    updates = 3.0 if declared else 1.0  # two of the source, and one
    np.testing.assert_array_equal(started.second_critic["w"], np.full(3, updates))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A run of one update."""
    return loop.train(SMALL | {"total_steps": 32}, out=tmp_path_factory.mktemp("source") / "a", show=False)


def test_another_agent_is_named(source, tmp_path):
    other = {name: SMALL[name] for name in ("env", "num_envs", "num_steps", "total_steps", "hidden_sizes")}
    other |= {"agent": "dqn", "capacity": 512, "batch_size": 8}
    with pytest.raises(ConfigError, match="; use the agent, ppo, of that run, and "):
        loop.train(other, out=tmp_path / "b", init_from=source.run, show=False)


def test_another_activation_is_refused(source, tmp_path):
    """The arrays have the same shapes, but the policy would be another one from the first step on."""
    with pytest.raises(ConfigError, match=r"activation='relu' must be that of init_from=.*'tanh'"):
        loop.train(SMALL | {"activation": "relu"}, out=tmp_path / "b", init_from=source.run, show=False)
    assert not (tmp_path / "b").exists()
    named, left_open = (make_program(parse(SMALL | values)) for values in ({"activation": "tanh"}, {}))
    assert transfer.load(named, source.run).keys() == {*named.agent.trained}  # what the source has by the observations
    by_name = source.run.rename(tmp_path / "named")
    config = by_name / "config.yaml"
    config.write_text(re.sub("activation: .*", "activation: tanh", config.read_text()))
    transfer.load(left_open, by_name)
    by_name.rename(source.run)


def test_other_atoms_are_refused(tmp_path):
    """A distribution of returns means another one on other atoms."""
    small = {"agent": "c51", "env": "CartPole-v1", "total_steps": 64, "num_envs": 4, "num_steps": 4, "capacity": 64}
    small |= {"hidden_sizes": [8], "batch_size": 4, "learning_starts": 16, "eval_episodes": 1}
    program = make_program(parse(small))
    states.save(tmp_path / "a", program.start())
    (tmp_path / "a" / "config.yaml").write_text(program.config.resolved())
    transfer.load(program, tmp_path / "a")
    with pytest.raises(ConfigError, match=r"v_max=20.0 must be that of init_from=.*10"):
        transfer.load(make_program(parse(small | {"v_max": 20.0})), tmp_path / "a")


@pytest.mark.parametrize("normalize_obs", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_run_in_code_of_ones_own_starts_another_without_running_it(normalize_obs, tmp_path):
    """Only arrays are read of the other run, so no code is run because a file names it."""
    config = SMALL | {"total_steps": 32, "num_envs": 4, "hidden_sizes": [8], "normalize_obs": normalize_obs}
    source = loop.train(config | {"env": "jax_envs:Reach", "env_kwargs": {}}, out=tmp_path / "a", show=False)
    text = (source.run / "config.yaml").read_text()
    (source.run / "config.yaml").write_text(text.replace("jax_envs:Reach", "no_such_module:Easy"))
    again = config | {"env": "jax_envs:Reach", "env_kwargs": {}, "learning_rate": 0.0, "seed": 5}
    started = loop.train(again, out=tmp_path / "b", init_from=source.run, show=False).state.agent
    jax.tree.map(np.testing.assert_array_equal, started.params, source.state.agent.params)
    if normalize_obs:
        assert float(started.normalizer.obs.count) == 2 * float(source.state.agent.normalizer.obs.count)
    with pytest.raises(ConfigError, match=r"the leaf .* must be .*; use the network, .* and no_such_module:Easy"):
        loop.train(again | {"env": "Pendulum-v1"}, out=tmp_path / "c", init_from=source.run, show=False)


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path):
    source = loop.train(SMALL | {"checkpoint_every": 32, "total_steps": 64}, out=tmp_path / "a", show=False)
    path = max((source.run / "checkpoints").iterdir()) / "leaves.bin"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    still = SMALL | {"total_steps": 32, "learning_rate": 0.0}
    with pytest.warns(UserWarning, match="is damaged"):
        started = loop.train(still, out=tmp_path / "b", init_from=source.run, show=False).state.agent.params
    differs = jax.tree.map(lambda a, b: not np.array_equal(a, b), started, source.state.agent.params)
    assert any(jax.tree.leaves(differs))


class Fields(NamedTuple):
    """Two of its leaves begin at the same byte."""

    without_numbers: Array
    params: Array
    rest: Array


@pytest.mark.parametrize("offset", [1 << 62, -64, "no"])
def test_forged_places_are_refused_before_memory_is_taken(offset, tmp_path):
    state = {"agent": Fields(without_numbers=jnp.zeros(0), params=jnp.arange(3.0), rest=jnp.zeros(100))}
    folder = states.save(tmp_path, state) / "checkpoints" / "000000000000"
    tree = json.loads((folder / "tree.json").read_text())
    part = {f"agent/{name}": getattr(state["agent"], name) for name in ("without_numbers", "params")}
    read, _, _ = checkpoint.Reader(tmp_path).restore(part, fields=part)
    np.testing.assert_array_equal(read["agent/params"], np.arange(3.0))
    tree["leaves"][1]["offset"] = offset
    manifest = json.loads((folder / "manifest.json").read_text())
    text = json.dumps(tree, indent=1).encode()
    manifest["tree.json"] = [len(text), hashlib.sha256(text).hexdigest()]
    (folder / "tree.json").write_bytes(text)
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))
    with pytest.raises(checkpoint.CheckpointError, match="must place the leaves"):
        checkpoint.Reader(tmp_path).restore(part, fields=part)
