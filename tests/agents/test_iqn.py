"""rlkit.agents.iqn: the loss against a slow loop, the network by hand, the soft policy's limits, acting, learning."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from q_agents import MASKED, OBS, SMALL, B, hand_made
from q_agents import start as start_with
from short_trainings import mean_return, trained

from rlkit import envs
from rlkit.agents import iqn
from rlkit.networks.heads.implicit_quantiles import SETTINGS, implicit_quantiles
from rlkit.spaces import Discrete

COUNTS = {"num_quantiles": 3, "num_target_quantiles": 2, "num_value_quantiles": 5}
HYPER = iqn.Hyper(huber_delta=0.7, munchausen_alpha=0.8, munchausen_clip=-1.5, temperature=0.6)
A, N, TARGETS, K = 4, 3, 2, 5
BATCH = hand_made()


def start(agent, space=OBS):
    return start_with(agent, HYPER, space)


def by_fraction(drawn):
    """A network z(o, a, τ) = o @ (W_0 + τ W_1) with weights [2, 3, A], which appends the fractions of calls to `drawn`.

    An action mask is not looked at.
    """

    def apply(params, obs, fractions):
        drawn.append(fractions)
        obs = obs["obs"] if isinstance(obs, dict) else obs
        fractions = jnp.broadcast_to(fractions, (*obs.shape[:-1], *np.shape(fractions)[-1:]))
        return (obs @ params[0])[..., None, :] + fractions[..., None] * (obs @ params[1])[..., None, :]

    return (lambda key, obs, fractions: jax.random.normal(key, (2, 3, A))), apply


def z(weights, obs, action, tau):
    """One quantile, in float64."""
    return float(obs.astype(float) @ (weights[0] + tau * weights[1])[:, action])


def value(weights, obs, action):
    return np.mean([z(weights, obs, action, (k + 0.5) / K) for k in range(K)])


def soft(weights, obs, legal):
    """The probabilities of the legal actions, by number, under the softmax of their values."""
    exps = {a: np.exp(value(weights, obs, a) / HYPER.temperature) for a in np.flatnonzero(legal)}
    return {a: e / sum(exps.values()) for a, e in exps.items()}


def slow_targets(batch, b, online, target, fractions, *, double, munchausen):
    """The N' targets of one transition."""
    obs, legal = batch.next_obs["obs"][b], batch.next_obs["action_mask"][b]
    reward, later = float(batch.reward[b]), np.zeros(len(fractions))
    if munchausen:
        log_prob = np.log(soft(target, batch.obs["obs"][b], batch.obs["action_mask"][b])[batch.action[b]])
        reward += HYPER.munchausen_alpha * max(HYPER.temperature * log_prob, HYPER.munchausen_clip)
    if batch.discount[b] == 0:
        return reward + later
    if munchausen:
        for a, prob in soft(target, obs, legal).items():
            later += [prob * (z(target, obs, a, tau) - HYPER.temperature * np.log(prob)) for tau in fractions]
    else:
        selecting = online if double else target
        best = max(np.flatnonzero(legal), key=lambda a: value(selecting, obs, a))
        later += [z(target, obs, best, tau) for tau in fractions]
    return reward + float(batch.discount[b]) * later


def slow_loss(batch, online, target, fractions, next_fractions, **config):
    """-> the loss of each transition [B], and the gradient of their weighted mean [2, 3, A]."""
    losses, gradient = np.zeros(B), np.zeros((2, 3, A))
    for b in range(B):
        obs, action = batch.obs["obs"][b], batch.action[b]
        targets = slow_targets(batch, b, online, target, next_fractions[b], **config)
        for tau in fractions[b].astype(float):
            for one in targets:
                u = one - z(online, obs, action, tau)
                size, delta = abs(u), HYPER.huber_delta
                weight = (1 - tau if u < 0 else tau) / TARGETS
                losses[b] += weight * (u * u / 2 if size <= delta else delta * (size - delta / 2))
                slope = -weight * batch.weight[b] * np.clip(u, -delta, delta) / B
                gradient[:, :, action] += slope * np.outer([1.0, tau], obs)
    return losses, gradient


