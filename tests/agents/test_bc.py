"""rlkit.agents.bc: its loss by hand, and that it imitates data."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlkit.agents import bc
from rlkit.agents.common.batches import Batch
from rlkit.runs.config.parse import parse
from rlkit.spaces import Box, Discrete
from rlkit.types import ConfigError, Transition

OBS = Box(-1.0, 1.0, (2,))


def test_the_loss_is_the_weighted_negative_log_likelihood():
    """Logits are the observation, so that the probabilities of two observations are known."""
    network = (lambda key, obs: {"scale": jnp.ones(())}, lambda params, obs: params["scale"] * obs)
    agent = bc.make(bc.Config(normalize_obs=False), OBS, Discrete(2), {"policy": network})
    zeros = Transition(jnp.zeros(2), jnp.int32(0), *(jnp.zeros((), d) for d in (float, bool, bool)), jnp.zeros(2))
    state = jax.jit(agent.init, static_argnums=3)(bc.Hyper(), jax.random.key(0), zeros, 1)
    obs = jnp.array([[0.0, 0.0], [0.0, np.log(3.0)]])
    batch = Batch(obs, jnp.array([1, 0]), *jnp.zeros((2, 2)), obs, jnp.array([1.0, 2.0]))
    value, (_, priority, metrics) = jax.jit(partial(bc.loss, agent.static))(
        state.params, state, batch, jax.random.key(0)
    )
    np.testing.assert_allclose(priority, [np.log(2), np.log(4)], rtol=1e-6)
    np.testing.assert_allclose(value, (np.log(2) + 2 * np.log(4)) / 2, rtol=1e-6)
    assert metrics["action_error"] == 1.0  # of a tie the first action is the mode


@pytest.mark.parametrize("space", [Discrete(3), pytest.param(Box(-2.0, 2.0, (1,)), marks=pytest.mark.slow)])
def test_it_imitates_whatever_the_rewards(space):
    rng, discrete = np.random.default_rng(0), isinstance(space, Discrete)
    obs = rng.uniform(-1, 1, (256, 4, 2)).astype(np.float32)
    action = obs[..., 0] + obs[..., 1]
    action = np.digitize(action, (-0.5, 0.5)) if discrete else action[..., None]
    ends, reward = np.zeros((256, 4), bool), rng.normal(size=(256, 4)).astype(np.float32)
    data = Transition(obs, action.astype(space.dtype), reward, ends, ends, obs)
    agent = bc.make(bc.Config(hidden_sizes=(64,), capacity=1024, batch_size=128, replay_ratio=0.25), OBS, space)

    add, learn = agent.add, agent.learn
    assert add is not None
    assert learn is not None

    @jax.jit
    def run(key):
        example = jax.tree.map(lambda x: jnp.zeros(x.shape[2:], x.dtype), data)
        state = add(agent.init(bc.Hyper(learning_rate=3e-3), key, example, 4), jax.tree.map(jnp.asarray, data))
        state, metrics = learn(state, key, 4000)
        act = jax.vmap(partial(agent.policy, agent.actor(state)), (None, 0, None))
        return metrics, act((), obs.reshape(-1, 2), key)[1]

    metrics, chosen = run(jax.random.key(0))
    wanted = action.reshape(chosen.shape)
    error = np.mean(chosen != wanted) if discrete else np.abs(chosen - wanted).mean()
    assert error < 0.05
    assert not any("critic" in name or name == "q" for name in metrics)
    assert jax.tree.leaves(agent.static.networks.critics.init(jax.random.key(0), obs)) == []


def test_keys_of_targets_have_no_effect_and_are_named():
    base = {"env": "Pendulum-v1", "num_envs": 1, "num_steps": 8, "total_steps": 80, "agent": "bc"}
    assert set(parse(base).unused()) >= {"gamma", "tau", "target_every", "n_step", "alpha"}
    (line,) = parse(base | {"n_step": 3}).without_effect()
    assert line.startswith("n_step=3 has no effect, as agent='bc'")


def test_networks_that_it_does_not_have():
    with pytest.raises(ConfigError, match="networks must have no 'critics' for this agent; it takes policy"):
        bc.make(bc.Config(), OBS, Discrete(2), {"critics": lambda obs: obs})
