"""rlkit.agents.sac: its three losses by hand in boxes and discrete spaces, and their gradients; those of tqc too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sac_batches import BOX, MASKED, OBS, B, both, hand_made, losses, make, squashed, unit

from rlkit.agents import sac, tqc
from rlkit.spaces import Discrete


@pytest.mark.parametrize(("settings", "best"), [
    ({}, np.min),
    pytest.param({"num_critics": 3, "actor_q": "mean"}, np.mean, marks=pytest.mark.slow),
])  # fmt: skip
def test_the_losses_of_a_box_by_hand(settings, best):
    _, static, state = make(hyper={"temperature": 0.3, "target_entropy": -1.5}, **settings)
    batch, key, policy, critics = hand_made(), jax.random.key(4), static.networks.policy, static.networks.critics
    keys = jax.random.split(key)
    rate, outputs = jax.jit(critics.apply), jax.jit(policy.apply)

    def sampled(obs, key):
        return squashed(*(np.asarray(x, float) for x in outputs(state.params["policy"], (), obs)[0]), key)

    ahead, log_prob = sampled(batch.next_obs, keys[0])
    bootstrap = np.asarray(rate(state.target_params, (), batch.next_obs, ahead)[0]).min(0) - 0.3 * log_prob
    target = batch.reward + np.where(batch.discount == 0, 0.0, batch.discount * bootstrap)
    error = np.asarray(rate(state.params["critics"], (), batch.obs, unit(batch.action))[0]) - target
    critic_loss = np.mean(batch.weight * (error**2).sum(0)) / 2
    now, log_prob = sampled(batch.obs, keys[1])
    policy_loss = np.mean(0.3 * log_prob - best(rate(state.params["critics"], (), batch.obs, now)[0], axis=0))
    temperature_loss = np.log(0.3) * (np.mean(-log_prob) + 3.0)

    total, priority, metrics = losses(static, state, batch, key)
    np.testing.assert_allclose(priority, np.abs(error).mean(0), rtol=1e-4)
    found = metrics["critic_loss"], metrics["policy_loss"], total
    expected = critic_loss, policy_loss, critic_loss + policy_loss + temperature_loss
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_a_target_takes_the_least_of_a_random_subset():
    """Of three constant target critics, -1, 0 and 5: the least of two is -1 in two draws of three, and else 0."""
    _, static, state = make(num_critics=3, target_subset=2, hyper={"temperature": 1e-6})
    constants = static.networks.critics._replace(
        apply=lambda params, stats, obs, action, **_: (jnp.broadcast_to(params[:, None], (3, B)), stats)
    )
    static = static._replace(networks=static.networks._replace(critics=constants))
    batch, critics = hand_made(), jnp.zeros(3)
    state = state.replace(params=state.params | {"critics": critics}, target_params=jnp.float32([-1, 0, 5]))
    draw = jax.jit(jax.vmap(lambda key: sac.critic_loss(static, state.params, state, batch, key)[1][1]))
    priority = draw(jax.random.split(jax.random.key(0), 600))
    least = [np.abs(batch.reward + batch.discount * value) for value in (-1.0, 0.0)]
    share = [np.isclose(priority, x, rtol=1e-3).all(-1).mean() for x in least]
    np.testing.assert_allclose(share, [2 / 3, 1 / 3], atol=0.06)
    assert sum(share) == 1.0


@pytest.mark.parametrize("box", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_dropout_is_active_in_all_passes_of_the_critics(box):
    """By a key in the loss of the critics, in their target and in the policy's loss; without one nothing drops."""
    action_space, obs = BOX if box else Discrete(4), jnp.ones((1, 3))
    inputs = (obs, jnp.ones((1, 2))) if box else (obs,)
    outputs = []
    for share in (0.5, 0.0):
        _, static, state = make(action_space=action_space, critic_dropout=share)
        critics, keys = static.networks.critics, []

        def apply(*arguments, key=None, critics=critics, keys=keys, **training):
            keys.append(key)
            return critics.apply(*arguments, key=key, **training)

        static = static._replace(networks=static.networks._replace(critics=critics._replace(apply=apply)))
        jax.eval_shape(lambda static=static, state=state: losses_of(static, state, box))
        assert [key is not None for key in keys] == ([True] * 3 if share else [False, True, False])

        def values(key, critics=critics, state=state):
            return critics.apply(state.params["critics"], (), *inputs, key=key)[0]

        outputs.append((jax.jit(jax.vmap(values))(jax.random.split(jax.random.key(0), 16)), values(None)))
    (dropped, kept), (without, same) = outputs
    np.testing.assert_array_equal(kept, same)
    np.testing.assert_allclose(without, jnp.broadcast_to(same, without.shape), rtol=1e-5)
    assert len(np.unique(dropped[:, 0].reshape(16, -1)[:, 0])) > 2
    assert not np.allclose(dropped[:, 0], dropped[:, 1])


