"""PPO in spaces of all kinds, with networks of all kinds, and its statistics."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ppo_rollouts import OBS, SMALL, SPACES, all_finite, ratios, rollout_of, start, update

from rlkit import agents
from rlkit.agents import ppo
from rlkit.agents.common import action_distributions, exploration
from rlkit.spaces import Box, Dict, Discrete
from rlkit.types import ConfigError

MASKED = Dict({"action_mask": Box(0, 1, (3,), np.int8), "x": OBS})


def test_illegal_actions_are_never_taken():
    agent = ppo.make(ppo.Config(**SMALL), MASKED, Discrete(3))
    state = start(agent, obs_space=MASKED)
    obs = {"action_mask": jnp.array([1, 0, 1], jnp.int8), "x": jnp.zeros(3)}
    keys = jax.random.split(jax.random.key(0), 2000)
    actions = jax.jit(jax.vmap(lambda k: agent.act(agent.actor(state), agent.memory, obs, k)[1]))(keys)
    counts = np.bincount(actions, minlength=3)
    assert counts[1] == 0
    assert min(counts[0], counts[2]) > 800
    assert jax.jit(agent.policy)(agent.actor(state), agent.memory, obs, keys[0])[1] != 1


def test_bounded_actions_span_their_box():
    for squash in (False, True):
        space = Box(np.array([-2.0, 0.0]), np.array([2.0, 10.0]))
        agent = ppo.make(ppo.Config(**SMALL, squash=squash, log_std_init=2.0), OBS, space)
        actor = agent.actor(start(agent))
        keys = jax.random.split(jax.random.key(0), 500)
        act = jax.jit(jax.vmap(agent.act, (None, None, None, 0)))
        _, actions, extras = act(actor, agent.memory, np.zeros(3, np.float32), keys)
        assert np.all(np.asarray(actions) >= space.low)
        assert np.all(np.asarray(actions) <= space.high)
        np.testing.assert_allclose(np.mean(actions, 0), [0, 5], atol=0.6)
        assert np.abs(extras.raw).max() > 5  # log-probs are of the action before it was clipped or squashed


def test_each_dimension_of_a_box_is_converted_by_its_own_bounds():
    """A dimension with two bounds acts as it does in a bounded box; one bound is 1 away from where a policy starts."""
    space = Box(np.float32([0, -np.inf, 5, -np.inf]), np.float32([1000, np.inf, np.inf, -3]))
    raw = jnp.float32([[0, 0, 0, 0], [0.4, 0.4, 0.4, 0.4], [-7, -7, -7, -7], [7, 7, 7, 7]])
    expected = [[500, 0, 6, -4], [700, 0.4, 6.4, -3.6], [0, -7, 5, -11], [1000, 7, 13, -3]]
    convert = lambda space, raw: action_distributions.action(space, raw, squash=False)  # noqa: E731
    actions = jax.jit(jax.vmap(partial(convert, space)))(raw)
    np.testing.assert_allclose(actions, expected, rtol=1e-6)
    twin = jax.jit(jax.vmap(partial(convert, Box(0, 1000, (1,)))))(raw[:, :1])
    np.testing.assert_array_equal(actions[:, :1], twin)
    np.testing.assert_array_equal(actions[:, 1], raw[:, 1])
    agent = ppo.make(ppo.Config(**SMALL), OBS, space)
    state = start(agent)
    rollout = rollout_of(agent, state, 64, 4)
    assert jax.jit(jax.vmap(space.contains))(np.asarray(rollout.action).reshape(-1, 4)).all()
    assert np.mean(np.asarray(rollout.action)[..., 2:] == [5, -3]) < 0.25  # clipped; 0.16 of a normal are
    for ratio in ratios(agent, state, rollout, None)[:2]:
        np.testing.assert_allclose(ratio, 1.0, rtol=1e-4)


@pytest.mark.parametrize("name", ["sac", "tqc", "crossq", "td3", "ddpg", "td3_bc", "rebrac", "iql"])
def test_agents_that_need_bounds_name_the_dimension_that_lacks_one(name):
    module = agents.get(name)
    with pytest.raises(ConfigError, match=r"whose dimension \[1\] has no upper bound; use ppo$"):
        module.make(module.Config(), OBS, Box(np.float32([0, -1]), np.float32([1, np.inf])))


def test_a_range_that_overflows_is_refused_beside_an_open_dimension():
    space = Box(np.float32([0, -3e38]), np.float32([np.inf, 3e38]))
    with pytest.raises(ConfigError, match="must have bounds whose difference is a finite float32"):
        ppo.make(ppo.Config(), OBS, space)


def test_a_squashed_dimension_without_a_width_has_finite_ratios():
    space = Box(np.array([-1.0, 0.5]), np.array([1.0, 0.5]))
    agent = ppo.make(ppo.Config(**SMALL, squash=True), OBS, space)
    state = start(agent)
    rollout = rollout_of(agent, state, 8, 4)
    np.testing.assert_array_equal(rollout.action[..., 1], np.full((8, 4), 0.5, np.float32))
    assert all_finite(*update(agent, state, rollout))


def test_gsde_holds_its_noise_for_the_episode_or_some_steps():
    for steps, distinct in ((0, 1), (2, 3)):
        agent = ppo.make(ppo.Config(**SMALL, gsde=True, gsde_steps=steps), OBS, SPACES["box"])
        actor, memory, raws, act = agent.actor(start(agent)), agent.memory, [], jax.jit(agent.act)
        for i in range(6):
            memory, _, extras = act(actor, memory, jnp.full(3, 0.5), jax.random.key(i))
            raws.append(tuple(np.asarray(extras.raw).round(5)))
        assert len(set(raws)) == distinct
        other = act(actor, agent.memory, jnp.full(3, 0.5), jax.random.key(99))[2].raw
        assert not np.allclose(other, raws[0])


def test_the_density_of_gsde_is_that_of_its_draws():
    output = (
        jnp.float32([0.5, -1.0]),
        jnp.float32([[-1.0, 0.5], [0.0, -2.0], [0.7, 0.1]]),
        jnp.float32([0.5, -1.0, 2.0]),
    )
    noise, keys = exploration.gsde_start(3, 2), jax.random.split(jax.random.key(0), 20_000)
    raw = jax.jit(jax.vmap(lambda key: exploration.gsde_step(output, noise, 0, key)[0]))(keys)
    dist = action_distributions.distribution(SPACES["box"], output, None, squash=False)
    np.testing.assert_allclose(raw.std(0), dist.scale, rtol=0.03)
    np.testing.assert_allclose(raw.mean(0), dist.loc, atol=0.08)


def test_gsde_begins_within_the_bounds():
    agent = ppo.make(ppo.Config(gsde=True), OBS, Box(-1.0, 1.0, (2,)))
    actor = agent.actor(start(agent))
    obs, keys = jax.random.normal(jax.random.key(1), (500, 3)), jax.random.split(jax.random.key(2), 500)
    act = jax.jit(jax.vmap(lambda obs, key: agent.act(actor, agent.memory, obs, key)[1]))
    actions = np.asarray(act(obs, keys))
    assert np.mean(np.abs(actions) > 0.99) < 0.03
    assert actions.std() > 0.1


def test_settings_that_do_not_fit_the_action_space_are_named():
    for field, space in (("squash", Discrete(2)), ("gsde", Discrete(2)), ("squash", Box(-np.inf, np.inf, (1,)))):
        with pytest.raises(ConfigError, match=rf"{field}=True needs"):
            ppo.make(ppo.Config(**{field: True}), OBS, space)
    with pytest.raises(ConfigError, match=r"agent='ppo' needs .* no agent can act in it"):
        ppo.make(ppo.Config(), OBS, Box(0, 1, (2, 2), np.uint8))
    image = Box(0, 1, (5, 5, 1))
    for settings, space, words in (
        ({"encoder": "conv"}, OBS, "encoder='conv' needs observations"),
        ({"channels": (4, 4, 4)}, image, "use at most 2 layers"),
        ({"gsde": True, "hidden_sizes": ()}, OBS, "gsde=True needs a hidden layer"),
    ):
        with pytest.raises(ConfigError, match=words):
            ppo.make(ppo.Config(**settings), space, SPACES["box"])
    with pytest.raises(ConfigError, match="gsde=True"):
        ppo.make(ppo.Config(gsde=True), OBS, SPACES["box"], networks=(lambda k, o: 0, lambda p, o: 0))


def test_a_value_with_a_last_axis_of_one_is_refused():
    """(B, 1) against (B,) would broadcast to (B, B), and train all the same, only worse."""
    network = (lambda key, obs: {"w": jnp.ones(3)}, lambda p, obs: (obs * p["w"], (obs * p["w"])[..., :1]))
    with pytest.raises(ConfigError, match=re.escape("returned ([3], [1])")):
        ppo.make(ppo.Config(num_minibatches=1), OBS, Discrete(3), networks=network)


@pytest.mark.thorough
def test_networks_of_other_libraries_plug_in():
    """An equinox and an NNX module, on dictionary observations, train in the same update."""
    import equinox as eqx
    from flax import nnx

    space = Dict({"a": Box(-1, 1, (3,)), "b": Box(-1, 1, (2,))})

    class Equinox(eqx.Module):
        policy: eqx.nn.Linear
        value: eqx.nn.Linear

        def __init__(self, key):
            keys = jax.random.split(key)
            self.policy, self.value = eqx.nn.Linear(5, 2, key=keys[0]), eqx.nn.Linear(5, "scalar", key=keys[1])

        def __call__(self, obs):
            x = jnp.concatenate([obs["a"], obs["b"]])
            return self.policy(x), self.value(x)

    class NNX(nnx.Module):
        def __init__(self, rngs):
            self.policy, self.value = nnx.Linear(5, 2, rngs=rngs), nnx.Linear(5, 1, rngs=rngs)

        def __call__(self, obs):
            x = jnp.concatenate([obs["a"], obs["b"]], axis=-1)
            return self.policy(x), self.value(x)[..., 0]

    for name, network in {"equinox": Equinox, "nnx": NNX}.items():
        with jax.numpy_rank_promotion("allow"):
            agent = ppo.make(ppo.Config(num_minibatches=2), space, Discrete(2), networks=network)
            state = start(agent, obs_space=space)
            rollout = rollout_of(agent, state, 4, 4, obs_space=space)
            after, _ = update(agent, state, rollout, 0)
        moved = [
            bool(jnp.any(a != b)) for a, b in zip(*map(jax.tree.leaves, (state.params, after.params)), strict=True)
        ]
        assert all(moved), name


def test_reward_statistics_count_each_step_once_and_start_anew_at_every_end():
    """A 4-step environment, 2 copies, 12 steps: 24 rewards, and no return runs past an end."""
    agent = ppo.make(ppo.Config(**SMALL, normalize_reward=True), OBS, Discrete(3))
    state = start(agent, ppo.Hyper(gamma=1.0), num_envs=2)
    rollout = rollout_of(agent, state, 12, 2, done=0.0)
    ends = np.broadcast_to((np.arange(12) % 4 == 3)[:, None], (12, 2))
    for kind in ("terminated", "truncated"):
        last = rollout._replace(reward=np.ones((12, 2), np.float32), **{kind: ends})
        after, _ = update(agent, state, last, 0)
        stats = after.normalizer.returns
        assert stats.count == 24
        np.testing.assert_allclose(stats.mean, 2.5, rtol=1e-6)  # returns run 1, 2, 3, 4
        np.testing.assert_array_equal(after.normalizer.running_return, 0)


def test_statistics_stand_still_throughout_an_update():
    agent = ppo.make(ppo.Config(**SMALL, normalize_obs=True), OBS, Discrete(3))
    state = start(agent)
    rollout = rollout_of(agent, state, 8, 4)
    after, _ = update(agent, state, rollout, 0)
    np.testing.assert_allclose(after.normalizer.obs.mean[""], np.mean(rollout.obs, (0, 1)), atol=1e-5)
    # Empty statistics change nothing, so that an update under them equals one without normalization.
    plain = ppo.make(ppo.Config(**SMALL), OBS, Discrete(3))
    same, _ = update(plain, start(plain), rollout)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6), after.params, same.params)


def test_bfloat16_losses_are_float32():
    agent = ppo.make(ppo.Config(**SMALL, compute_dtype="bfloat16"), OBS, Discrete(3))
    state = jax.eval_shape(lambda: start(agent))
    rollout = jax.eval_shape(lambda state: rollout_of(agent, state, 4, 4), state)
    assert rollout.extras.log_prob.dtype == jnp.float32
    _, metrics = jax.eval_shape(agent.update, state, rollout, jax.random.key(0))
    assert {x.dtype for x in metrics.values()} == {jnp.dtype(jnp.float32)}


@pytest.mark.thorough
def test_images_go_through_convolutions():
    space = Box(0, 255, (10, 10, 2), np.uint8)
    agent = ppo.make(ppo.Config(**SMALL, channels=(4,), shared_torso=True), space, Discrete(3))
    state = start(agent, obs_space=space)
    assert (3, 3, 2, 4) in [leaf.shape for leaf in jax.tree.leaves(state.params)]
    rollout = rollout_of(agent, state, 4, 2, obs_space=space)
    assert rollout.obs.dtype == jnp.uint8
    after, _ = update(agent, state, rollout, 0)
    assert all_finite(after)


def test_images_of_36_pixels_have_one_encoder_that_policy_and_value_share():
    large, small = (Box(0, 255, (side, side, 4), np.uint8) for side in (36, 35))

    def settings(space, **given):
        config = ppo.make(ppo.Config(**given), space, Discrete(3)).static.config
        return config.shared_torso, config.hidden_sizes, config.activation

    assert settings(large) == settings(Dict({"x": OBS, "camera": large})) == (True, (512,), "relu")
    assert settings(small) == settings(OBS) == settings(large, encoder="mlp") == (False, (64, 64), "tanh")
    chosen = {"shared_torso": False, "hidden_sizes": (7,), "activation": "silu"}
    assert settings(large, **chosen) == tuple(chosen.values())
    assert settings(Dict({"camera": large, "privileged": OBS})) == (False, (512,), "relu")


def test_unknown_agents_are_named_with_the_nearest():
    from rlkit import agents

    with pytest.raises(ConfigError, match=r"agent='pppo' must be one of .*did you mean 'ppo'"):
        agents.get("pppo")
