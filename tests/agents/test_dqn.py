"""rlkit.agents.dqn, c51, qrdqn and pqn: what they explore, what masks and noise do, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mistakes import mistake
from q_agents import MASKED, OBS, SMALL, example, linear, start

from rlkit import agents
from rlkit.agents import c51, dqn
from rlkit.agents.common import exploration, q_learning
from rlkit.networks.encoders import combine
from rlkit.networks.heads import q_network
from rlkit.networks.norms.noisy import STREAM, NoisyDense
from rlkit.spaces import Box, Discrete, MultiDiscrete
from rlkit.types import ConfigError

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


@pytest.mark.parametrize("mask", [pytest.param(None, marks=pytest.mark.slow), np.array([True, False, True, True])])
def test_how_often_random_actions_are_taken(mask):
    q = jnp.array([0.0, 5.0, 1.0, -1.0])
    draw = lambda key, epsilon: exploration.epsilon_greedy(key, Discrete(4), q, mask, epsilon)  # noqa: E731
    draw = jax.jit(jax.vmap(draw, (0, None)))
    drawn = draw(KEYS, jnp.float32(0.4))
    share = np.bincount(drawn, minlength=4) / 4000
    legal = np.ones(4, bool) if mask is None else mask
    expected = 0.4 * legal / legal.sum()
    expected[1 if mask is None else 2] += 0.6
    np.testing.assert_allclose(share, expected, atol=0.03)
    assert drawn.dtype == jnp.int32
    for epsilon, actions in ((0.0, {1 if mask is None else 2}), (1.0, set(np.flatnonzero(legal)))):
        assert set(np.asarray(draw(KEYS, jnp.float32(epsilon)))) == actions


def test_epsilon_falls_in_a_line():
    hyper = jax.tree.map(jnp.float32, dqn.Hyper(epsilon_start=0.9, epsilon_end=0.1, epsilon_steps=100.0))
    found = [exploration.epsilon(hyper, jnp.uint32(n)) for n in (0, 25, 100, 2**32 - 1)]
    np.testing.assert_allclose(found, [0.9, 0.7, 0.1, 0.1], rtol=1e-6)


def test_epsilon_falls_within_a_share_of_the_schedules():
    hyper = dqn.Hyper(epsilon_start=0.9, epsilon_end=0.1, epsilon_fraction=0.25, schedule_steps=400.0)
    found = [exploration.epsilon(jax.tree.map(jnp.float32, hyper), jnp.uint32(n)) for n in (0, 25, 100, 400)]
    np.testing.assert_allclose(found, [0.9, 0.7, 0.1, 0.1], rtol=1e-6)


@pytest.mark.parametrize("name", ["dqn", "pqn", "r2d2"])
def test_acting_has_the_epsilon_of_the_steps_so_far(name):
    module = agents.get(name)
    settings = {"learning_starts": 4} if name == "dqn" else {}
    agent = module.make(module.Config(hidden_sizes=(4,), **settings), OBS, Discrete(4))
    state = start(agent, module.Hyper(epsilon_start=1.0, epsilon_end=0.5, epsilon_steps=8.0))
    if name == "pqn":
        state = state.replace(num_steps=jnp.uint32(4))
    else:
        state = state.replace(replay=state.replay.replace(num_steps=jnp.uint32(4)))
    assert agent.actor(state).epsilon == 0.75


def test_actions_are_random_until_learning_starts():
    """Also where epsilon is 0 from the beginning; then the policy acts."""
    settings = SMALL | {"learning_starts": 100}
    agent = dqn.make(dqn.Config(**settings), OBS, Discrete(4))
    state = start(agent, dqn.Hyper(epsilon_start=0.0, epsilon_end=0.0))
    act = jax.jit(jax.vmap(agent.act, (None, None, None, 0)))

    def counts(num_steps):
        actor = agent.actor(state.replace(replay=state.replay.replace(num_steps=jnp.uint32(num_steps))))
        return np.bincount(np.asarray(act(actor, (), jnp.ones(3), KEYS[:1000])[1]), minlength=4)

    np.testing.assert_allclose(counts(99), 250, atol=60)
    assert counts(100).max() > 400
    assert agent.uniform is not None
    assert dqn.make(dqn.Config(**settings), MASKED, Discrete(4)).uniform is None


def the_same_at_all_fractions(init, apply):
    """A network of quantiles that are all the value."""

    def repeated(params, obs, fractions):
        return jnp.repeat(apply(params, obs)[..., None, :], fractions.shape[-1], axis=-2)

    return (lambda key, obs, fractions: init(key, obs)), repeated


@pytest.mark.parametrize("name", [
    "dqn",
    pytest.param("c51", marks=pytest.mark.slow),
    pytest.param("iqn", marks=pytest.mark.slow),
    "pqn",
])  # fmt: skip
def test_an_illegal_action_is_never_taken(name):
    module = agents.get(name)
    network = linear((51,) if name == "c51" else ())
    network = the_same_at_all_fractions(*network) if name == "iqn" else network
    settings = {} if name == "pqn" else SMALL
    agent = module.make(module.Config(**settings), MASKED, Discrete(4), network)
    actor = agent.actor(start(agent, module.Hyper(epsilon_start=0.5), MASKED))
    rng = np.random.default_rng(1)
    masks = rng.random((300, 4)) < 0.4
    masks[:, 3] = True
    obs = {"action_mask": masks, "obs": rng.normal(size=(300, 3)).astype(np.float32)}
    for act in (agent.act, agent.policy):
        _, action, _ = jax.jit(jax.vmap(act, (None, None, 0, 0)))(actor, (), obs, KEYS[:300])
        assert masks[np.arange(300), action].all()
        assert len(set(np.asarray(action))) == 4


def test_noise_of_dense_layers():
    """y = (w + σ ε_in ε_out) x + b + σ ε_out: the same noise for a whole batch, factorized, of the variance of f(ε)."""
    module = NoisyDense(4, sigma=0.5)
    x = jnp.eye(3)
    params = jax.jit(module.init)(jax.random.key(0), x)
    np.testing.assert_allclose(params["params"]["kernel_sigma"], 0.5 / 3**0.5, rtol=1e-6)
    apply = jax.jit(jax.vmap(lambda key, x: module.apply(params, x, rngs={STREAM: key}), (0, None)))
    bias = np.asarray(apply(KEYS, jnp.zeros((1, 3))))  # σ ε_out; the mean bias is 0
    weights = np.asarray(apply(KEYS, x)) - np.asarray(jax.jit(module.apply)(params, x)) - bias
    ranks = np.linalg.svd(weights, compute_uv=False)
    assert (ranks[:, 1] < 1e-5 * np.maximum(ranks[:, 0], 1e-3)).all()  # an outer product
    sigma = 0.5 / 3**0.5
    spread = sigma * (2 / np.pi) ** 0.5  # E f(ε)^2 = E |ε|
    np.testing.assert_allclose([weights.mean(), bias.mean()], 0, atol=0.02)
    np.testing.assert_allclose(weights.std((0,)), spread, rtol=0.08)
    np.testing.assert_allclose(np.square(bias).mean(), sigma**2 * (2 / np.pi) ** 0.5, rtol=0.08)


@pytest.mark.thorough
def test_noisy_agents_explore_by_noise_alone():
    agent = dqn.make(dqn.Config(**SMALL | {"learning_starts": 0}, noisy=True), OBS, Discrete(4))
    state = start(agent)
    actor = agent.actor(state)
    assert float(actor.epsilon) == 0
    waiting = dqn.make(dqn.Config(**SMALL | {"learning_starts": 1}, noisy=True), OBS, Discrete(4))
    assert float(waiting.actor(start(waiting)).epsilon) == 1  # as others, until learning starts
    static, obs = agent.static, jnp.ones(3)
    outputs = jax.jit(jax.vmap(lambda key: q_learning.apply(static, actor[:2], (), obs, key)[0]))(KEYS[:50])
    assert len(np.unique(outputs[:, 0])) == 50
    act, policy = (jax.jit(jax.vmap(f, (None, None, None, 0))) for f in (agent.act, agent.policy))
    assert len(set(np.asarray(act(actor, (), obs, KEYS[:50])[1]))) > 1
    greedy = np.argmax(q_learning.apply(static, actor[:2], (), obs)[0])
    assert (policy(actor, (), obs, KEYS[:50])[1] == greedy).all()


@pytest.mark.parametrize("outputs", [pytest.param(None, marks=pytest.mark.slow), 3])
def test_dueling_heads_add_a_value_to_centered_advantages(outputs):
    described = dqn.Config(**SMALL, dueling=True).model_dump(include=set(q_network.SETTINGS))
    make_encoder, heads = combine.split_settings(OBS, described)
    module = q_network.QNetwork(make_encoder, 4, outputs, **heads)
    params = jax.jit(module.init)(jax.random.key(0), jnp.zeros(3))
    obs = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)
    both = jax.jit(lambda p: (module.apply(p, obs), module.apply(p, obs, method="encode"), p["params"]))(params)
    out, hidden, weights = jax.tree.map(np.asarray, both)
    value, advantage = weights["value"], weights["advantage"]
    centered = out - out.mean(1, keepdims=True)
    raw = (hidden @ advantage["kernel"] + advantage["bias"]).reshape(out.shape)
    np.testing.assert_allclose(centered, raw - raw.mean(1, keepdims=True), atol=1e-6)
    np.testing.assert_allclose(out.mean(1).reshape(5, -1), hidden @ value["kernel"] + value["bias"], atol=1e-6)


@pytest.mark.parametrize(
    ("name", "space", "remedy"),
    [
        ("dqn", Box(-1, 1, (2,)), "use bc, crossq, ddpg, "),
        ("c51", MultiDiscrete((2, 2)), "use ppo"),
        ("dqn", Box(0, 3, (2,), jnp.int32), "no agent can act in it"),
        ("dqn", Box(0, 3, (2, 2), jnp.int32), "of one dimension"),
    ],
)
def test_spaces_that_do_not_fit(name, space, remedy):
    module = agents.get(name)
    with mistake(f"agent={name!r} needs a Discrete", remedy):
        module.make(module.Config(), OBS, space)


def test_settings_that_contradict():
    with pytest.raises(ValueError, match="v_min=1 must be below v_max=1"):
        c51.Config(v_min=1.0, v_max=1.0)
    with pytest.raises(ConfigError, match="noisy=True needs the network that Config describes"):
        dqn.make(dqn.Config(noisy=True), OBS, Discrete(4), linear())
