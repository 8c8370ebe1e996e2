"""PPO in a Dict or a Tuple of action spaces: each part acts as it does alone, and what does not fit is named."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ppo_rollouts import OBS, SMALL, all_finite, ratios, rollout_of, start, update

from rlkit.agents import ppo
from rlkit.agents.common import action_distributions
from rlkit.ops.distributions import TanhNormal
from rlkit.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from rlkit.types import ConfigError

BOX = Box(np.array([[-1.0, 0.0]]), np.array([[1.0, 10.0]]))
SPACE = Dict({"arm": Tuple((BOX, Box(-2, 2, ()))), "gear": MultiDiscrete((2, 3)), "mode": Discrete(4)})


@pytest.mark.parametrize("squash", [pytest.param(False, marks=pytest.mark.slow), True])
def test_each_part_acts_as_it_does_alone(squash):
    x = jax.random.normal(jax.random.key(0), (7, 15))
    output = {
        "arm": ((x[:, :2], x[:, 2:4]), (x[:, 4:5], x[:, 5:6])),
        "gear": x[:, 6:11],
        "mode": x[:, 11:],
    }
    dist = action_distributions.distribution(SPACE, output, None, squash=squash)
    (first, second), gear, mode = dist.parts["arm"], dist.parts["gear"], dist.parts["mode"]
    assert isinstance(first, TanhNormal) == squash
    raw = jax.jit(action_distributions.sample)(dist, jax.random.key(1))
    apart = [(first, raw["arm"][0]), (second, raw["arm"][1]), (gear, raw["gear"]), (mode, raw["mode"])]

    @jax.jit
    def log_probs(dist, raw, apart):
        return action_distributions.log_prob(dist, raw), [action_distributions.log_prob(*part) for part in apart]

    together, terms = log_probs(dist, raw, apart)
    np.testing.assert_allclose(together, np.sum(terms, axis=0), rtol=1e-5)

    def convert(space, raw):
        return jax.jit(jax.vmap(partial(action_distributions.action, space, squash=squash)))(raw)

    actions = convert(SPACE, raw)
    assert jax.jit(jax.vmap(SPACE.contains))(actions).all()
    for space, raw_part, action in (
        (BOX, raw["arm"][0], actions["arm"][0]),
        (Discrete(4), raw["mode"], actions["mode"]),
    ):
        np.testing.assert_array_equal(action, convert(space, raw_part))
    assert actions["arm"][0].shape == (7, 1, 2)
    assert actions["arm"][1].shape == (7,)
    modes = action_distributions.mode(dist)
    np.testing.assert_array_equal(modes["arm"][0], output["arm"][0][0])
    np.testing.assert_array_equal(modes["mode"], x[:, 11:].argmax(-1))


@pytest.mark.parametrize("settings", [
    {"kl_penalty": True, "squash": True},
    pytest.param({"recurrent": "gru", "memory_size": 4}, marks=pytest.mark.thorough),
])  # fmt: skip
def test_an_update_starts_from_a_ratio_of_one(settings):
    agent = ppo.make(ppo.Config(**SMALL, **settings), OBS, SPACE)
    state = start(agent)
    rollout = rollout_of(agent, state, 8, 4)
    assert jax.jit(jax.vmap(jax.vmap(SPACE.contains)))(rollout.action).all()
    for ratio in ratios(agent, state, rollout, None)[:2]:
        np.testing.assert_allclose(ratio, 1.0, rtol=1e-4)
    after, metrics = update(agent, state, rollout)
    assert all_finite(after, metrics)
    assert metrics["entropy"] > np.log(2 * 3 * 4)  # which is that of the integers alone


def test_a_network_of_ones_own_has_the_outputs_of_each_part():
    space = Dict({"amount": Box(-1, 1, (2,)), "side": Discrete(3)})

    def network(width):
        def apply(params, obs):
            x = obs @ params["w"]
            return {"amount": (x[..., :2], x[..., :2]), "side": x[..., :width]}, x[..., 0]

        return lambda key, obs: {"w": jnp.eye(3)}, apply

    agent = ppo.make(ppo.Config(**SMALL), OBS, space, networks=network(3))
    state = jax.eval_shape(lambda: start(agent))
    rollout = jax.eval_shape(lambda state: rollout_of(agent, state, 4, 4), state)
    assert jax.eval_shape(agent.update, state, rollout, jax.random.key(0))[1]["loss"].shape == ()
    expected = "networks must return ({amount: (loc, log_std), side: logits}, value) of shapes ({amount: ([2], [2]), "
    with pytest.raises(ConfigError, match=re.escape(expected)):
        ppo.make(ppo.Config(**SMALL), OBS, space, networks=network(2))


BYTES = Box(0, 255, (2, 2), np.uint8)
MASKED = Dict({"action_mask": Box(False, True, (4,), np.bool_), "x": OBS})


@pytest.mark.parametrize(("space", "settings", "obs_space", "words"), [
    (SPACE, {"gsde": True}, OBS, r"gsde=True needs a Box action space, and this one is Dict.*; use False$"),
    (Tuple((Discrete(2),)), {"squash": True}, OBS, r"squash=True needs a Box .*, and this one is Tuple.*; use False$"),
    (Tuple((Box(-1, 1, (1,)), Box(-1, np.inf, (1,)))), {"squash": True}, OBS,
     r"squash=True needs .* finite bounds, and this one is Box\(-1.0, inf.* no upper bound; use False$"),
    (SPACE, {}, MASKED, r"action_mask=.* marks legal integers of a .*, and this action space is Dict.*; rename"),
    (Dict({}), {}, OBS, r"agent='ppo' needs .*, and this one is Dict\({}\); no agent can act in it, so wrap"),
    (Dict({"a": Discrete(2), "b": BYTES}), {}, OBS, r"agent='ppo' needs .*, and this one is Box\(0, 255, .*; no agent"),
    (Tuple((Discrete(0),)), {}, OBS, r"the action space must have actions, and Discrete\(n=0, .* has none"),
    (Dict({"a": Box(1, -1, (2,))}), {}, OBS, r"action space Box\(.* must have low <= high"),
    ({"a": Discrete(2)}, {}, OBS, r"the action space must be one of rlkit.spaces, and this one is builtins.dict"),
])  # fmt: skip
def test_what_does_not_fit_is_named(space, settings, obs_space, words):
    with pytest.raises(ConfigError, match=f"^{words}"):
        ppo.make(ppo.Config(**settings), obs_space, space)
