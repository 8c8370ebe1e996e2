"""Environments outside of JAX as objects of Python: classes, functions and instances, in runs and again at a resume."""

import threading

import gymnasium
import pytest
from gymnasium import spaces
from host_envs import Counter
from host_runs import PPO

import rlkit
from rlkit import hosts, runs
from rlkit.types import ConfigError

pytestmark = pytest.mark.thorough
SHORT = {key: value for key, value in PPO.items() if key != "env_kwargs"} | {"total_steps": 64, "eval_episodes": 2}


def test_a_class_a_function_and_an_instance_train_and_are_given_again(tmp_path):
    class Local(Counter):
        """A class that no worker process can import by its name."""

    objects = {
        "class": (Local, 3),
        "function": (lambda: Counter(length=4), 4),
        "instance": (Counter(length=5), 5),
    }
    for name, (env, length) in objects.items():
        values = SHORT | {"env": env, "backend": "process" if name == "class" else "serial"}
        trained = runs.train(values, out=tmp_path / name, show=False)
        assert trained.evaluation["length_mean"] == length
        assert rlkit.load(trained.run, env=env).step == 64
    with pytest.raises(ConfigError, match="is code, and no file may name code to run"):
        rlkit.load(trained.run)
    again = runs.resume(trained.run, env=objects["instance"][0], overrides={"total_steps": 128}, show=False)
    assert again.evaluation["length_mean"] == 5


def test_a_class_takes_env_kwargs_and_an_instance_does_not(tmp_path):
    values = SHORT | {"env": Counter, "env_kwargs": {"length": 6}, "backend": "serial"}
    trained = runs.train(values, out=tmp_path / "run", show=False)
    assert trained.evaluation["length_mean"] == 6
    with pytest.raises(ConfigError, match=r"env_kwargs=.* do not go with env='host_envs:Counter_instance', which has"):
        runs.train(SHORT | {"env": Counter(), "env_kwargs": {"length": 6}}, show=False)
    with hosts.make("host_envs:Counter", num_envs=1, backend="serial", length=6) as pool:  # the name of the class
        pool.reset()


def test_environments_of_a_pool_are_copies_of_an_instance():
    class Counting(gymnasium.Env):
        observation_space, action_space = spaces.Box(0, 99, (1,)), spaces.Discrete(2)
        count = 0

        def reset(self, *, seed=None, options=None):
            self.count += 1
            return self.observation_space.low + self.count, {}

        def step(self, action):
            raise AssertionError

    env = Counting()
    with hosts.make(env, num_envs=3, backend="serial") as pool:
        assert pool.reset().ravel().tolist() == [1, 1, 1]
    assert env.count == 0
    env.lock = threading.Lock()
    with pytest.raises(ConfigError, match=r"must be picklable, as .*; give a class or a function"):
        hosts.make(env, num_envs=1)


class Bare:
    """An environment without Gymnasium's base class, or one around another."""

    observation_space, action_space = Counter().observation_space, Counter().action_space

    def __init__(self, env=None):
        self.env = env or Counter()
        self.reset, self.step = self.env.reset, self.env.step


@pytest.mark.parametrize(
    ("form", "backend"),
    [
        *((form, "serial") for form in ("returned", "wrapped", "module", "module, wrapped")),
        ("returned", "process"),
        pytest.param("module, wrapped", "process", marks=pytest.mark.slow),
    ],
)
def test_a_maker_that_returns_one_object_again_is_refused(form, backend):
    env = Counter()
    makers = {
        "returned": lambda: env,
        "wrapped": lambda: gymnasium.wrappers.TimeLimit(env, 5),
        "module": "host_envs:same_counter",
        "module, wrapped": "host_envs:same_counter_wrapped",
    }
    with pytest.raises(ConfigError, match=r"environment [1-3] of .*: the constructor: expected a new object"):
        hosts.make(makers[form], num_envs=4, num_workers=2, backend=backend)
    with hosts.make(makers[form], num_envs=1, backend=backend) as pool:  # an object of its own
        pool.reset()


def test_one_object_without_gymnasiums_classes_is_refused():
    env, inner = Bare(), Counter()
    for make in (lambda: env, lambda: Bare(inner)):
        with pytest.raises(ConfigError, match="expected a new object"):
            hosts.make(make, num_envs=2, backend="serial", wrappers=("time_limit:9",))
    with hosts.make(Bare, num_envs=2, backend="serial", wrappers=("time_limit:9",)) as pool:
        pool.reset()
    with pytest.raises(ConfigError, match="expected a new object"):
        hosts.from_vector(lambda: gymnasium.vector.SyncVectorEnv([lambda: inner] * 2))


def test_environments_of_two_pools_are_not_one_object():
    for _ in range(2):  # closed, it may be given again
        with hosts.make("host_envs:same_counter", num_envs=1, backend="serial"):
            with pytest.raises(ConfigError, match="expected a new object"):
                hosts.make("host_envs:same_counter", num_envs=1, backend="serial")
            with hosts.make("host_envs:same_counter", num_envs=1):  # in another process
                pass


def test_evaluations_do_not_reset_the_environment_that_is_trained_in(tmp_path):
    values = SHORT | {"env": "host_envs:same_counter", "num_envs": 1, "num_minibatches": 1, "backend": "serial"}
    with pytest.raises(ConfigError, match="expected a new object"):
        runs.train(values, out=tmp_path / "run", show=False)
    assert runs.train(values | {"eval_episodes": 0}, out=tmp_path / "alone", show=False).evaluation is None
