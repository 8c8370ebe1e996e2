"""A leaf `privileged` of observations: critics and values have it, and acting does without."""

import re
from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import model_of
from sac_batches import example

from rlkit import agents, training
from rlkit.envs.probe_base import Probe
from rlkit.networks import views
from rlkit.spaces import Box, Dict, Discrete, zeros
from rlkit.types import ConfigError

REPLAY = {"capacity": 512, "batch_size": 64, "learning_starts": 64, "replay_ratio": 0.25}


@dataclass(frozen=True)
class Payment(Probe):
    """One step: 1 for the sign of the cue, -1 for the other, and a payment of +-30 that the action has no part in.

    Who knows the payment learns the sign at once; who does not has to average it away. A leaf shows it.
    """

    leaf: str | None
    box: bool

    def _cue(self, key):
        return jax.random.rademacher(key, (2,), jnp.float32)

    def _observe(self, state):
        return {"cue": state.cue[:1]} | ({self.leaf: state.cue[1:]} if self.leaf else {})

    def _reward(self, state, action):
        sign = action[0] if self.box else jnp.where(action == 1, 1.0, -1.0)
        return sign * state.cue[0] + 30.0 * state.cue[1]

    def observation_space(self, params):
        return Dict({name: Box(-1, 1, (1,)) for name in ("cue", self.leaf) if name})

    def action_space(self, params):
        return Box(-1, 1, (1,)) if self.box else Discrete(2)


def shares(name, env, updates, settings, hyper, seeds=8):
    """The mean of sign and cue of greedy actions from observations without the leaf, for each seed."""
    module = agents.get(name)
    config = module.Config(**{"hidden_sizes": (32,), "normalize_obs": True} | settings)
    agent = module.make(config, env.observation_space(()), env.action_space(()))
    init, step = training.make(agent, env, (), num_envs=16, num_steps=8)
    cues = jnp.array([[-1.0], [1.0]])

    @jax.jit
    @jax.vmap
    def run(key):
        state = init(module.Hyper(**{"gamma": 0.9} | hyper), key)
        state = jax.lax.scan(lambda state, _: (step(state)[0], None), state, None, updates)[0]
        actor = agent.actor(state.agent)
        action = jax.vmap(lambda cue: agent.policy(actor, agent.memory, {"cue": cue}, key)[1])(cues)
        return jnp.mean(cues[:, 0] * (action[:, 0] if env.box else jnp.where(action == 1, 1.0, -1.0)))

    return np.asarray(run(jax.random.split(jax.random.key(0), seeds)))


@pytest.mark.thorough
@pytest.mark.optimized
@pytest.mark.parametrize(("name", "updates", "settings", "hyper"), [
    ("ppo", 30, {"num_minibatches": 4}, {"learning_rate": 1e-2, "vf_coef": 0.1}),
    pytest.param("sac", 150, REPLAY, {"learning_rate": 1e-2, "temperature": 0.1}, marks=pytest.mark.slow),
    pytest.param("td3", 150, REPLAY | {"capacity": 2048, "learning_starts": 2000},
                 {"learning_rate": 1e-2, "actor_learning_rate": 1e-3}, marks=pytest.mark.slow),
])  # fmt: skip
def test_a_privileged_critic_makes_it_easy(name, updates, settings, hyper):
    """Acting without the leaf, the sign is right in every seed; where critics have none either, it is not."""
    with_leaf, without = (
        shares(name, Payment(leaf=leaf, box=name == "td3"), updates, settings, hyper) for leaf in ("privileged", None)
    )
    assert with_leaf.min() > 0.9
    assert without.mean() < 0.7, (with_leaf, without)


SPACE = Dict({"cue": Box(-1, 1, (1,)), "privileged": Dict({"a": Box(-1, 1, (2,)), "b": Box(0, 255, (1,), np.uint8)})})
BOX = Box(-1, 1, (1,))


