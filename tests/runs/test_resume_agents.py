"""A run of an agent that is stopped and resumed is the uninterrupted run, to the bit."""

import pytest
from tiny_runs import SMALL, digest, without_clock

from rlkit.runs import loop
from rlkit.runs.checkpoints import checkpoint

pytestmark = pytest.mark.usefixtures("compiled_once")

RUN = {key: value for key, value in SMALL.items() if key not in ("num_epochs", "num_minibatches")} | {"report": False}
BUFFER = {"capacity": 256, "batch_size": 8, "learning_starts": 32, "replay_ratio": 0.25}  # it is full before the end
AGENTS = {
    "alphazero": {"env": "Probe-Nim", "env_kwargs": {}, "num_simulations": 4, "num_minibatches": 2},
    "dqn": BUFFER | {"replay": "prioritized", "n_step": 3, "store_obs_once": True, "target_every": 100},
    "ppo": {"exploration_bonus": 0.5, "num_minibatches": 2},
    "pqn": {
        "env": "Probe-RepeatFirst",
        "env_kwargs": {},
        "recurrent": "mingru",
        "memory_size": 4,
        "num_minibatches": 2,
    },
    "sac-gru": BUFFER | {"env": "Pendulum-v1", "target_every": 100, "recurrent": "gru", "burn_in": 2, "unroll_len": 4},
    "tqc-gru": BUFFER
    | {"env": "Pendulum-v1", "target_every": 100, "recurrent": "gru", "burn_in": 2, "unroll_len": 4, "n_step": 2},
    "sac": BUFFER | {"env": "Pendulum-v1", "target_every": 100},
}


# In the thorough tier test_killed.py resumes DQN as well, and the contracts load a state of each agent.
@pytest.mark.parametrize(
    "agent",
    [pytest.param(name, marks=pytest.mark.thorough if name == "alphazero" else pytest.mark.slow) for name in AGENTS],
)
def test_stopping_and_resuming_changes_nothing(agent, tmp_path):
    config = RUN | AGENTS[agent] | {"agent": agent.partition("-")[0]}
    whole = loop.train(config, out=tmp_path / "whole", show=False)
    stopped = loop.train(config, lambda line, state: line["step"] == 160, out=tmp_path / "run", show=False)
    assert checkpoint.steps(stopped.run)[-1] == 160
    if "capacity" in config:
        assert int(stopped.state.agent.replay.since_target) == 60  # the next update of the target is not due at once
    resumed = loop.resume(stopped.run, show=False)
    assert digest(resumed.state) == digest(whole.state) != digest(stopped.state)
    assert without_clock(resumed.run) == without_clock(whole.run)
    assert resumed.evaluation == whole.evaluation
