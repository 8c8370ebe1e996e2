"""rlkit.agents.sac: its three losses by hand in boxes and discrete spaces, the temperature, and what it learns."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlkit import envs, training
from rlkit.agents import sac
from rlkit.agents.common import q_critics
from rlkit.agents.common.off_policy import Batch, Schedules
from rlkit.spaces import Box, Dict, Discrete, MultiDiscrete
from rlkit.types import ConfigError, Sample, Transition

OBS = Box(-10, 10, (3,))
MASKED = Dict({"action_mask": Box(False, True, (4,), np.bool_), "obs": OBS})
BOX = Box(np.float32([-2, 0]), np.float32([2, 10]))
SMALL = {"hidden_sizes": (8,), "capacity": 32, "batch_size": 4, "learning_starts": 0, "replay_ratio": 0.25}
B = 6


def example(obs_space, action_space):
    def zeros(space):
        shapes = jax.eval_shape(space.sample, jax.random.key(0))
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    zero, obs = jnp.zeros(()), zeros(obs_space)
    return Transition(obs, zeros(action_space), zero, zero > 0, zero > 0, obs)


def make(obs_space=OBS, action_space=BOX, hyper=None, **settings):
    """-> agent, static, state. The weights are drawn, for those at the start make all policies and values alike."""
    agent = sac.make(sac.Config(**(SMALL | settings)), obs_space, action_space)

    @jax.jit
    def init(key):
        state = agent.init(sac.Hyper(**(hyper or {})), key, example(obs_space, action_space), 4)

        def redraw(path, x):
            number = sum(map(ord, jax.tree_util.keystr(path)))
            return 0.5 * jax.random.normal(jax.random.fold_in(key, number), x.shape)

        networks = {
            name: jax.tree_util.tree_map_with_path(redraw, state.params[name]) for name in ("policy", "critics")
        }
        target = jax.tree.map(lambda x: x + 0.1, networks["critics"])
        return state.replace(params=state.params | networks, target_params=target)

    return agent, agent.static, init(jax.random.key(0))


def hand_made(masked=False, box=True):
    """A batch with ends, weights, and a next observation that must not be read."""
    rng = np.random.default_rng(0)
    obs, next_obs = rng.normal(size=(2, B, 3)).astype(np.float32)
    next_obs[2] = np.nan
    if masked:
        mask = rng.random((2, B, 4)) < 0.6
        mask[..., 1] = True
        obs, next_obs = ({"action_mask": m, "obs": x} for m, x in zip(mask, (obs, next_obs), strict=True))
    action = rng.uniform(BOX.low, BOX.high, (B, 2)) if box else np.full(B, 1)
    return Batch(
        obs=obs,
        action=action.astype(np.float32 if box else np.int32),
        reward=rng.normal(size=B).astype(np.float32),
        discount=np.float32([0.9, 0.81, 0.0, 0.9, 0.0, 0.9]),
        next_obs=next_obs,
        weight=np.float32([1, 0.5, 0.25, 1, 1, 0]),
    )


def losses(static, state, batch, key):
    """-> total, priority, metrics, jitted."""
    total, (priority, metrics) = jax.jit(partial(sac.loss, static))(state.params, state, batch, key)
    return float(total), np.asarray(priority), metrics


def test_the_losses_of_a_box_by_hand():
    _, static, state = make(hyper={"temperature": 0.3, "target_entropy": -1.5})
    batch, key, policy, critics = hand_made(), jax.random.key(4), static.networks.policy, static.networks.critics
    keys = jax.random.split(key)
    rate = jax.jit(critics.apply)

    def sampled(obs, key):
        loc, log_std = (np.asarray(x, float) for x in policy.apply(state.params["policy"], obs))
        noise = np.asarray(jax.random.normal(key, (B, 2)), float)
        raw = loc + np.exp(log_std) * noise
        log_prob = -(noise**2) / 2 - log_std - np.log(2 * np.pi) / 2 - np.log(1 - np.tanh(raw) ** 2)
        return np.tanh(raw).astype(np.float32), log_prob.sum(-1)

    ahead, log_prob = sampled(batch.next_obs, keys[0])
    bootstrap = np.asarray(rate(state.target_params, batch.next_obs, ahead)).min(0) - 0.3 * log_prob
    target = batch.reward + np.where(batch.discount == 0, 0.0, batch.discount * bootstrap)
    unit = np.stack([batch.action[:, 0] / 2, batch.action[:, 1] / 5 - 1], axis=-1)
    error = np.asarray(rate(state.params["critics"], batch.obs, unit)) - target
    critic_loss = np.mean(batch.weight * (error**2).sum(0)) / 2
    now, log_prob = sampled(batch.obs, keys[1])
    policy_loss = np.mean(0.3 * log_prob - np.asarray(rate(state.params["critics"], batch.obs, now)).min(0))
    temperature_loss = np.log(0.3) * (np.mean(-log_prob) + 3.0)

    total, priority, metrics = losses(static, state, batch, key)
    np.testing.assert_allclose(priority, np.abs(error).mean(0), rtol=1e-4)
    found = metrics["critic_loss"], metrics["policy_loss"], total
    expected = critic_loss, policy_loss, critic_loss + policy_loss + temperature_loss
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize("masked", [False, True])
def test_the_losses_of_a_discrete_space_by_hand(masked):
    space = MASKED if masked else OBS
    _, static, state = make(space, Discrete(4), {"temperature": 0.3})
    batch, policy, critics = hand_made(masked, box=False), static.networks.policy, static.networks.critics

    def expectation(critic_params, obs):
        logits = np.asarray(policy.apply(state.params["policy"], obs), float)
        legal = obs["action_mask"] if masked else np.ones((B, 4), bool)
        e = np.where(legal, np.exp(logits), 0.0)
        p = e / e.sum(-1, keepdims=True)
        entropy = -np.sum(p * np.log(np.where(p > 0, p, 1.0)), axis=-1)
        return (p * np.asarray(critics.apply(critic_params, obs)).min(0)).sum(-1), entropy, legal.sum(-1)

    value, entropy, _ = expectation(state.target_params, batch.next_obs)
    target = batch.reward + np.where(batch.discount == 0, 0.0, batch.discount * (value + 0.3 * entropy))
    error = np.asarray(critics.apply(state.params["critics"], batch.obs))[:, :, 1] - target
    critic_loss = np.mean(batch.weight * (error**2).sum(0)) / 2
    value, entropy, legal = expectation(state.params["critics"], batch.obs)
    policy_loss = -np.mean(value + 0.3 * entropy)
    temperature_loss = np.log(0.3) * np.mean(entropy - 0.7 * np.log(legal))

    total, priority, metrics = losses(static, state, batch, jax.random.key(0))
    np.testing.assert_allclose(priority, np.abs(error).mean(0), rtol=1e-4)
    found = metrics["critic_loss"], metrics["policy_loss"], total
    expected = critic_loss, policy_loss, critic_loss + policy_loss + temperature_loss
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize("box", [True, False])
def test_the_gradients_of_the_three_losses_do_not_meet(box):
    _, static, state = make(OBS, BOX if box else Discrete(4), {"temperature": 0.3})
    batch = hand_made(box=box)
    batch = batch._replace(next_obs=np.nan_to_num(batch.next_obs))

    def three(params):
        total, (_, metrics) = sac.loss(static, params, state, batch, jax.random.key(0))
        critic, policy = metrics["critic_loss"], metrics["policy_loss"]
        return {"critics": critic, "policy": policy, "log_temperature": total - critic - policy}

    for of, gradient in jax.jit(jax.jacrev(three))(state.params).items():
        for name, part in gradient.items():
            sizes = [np.abs(x).max() for x in jax.tree.leaves(part)]
            assert min(sizes) > 1e-4 if name == of else max(sizes) < 1e-6, (of, name)


@pytest.mark.parametrize(("obs_space", "space", "obs", "expected"), [
    (OBS, Box(-1, 1, (6,)), np.zeros(3), -6.0),
    (OBS, Box(-5, 5, (2, 3)), np.zeros(3), -6.0),
    (OBS, Discrete(4), np.zeros(3), 0.7 * np.log(4)),
    (MASKED, Discrete(4), {"action_mask": np.array([[1, 1, 1, 1], [1, 0, 0, 1], [0, 0, 1, 0], [0] * 4])},
     0.7 * np.log([4, 2, 1, 1])),
])  # fmt: skip
def test_target_entropy(obs_space, space, obs, expected):
    agent = sac.make(sac.Config(**SMALL), obs_space, space)
    found = sac.target_entropy(agent.static, jax.tree.map(jnp.float32, sac.Hyper()), obs)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert np.all((found >= 0) & (found < np.log(4))) or isinstance(space, Box)


def test_an_absolute_target_entropy_replaces_the_others():
    hyper = jax.tree.map(jnp.float32, sac.Hyper(target_entropy_total=-2.5))
    for space in (BOX, Discrete(4)):
        agent = sac.make(sac.Config(**SMALL), OBS, space)
        np.testing.assert_allclose(sac.target_entropy(agent.static, hyper, np.zeros(3)), -2.5)


def stepped(static, state, rates=None, **hyper):
    """The distances that the parts of the parameters move in one gradient step, by name."""
    batch = hand_made()
    item = Transition(batch.obs, batch.action, batch.reward, batch.discount == 0, batch.discount < 0, batch.next_obs)
    sample = Sample(item, (), jnp.asarray(batch.weight), jnp.ones(B, bool))
    state = state.replace(hyper=state.hyper.replace(**{name: jnp.float32(value) for name, value in hyper.items()}))
    schedules = Schedules(jnp.float32(1e-3), jnp.array(True), rates or {})
    after, *_ = jax.jit(partial(sac.gradient_step, static))(state, sample, schedules, jax.random.key(0))
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), after.params, state.params)
    return {name: max(jax.tree.leaves(part)) for name, part in moved.items()}


def test_the_parts_have_learning_rates_and_clip_norms_of_their_own():
    """The first step of Adam moves each parameter by the learning rate, unless its gradient is tiny."""
    _, static, state = make()
    rates = {"actor_learning_rate": 0.02, "critic_learning_rate": 0.03, "temperature_learning_rate": 0.04}
    apart = stepped(static, state, jax.tree.map(jnp.float32, rates))
    for name, expected in {"policy": 0.02, "critics": 0.03, "log_temperature": 0.04}.items():
        np.testing.assert_allclose(apart[name], expected, rtol=0.01)
    together = stepped(static, state)
    np.testing.assert_allclose(list(together.values()), 1e-3, rtol=0.01)
    for clipped, group in (("policy", "actor"), ("critics", "critic")):
        moved = stepped(static, state, **{f"{group}_max_grad_norm": 1e-12})
        assert moved[clipped] < 1e-5
        for name in {"policy", "critics", "log_temperature"} - {clipped}:
            np.testing.assert_allclose(moved[name], together[name], rtol=1e-5)


def test_gsde_begins_within_the_bounds():
    """A fresh policy explores a unit box: at a log deviation of 0 a tenth of its actions and more lie at a bound."""
    space, obs, keys = Box(-1, 1, (2,)), jax.random.normal(jax.random.key(1), (500, 3)), jax.random.key(2)
    agent = sac.make(sac.Config(gsde=True, capacity=32, batch_size=4), OBS, space)
    actor = agent.actor(jax.jit(lambda key: agent.init(sac.Hyper(), key, example(OBS, space), 4))(keys))
    act = jax.jit(jax.vmap(lambda obs, key: agent.act(actor, agent.memory, obs, key)[1]))
    actions = np.asarray(act(obs, jax.random.split(keys, 500)))
    assert np.mean(np.abs(actions) > 0.99) < 0.02
    assert actions.std() > 0.05
    assert sac.Config().initial_log_std == 0.0
    assert sac.Config(gsde=True, log_std_init=-1.5).initial_log_std == -1.5


@pytest.mark.parametrize(("box", "learn"), [(True, True), (False, True), (False, False)])
def test_the_temperature_rises_while_the_entropy_is_below_its_target(box, learn):
    hyper = {"learning_rate": 0.01, "temperature": 0.5}
    _, static, state = make(OBS, BOX if box else Discrete(4), hyper, learn_temperature=learn)
    batch = hand_made(box=box)
    item = Transition(batch.obs, batch.action, batch.reward, batch.discount == 0, batch.discount < 0, batch.next_obs)
    sample = Sample(item, (), jnp.asarray(batch.weight), jnp.ones(len(batch.weight), bool))
    step = jax.jit(partial(sac.gradient_step, static))
    _, _, metrics = losses(static, state, batch, jax.random.key(0))
    for below in (True, False):
        aim = metrics["entropy"] + (0.1 if below else -0.1)
        name, unit = ("target_entropy", 2) if box else ("target_entropy_share", jnp.log(4.0))
        led = state.replace(hyper=state.hyper.replace(**{name: aim / unit}))
        after, *_ = step(led, sample, Schedules(jnp.float32(0.01), jnp.array(True)), jax.random.key(0))
        moved = float(after.params["log_temperature"] - state.params["log_temperature"])
        np.testing.assert_allclose(moved, (0.01 if below else -0.01) * learn, rtol=1e-3)


def test_actions_of_unequal_bounds():
    """Critics see [-1, 1]; the environment its own bounds, which the policy keeps, and reaches."""
    agent, static, state = make(log_std_init=1.0)
    unit = np.random.default_rng(0).uniform(-1, 1, (20, 2)).astype(np.float32)
    taken = jax.vmap(partial(q_critics.denormalize_action, static.networks))(unit)
    np.testing.assert_allclose(taken, np.stack([unit[:, 0] * 2, unit[:, 1] * 5 + 5], -1), rtol=1e-5)
    np.testing.assert_allclose(q_critics.normalize_action(static.networks, taken), unit, atol=1e-6)
    keys, obs = jax.random.split(jax.random.key(0), 2000), jnp.ones(3)
    sample, mode = (jax.jit(jax.vmap(f, (None, None, None, 0))) for f in (agent.act, agent.policy))
    actions = sample(agent.actor(state), (), obs, keys)[1]
    assert (actions >= BOX.low.reshape(1, 2)).all()
    assert (actions <= BOX.high.reshape(1, 2)).all()
    assert (np.ptp(actions, axis=0) > 0.9 * (BOX.high - BOX.low)).all()
    loc = static.networks.policy.apply(state.params["policy"], obs)[0]
    np.testing.assert_allclose(
        mode(agent.actor(state), (), obs, keys[:1])[1][0],
        q_critics.denormalize_action(static.networks, jnp.tanh(loc)),
        rtol=1e-6,
    )


def test_actions_are_uniform_until_learning_starts():
    agent, _, state = make(learning_starts=100)
    act = jax.jit(jax.vmap(agent.act, (None, None, None, 0)))
    keys, low, span = jax.random.split(jax.random.key(0), 4000), BOX.low, BOX.high - BOX.low

    def shares(num_steps):
        seen = state.replace(replay=state.replay.replace(num_steps=jnp.uint32(num_steps)))
        place = (np.asarray(act(agent.actor(seen), (), jnp.ones(3), keys)[1]) - low) / span
        return np.stack([np.histogram(place[:, i], 4, (0, 1))[0] / 4000 for i in range(2)])

    np.testing.assert_allclose(shares(99), 0.25, atol=0.03)
    assert np.abs(shares(100) - 0.25).max() > 0.1


def test_gsde_holds_its_noise():
    """With the same noise an action is a function of the observation; it is drawn anew every `gsde_steps`."""
    agent, _, state = make(gsde=True, gsde_steps=3)
    act, memory, obs = jax.jit(agent.act), agent.memory, jnp.ones(3)
    actions = []
    for key in jax.random.split(jax.random.key(0), 7):
        memory, action, _ = act(agent.actor(state), memory, obs, key)
        actions.append(tuple(np.asarray(action).tolist()))
    assert [len(set(actions[i : i + 3])) for i in (0, 3, 6)] == [1, 1, 1]
    assert len(set(actions)) == 3


@pytest.mark.parametrize(("env_name", "best", "settings"), [
    ("Probe-Continuous", 0.99, {}),
    pytest.param("Probe-MaskedAction", 1.0, {"n_step": 2}, marks=pytest.mark.thorough),
    pytest.param("Probe-ObservationAction", 1.0, {"replay": "prioritized"}, marks=pytest.mark.thorough),
])  # fmt: skip
def test_the_best_policy_is_found(env_name, best, settings):
    env, params = envs.make(env_name)
    config = sac.Config(
        hidden_sizes=(32,),
        capacity=4096,
        batch_size=64,
        learning_starts=256,
        replay_ratio=0.25,
        **settings,
    )
    agent = sac.make(config, env.observation_space(params), env.action_space(params))
    pair = training.make(agent, env, params, num_envs=8, num_steps=8)
    hyper = sac.Hyper(learning_rate=5e-3, tau=0.05, gamma=0.8, temperature=0.2)

    @jax.jit
    def run(key):
        start = pair.init(hyper, key)
        state = jax.lax.scan(lambda state, _: (pair.step(state)[0], None), start, None, 100)[0]
        return training.evaluate(agent, env, params, agent.actor(state.agent), key, num_envs=64, max_steps=2)

    assert run(jax.random.key(0)).returns.mean() >= best


@pytest.mark.parametrize(
    ("space", "settings", "words"),
    [
        (Box(-np.inf, np.inf, (2,)), {}, "agent='sac' needs a Discrete action space or a Box of floats with finite"),
        (MultiDiscrete((2, 2)), {}, "agent='sac' .* use ppo"),
        (Discrete(2), {"gsde": True}, "gsde=True needs a Box action space with finite bounds"),
        (BOX, {"gsde": True, "hidden_sizes": ()}, "gsde=True needs a hidden layer"),
    ],
)
def test_spaces_that_do_not_fit(space, settings, words):
    with pytest.raises(ConfigError, match=words):
        sac.make(sac.Config(**(SMALL | settings)), OBS, space)
