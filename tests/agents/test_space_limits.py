"""Spaces that no agent can learn in are refused when it is made; spaces without a real number are no such spaces."""

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mistakes import mistake

from rlkit import agents, envs, training
from rlkit.agents import ppo
from rlkit.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple, shape_of, zeros
from rlkit.types import ConfigError, Transition

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


SPACES = [Discrete(2), MultiDiscrete((2, 2)), Box(-1, 1, (2,)), Box(-np.inf, np.inf, (2,)), Box(0, 5, (2,), np.int32)]
NESTED = [Dict({"a": Discrete(2), "b": Box(-1, 1, (2,))}), Tuple((Discrete(2), Box(-1, 1, (2,))))]


@pytest.mark.parametrize("name", agents.names())
def test_an_action_space_that_an_agent_does_not_support_is_refused_with_those_that_do(name):
    module = agents.get(name)
    for space in SPACES + NESTED:
        others = agents.supporting(space)
        if name not in others:
            with mistake(f"agent={name!r} needs", f"use {others[0]}" if others else "no agent can act in it"):
                module.make(module.Config(), Box(-1, 1, (3,)), space)


@pytest.mark.parametrize("space", NESTED)
def test_ppo_alone_acts_in_several_spaces_at_once(space):
    assert list(agents.supporting(space)) == ["ppo"]


@pytest.mark.parametrize("name", ["ppo", "sac", "td3", "iql"])
def test_actions_whose_range_overflows_are_refused(name):
    module = agents.get(name)
    bounds = np.array([1.0, 3e38], np.float32)
    with mistake("action space Box(", "finite float32", "use bounds within"):
        module.make(module.Config(), Box(-1, 1, (3,)), Box(-bounds, bounds))
    module.make(module.Config(), Box(-1, 1, (3,)), Box(-1.6e38, 1.6e38, (2,)))
    module.make(module.Config(), Dict({"a": Box(-1, 1, (0,)), "b": Box(-1, 1, (1,))}), Box(-1, 1, (2,)))


@pytest.mark.parametrize("name", ["ppo", "iql"])
def test_integer_observations_have_statistics(name):
    env, params = envs.make("Catch-bsuite")
    space = env.observation_space(params)
    assert space.dtype == np.int32
    module = agents.get(name)
    agent = module.make(module.Config(normalize_obs=True), space, env.action_space(params))
    init, step = training.make(agent, env, params, num_envs=4, num_steps=32)
    state, _ = jax.eval_shape(lambda key: step(init(module.Hyper(), key)), jax.random.key(0))
    assert state.agent.normalizer.obs.mean[""].shape == space.shape


@pytest.mark.parametrize("space", [Discrete(2**33), Discrete(10**6), Dict({"x": MultiDiscrete((2**15, 2**15, 1))})])
def test_integers_too_many_for_a_one_hot_vector_are_refused(space):
    with pytest.raises(ConfigError, match=r"^(the observation|x) (must be an|is one-hot).*; give"):
        start(ppo.make(ppo.Config(), space, Discrete(2)), space)


def test_a_network_with_an_embedding_has_no_limit_of_classes():
    def apply(params, obs):
        return jnp.zeros((*obs.shape, 2)), jnp.zeros(obs.shape)

    space = Discrete(10**6)
    networks = (lambda key, obs: {"unused": jnp.zeros(())}, apply)
    start(ppo.make(ppo.Config(), space, Discrete(2), networks=networks), space)


def start(agent, space):
    """The shapes of an agent's state before learning."""
    zero, obs = jnp.zeros(()), zeros(space)
    example = Transition(obs, jnp.int32(0), zero, zero > 0, zero > 0, obs)
    return jax.eval_shape(lambda key: agent.init(ppo.Hyper(), key, example, 2), jax.random.key(0))


@pytest.mark.parametrize(("space", "named"), [
    (gym.spaces.Box(0, 255, (84, 84, 4), np.uint8), "this one is gymnasium.spaces.box.Box"),
    (gym.spaces.Dict({"a": gym.spaces.Box(-1, 1, (3,))}), "this one is gymnasium.spaces.dict.Dict"),
    (Dict({"a": Box(-1, 1, (1,)), "b": gym.spaces.Discrete(3)}), "b is gymnasium.spaces.discrete.Discrete"),
])  # fmt: skip
@pytest.mark.parametrize("name", ACTIONS)
def test_an_observation_space_of_another_library_is_refused(name, space, named):
    """An image of it would end in an MLP, and an integer would be a number."""
    module = agents.get(name)
    with pytest.raises(ConfigError, match=f"^the observation space must be one of rlkit.spaces, and {named}; adapt"):
        module.make(module.Config(), space, ACTIONS[name])


@pytest.mark.parametrize("name", ACTIONS)
def test_an_action_mask_has_an_entry_for_each_action(name):
    module, x = agents.get(name), Box(-1, 1, (2,))
    mask = Box(False, True, (1,), np.bool_)
    rule = "must have the shape" if isinstance(ACTIONS[name], Discrete) else "marks legal integers"
    for wrong in (mask, Dict({"part": mask})):
        with pytest.raises(ConfigError, match=f"^action_mask={type(wrong).__name__}.* {rule}"):
            module.make(module.Config(), Dict({"action_mask": wrong, "x": x}), ACTIONS[name])


@pytest.mark.parametrize("space", [Discrete(0), MultiDiscrete(()), Box(-1, 1, (0,))])
def test_an_action_space_without_actions_is_refused(space):
    with pytest.raises(ConfigError, match=r"^the action space must have actions, and .* has none"):
        ppo.make(ppo.Config(), Box(-1, 1, (2,)), space)


@pytest.mark.parametrize("space", [
    Discrete(4, np.dtype(np.int64)), MultiDiscrete((2, 3), np.dtype(np.int64)), Box(-1, 1, (2,), np.float64),
])  # fmt: skip
def test_actions_of_64_bits_are_those_of_32_without_a_warning(space):
    """Warnings are errors here."""
    agent = ppo.make(ppo.Config(), Box(-1, 1, (2,)), space)
    zero, obs = jax.numpy.zeros(()), jax.numpy.zeros(2)

    def act(key):
        state = agent.init(ppo.Hyper(), key, Transition(obs, (), zero, zero > 0, zero > 0, obs), 1)
        return agent.act(agent.actor(state), agent.memory, obs, key)[1]

    action = jax.eval_shape(act, jax.random.key(0))
    assert action.dtype == space.sample(jax.random.key(0)).dtype == shape_of(space).dtype
