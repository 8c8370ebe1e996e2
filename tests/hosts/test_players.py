"""Environments of several players outside of JAX: their players are rows of a pool."""

import gymnasium
import numpy as np
import pytest
from mistakes import mistake
from player_envs import AGENTS, Doubled, DoubledToLearn, FailsOnce, Lingering, Meeting, Signal, Unlike, make

from rlkit import hosts
from rlkit.hosts import validation
from rlkit.hosts.pool import derive
from rlkit.spaces import Box, Dict, Discrete


def serial(env, num_envs, **options):
    return hosts.make(env, num_envs=num_envs, backend="serial", **options)


def test_worlds_are_those_of_a_plain_loop():
    """Two worlds of players that leave and come, over two episodes, against a loop over the environment itself."""
    rng = np.random.default_rng(1)
    with serial(Meeting, 6, seed=5) as pool:
        assert (pool.num_players, pool.shared_reward) == (3, True)
        obs, worlds = pool.reset(), [Meeting(), Meeting()]
        seen = [world.reset(seed=derive(5, 3 * i))[0] for i, world in enumerate(worlds)]
        returns = np.zeros(6)
        for time in range(8):
            for row in range(6):
                world, agent = worlds[row // 3], AGENTS[row % 3]
                there = agent in world.agents
                assert np.array_equal(obs["obs"][row], seen[row // 3][agent] if there else np.zeros(2))
                assert obs["action_mask"][row].tolist() == ([True] * 3 if there else [True, False, False])
            actions = rng.integers(3, size=6).astype(np.int32)
            step, over, acting = pool.step(actions), time % 4 == 3, [list(world.agents) for world in worlds]
            assert step.terminated.tolist() == [over and row % 3 == 1 for row in range(6)]
            assert step.truncated.tolist() == [over and row % 3 != 1 for row in range(6)]
            for i, world in enumerate(worlds):
                taken = {x: actions[3 * i + AGENTS.index(x)] for x in acting[i]}
                seen[i], rewards, *_ = world.step(taken)
                expected = [rewards.get(agent, 0.0) for agent in AGENTS]
                assert step.reward[3 * i : 3 * i + 3].tolist() == expected
                returns[3 * i : 3 * i + 3] += expected
                if over:
                    for row, agent in enumerate(AGENTS, 3 * i):
                        last = seen[i][agent] if agent in acting[i] else np.zeros(2)
                        assert np.array_equal(step.next_obs["obs"][row], last)
                    seen[i] = world.reset()[0]
            assert step.lengths.tolist() == [4 * over] * 6
            if over:
                assert np.array_equal(step.returns, returns)
                assert np.array_equal(step.successes, [1, 1, 0] * 2)  # of 7, which left before
                returns[:] = 0
            obs = step.obs


class FromThree(Signal):
    """Its observations and actions are numbered from 3."""

    def observation_space(self, agent):
        return gymnasium.spaces.Discrete(4, start=3)

    def action_space(self, agent):
        return gymnasium.spaces.Discrete(2, start=3)

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        return dict.fromkeys(self.agents, 3), {agent: {} for agent in self.agents}

    def step(self, actions):
        assert set(actions.values()) <= {3, 4}
        rewards = {agent: float(action == 4) for agent, action in actions.items()}
        flags, infos = dict.fromkeys(actions, False), {agent: {} for agent in actions}
        return dict.fromkeys(actions, 6), rewards, flags, flags, infos


def test_numbers_that_start_at_three():
    with serial(FromThree, 2) as pool:
        assert pool.action_space == Discrete(2)
        assert pool.observation_space.spaces["obs"] == Discrete(4)
        assert pool.reset()["obs"].tolist() == [0, 0]
        step = pool.step(np.array([0, 1], np.int32))
        assert step.obs["obs"].tolist() == [3, 3]
        assert step.reward.tolist() == [0, 1]


def test_unlike_players_are_padded_masked_and_numbered():
    with serial(Unlike, 4) as pool:
        box = Box(np.array([-2, -1, -1], np.float32), np.array([9, 1, 1], np.float32))
        assert pool.action_space == Discrete(4)
        assert isinstance(pool.observation_space, Dict)
        assert pool.observation_space.spaces["obs"] == box
        assert pool.observation_space.spaces["player"] == Discrete(2)
        obs = pool.reset()
        assert obs["player"].tolist() == [0, 1, 0, 1]
        assert obs["obs"].tolist() == [[0.5] * 3, [0.25, 0, 0]] * 2
        for time in range(6):
            legal = [[True, True, False, False], (np.arange(4) == time % 3).tolist()] * 2
            assert obs["action_mask"].tolist() == legal
            step = pool.step(np.array([1, time % 3, 0, time % 3], np.int32))
            assert step.reward.tolist() == [1, 2, 1, 2]
            assert step.terminated.all() == (time % 3 == 2)
            obs = step.obs
        assert validation.check(pool, 0) == []


def test_an_agent_may_be_out_while_it_is_listed_and_come_back():
    """It is paid 0 and observes what is nearest to 0 in its space; actions that are numbers have no mask."""
    with serial(Lingering, 2) as pool:
        assert pool.reset().tolist() == [[2], [2]]
        steps = [pool.step(np.zeros((2, 2), np.float32)) for _ in range(5)]
        assert [step.next_obs.tolist() for step in steps] == [[[1], [x]] for x in (3, 4)] + [
            [[5], [5]],
            [[1], [6]],
            [[1], [7]],
        ]
        assert [step.reward.tolist() for step in steps] == [[1, 1], [0, 1], [0, 1], [1, 1], [0, 1]]
        assert [step.terminated.tolist() for step in steps] == [[False] * 2] * 4 + [[True] * 2]


def test_workers_have_whole_worlds():
    """Of three workers for two worlds of two players, two are left; the steps are those of this process."""
    actions = np.random.default_rng(0).integers(2, size=(8, 4)).astype(np.int32)

    def rows(backend):
        with hosts.make(Signal, num_envs=4, backend=backend, num_workers=3, seed=3) as pool:
            first = pool.reset()["obs"]
            assert len(pool.shares) == (2 if backend == "process" else 1)
            steps = [pool.step(x) for x in actions]
            return [first, *(x for step in steps for x in (step.reward, step.truncated, step.obs["obs"]))]

    for one, other in zip(rows("process"), rows("serial"), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.filterwarnings("ignore:.*its worker starts anew:UserWarning")
def test_a_restart_is_of_all_players_of_its_worlds(tmp_path):
    """Of two workers with a world each, the one that is first at its second step fails, and begins anew."""
    actions = np.zeros(4, np.int32)
    with hosts.make(FailsOnce, path=str(tmp_path / "failed"), num_envs=4, num_workers=2) as pool:
        pool.reset()
        assert pool.step(actions).real.all()
        assert pool.step(actions).real.tolist() in ([False, False, True, True], [True, True, False, False])
        lengths = [pool.step(actions).lengths.tolist() for _ in range(5)]
        assert pool.restarted == 1
        assert [sorted(row) for row in lengths] == [[0] * 4, [0] * 4, [0, 0, 5, 5], [0] * 4, [0, 0, 5, 5]]


@pytest.mark.parametrize("env", [Signal, Signal(), make, lambda: Doubled(Signal())], ids=lambda x: str(x)[:20])
def test_classes_instances_and_makers(env):
    factor = 2 if env not in (Signal, make) and callable(env) else 1
    with serial(env, 4) as pool:
        assert pool.shared_reward == (env is make)
        obs = pool.reset()
        assert len(np.unique(obs["obs"], axis=0)) == 2
        assert pool.step(obs["obs"].argmax(1).astype(np.int32)).reward.tolist() == [factor] * 4


def test_wrappers():
    """One of the user's own is part of the environment, or for learning alone; those by name are refused."""
    for name, own in (("Doubled", 10.0), ("DoubledToLearn", 5.0)):
        with serial(Signal, 2, wrappers=[f"player_envs:{name}"]) as pool:
            obs = pool.reset()["obs"]
            for _ in range(5):
                step = pool.step(obs.argmax(1).astype(np.int32))
                obs = step.obs["obs"]
                assert step.reward.tolist() == [2, 2]
            assert step.returns.tolist() == [own, own]
    assert issubclass(DoubledToLearn, Doubled)
    with mistake("time_limit", "player"):
        serial(Signal, 2, wrappers=["time_limit:3"])


def test_episodes_of_a_wrapper_for_learning_are_not_the_environments_own():
    """Of `Signal`'s 5 steps, the learner's episodes have 2, 2 and 1; the first one after each reset of the pool too."""
    with serial(Signal, 2, wrappers=["player_envs:BriefToLearn"]) as pool:
        for _ in range(2):
            pool.reset()
            steps = [pool.step(np.zeros(2, np.int32)) for _ in range(5)]
            assert [bool(step.truncated.all()) for step in steps] == [False, True, False, True, True]
            assert [step.lengths.tolist() for step in steps] == [[0, 0]] * 4 + [[5, 5]]


class Turns(Signal):
    def agent_iter(self): ...


class Mixed(Signal):
    def observation_space(self, agent):
        return Unlike().observation_space("a") if agent == "left" else Unlike().action_space("a")


class Silent(Signal):
    def step(self, actions):
        obs, rewards, *rest = super().step(actions)
        return obs, {"left": rewards["left"]}, *rest


@pytest.mark.parametrize(
    ("env", "num_envs", "words"),
    [
        (Meeting, 4, ("num_envs=4", "3", "try 3 or 6")),
        (Turns, 2, ("agent", "aec_to_parallel")),
        (Mixed, 2, ("observation_space", "one kind")),
        (lambda: object(), 2, ("Gymnasium",)),
    ],
)
def test_mistakes(env, num_envs, words):
    with mistake(*words):
        serial(env, num_envs)


def test_a_missing_reward_names_the_agent():
    with serial(Silent, 2) as pool:
        pool.reset()
        with mistake("rewards", "right"):
            pool.step(np.zeros(2, np.int32))
