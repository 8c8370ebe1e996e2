"""Ids that a program registers with Gymnasium are known to its workers, under every backend."""

import subprocess
import sys
import threading
from pathlib import Path

import gymnasium
import host_envs
import pytest

from rlkit import hosts
from rlkit.types import ConfigError

pytestmark = pytest.mark.thorough
SCRIPT = """
import sys, gymnasium, numpy as np
sys.path.insert(0, {support!r})
SIZE = 3
class Mine(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(0, 1, (SIZE,), np.float32), gymnasium.spaces.Discrete(2)
    def __init__(self, value=0.5):
        self.value = value
    def reset(self, *, seed=None, options=None):
        return np.full(SIZE, self.value, np.float32), dict()
    def step(self, action):
        return self.reset()[0], 0.0, False, False, dict()
if __name__ == "__main__":
    gymnasium.register("Class-v0", Mine)
    gymnasium.register("space/Main-v0", "__main__:Mine", kwargs=dict(value=0.25))
    gymnasium.register("Module-v0", "host_envs:Counter")
    from rlkit import hosts
    made = lambda: gymnasium.make("Class-v0", value=0.75)
    for backend in ("serial", "process"):
        for env in ("Class-v0", "gymnasium:space/Main-v0", made, "Module-v0"):
            with hosts.make(env, num_envs=2, num_workers=1, backend=backend) as pool:
                print(backend, float(pool.reset()[1, 0]))
"""


def test_ids_of_a_script_are_known_under_every_backend(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(support=str(Path(host_envs.__file__).parent)))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    values = [0.5, 0.25, 0.75, 0.0]
    expected = [f"{backend} {value}" for backend in ("serial", "process") for value in values]
    assert done.stdout.splitlines() == expected
    assert "Overriding" not in done.stderr


def test_an_id_that_no_process_can_be_sent_is_refused_where_it_is_used(monkeypatch):
    lock = threading.Lock()
    spec = gymnasium.envs.registration.EnvSpec("Locked-v0", lambda: (lock, host_envs.Counter())[1])
    monkeypatch.setitem(gymnasium.registry, "Locked-v0", spec)
    with hosts.make("Locked-v0", num_envs=1, backend="serial") as pool:
        pool.reset()
    with pytest.raises(ConfigError, match=r"env='gymnasium:Locked-v0' .*pickle.*; register a class"):
        hosts.make("Locked-v0", num_envs=1)
    with hosts.make("gymnasium:CartPole-v1", num_envs=1) as pool:  # others are not affected
        pool.reset()
