"""Spaces that no agent can learn in are refused when it is made; spaces without a real number are no such spaces."""

import jax
import numpy as np
import pytest

from rlkit import agents, envs, training
from rlkit.spaces import Box, Dict, Discrete
from rlkit.types import ConfigError

MASK = Box(False, True, (2,), np.bool_)
ACTIONS = {name: Discrete(2) for name in ("ppo", "dqn", "c51", "iqn", "pqn", "r2d2", "sac")} | {
    name: Box(-1, 1, (2,)) for name in ("ppo", "sac", "td3", "iql")
}


@pytest.mark.parametrize("obs_space", [Box(-1, 1, (0,)), Box(-1, 1, (3, 0)), Dict({"action_mask": MASK})])
@pytest.mark.parametrize("name", ACTIONS)
def test_observations_without_numbers_are_refused(name, obs_space):
    module = agents.get(name)
    with pytest.raises(ConfigError, match=r"^observations must have numbers to act on, and these have none: .*; give"):
        module.make(module.Config(), obs_space, ACTIONS[name])


@pytest.mark.parametrize("name", ["ppo", "sac", "td3", "iql"])
def test_actions_whose_range_overflows_are_refused(name):
    module = agents.get(name)
    bounds = np.array([1.0, 3e38], np.float32)
    with pytest.raises(
        ConfigError, match=r"^action space Box\(.* must have bounds whose difference is a finite float32"
    ):
        module.make(module.Config(), Box(-1, 1, (3,)), Box(-bounds, bounds))
    module.make(module.Config(), Box(-1, 1, (3,)), Box(-1.6e38, 1.6e38, (2,)))
    module.make(module.Config(), Dict({"a": Box(-1, 1, (0,)), "b": Box(-1, 1, (1,))}), Box(-1, 1, (2,)))


@pytest.mark.parametrize("name", ["ppo", "iql"])
def test_observations_without_a_real_number_have_no_statistics(name):
    """`normalize_obs` then changes nothing; IQL has it on by default."""
    env, params = envs.make("Catch-bsuite")
    space = env.observation_space(params)
    assert space.dtype == np.int32
    module = agents.get(name)
    agent = module.make(module.Config(normalize_obs=True), space, env.action_space(params))
    init, step = training.make(agent, env, params, num_envs=4, num_steps=32)
    state, _ = jax.eval_shape(lambda key: step(init(module.Hyper(), key)), jax.random.key(0))
    assert state.agent.normalizer.obs == ()