def losses_of(static, state, box):
    return both(static, state.params, state, hand_made(box=box), jax.random.key(0))[0]


@pytest.mark.parametrize("masked", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_losses_of_a_discrete_space_by_hand(masked):
    space = MASKED if masked else OBS
    _, static, state = make(space, Discrete(4), {"temperature": 0.3})
    batch, act, rate = (
        hand_made(masked, box=False),
        *map(jax.jit, (static.networks.policy.apply, static.networks.critics.apply)),
    )

    def expectation(critic_params, obs):
        logits = np.asarray(act(state.params["policy"], (), obs)[0], float)
        legal = obs["action_mask"] if masked else np.ones((B, 4), bool)
        e = np.where(legal, np.exp(logits), 0.0)
        p = e / e.sum(-1, keepdims=True)
        entropy = -np.sum(p * np.log(np.where(p > 0, p, 1.0)), axis=-1)
        return (p * np.asarray(rate(critic_params, (), obs)[0]).min(0)).sum(-1), entropy, legal.sum(-1)

    value, entropy, _ = expectation(state.target_params, batch.next_obs)
    target = batch.reward + np.where(batch.discount == 0, 0.0, batch.discount * (value + 0.3 * entropy))
    error = np.asarray(rate(state.params["critics"], (), batch.obs)[0])[:, np.arange(B), batch.action] - target
    critic_loss = np.mean(batch.weight * (error**2).sum(0)) / 2
    value, entropy, legal = expectation(state.params["critics"], batch.obs)
    policy_loss = -np.mean(value + 0.3 * entropy)
    temperature_loss = np.log(0.3) * np.mean(entropy - 0.7 * np.log(legal))

    total, priority, metrics = losses(static, state, batch, jax.random.key(0))
    np.testing.assert_allclose(priority, np.abs(error).mean(0), rtol=1e-4)
    found = metrics["critic_loss"], metrics["policy_loss"], total
    expected = critic_loss, policy_loss, critic_loss + policy_loss + temperature_loss
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize(("module", "box"), [
    (sac, True),
    (sac, False),
    pytest.param(tqc, True, marks=pytest.mark.slow),
])  # fmt: skip
def test_the_gradients_of_the_three_losses_do_not_meet(module, box):
    _, static, state = make(OBS, BOX if box else Discrete(4), {"temperature": 0.3}, module)
    batch = hand_made(box=box)
    batch = batch._replace(next_obs=np.nan_to_num(batch.next_obs))

    def three(params):
        total, (_, metrics) = both(static, params, state, batch, jax.random.key(0), module)
        critic, policy = metrics["critic_loss"], metrics["policy_loss"]
        return {"critics": critic, "policy": policy, "log_temperature": total - critic - policy}

    for of, gradient in jax.jit(jax.jacrev(three))(state.params).items():
        for name, part in gradient.items():
            sizes = [np.abs(x).max() for x in jax.tree.leaves(part)]
            assert min(sizes) > 1e-4 if name == of else max(sizes) < 1e-6, (of, name)
