"""rlkit.agents.ppo: what an update does to known rollouts."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from ppo_rollouts import OBS, SMALL, SPACES, all_finite, one_minibatch, ratios, rollout_of, start, update
from scipy.special import log_softmax

from rlkit.agents import ppo
from rlkit.agents.common import policy_evaluation
from rlkit.spaces import Discrete
from rlkit.types import ConfigError


@pytest.mark.parametrize(
    "chunk_size",
    [
        pytest.param(1, marks=pytest.mark.slow),
        3,
        pytest.param(16, marks=pytest.mark.slow),
        None,
    ],
)
def test_the_first_ratio_is_one_for_every_chunk_size(chunk_size):
    agent = ppo.make(ppo.Config(**SMALL), OBS, SPACES["box"])
    state = start(agent)
    rollout = rollout_of(agent, state, 5, 2)
    recomputed, collected, value = ratios(agent, state, rollout, chunk_size)
    for x, expected in ((recomputed, 1), (collected, 1), (value, 0)):
        np.testing.assert_allclose(x, expected, atol=1e-5)


@pytest.mark.parametrize("settings", [
    pytest.param({"recurrent": "lstm", "shared_torso": True}, marks=pytest.mark.slow),
    pytest.param({"gsde": True}, marks=pytest.mark.slow),
    {"recurrent": "mingru", "memory_layers": 2},
    *[pytest.param({"recurrent": name}, marks=pytest.mark.slow) for name in ("lru", "s5")],
    {"gsde": True, "gsde_steps": 2, "squash": True, "recurrent": "gru", "normalize_obs": True},
])  # fmt: skip
def test_the_first_ratio_is_one_also_with_ends_in_mid_sequence(settings):
    agent = ppo.make(ppo.Config(**SMALL, memory_size=5, **settings), OBS, SPACES["box"])
    state = start(agent)
    rollout = rollout_of(agent, state, 9, 4, done=0.3)
    assert bool((rollout.terminated | rollout.truncated)[1:-1].any())
    for x, expected in zip(ratios(agent, state, rollout, 7), (1, 1, 0), strict=True):
        np.testing.assert_allclose(x, expected, atol=2e-5)


def test_a_memory_that_is_not_put_back_would_be_seen():
    """The check of the check above: replay without the episode starts, and the ratio is not 1."""
    agent = ppo.make(ppo.Config(**SMALL, memory_size=5, recurrent="gru"), OBS, SPACES["box"])
    state = start(agent)
    rollout = rollout_of(agent, state, 9, 4, done=0.3)
    seamless = rollout._replace(terminated=rollout.terminated & False, truncated=rollout.truncated & False)
    assert abs(ratios(agent, state, seamless, None)[0] - 1).max() > 1e-4


def test_every_minibatch_starts_from_the_memories_of_its_environments():
    config = ppo.Config(hidden_sizes=(8,), recurrent="gru", memory_size=4, num_epochs=1, num_minibatches=2)
    agent = ppo.make(config, OBS, Discrete(3))
    state = start(agent, ppo.Hyper(learning_rate=0.0), num_envs=8)
    state = state.replace(params=jax.tree.map(lambda x: 10 * np.asarray(x), state.params))  # for a memory that is seen
    # from the middle of episodes
    later = jax.tree.map(lambda x: np.asarray(x)[4:], rollout_of(agent, state, 8, 8, done=0.0))
    np.testing.assert_allclose(update(agent, state, later)[1]["approx_kl"], 0.0, atol=1e-5)
    assert np.ptp(jax.tree.leaves(later.extras.core)[0][0], axis=0).max() > 0.1


def test_next_values_of_a_recurrent_agent_advance_its_memory_over_obs():
    agent = ppo.make(ppo.Config(**SMALL, memory_size=5, recurrent="lstm"), OBS, SPACES["discrete"])
    state, static = start(agent), agent.static
    rollout = rollout_of(agent, state, 6, 4, done=0.0)
    evaluate = partial(policy_evaluation.evaluate, static.policy, chunk_size=5, keep_dist=False)
    old = jax.jit(evaluate)(agent.actor(state), rollout, rollout.extras.core)
    np.testing.assert_allclose(old.next_value[:-1], old.value[1:], atol=1e-5)


MEMORIES = [{"recurrent": name} for name in ("mingru", "lru", "s5")] + [{"recurrent": "lstm", "memory_layers": 2}]
SETTINGS = {
    "discrete": [
        {"shared_torso": True, "layer_norm": True},
        {"recurrent": "gru"},
        {"compute_dtype": "bfloat16"},
        *MEMORIES,
    ],
    "multi": [{}],
    "box": [{"kl_penalty": True, "gsde": True}, {"squash": True, "normalize_obs": True, "normalize_reward": True}],
}


@pytest.mark.thorough
@pytest.mark.parametrize(("space", "settings"), [(s, c) for s, cs in SETTINGS.items() for c in cs])
def test_an_update_is_finite_and_moves_every_weight(space, settings):
    agent = ppo.make(ppo.Config(**SMALL, **settings), OBS, SPACES[space])
    state = start(agent, ppo.Hyper(ent_coef=0.01))
    rollout = rollout_of(agent, state, 4, 4)
    after, metrics = update(agent, state, rollout, 2)
    assert all_finite(after, metrics)
    assert all(x.dtype == jnp.float32 and x.shape == () for x in metrics.values())
    moved = jax.tree.map(lambda a, b: bool(jnp.any(a != b)), state.params, after.params)
    assert all(jax.tree.leaves(moved)), moved
    assert jax.tree.map(lambda x: (x.shape, x.dtype), state) == jax.tree.map(lambda x: (x.shape, x.dtype), after)


def test_one_update_against_optax_by_hand():
    """One epoch, one minibatch: the same Adam step as on the loss written out here."""
    hyper = ppo.Hyper(learning_rate=0.01, gamma=0.9, gae_lambda=0.8, ent_coef=0.1, vf_coef=0.7, max_grad_norm=0.05)
    agent, _ = one_minibatch(hyper)
    state = start(agent, hyper)
    rollout = rollout_of(agent, state, 5, 4)
    apply = jax.jit(agent.static.policy.network.apply)
    logits, value = apply(state.params, (), rollout.obs)[0]
    next_value = np.asarray(apply(state.params, (), rollout.next_obs)[0][1])
    value, reward = np.asarray(value), np.asarray(rollout.reward)
    advantage, later = np.zeros((5, 4)), np.zeros(4)
    for t in reversed(range(5)):
        delta = reward[t] + 0.9 * next_value[t] * ~np.asarray(rollout.terminated[t]) - value[t]
        later = delta + 0.9 * 0.8 * later * ~np.asarray(rollout.terminated | rollout.truncated)[t]
        advantage[t] = later
    normalized = ((advantage - advantage.mean()) / advantage.std()).astype(np.float32)
    target = (advantage + value).astype(np.float32)
    taken = np.eye(3, dtype=np.float32)[rollout.action]
    old_log_prob = (log_softmax(np.asarray(logits), axis=-1) * taken).sum(-1)

    def loss(params):
        logits, value = apply(params, (), rollout.obs)[0]
        log_probs = jax.nn.log_softmax(logits)
        ratio = jnp.exp((log_probs * taken).sum(-1) - old_log_prob)
        entropy = -(jnp.exp(log_probs) * log_probs).sum(-1).mean()
        return -(ratio * normalized).mean() + 0.7 * 0.5 * jnp.square(value - target).mean() - 0.1 * entropy

    @jax.jit
    def descend(params):
        grads, transform = (
            jax.grad(loss)(params),
            optax.chain(optax.clip_by_global_norm(0.05), optax.adam(0.01, eps=1e-5)),
        )
        with jax.numpy_dtype_promotion("standard"):
            updates, _ = transform.update(grads, transform.init(params))
        return optax.apply_updates(params, updates), optax.tree.norm(grads)

    expected, norm = descend(state.params)
    after, metrics = update(agent, state, rollout, 3)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-3, atol=2e-5), after.params, expected)
    np.testing.assert_allclose(metrics["grad_norm"], norm, rtol=1e-4)


def test_each_sample_is_used_once_an_epoch():
    """With plain averaging and a learning rate of 0, the mean over minibatches is the mean over the rollout."""
    whole, parts = (
        ppo.make(
            ppo.Config(hidden_sizes=(8,), num_epochs=3, num_minibatches=count, normalize_advantage="none"),
            OBS,
            Discrete(3),
        )
        for count in (1, 4)
    )
    state = start(whole, ppo.Hyper(learning_rate=0.0))
    rollout = rollout_of(whole, state, 5, 4)
    found, expected = (update(agent, state, rollout, 4)[1] for agent in (parts, whole))
    for name in ("loss", "policy_loss", "value_loss", "entropy"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-6)


def test_a_batch_that_does_not_divide_is_named_with_the_nearest_that_do():
    agent = ppo.make(ppo.Config(num_minibatches=7), OBS, Discrete(3))
    with pytest.raises(ConfigError, match=r"num_minibatches=7 must divide num_envs \* num_steps = 8192; try 4 or 8"):
        agent.check(64, 128)
    recurrent = ppo.make(ppo.Config(num_minibatches=8, recurrent="gru"), OBS, Discrete(3))
    with pytest.raises(ConfigError, match=r"num_minibatches=8 must divide num_envs = 12; try 6 or 12"):
        recurrent.check(12, 128)
    recurrent.check(16, 5)
