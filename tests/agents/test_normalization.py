"""rlkit.agents.common.normalization: rewards over their deviation, and observations wherever an agent has them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ppo_rollouts import OBS, rollout_of

from rlkit import agents
from rlkit.agents.common.normalization import Normalizer, init, normalize_obs, scale_reward, update
from rlkit.ops.statistics import RunningStatistics
from rlkit.spaces import Box, Dict, Discrete
from rlkit.types import Transition

MEAN, STD = np.float32([3.0, -1.0, 0.5]), np.float32([2.0, 0.5, 4.0])
STATISTICS = RunningStatistics(jnp.float32(100), {"": jnp.asarray(MEAN)}, {"": jnp.asarray(100 * STD**2)})
SETTINGS = {
    "normalize_obs": True, "optimizer": "sgd", "hidden_sizes": (8,), "num_minibatches": 1, "memory_size": 4,
    "capacity": 64, "batch_size": 8, "learning_starts": 0, "replay_ratio": 1 / 32, "burn_in": 2, "unroll_len": 4,
}  # fmt: skip


def test_rewards_are_divided_by_the_deviation_of_the_return_and_clipped():
    returns = RunningStatistics(jnp.float32(4), jnp.float32(50), jnp.float32(16))  # a deviation of 2
    reward = jnp.float32([[3.0, -1.0], [100.0, -100.0]])
    np.testing.assert_allclose(scale_reward(Normalizer((), returns, ()), reward), [[1.5, -0.5], [10.0, -10.0]])
    np.testing.assert_array_equal(scale_reward(Normalizer((), (), ()), reward), reward)


def test_returns_are_discounted_and_go_on_in_the_next_rollout():
    """12 rewards of 1 in episodes of 4 steps, in two rollouts of 6: returns of 1, 1.5, 1.75 and 1.875."""
    obs, none = jnp.zeros((12, 2, 3)), jnp.zeros((12, 2), bool)
    ends = jnp.broadcast_to((jnp.arange(12) % 4 == 3)[:, None], (12, 2))
    rollout = Transition(obs, (), jnp.ones((12, 2)), none, ends, obs)
    state = init(OBS, jax.tree.map(lambda x: x[0, 0], rollout), 2, obs=False, reward=True)
    for half in (slice(6), slice(6, 12)):
        state = update(state, jax.tree.map(lambda x, half=half: x[half], rollout), 0.5)
    np.testing.assert_allclose(state.returns.mean, np.mean([1, 1.5, 1.75, 1.875]), rtol=1e-6)
    assert state.returns.count == 24


def test_observations_are_clipped_at_ten_deviations():
    found = normalize_obs(STATISTICS, jnp.asarray(MEAN + STD * np.float32([9.0, 11.0, -1e6])))
    np.testing.assert_allclose(found, [9.0, 10.0, -10.0], rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.int32, np.int16, np.uint8, np.bool_, np.float32])
def test_integers_are_normalized_as_floats(dtype):
    """Replay keeps their dtype: only what networks get is float."""
    space = Dict({"mode": Discrete(2), "x": Box(0, 1 if dtype is np.bool_ else 100, (2,), dtype)})
    x = jnp.asarray(np.array([[0, 1], [0, 0], [1, 1], [1, 0]]).astype(dtype))
    rollout = Transition({"mode": jnp.zeros(4, jnp.int32), "x": x}, (), jnp.zeros(4), *[jnp.zeros(4, bool)] * 2, ())
    state = update(init(space, jax.tree.map(lambda x: x[0], rollout), 1, obs=True), rollout, 0.99)
    found = normalize_obs(state.obs, rollout.obs)
    assert found["x"].dtype == np.float32
    assert found["mode"] is rollout.obs["mode"]
    np.testing.assert_allclose(found["x"], 2 * x.astype(np.float32) - 1, rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "space", "settings"), [
    ("dqn", Discrete(3), {}),
    pytest.param("c51", Discrete(3), {}, marks=pytest.mark.slow),
    pytest.param("iqn", Discrete(3), {"munchausen": True}, marks=pytest.mark.slow),
    pytest.param("pqn", Discrete(3), {}, marks=pytest.mark.slow),
    pytest.param("r2d2", Discrete(3), {}, marks=pytest.mark.slow),
    ("ppo", Discrete(3), {"recurrent": "gru"}),
    pytest.param("sac", Discrete(3), {}, marks=pytest.mark.slow),
    ("sac", Box(-1, 1, (2,)), {"gsde": True}),
    pytest.param("td3", Box(-1, 1, (2,)), {"policy_delay": 1}, marks=pytest.mark.slow),
    pytest.param("iql", Box(-1, 1, (2,)), {}, marks=pytest.mark.slow),
])  # fmt: skip
def test_learning_and_acting_depend_on_normalized_observations_alone(name, space, settings):
    """Under statistics, all is as it is without them from observations that are normalized beforehand."""
    module = agents.get(name)
    known = {field: x for field, x in SETTINGS.items() if field in module.Config.model_fields}
    agent = module.make(module.Config(**known | settings), OBS, space)
    obs, zero = jnp.zeros(3), jnp.zeros(())
    action = jnp.zeros_like(space.sample(jax.random.key(0)))
    example = Transition(obs, action, zero, zero > 0, zero > 0, obs)
    start = jax.jit(lambda key: agent.init(module.Hyper(learning_rate=0.1), key, example, 4))
    plain = start(jax.random.key(1))
    rollout = rollout_of(agent, plain, 8, 4)
    under_statistics = plain.replace(normalizer=plain.normalizer.replace(obs=STATISTICS))
    obs, next_obs = (MEAN + STD * np.asarray(x) for x in (rollout.obs, rollout.next_obs))
    raw = rollout._replace(obs=obs, next_obs=next_obs)

    @jax.jit
    def results(state, rollout):
        after, _ = agent.update(state, rollout, jax.random.key(2))
        functions = (agent.act, agent.policy)
        done = [f(agent.actor(state), agent.memory, rollout.obs[0, 0], jax.random.key(3)) for f in functions]
        return after.params, done

    expected = results(plain, rollout)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5), results(under_statistics, raw), expected)
    moved = jax.tree.map(lambda x, y: np.abs(x - y).max(), expected[0], plain.params)
    assert max(jax.tree.leaves(moved)) > 1e-3
