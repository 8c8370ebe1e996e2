"""An exception in code of the user's own: one line that names its file and line there, for every kind of own code."""

import pytest
from mistakes import mistake

from rlkit.hosts.worker import group
from rlkit.names import raised
from rlkit.runs.config.parse import parse
from rlkit.runs.programs.make import make_program
from rlkit.types import ConfigError

RUN = {"agent": "dqn", "env": "CartPole-v1", "num_envs": 4, "num_steps": 8, "total_steps": 64, "hidden_sizes": [4]}
RUN |= {"capacity": 64, "batch_size": 4, "learning_starts": 32, "replay_ratio": 1 / 32}
GOALS = {"env": "Probe-BitFlip", "replay": "hindsight"}
CODE = """
import flax.linen as nn
import optax
from rlkit.agents import dqn
from rlkit.agents.dqn import Config, Hyper

def fails(*arguments):
    raise RuntimeError("boom")

def network(obs_space, action_space):
    return Network()

class Network(nn.Module):
    @nn.compact
    def __call__(self, obs):
        return fails()

def made(rngs):
    fails()

def networks(obs_space, action_space):
    return made

late = optax.GradientTransformation(lambda params: (), fails)

def make(config, obs_space, action_space, networks=None):
    return fails()

class Env:
    def __init__(self):
        fails()

    def step(self, key, state, action, params):
        fails()
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module with such code, by a name that no other test has imported."""
    (tmp_path / "places_nets.py").write_text(CODE)
    (tmp_path / "places_import.py").write_text("\nraise RuntimeError('boom')\n")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(("key", "name", "values"), [
    ("network", "fails", {}),
    ("network", "network", {}),
    ("network", "networks", {}),
    ("optimizer", "fails", {}),
    ("optimizer", "late", {}),
    ("learning_rate_schedule", "fails", {}),
    ("replay", "fails", {}),
    ("goal_reward", "fails", GOALS),
    ("agent", "make", {}),
    ("env", "Env", {}),
])  # fmt: skip
def test_an_exception_has_its_place_in_the_users_file(key, name, values):
    with mistake("RuntimeError: boom (places_nets.py, line 8)") as error:
        run(RUN | values | {key: f"places_nets:{name}"})
    assert isinstance(error.value.__cause__, RuntimeError)


def run(values):
    """Trace the start and a step of a run."""
    program = make_program(parse(values))
    assert program.template is not None
    program.check()


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize("key", ["network", "optimizer", "learning_rate_schedule", "replay", "agent"])
def test_a_module_that_raises_has_its_place(key):
    with pytest.raises(ConfigError, match=rf"^{key}=.*RuntimeError: boom \(places_import\.py, line 2\)"):
        run(RUN | {key: "places_import:f"})


def test_a_fault_of_an_environment_in_a_worker_has_it_too():
    try:
        raise RuntimeError("boom")
    except RuntimeError as error:
        fault = group.fault(error, 0, 0)
        text = raised(error)
    assert fault.text == text
    assert text.startswith("RuntimeError: boom (test_own_code_places.py, line ")


def test_code_of_libraries_is_no_place_of_the_user():
    with pytest.raises(ConfigError) as error:
        parse({"agent": "ppo"})
    line = error.traceback[0].lineno + 1
    assert raised(error.value).endswith(f" (test_own_code_places.py, line {line})")