@pytest.mark.parametrize(
    ("double", "munchausen"),
    [pytest.param(False, False, marks=pytest.mark.slow), (True, False), (False, True)],
    ids=["plain", "double", "munchausen"],
)
def test_the_loss_by_a_slow_loop(double, munchausen):
    """Value, priorities and gradient; the gradient of the loop is that of the online quantiles alone."""
    drawn = []
    config = iqn.Config(**SMALL, **COUNTS, double=double, munchausen=munchausen)
    agent = iqn.make(config, MASKED, Discrete(A), by_fraction(drawn))
    state = start(agent, MASKED)
    state = state.replace(target_params=jax.random.normal(jax.random.key(9), (2, 3, A)))
    drawn.clear()
    gradients = jax.value_and_grad(partial(iqn.loss, agent.static), argnums=(0, 1), has_aux=True, allow_int=True)
    (loss, (_, priority, metrics)), (gradient, of_state) = gradients(state.params, state, BATCH, jax.random.key(1))
    (fractions,) = (np.asarray(x) for x in drawn if x.shape == (B, N))
    (next_fractions,) = (np.asarray(x) for x in drawn if x.shape == (B, TARGETS))
    assert len(np.unique(np.concatenate([fractions, next_fractions], axis=1))) == B * (N + TARGETS)
    online, target = (np.asarray(x, float) for x in (state.params, state.target_params))
    expected, expected_gradient = slow_loss(
        BATCH, online, target, fractions, next_fractions, double=double, munchausen=munchausen
    )
    np.testing.assert_allclose(priority, expected, rtol=1e-4)
    np.testing.assert_allclose(loss, np.mean(BATCH.weight * expected), rtol=1e-4)
    np.testing.assert_allclose(gradient, expected_gradient, atol=1e-5)
    assert not np.any(of_state.target_params)
    assert not np.any(of_state.params)
    assert all(np.isfinite(x) for x in metrics.values())


def test_the_batch_tells_the_variants_apart():
    """Masks, the double selection and both sides of the clip change something, or the loop above would show nothing."""
    online, target = (np.asarray(jax.random.normal(jax.random.key(k), (2, 3, A)), float) for k in (0, 9))
    read = np.flatnonzero(BATCH.discount)
    obs, mask = BATCH.next_obs["obs"], BATCH.next_obs["action_mask"]

    def best(weights, b, legal):
        return max(np.flatnonzero(legal), key=lambda a: value(weights, obs[b], a))

    assert any(best(online, b, mask[b]) != best(target, b, mask[b]) for b in read)
    assert any(best(target, b, np.ones(A)) != best(target, b, mask[b]) for b in read)
    scaled = [
        HYPER.temperature * np.log(soft(target, BATCH.obs["obs"][b], BATCH.obs["action_mask"][b])[a])
        for b, a in enumerate(BATCH.action)
    ]
    assert min(scaled) < HYPER.munchausen_clip < max(scaled)


def test_a_cold_soft_policy_without_a_bonus_is_greedy():
    losses = []
    for munchausen in (False, True):
        agent = iqn.make(iqn.Config(**SMALL, **COUNTS, munchausen=munchausen), MASKED, Discrete(A), by_fraction([]))
        state = start(agent, MASKED)
        state = state.replace(hyper=state.hyper.replace(munchausen_alpha=jnp.zeros(()), temperature=jnp.float32(1e-6)))
        loss = jax.jit(partial(iqn.loss, agent.static))
        losses.append(loss(state.params, state, BATCH, jax.random.key(1))[0])
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_the_soft_policy_is_exact_where_exponentials_overflow():
    q = jnp.array([[1e4, 1e4 - 0.03, 5e4, -1e4], [0.0, -3.0, 1e30, 1e30]])
    mask = jnp.array([[True, True, False, True], [True, True, False, False]])
    probs, scaled_log = iqn.soft_policy(q, mask, jnp.float32(0.03))
    odds = np.exp(-np.diff(np.float32([1e4 - 0.03, 1e4])) / 0.03)[0]
    np.testing.assert_allclose(probs, [[1 / (1 + odds), odds / (1 + odds), 0, 0], [1, 0, 0, 0]], rtol=1e-3)
    np.testing.assert_allclose(scaled_log[0, 3], -2e4, rtol=1e-4)
    np.testing.assert_allclose(scaled_log[1, :2], [0, -3], rtol=1e-5)


def test_quantiles_of_illegal_actions_are_not_read():
    agent = iqn.make(iqn.Config(**SMALL, **COUNTS, munchausen=True), MASKED, Discrete(A), by_fraction([]))
    state = start(agent, MASKED)
    targets = jax.jit(partial(iqn.soft_targets, agent.static))
    later = np.random.default_rng(2).normal(size=(B, TARGETS, A)).astype(np.float32)
    hidden = np.where(BATCH.next_obs["action_mask"][:, None], later, np.nan)
    found, expected = (np.asarray(targets(state, BATCH, x)) for x in (hidden, later))
    np.testing.assert_array_equal(found, expected)
    assert np.isfinite(found).all()


