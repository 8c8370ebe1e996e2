"""Networks of the user's with batch moments and with dropout, in agents of all kinds."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlkit import agents, envs, training
from rlkit.networks.encoders.registry import VECTORS

SMALL = {"capacity": 256, "batch_size": 16, "learning_starts": 0, "replay_ratio": 0.25}


class Layers(nn.Module):
    """Outputs of the given sizes after a hidden layer with batch moments and dropout."""

    sizes: tuple[int | None, ...]
    copies: int | None = None

    @nn.compact
    def __call__(self, *inputs, train=False):
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(jnp.concatenate(inputs, axis=-1))
        x = nn.Dropout(0.2, deterministic=not train)(nn.relu(nn.Dense(32)(x)))
        outputs = [nn.Dense(size or 1)(x) for size in self.sizes for _ in range(self.copies or 1)]
        outputs = [
            out if size else out[..., 0] for out, size in zip(outputs, self.sizes * (self.copies or 1), strict=True)
        ]
        if self.copies:
            return jnp.stack(outputs)
        return tuple(outputs) if len(outputs) > 1 else outputs[0]


def actor_critic(**sizes):
    return {name: Layers(*size) for name, size in sizes.items()}


CASES = {
    "ppo": (Layers((2, None)), {}),
    "pqn": (Layers((2,)), {}),
    "dqn": (Layers((2,)), SMALL),
    "c51": (Layers((10,)), SMALL | {"num_atoms": 5}),
    "sac": (actor_critic(policy=((2,),), critics=((2,), 2)), SMALL),
    "iql": (actor_critic(policy=((2,),), critics=((2,), 2), value=((None,),)), SMALL),
}
CONTINUOUS = {
    "td3": (actor_critic(policy=((1,),), critics=((None,), 2)), SMALL),
    "sac": (actor_critic(policy=((1, 1),), critics=((None,), 2)), SMALL),
}


def run(name, env_name, networks, settings, updates, **of_config):
    """The agent's states before and after some updates, and the score of the actor."""
    module = agents.get(name)
    env, params = envs.make(env_name)
    config = module.Config(**settings).model_copy(update=of_config)
    agent = module.make(config, env.observation_space(params), env.action_space(params), networks)
    pair = training.make(agent, env, params, num_envs=8, num_steps=4)
    before = jax.jit(pair.init)(module.Hyper(learning_rate=3e-3, gamma=0.9), jax.random.key(0))
    after = jax.jit(lambda s: jax.lax.scan(lambda s, _: pair.step(s), s, None, updates)[0])(before)

    @jax.jit
    def evaluate(state):
        actor = agent.actor(state.agent)
        return training.evaluate(agent, env, params, actor, jax.random.key(1), num_envs=32, max_steps=10).returns

    return before.agent, after.agent, lambda: float(evaluate(after).mean())


def assert_learned_moments(before, after):
    assert jax.tree.structure(before.stats) == jax.tree.structure(after.stats)
    moved = [np.abs(x - y).max() for x, y in zip(*map(jax.tree.leaves, (before.stats, after.stats)), strict=True)]
    assert min(moved) > 1e-3  # of every network
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((after.params, after.stats)))


@pytest.mark.optimized
@pytest.mark.thorough
@pytest.mark.parametrize("name", [
    pytest.param("ppo", marks=pytest.mark.slow),
    "dqn",
    pytest.param("sac", marks=pytest.mark.slow),
])  # fmt: skip
def test_a_network_with_moments_and_dropout_learns_a_probe(name):
    networks, settings = CASES[name]
    before, after, score = run(name, "Probe-ObservationAction", networks, settings, updates=150)
    assert_learned_moments(before, after)
    assert score() > 0.9


@pytest.mark.thorough
@pytest.mark.parametrize("name", [pytest.param("pqn", marks=pytest.mark.slow), "iql"])
def test_the_statistics_of_other_agents_follow(name):
    networks, settings = CASES[name]
    before, after, _ = run(name, "Probe-ObservationAction", networks, settings, updates=10)
    assert_learned_moments(before, after)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["sac", pytest.param("td3", marks=pytest.mark.slow)])
def test_the_statistics_of_continuous_agents_follow(name):
    networks, settings = CONTINUOUS[name]
    before, after, _ = run(name, "Probe-Continuous", networks, settings, updates=10)
    assert_learned_moments(before, after)
    stats = after.stats["critics"] if name == "sac" else after.stats
    jax.tree.map(np.testing.assert_array_equal, after.target_stats, stats)  # a target copies them


class Regularized(nn.Module):
    """An encoder of vectors that keeps moments and drops features in training."""

    hidden_sizes: tuple[int, ...]
    activation: str
    layer_norm: bool
    dtype: object

    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)
        x = nn.Dropout(0.2, deterministic=not train)(nn.relu(nn.Dense(self.hidden_sizes[-1])(x)))
        assert self.is_initializing() or self.is_mutable_collection("batch_stats") == train
        return x


ENCODED = {  # between them, all heads
    "ppo": {"recurrent": "gru"},
    "r2d2": {"capacity": 256, "batch_size": 8, "learning_starts": 0, "burn_in": 2, "unroll_len": 4},
    "iqn": SMALL,
    "iql": SMALL,
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["ppo", *(pytest.param(x, marks=pytest.mark.slow) for x in ENCODED if x != "ppo")])
def test_an_encoder_keeps_statistics_and_drops_features_in_training_alone(name, monkeypatch):
    monkeypatch.setitem(VECTORS, "regularized", Regularized)
    settings = ENCODED[name] | {"hidden_sizes": (16,)}
    before, after, _ = run(name, "Probe-ObservationAction", None, settings, updates=10, encoder="regularized")
    assert_learned_moments(before, after)
