"""A copy of a bundled agent's file under another name, as one begins an algorithm of one's own."""

import importlib
import shutil
import sys
from pathlib import Path

import jax
import pytest
from mistakes import mistake
from tiny_runs import SMALL

from rlkit import agents, cli
from rlkit.runs.config.parse import parse
from rlkit.runs.programs.agent import make_agent
from rlkit.runs.programs.make import make_program

CONTINUOUS = ("crossq", "ddpg", "rebrac", "sac", "td3", "td3_bc", "tqc")
RUN = {key: SMALL[key] for key in ("num_envs", "num_steps", "eval_episodes")} | {"total_steps": 64}


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A function that copies an agent's file and returns the name of the copy's agent."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def copy(agent: str) -> str:
        shutil.copy(str(agents.get(agent).__file__), tmp_path / f"my_{agent}.py")
        importlib.invalidate_caches()
        return f"my_{agent}:make"

    yield copy
    for module in [name for name in sys.modules if name.startswith("my_")]:
        del sys.modules[module]


def sizes(agent: str) -> dict:
    """Keys of a tiny run of an agent."""
    others = "Probe-Nim" if agent == "alphazero" else "Probe-ObservationAction"
    env = "Probe-Continuous" if agent in CONTINUOUS else others
    fields = {*agents.get(agent).Config.model_fields}
    tiny = {"hidden_sizes": [8], "batch_size": 4, "learning_starts": 16, "capacity": 128, "unroll_len": 4, "burn_in": 0}
    tiny |= {"num_minibatches": 1, "num_epochs": 1, "replay_ratio": 1 / 32, "n_step": 1}
    return RUN | {"env": env} | {key: value for key, value in tiny.items() if key in fields}


@pytest.mark.parametrize("agent", agents.names())
def test_a_copy_is_an_agent_by_its_name_and_as_a_module(agent, copied):
    name = copied(agent)
    for given in (name, importlib.import_module(f"my_{agent}")):
        config = parse({"agent": given, **sizes(agent)})
        assert config.run.agent == name
        assert type(config.agent).__module__ == f"my_{agent}"
        program = make_program(config)
        assert jax.tree.leaves(program.template)
        program.close()


def test_a_config_of_the_original_is_refused_by_a_copy(copied):
    name = copied("dqn")
    original = parse({"agent": "dqn", **sizes("dqn")})
    env = original.run.model_copy(update={"agent": name})
    with mistake("my_dqn.Config"):
        make_agent(type(original)(env, original.agent, original.hyper), *spaces())


def spaces():
    from rlkit import envs

    env, params = envs.make("Probe-ObservationAction")
    return env.observation_space(params), env.action_space(params)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "agent",
    ["ddpg", pytest.param("ppo", marks=pytest.mark.slow)],  # the first's `make` is another module's
)
def test_a_copy_trains_resumes_sweeps_and_is_exported(agent, copied, tmp_path, capsys):
    name = copied(agent)
    flags = [word for key, value in sizes(agent).items() for word in (f"--{key}", str(value))]
    assert cli.main(["train", name, *flags, "--out", "run"]) == 0
    assert cli.main(["resume", "run", "--agent", name, "--total_steps", "96"]) == 0
    assert cli.main(["eval", "run", "--agent", name]) == 0
    assert cli.main(["export", "run", "--agent", name, "--format", "stablehlo", "--out", "policy.stablehlo"]) == 0
    Path("sweep.yaml").write_text(
        f"config: {agent}\ntrials: 2\nseeds_per_trial: 1\nlearning_rate: {{values: [0.1, 0.2]}}\n"
    )
    assert cli.main(["sweep", "sweep.yaml", "--agent", name, *flags]) == 0
    assert "Traceback" not in capsys.readouterr().err
