"""rlkit.agents.crossq: the losses against slow loops over the joint batch, statistics, the optimizer, and refusals."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sac_batches import BOX, OBS, SMALL, B, example, hand_made, squashed, unit

from rlkit.agents import crossq
from rlkit.agents.common import q_critics
from rlkit.agents.common.off_policy import Schedules
from rlkit.agents.common.optimizer import Optimizer
from rlkit.spaces import Box
from rlkit.types import Sample, Transition

WIDTHS = {"critic_hidden_sizes": (6, 5), "hidden_sizes": (4,)}


def make(hyper=None, **settings):
    """-> static, state, with statistics as if the networks had trained."""
    agent = crossq.make(crossq.Config(**(SMALL | WIDTHS | settings)), OBS, BOX)

    init, rng = jax.jit(agent.init, static_argnums=3), np.random.default_rng(0)
    state = init(crossq.Hyper(**(hyper or {})), jax.random.key(0), example(OBS, BOX), 4)

    def drawn(path, x):
        noise = rng.normal(size=x.shape)
        return np.float32(np.exp(0.3 * noise) if "var" in jax.tree_util.keystr(path) else 0.5 * noise)

    def known(tree):
        return jax.tree_util.tree_map_with_path(lambda path, x: x if x.ndim == 0 else drawn(path, x), tree)

    networks = {name: known(state.params[name]) for name in ("policy", "critics")}
    return agent.static, state.replace(params=state.params | networks, stats=known(state.stats))


def by_hand(params, stats, prefix, x, num_layers, train, warm):
    """The features of one network's dense layers in float64, and the moments [(mean, var)] of each batch that passed.

    `prefix` are the fields of its encoder's parameters.
    """
    params, stats = params["params"], stats["batch_stats"]
    for name in prefix:
        params, stats = params[name], stats[name]
    x, moments = np.asarray(x, float), []
    for i in range(num_layers + 1):
        if i:
            layer = params["MLP_0"][f"Dense_{i - 1}"]
            x = np.maximum(x @ np.asarray(layer["kernel"], float) + np.asarray(layer["bias"], float), 0.0)
        norm, running = (tree["MLP_0"][f"BatchRenorm_{i}"] for tree in (params, stats))
        mean, var = (np.asarray(running[key], float) for key in ("mean", "var"))
        if train:
            batch_mean, batch_var = x.mean(0), ((x - x.mean(0)) ** 2).mean(0)
            moments.append((batch_mean, batch_var))
            std, batch_std = np.sqrt(var + 1e-3), np.sqrt(batch_var + 1e-3)
            r, d = (np.clip(batch_std / std, 1 / 3, 3), np.clip((batch_mean - mean) / std, -5, 5)) if warm else (1, 0)
            x = (x - batch_mean) / batch_std * r + d
        else:
            x = (x - mean) / np.sqrt(var + 1e-3)
        x = x * np.asarray(norm["scale"], float) + np.asarray(norm["bias"], float)
    return x, moments


def q_by_hand(params, stats, x, train=False, warm=False):
    """-> Q [2, B], and of each critic the moments of its layers."""
    found = [by_hand(params, stats, (f"Encoder_{k}",), x, 2, train, warm) for k in range(2)]
    heads = [params["params"][f"Dense_{k}"] for k in range(2)]
    q = [
        (x @ np.asarray(h["kernel"], float) + np.asarray(h["bias"]))[:, 0]
        for (x, _), h in zip(found, heads, strict=True)
    ]
    return np.stack(q), [moments for _, moments in found]


def sampled(params, stats, obs, key, train=False):
    """-> actions in [-1, 1] [B, 2] and their log-probabilities [B]."""
    hidden, _ = by_hand(params, stats, ("Encoder_0",), obs, 1, train, False)
    loc, log_std = (
        hidden @ np.asarray(params["params"][name]["kernel"], float) + np.asarray(params["params"][name]["bias"], float)
        for name in ("loc", "log_std")
    )
    return squashed(loc, log_std, key)


@pytest.mark.parametrize("steps", [pytest.param(99_999, marks=pytest.mark.slow), 100_000])
def test_the_losses_by_hand(steps):
    """One batch of 2 B rows has one mean and one variance; before and after the warm-up of the critics' norms."""
    static, state = make({"temperature": 0.3, "target_entropy": -1.5})
    critic_stats = jax.tree.map(lambda x: jnp.int32(steps) if x.ndim == 0 else x, state.stats["critics"])
    state = state.replace(stats=state.stats | {"critics": critic_stats})
    batch, keys, params, stats = hand_made(), jax.random.split(jax.random.key(4)), state.params, state.stats
    next_obs = np.where((batch.discount == 0)[:, None], batch.obs, batch.next_obs)  # row 2 is not a number

    ahead, log_prob = sampled(params["policy"], stats["policy"], next_obs, keys[0])
    joint = np.concatenate([np.concatenate([batch.obs, unit(batch.action)], 1), np.concatenate([next_obs, ahead], 1)])
    both, moments = q_by_hand(params["critics"], stats["critics"], joint, train=True, warm=steps == 100_000)
    bootstrap = both[:, B:].min(0) - 0.3 * log_prob
    target = batch.reward + np.where(batch.discount == 0, 0.0, batch.discount * bootstrap)
    error = both[:, :B] - target
    found, (new_stats, priority, _) = jax.jit(partial(crossq.critic_loss, static))(params, state, batch, keys[0])
    np.testing.assert_allclose(found, np.mean(batch.weight * (error**2).sum(0)) / 2, rtol=1e-4)
    np.testing.assert_allclose(priority, np.abs(error).mean(0), rtol=1e-4)
    for k in range(2):
        for i, (mean, var) in enumerate(moments[k]):
            old, new = (
                tree["batch_stats"][f"Encoder_{k}"]["MLP_0"][f"BatchRenorm_{i}"]
                for tree in (stats["critics"], new_stats)
            )
            np.testing.assert_allclose(new["mean"], 0.99 * old["mean"] + 0.01 * mean, rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(new["var"], 0.99 * old["var"] + 0.01 * var, rtol=1e-4, atol=1e-6)
            assert new["steps"] == steps + 1

    now, log_prob = sampled(params["policy"], stats["policy"], batch.obs, keys[1], train=True)
    q, _ = q_by_hand(params["critics"], stats["critics"], np.concatenate([batch.obs, now], 1))
    _, (policy_stats, metrics) = jax.jit(partial(crossq.policy_loss, static))(params, state, batch, keys[1])
    np.testing.assert_allclose(metrics["policy_loss"], np.mean(0.3 * log_prob - q.min(0)), rtol=1e-4)
    steps = [x for x in jax.tree.leaves(policy_stats) if x.ndim == 0]
    assert steps == [1, 1]


def test_the_target_has_no_gradient():
    """With the critics' outputs as parameters, of which the second half is the target: -1 for each row of the first."""
    static, state = make({"temperature": 1e-9})
    outputs = static.networks.critics._replace(apply=lambda params, stats, obs, action, **_: (params, stats))
    static = static._replace(networks=static.networks._replace(critics=outputs))
    batch = hand_made()._replace(weight=np.ones(B, np.float32), reward=np.ones(B, np.float32))
    loss = lambda q: crossq.critic_loss(static, {"critics": q}, state, batch, jax.random.key(0))[0]  # noqa: E731
    gradient = jax.jit(jax.grad(loss))
    found = gradient(jnp.zeros((2, 2 * B))) * B
    np.testing.assert_allclose(found, np.tile(np.repeat([-1.0, 0.0], B), (2, 1)), atol=1e-6)


def test_the_statistics_move_in_a_networks_own_updates_only():
    static, state = make(policy_every=2, critic_hidden_sizes=(4,))
    rows = np.ones(B, bool)
    batch = hand_made()
    item = Transition(batch.obs, batch.action, batch.reward, ~rows, ~rows, np.nan_to_num(batch.next_obs))
    sample, schedules = Sample(item, (), jnp.ones(B), rows), Schedules(jnp.float32(1e-3), jnp.array(True))
    step = jax.jit(partial(crossq.gradient_step, static))
    state, counts = state.replace(replay=()), []
    for key in jax.random.split(jax.random.key(0), 4):
        state, _, _ = step(state, sample, schedules, key)
        counts.append(
            [{int(x) for x in jax.tree.leaves(state.stats[name]) if x.ndim == 0} for name in ("critics", "policy")]
        )
    assert counts == [[{1}, {0}], [{2}, {1}], [{3}, {1}], [{4}, {2}]]
    assert (state.target_params, state.target_stats) == ((), ())


@pytest.mark.parametrize("b1", [0.5, pytest.param(0.0, marks=pytest.mark.slow)])
def test_adam_forgets_by_its_b1(b1):
    """Gradients 1 and 0: the second move is m / sqrt(v) with m = b1 (1 - b1) / (1 - b1^2), or 0 without momentum."""
    config, hyper = crossq.Config(), crossq.Hyper(adam_b1=b1, adam_eps=1e-12)
    optimizer, params = Optimizer.of(config, hyper, 1.0), {"x": jnp.zeros(1)}
    opt_state = optimizer.init(params)
    for gradient in (1.0, 0.0):
        before = params
        params, opt_state, _ = optimizer.step(params, opt_state, {"x": jnp.full(1, gradient)})
    mean = b1 * (1 - b1) / (1 - b1**2)
    root = np.sqrt(0.999 * 0.001 / (1 - 0.999**2))
    np.testing.assert_allclose(before["x"] - params["x"], mean / root, rtol=1e-4)


def test_images_are_normalized_after_their_convolutions():
    """Also in a policy of one image, whose dense layers are otherwise a part of the image's encoder."""
    space = Box(0, 255, (8, 8, 1), np.uint8)
    settings = SMALL | WIDTHS | {"channels": (2,), "strides": (2,)}
    static = crossq.make(crossq.Config(**settings), space, BOX).static
    image = np.zeros((8, 8, 1), np.uint8)
    _, stats = jax.eval_shape(lambda key: q_critics.init(static.networks, key, image), jax.random.key(0))
    for name, sizes in (("policy", WIDTHS["hidden_sizes"]), ("critics", WIDTHS["critic_hidden_sizes"])):
        found = stats[name]["batch_stats"]["Encoder_0"]["MLP_0"]
        assert [found[f"BatchRenorm_{i + 1}"]["mean"].shape for i in range(len(sizes))] == [(n,) for n in sizes]