TOLD = {"ppo", "dqn", "r2d2", "sac"}  # with a memory and without, values of actions and policies


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in TOLD else pytest.mark.slow) for name in agents.names()]
)
def test_every_agent_acts_alike_with_and_without_the_leaf(name):
    """With statistics of all leaves, those of the missing one included."""
    module = agents.get(name)
    action_space = BOX if name in ("crossq", "ddpg", "td3", "td3_bc", "rebrac", "tqc", "iql") else Discrete(2)
    config = module.Config(hidden_sizes=(8,), normalize_obs=True)
    agent = module.make(config, SPACE, action_space, **model_of(module, SPACE))
    init = jax.jit(agent.init, static_argnums=3)
    actor = agent.actor(init(module.Hyper(), jax.random.key(0), example(SPACE, action_space), 4))
    stats = actor.obs_stats
    stats = stats.replace(
        count=jnp.float32(10.0),
        mean={path: jnp.full_like(x, 0.3 + place) for place, (path, x) in enumerate(stats.mean.items())},
        m2={path: jnp.full_like(x, 40.0) for path, x in stats.m2.items()},
    )
    actor, policy = actor._replace(obs_stats=stats), jax.jit(agent.policy)
    whole = SPACE.sample(jax.random.key(3))
    actions = [policy(actor, agent.memory, obs, jax.random.key(2))[1] for obs in (whole, {"cue": whole["cue"]})]
    np.testing.assert_array_equal(*actions)


def test_networks_of_the_user_get_what_their_role_sees():
    seen = {}

    class Look(nn.Module):
        role: str
        sizes: tuple

        @nn.compact
        def __call__(self, obs, *action):
            seen[self.role] = set(obs)
            outputs = [nn.Dense(size or 1)(obs["cue"]) for size in self.sizes]
            outputs = [x if size else x[..., 0] for x, size in zip(outputs, self.sizes, strict=True)]
            if self.role == "critics":
                return jnp.stack(outputs)
            return outputs[0] if len(outputs) == 1 else tuple(outputs)

    sac, ppo, dqn = (agents.get(name) for name in ("sac", "ppo", "dqn"))
    sac.make(sac.Config(), SPACE, BOX, {"policy": Look("policy", (1, 1)), "critics": Look("critics", (None, None))})
    ppo.make(ppo.Config(), SPACE, Discrete(2), {"policy": Look("actor", (2,)), "value": Look("value", (None,))})
    dqn.make(dqn.Config(), SPACE, Discrete(2), Look("q", (2,)))
    without, whole = {"cue"}, {"cue", "privileged"}
    assert seen == {"policy": without, "critics": whole, "actor": without, "value": whole, "q": without}


@pytest.mark.parametrize("networks", [None, {
    "policy": (lambda key, obs: jnp.ones((1, 2)), lambda w, obs: obs["cue"] @ w),
    "value": (lambda key, obs: jnp.ones(2), lambda w, obs: obs["privileged"]["a"] @ w),
}])  # fmt: skip
def test_a_value_without_the_leaf_is_nan_and_a_policy_is_not(networks):
    ppo = agents.get("ppo")
    network = ppo.make(ppo.Config(hidden_sizes=(4,)), SPACE, Discrete(2), networks).static.policy.network
    params, stats = jax.jit(network.init)(jax.random.key(0), zeros(SPACE))
    (logits, value), _ = network.apply(params, stats, zeros(SPACE))
    (same, nothing), _ = network.apply(params, stats, {"cue": jnp.zeros(1)})
    np.testing.assert_array_equal(logits, same)
    assert np.isfinite(value)
    assert np.isnan(nothing)


def test_what_cannot_be_is_refused():
    ppo = agents.get("ppo")
    with pytest.raises(ConfigError, match=re.escape("shared_torso=True gives the policy the leaf 'privileged'")):
        ppo.make(ppo.Config(shared_torso=True), SPACE, Discrete(2))
    with pytest.raises(ConfigError, match="must have numbers to act on"):
        ppo.make(ppo.Config(), Dict({"privileged": Box(-1, 1, (2,))}), Discrete(2))


def test_missing_leaves_are_completed_in_the_shape_of_the_batch():
    obs = views.with_zeros(SPACE, {"cue": jnp.zeros((5, 3, 1))})
    assert jax.tree.map(jnp.shape, obs["privileged"]) == {"a": (5, 3, 2), "b": (5, 3, 1)}
    assert views.with_zeros(SPACE, obs) is obs
