"""rlkit.hosts.precision: large offsets that float32 rounds away are refused, and usual environments are not."""

import gymnasium
import host_envs
import numpy as np
import pytest
from mistakes import mistake

from rlkit import hosts
from rlkit.hosts import precision, validation
from rlkit.runs import datasets
from rlkit.types import ConfigError

pytestmark = pytest.mark.thorough

REFUSED = {
    "seconds": {"offset": 1.7e9},
    "small steps": {"offset": 1e6, "unit": 0.01},
    "one and nano": {"offset": 1.0, "unit": 1e-9},
    "part": {"offset": 1.7e9, "nested": True},
    "int64": {"offset": 1.7e9, "dtype": "int64"},
    "int32": {"offset": 1.7e9, "dtype": "int32"},
}
ACCEPTED = {
    "steps": {},
    "metres": {"offset": 1e6},
    "constant": {"offset": 1.7e9, "unit": 0.0},
    "micro": {"unit": 1e-6},
    "small integers": {"offset": 2**24 - 100, "dtype": "int64"},
    "float32": {"offset": 1.7e9, "dtype": "float32"},  # already rounded by the environment
}


@pytest.mark.parametrize(
    ("name", "backend"), [*((name, "serial") for name in REFUSED | ACCEPTED), ("part", "process"), ("micro", "process")]
)
def test_offsets_that_float32_rounds_away_are_refused(name, backend):
    settings = (REFUSED | ACCEPTED)[name]
    with hosts.make("host_envs:Clock", num_envs=2, backend=backend, num_workers=2, **settings) as pool:
        if name in ACCEPTED:
            validation.check(pool, 0)
            return
        place = "['time'][1]" if settings.get("nested", False) else "[1]"
        with mistake("env='host_envs:Clock': obs", f"{place} is near", "subtract the offset"):
            validation.check(pool, 0)
        assert not pool.views.inspect.any()


@pytest.mark.parametrize("mode", list(gymnasium.vector.AutoresetMode))
def test_vector_environments_are_checked_too(mode):
    def make(offset):
        return hosts.from_vector(
            lambda: gymnasium.vector.SyncVectorEnv([lambda: host_envs.Clock(offset)] * 2, autoreset_mode=mode)
        )

    with make(0.0) as pool:
        validation.check(pool, 0)
    with make(1.7e9) as pool, pytest.raises(ConfigError, match=r"obs\[1\] is near 1\.7e\+09"):
        validation.check(pool, 0)


@pytest.mark.parametrize(
    "env",
    ["CartPole-v1", "Pendulum-v1", "MountainCar-v0", "Acrobot-v1", "Taxi-v4", "FrozenLake-v1", "CliffWalking-v1",
     "HalfCheetah-v5", "Humanoid-v5", "Ant-v5", "Reacher-v5", "Swimmer-v5", "Pusher-v5", "InvertedPendulum-v5"],
)  # fmt: skip
def test_usual_environments_pass(env):
    if env.endswith("v5"):
        pytest.importorskip("mujoco")
    with hosts.make(f"gymnasium:{env}", num_envs=2, backend="serial") as pool:
        for seed in range(3):
            validation.check(pool, seed)


def test_the_remedy_names_the_offset_and_the_step():
    values = 1.7e9 + np.arange(20.0)[:, None]
    with pytest.raises(ConfigError, match=r"x is near 1\.7e\+09 and varies by 5\.77, .* multiples of 128; .*1\.7e\+09"):
        precision.check("x", values, share=0.1)
    precision.check("x", values - 1.7e9, share=0.1)
    precision.check("x", np.full((3, 2), np.nan), share=0.1)
    precision.check("x", np.array([[np.inf], [1.0]]), share=0.1)


@pytest.mark.parametrize(("offset", "fits"), [(0.0, True), (1e6, True), (1.7e9, False)])
@pytest.mark.parametrize("dtype", ["f8", "i8"])
def test_datasets_are_checked_when_they_are_loaded(tmp_path, offset, fits, dtype):
    obs = (offset + 50 * np.arange(20.0)).astype(dtype)[:, None]
    arrays = {"observations": obs, "actions": np.zeros(20), "rewards": np.zeros(20), "terminals": np.zeros(20)}
    np.savez(tmp_path / "data.npz", **arrays, timeouts=np.zeros(20))
    if fits:
        assert datasets.find(tmp_path / "data.npz").size == 19
        return
    with pytest.raises(ConfigError, match=r"data\.npz: observations is near 1\.7e\+09 and varies by 288"):
        datasets.find(tmp_path / "data.npz")