def test_targets_stay_finite_without_a_legal_action():
    """Some environments zero the mask of their last observation, also where a time limit cut the episode."""
    none = BATCH.next_obs | {"action_mask": np.zeros((B, A), bool)}
    for munchausen in (False, True):
        agent = iqn.make(iqn.Config(**SMALL, **COUNTS, munchausen=munchausen), MASKED, Discrete(A), by_fraction([]))
        state = start(agent, MASKED)
        loss = jax.jit(partial(iqn.loss, agent.static))
        assert loss(state.params, state, BATCH._replace(next_obs=none), jax.random.key(1))[0] < 100


@pytest.mark.parametrize("dueling", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_network_is_that_of_the_paper(dueling):
    config = iqn.Config(hidden_sizes=(8,), dueling=dueling, num_cosines=6)
    described = config.model_dump(include=set(SETTINGS))
    network = implicit_quantiles(obs_space=OBS, num_actions=A, **described)
    rng, apply = np.random.default_rng(0), jax.jit(network.apply)
    obs, tau = rng.normal(size=(7, 3)).astype(np.float32), rng.random((7, N)).astype(np.float32)
    params, _ = jax.jit(network.init)(jax.random.key(0), obs[0], tau[0])
    weights = jax.tree.map(lambda x: np.asarray(x, float), params["params"])
    dense = weights["Encoder_0"]["MLP_0"]["Dense_0"]
    features = np.maximum(np.asarray(obs, float) @ dense["kernel"] + dense["bias"], 0)
    expected = np.zeros((7, N, A))
    for b in range(7):
        for k in range(N):
            cosines = [np.cos(np.pi * i * float(tau[b, k])) for i in range(6)]
            phi = np.maximum(cosines @ weights["embedding"]["kernel"] + weights["embedding"]["bias"], 0)
            product = features[b] * phi
            out = product @ weights["advantage"]["kernel"] + weights["advantage"]["bias"]
            if dueling:
                value = product @ weights["value"]["kernel"] + weights["value"]["bias"]
                out = out - out.mean() + value
            expected[b, k] = out
    np.testing.assert_allclose(apply(params, (), obs, tau)[0], expected, atol=1e-5)
    shared = apply(params, (), obs.reshape(7, 1, 3), tau[0])[0]
    each = apply(params, (), obs, np.broadcast_to(tau[0], (7, N)))[0]
    np.testing.assert_allclose(np.asarray(shared)[:, 0], each, atol=1e-6)


def test_greedy_actions_are_the_same_for_all_keys_and_exploring_ones_are_not():
    agent = iqn.make(iqn.Config(**SMALL, num_value_quantiles=1), OBS, Discrete(A), by_fraction([]))
    actor = agent.actor(start(agent))._replace(epsilon=jnp.zeros(()))
    weights, obs = np.asarray(actor.params), jnp.ones(3)
    keys = jax.random.split(jax.random.key(3), 200)
    drawn, greedy = (
        np.asarray(jax.jit(jax.vmap(f, (None, None, None, 0)))(actor, (), obs, keys)[1])
        for f in (agent.act, agent.policy)
    )
    assert set(greedy) == {int(np.argmax(np.ones(3) @ (weights[0] + 0.5 * weights[1])))}
    best = np.argmax(np.ones(3) @ (weights[0] + np.linspace(0, 1, 101)[:, None, None] * weights[1]), axis=-1)
    assert len(set(best)) > 1  # the best action depends on the fraction, so that the draw shows
    assert set(drawn) <= set(best)
    assert len(set(drawn)) > 1


def test_settings_that_do_not_fit():
    with pytest.raises(ValueError, match="double=True selects one next action"):
        iqn.Config(double=True, munchausen=True)


LEARNING = {"capacity": 2048, "batch_size": 64, "learning_starts": 256, "replay_ratio": 0.25, "hidden_sizes": (16,)}


@pytest.mark.thorough
@pytest.mark.parametrize(("env_name", "settings"), [
    ("Probe-ObservationAction", {"double": True, "replay": "prioritized"}),
    ("Probe-MaskedAction", {"munchausen": True, "dueling": True, "n_step": 2}),
])  # fmt: skip
def test_the_best_policy_is_found(env_name, settings):
    env = envs.make(env_name)
    config = iqn.Config(**LEARNING, **COUNTS, target_every=64, **settings)
    hyper = iqn.Hyper(gamma=0.8, learning_rate=3e-3, epsilon_steps=2000.0, tau=1.0)
    agent, state = trained(iqn, config, hyper, env, 100)
    assert mean_return(agent, state, env) == 1.0
