"""rlkit.agents.dqn, c51, qrdqn and pqn: losses against NumPy, what they explore, what masks and noise do."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import xlogy

from rlkit import agents
from rlkit.agents import c51, dqn, pqn, qrdqn
from rlkit.agents.common import exploration, q_learning
from rlkit.agents.common.off_policy import Batch
from rlkit.networks import q_network
from rlkit.networks.noisy import STREAM, NoisyDense
from rlkit.spaces import Box, Dict, Discrete, MultiDiscrete
from rlkit.types import ConfigError, Network, Transition

OBS = Box(-10, 10, (3,))
MASKED = Dict({"action_mask": Box(False, True, (4,), np.bool_), "obs": OBS})
SMALL = {"hidden_sizes": (8,), "capacity": 32, "batch_size": 4, "learning_starts": 0, "replay_ratio": 0.25}
HYPER = dqn.Hyper(gamma=0.9, huber_delta=1.0)
B = 6


def example(space=OBS):
    obs = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(space.sample, jax.random.key(0)))
    zero = jnp.zeros(())
    return Transition(obs, jnp.zeros((), jnp.int32), zero, zero > 0, zero > 0, obs)


def start(agent, hyper=HYPER, space=OBS):
    return jax.jit(agent.init, static_argnums=3)(hyper, jax.random.key(0), example(space), 4)


def linear(outputs=()):
    """A network of one matrix, so that a test can write its values down. An action mask is not looked at."""

    def apply(params, obs):
        obs = obs["obs"] if isinstance(obs, dict) else obs
        return (obs @ params.reshape(3, -1)).reshape(*obs.shape[:-1], 4, *outputs)

    return Network(lambda key, obs: jax.random.normal(key, (3, 4, *outputs)), apply)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.fixture(scope="module")
def hand_made():
    """A batch with ends, a next value that must not be read, weights, and masks of the next actions."""
    rng = np.random.default_rng(0)
    obs, next_obs = rng.normal(size=(2, B, 3)).astype(np.float32)
    mask = rng.random((2, B, 4)) < 0.6
    mask[..., 0] = True
    next_obs[2] = np.nan
    return Batch(
        obs={"action_mask": mask[0], "obs": obs},
        action=rng.integers(0, 4, B).astype(np.int32),
        reward=rng.normal(size=B).astype(np.float32),
        discount=np.float32([0.9, 0.81, 0.0, 0.9, 0.0, 0.9]),
        next_obs={"action_mask": mask[1], "obs": next_obs},
        weight=np.float32([1, 0.5, 0.25, 1, 1, 0]),
    )


def numbers(module, agent, batch, outputs=()):
    """-> loss, priority and gradient of the agent, and the outputs of its two networks in float64."""
    static, state = agent.static, start(agent, space=MASKED)
    target = jax.random.normal(jax.random.key(9), (3, 4, *outputs))
    state = state.replace(target_params=target)
    grad = jax.jit(jax.value_and_grad(partial(module.loss, static), has_aux=True))
    (loss, (priority, _)), gradient = grad(state.params, state, batch, jax.random.key(1))

    def outputs_of(params, obs):
        return (obs["obs"].astype(float) @ np.asarray(params, float).reshape(3, -1)).reshape(B, 4, *outputs)

    q, q_next = outputs_of(state.params, batch.obs), outputs_of(state.params, batch.next_obs)
    return loss, priority, gradient, q, q_next, outputs_of(target, batch.next_obs)


def chosen(values, batch):
    """The best legal actions [B]; any where the values are not numbers."""
    return np.argmax(np.where(batch.next_obs["action_mask"], np.nan_to_num(values), -np.inf), axis=-1)


@pytest.mark.parametrize("double", [False, True])
def test_the_loss_of_dqn_by_hand(hand_made, double):
    batch, rows = hand_made, np.arange(B)
    agent = dqn.make(dqn.Config(**SMALL, double=double), MASKED, Discrete(4), linear())
    loss, priority, gradient, q, q_next, next_q = numbers(dqn, agent, batch)
    action = chosen(q_next if double else next_q, batch)
    assert np.any(chosen(q_next, batch) != chosen(next_q, batch))  # otherwise nothing is told apart
    assert np.any(np.argmax(next_q, -1) != chosen(next_q, batch))
    target = batch.reward + np.where(batch.discount == 0, 0.0, batch.discount * next_q[rows, action])
    error = target - q[rows, batch.action]
    size = np.abs(error)
    np.testing.assert_allclose(priority, size, rtol=1e-5)
    huber = np.where(size <= 1, error**2 / 2, size - 0.5)
    np.testing.assert_allclose(loss, np.mean(batch.weight * huber), rtol=1e-5)
    expected = np.zeros((3, 4))
    for b in range(B):
        expected[:, batch.action[b]] -= batch.weight[b] * np.clip(error[b], -1, 1) * batch.obs["obs"][b] / B
    np.testing.assert_allclose(gradient, expected, atol=1e-5)


def test_the_loss_of_c51_by_hand(hand_made):
    batch, rows = hand_made, np.arange(B)
    config = c51.Config(**SMALL, num_atoms=5, v_min=-2.0, v_max=2.0)
    agent = c51.make(config, MASKED, Discrete(4), linear((5,)))
    loss, priority, gradient, q, q_next, next_q = numbers(c51, agent, batch, (5,))
    atoms = np.linspace(-2, 2, 5)
    probs = softmax(np.nan_to_num(next_q))[rows, chosen(softmax(q_next) @ atoms, batch)]
    expected, divergence = np.zeros(B), np.zeros(B)
    for b in range(B):
        target = np.zeros(5)
        for j in range(5):
            place = (np.clip(batch.reward[b] + batch.discount[b] * atoms[j], -2, 2) + 2) / 1.0
            low = min(int(place), 3)
            target[low] += probs[b, j] * (low + 1 - place)
            target[low + 1] += probs[b, j] * (place - low)
        expected[b] = -np.sum(target * np.log(softmax(q[b, batch.action[b]])))
        divergence[b] = expected[b] + np.sum(xlogy(target, target))
    np.testing.assert_allclose(priority, divergence, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(loss, np.mean(batch.weight * expected), rtol=1e-4)
    assert np.isfinite(gradient).all()


def test_the_loss_of_qrdqn_by_hand(hand_made):
    batch, rows = hand_made, np.arange(B)
    agent = qrdqn.make(qrdqn.Config(**SMALL, num_quantiles=3), MASKED, Discrete(4), linear((3,)))
    loss, priority, gradient, q, q_next, next_q = numbers(qrdqn, agent, batch, (3,))
    later = next_q[rows, chosen(q_next.mean(-1), batch)]
    expected = np.zeros(B)
    for b in range(B):
        for i, tau in enumerate((1 / 6, 1 / 2, 5 / 6)):
            for j in range(3):
                target = batch.reward[b] + (batch.discount[b] * later[b, j] if batch.discount[b] else 0.0)
                u = target - q[b, batch.action[b], i]
                expected[b] += abs(tau - (u < 0)) * (u * u / 2 if abs(u) <= 1 else abs(u) - 0.5) / 3
    np.testing.assert_allclose(priority, expected, rtol=1e-4)
    np.testing.assert_allclose(loss, np.mean(batch.weight * expected), rtol=1e-4)
    assert np.isfinite(gradient).all()


def test_the_targets_of_pqn_by_hand():
    rng = np.random.default_rng(1)
    obs = rng.normal(size=(6, 2, 3)).astype(np.float32)
    mask = rng.random((6, 2, 4)) < 0.6
    mask[..., 0] = True
    done = rng.random((2, 5, 2)) < 0.25
    seen = {"action_mask": mask, "obs": obs}
    before, after = (jax.tree.map(lambda x, i=i: x[i : 5 + i], seen) for i in (0, 1))
    rollout = Transition(before, np.zeros((5, 2), np.int32), obs[:5, :, 0], done[0], done[1], after)
    agent = pqn.make(pqn.Config(num_minibatches=1, chunk_size=3), MASKED, Discrete(4), linear())
    state = start(agent, pqn.Hyper(gamma=0.9, q_lambda=0.6), MASKED)
    static = agent.static
    found = jax.jit(partial(pqn.targets, static))(state, rollout)
    best = np.where(mask[1:], obs[1:].astype(float) @ np.asarray(state.params), -np.inf).max(-1)
    expected, later = np.zeros((5, 2)), best[-1]
    for t in reversed(range(5)):
        mixed = 0.4 * best[t] + 0.6 * np.where(done[1, t] | (t == 4), best[t], later)
        later = expected[t] = obs[t, :, 0] + 0.9 * np.where(done[0, t], 0.0, mixed)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), pqn.Batch(before, rollout.action, found))
    loss, _ = pqn.loss(static, state.params, state, batch)
    values = (obs[:5].reshape(-1, 3) @ np.asarray(state.params))[:, 0]
    np.testing.assert_allclose(loss, np.mean((values - expected.reshape(-1)) ** 2) / 2, rtol=1e-5)


def test_pqn_bootstraps_from_an_observation_without_a_legal_action():
    """Some environments zero the mask of their last observation, also where a time limit cut the episode."""
    obs = np.ones((1, 2, 3), np.float32)
    seen, last = ({"action_mask": np.full((1, 2, 4), legal), "obs": obs} for legal in (True, False))
    none, cut = np.zeros((1, 2), bool), np.ones((1, 2), bool)
    rollout = Transition(seen, np.zeros((1, 2), np.int32), obs[..., 0], none, cut, last)
    agent = pqn.make(pqn.Config(num_minibatches=1), MASKED, Discrete(4), linear())
    found = pqn.targets(agent.static, start(agent, pqn.Hyper(), MASKED), rollout)
    assert np.abs(found).max() < 1e3


KEYS = jax.random.split(jax.random.key(0), 4000)


@pytest.mark.parametrize("name", ["dqn", "pqn", "r2d2"])
def test_actions_have_the_dtype_of_their_space(name):
    """A buffer and an environment take no other."""
    module = agents.get(name)
    agent = module.make(module.Config(hidden_sizes=(4,)), OBS, Discrete(3, np.dtype(np.int8)))
    key, one = jax.random.key(0), example()._replace(action=jnp.zeros((), jnp.int8))
    state = jax.eval_shape(lambda: agent.init(module.Hyper(), key, one._replace(extras=agent.memory), 4))
    for acts in (agent.act, agent.policy):
        action = jax.eval_shape(lambda s, acts=acts: acts(agent.actor(s), agent.memory, one.obs, key)[1], state)
        assert action.dtype == np.int8


@pytest.mark.parametrize("mask", [None, np.array([True, False, True, True])])
def test_how_often_random_actions_are_taken(mask):
    q = jnp.array([0.0, 5.0, 1.0, -1.0])
    draw = jax.jit(lambda key, epsilon: exploration.epsilon_greedy(key, Discrete(4), q, mask, epsilon))
    drawn = jax.vmap(draw, (0, None))(KEYS, jnp.float32(0.4))
    share = np.bincount(drawn, minlength=4) / 4000
    legal = np.ones(4, bool) if mask is None else mask
    expected = 0.4 * legal / legal.sum()
    expected[1 if mask is None else 2] += 0.6
    np.testing.assert_allclose(share, expected, atol=0.03)
    assert drawn.dtype == jnp.int32
    for epsilon, actions in ((0.0, {1 if mask is None else 2}), (1.0, set(np.flatnonzero(legal)))):
        assert set(np.asarray(jax.vmap(draw, (0, None))(KEYS[:200], jnp.float32(epsilon)))) == actions


def test_epsilon_falls_in_a_line():
    hyper = jax.tree.map(jnp.float32, dqn.Hyper(epsilon_start=0.9, epsilon_end=0.1, epsilon_steps=100.0))
    found = [exploration.epsilon(hyper, jnp.uint32(n)) for n in (0, 25, 100, 2**32 - 1)]
    np.testing.assert_allclose(found, [0.9, 0.7, 0.1, 0.1], rtol=1e-6)


def test_epsilon_falls_within_a_share_of_the_schedules():
    hyper = dqn.Hyper(epsilon_start=0.9, epsilon_end=0.1, epsilon_fraction=0.25, schedule_steps=400.0)
    found = [exploration.epsilon(jax.tree.map(jnp.float32, hyper), jnp.uint32(n)) for n in (0, 25, 100, 400)]
    np.testing.assert_allclose(found, [0.9, 0.7, 0.1, 0.1], rtol=1e-6)


@pytest.mark.parametrize("name", ["dqn", "c51", "pqn"])
def test_an_illegal_action_is_never_taken(name):
    module = agents.get(name)
    network = linear((51,) if name == "c51" else ())
    settings = {} if name == "pqn" else SMALL
    agent = module.make(module.Config(**settings), MASKED, Discrete(4), network)
    actor = agent.actor(start(agent, module.Hyper(epsilon_start=0.5), MASKED))
    masks = jax.random.bernoulli(jax.random.key(1), 0.4, (300, 4)).at[:, 3].set(True)
    obs = {"action_mask": masks, "obs": jax.random.normal(jax.random.key(2), (300, 3))}
    for act in (agent.act, agent.policy):
        _, action, _ = jax.jit(jax.vmap(act, (None, None, 0, 0)))(actor, (), obs, KEYS[:300])
        assert masks[np.arange(300), action].all()
        assert len(set(np.asarray(action))) == 4


def test_noise_of_dense_layers():
    """y = (w + σ ε_in ε_out) x + b + σ ε_out: the same noise for a whole batch, factorized, of the variance of f(ε)."""
    module = NoisyDense(4, sigma=0.5)
    x = jnp.eye(3)
    params = module.init(jax.random.key(0), x)
    np.testing.assert_allclose(params["params"]["kernel_sigma"], 0.5 / 3**0.5, rtol=1e-6)
    apply = jax.jit(jax.vmap(lambda key, x: module.apply(params, x, rngs={STREAM: key}), (0, None)))
    bias = np.asarray(apply(KEYS, jnp.zeros((1, 3))))  # σ ε_out; the mean bias is 0
    weights = np.asarray(apply(KEYS, x)) - np.asarray(module.apply(params, x)) - bias
    ranks = np.linalg.svd(weights, compute_uv=False)
    assert (ranks[:, 1] < 1e-5 * np.maximum(ranks[:, 0], 1e-3)).all()  # an outer product
    sigma = 0.5 / 3**0.5
    spread = sigma * (2 / np.pi) ** 0.5  # E f(ε)^2 = E |ε|
    np.testing.assert_allclose([weights.mean(), bias.mean()], 0, atol=0.02)
    np.testing.assert_allclose(weights.std((0,)), spread, rtol=0.08)
    np.testing.assert_allclose(np.square(bias).mean(), sigma**2 * (2 / np.pi) ** 0.5, rtol=0.08)


@pytest.mark.thorough
def test_noisy_agents_explore_by_noise_alone():
    agent = dqn.make(dqn.Config(**SMALL, noisy=True), OBS, Discrete(4))
    state = start(agent)
    actor = agent.actor(state)
    assert float(actor.epsilon) == 0
    static, obs = agent.static, jnp.ones(3)
    outputs = jax.jit(jax.vmap(lambda key: q_learning.apply(static, actor.params, (), obs, key)))(KEYS[:50])
    assert len(np.unique(outputs[:, 0])) == 50
    act, policy = (jax.jit(jax.vmap(f, (None, None, None, 0))) for f in (agent.act, agent.policy))
    assert len(set(np.asarray(act(actor, (), obs, KEYS[:50])[1]))) > 1
    greedy = np.argmax(q_learning.apply(static, actor.params, (), obs, None))
    assert (policy(actor, (), obs, KEYS[:50])[1] == greedy).all()


@pytest.mark.parametrize("outputs", [None, 3])
def test_dueling_heads_add_a_value_to_centered_advantages(outputs):
    described = dqn.Config(**SMALL, dueling=True).model_dump(include=set(q_network.SETTINGS))
    module = q_network.q_network(obs_space=OBS, num_actions=4, outputs=outputs, **described).apply.__self__
    params = module.init(jax.random.key(0), jnp.zeros(3))
    obs = jax.random.normal(jax.random.key(1), (5, 3))
    both = jax.jit(lambda p: (module.apply(p, obs), module.apply(p, obs, method="encode"), p["params"]))(params)
    out, hidden, weights = jax.tree.map(np.asarray, both)
    value, advantage = weights["value"], weights["advantage"]
    centered = out - out.mean(1, keepdims=True)
    raw = (hidden @ advantage["kernel"] + advantage["bias"]).reshape(out.shape)
    np.testing.assert_allclose(centered, raw - raw.mean(1, keepdims=True), atol=1e-6)
    np.testing.assert_allclose(out.mean(1).reshape(5, -1), hidden @ value["kernel"] + value["bias"], atol=1e-6)


@pytest.mark.parametrize(
    ("name", "settings", "space", "words"),
    [
        (
            "dqn",
            {},
            Box(-1, 1, (2,)),
            r"agent='dqn' needs a Discrete action space, .* use ddpg, iql, ppo, sac, td3 or td3_bc",
        ),
        ("c51", {}, MultiDiscrete((2, 2)), "agent='c51' needs a Discrete .*; use ppo$"),
        ("qrdqn", {}, Box(-jnp.inf, jnp.inf, (2,)), "agent='qrdqn' needs a Discrete .*; use ppo$"),
        ("dqn", {}, Box(0, 3, (2,), jnp.int32), "agent='dqn' needs a Discrete .*; no agent can act in it"),
        ("pqn", {}, Box(-1, 1, (2,)), "agent='pqn' needs a Discrete"),
        ("dqn", {"torso": "conv"}, Discrete(2), "torso='conv' needs observations of one image"),
    ],
)
def test_spaces_that_do_not_fit(name, settings, space, words):
    module = agents.get(name)
    with pytest.raises(ConfigError, match=words):
        module.make(module.Config(**settings), OBS, space)


def test_settings_that_contradict():
    with pytest.raises(ValueError, match="v_min=1 must be below v_max=1"):
        c51.Config(v_min=1.0, v_max=1.0)
    with pytest.raises(ConfigError, match="noisy=True needs the network that Config describes"):
        dqn.make(dqn.Config(noisy=True), OBS, Discrete(4), linear())
