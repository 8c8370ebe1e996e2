"""What bounds an update of PPO: target_kl, clips, the KL penalty, schedules, advantages."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ppo_rollouts import OBS, SMALL, all_finite, rollout_of, start, steps_taken, update
from scipy.special import log_softmax

from rlkit.agents import ppo
from rlkit.agents.common import minibatches
from rlkit.agents.common.optimizer import Optimizer
from rlkit.networks.cores.recurrent import where_rows
from rlkit.ops.distributions import Categorical
from rlkit.ops.returns import gae
from rlkit.ops.statistics import RunningStatistics
from rlkit.spaces import Discrete


def test_target_kl_ends_an_update_before_the_step_that_exceeds_it():
    """The documented stop: the first minibatch whose KL exceeds 1.5 target_kl changes nothing, nor do later ones."""
    config = ppo.Config(hidden_sizes=(8,), num_epochs=4, num_minibatches=2)
    agent = ppo.make(config, OBS, Discrete(3))
    free = start(agent, ppo.Hyper(learning_rate=0.05))
    rollout, key = rollout_of(agent, free, 8, 4), jax.random.key(4)
    assert steps_taken(update(agent, free, rollout, 4)[0]) == 8
    state = free.replace(hyper=free.hyper.replace(target_kl=jnp.float32(0.015)))
    stopped, metrics = update(agent, state, rollout, 4)
    count = steps_taken(stopped)
    assert 0 < count < 8
    # The same minibatches with nothing to stop them, cut after as many steps: the parameters must be these.
    static, seen = agent.static, []
    original = ppo.gradient_step

    def recording(*arguments):
        learner, result = original(*arguments)
        jax.debug.callback(lambda *step: seen.append(step), learner.params, result[0]["approx_kl"], ordered=True)
        return learner, result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ppo, "gradient_step", recording)
        jax.block_until_ready(jax.jit(partial(ppo.update, static))(free, rollout, key))
        jax.effects_barrier()
    assert len(seen) == 8
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-5), stopped.params, seen[count - 1][0])
    assert [bool(kl > 0.0225) for _, kl in seen[: count + 1]] == [False] * int(count) + [True]
    assert max(kl for _, kl in seen[:count]) > 0.015  # which is no reason to stop
    np.testing.assert_allclose(metrics["approx_kl"], np.mean([kl for _, kl in seen[: count + 1]]), rtol=1e-3)
    # The KL of the first minibatch is 0 up to rounding, that of the second is not.
    state = free.replace(hyper=free.hyper.replace(target_kl=jnp.float32(0.0)))
    assert steps_taken(update(agent, state, rollout, 4)[0]) <= 1


class Normed(nn.Module):
    """A policy and a value behind batch moments."""

    @nn.compact
    def __call__(self, obs, train=False):
        x = nn.relu(nn.Dense(8)(nn.BatchNorm(use_running_average=not train, momentum=0.9)(obs)))
        return nn.Dense(3)(x), nn.Dense(1)(x)[..., 0]


def test_target_kl_leaves_a_network_with_batch_moments_learning():
    """While the moments are far from those of a batch, a loss has another policy than acting has, from the start."""
    agent = ppo.make(ppo.Config(num_epochs=2, num_minibatches=2), OBS, Discrete(3), Normed())
    state = start(agent, ppo.Hyper(target_kl=1e-4, learning_rate=1e-3))
    state = state.replace(params=jax.tree.map(lambda x: 10 * np.asarray(x), state.params))
    moments = []
    for seed in range(3):
        rollout = rollout_of(agent, state, 8, 4)
        state, metrics = update(agent, state, rollout._replace(obs=np.asarray(rollout.obs) + 3), seed)
        moments.append(np.asarray(jax.tree.leaves(state.stats)[0]))
        assert float(metrics["approx_kl"]) > 1.5e-4
    assert steps_taken(state) == 3  # one for each update
    assert (np.diff([np.zeros_like(moments[0]), *moments], axis=0) > 0.1).all()  # the means, towards 3
    assert moments[0].max() < 0.4  # a tenth of the way: minibatches that are not learned from leave them


@pytest.mark.thorough
def test_each_seed_of_a_vmap_stops_by_itself():
    agent = ppo.make(ppo.Config(hidden_sizes=(8,), num_epochs=4, num_minibatches=2), OBS, Discrete(3))
    state = start(agent, ppo.Hyper(learning_rate=0.05))
    rollout, key = rollout_of(agent, state, 8, 4), jax.random.key(4)
    targets = jnp.array([0.0, 0.002, 0.01, jnp.inf])

    @jax.jit
    def stop_at(kl):
        return agent.update(state.replace(hyper=state.hyper.replace(target_kl=kl)), rollout, key)[0]

    together = jax.vmap(stop_at)(targets)
    counts = steps_taken(together)
    assert [steps_taken(stop_at(kl)) for kl in targets] == list(counts)
    assert len(set(counts.tolist())) >= 3
    assert counts[-1] == 8


def test_a_clip_of_infinity_is_plain_policy_gradient_and_asymmetric_clips_differ():
    agent = ppo.make(ppo.Config(hidden_sizes=(8,), num_epochs=4, num_minibatches=1), OBS, Discrete(3))
    losses = {}
    for name, hyper in {
        "symmetric": ppo.Hyper(clip_eps=0.1, learning_rate=0.05),
        "high": ppo.Hyper(clip_eps=0.1, clip_eps_high=0.5, learning_rate=0.05),
        "same": ppo.Hyper(clip_eps=0.1, clip_eps_high=0.1, learning_rate=0.05),
        "open": ppo.Hyper(clip_eps=0.1, clip_eps_high=jnp.inf, learning_rate=0.05),
        "off": ppo.Hyper(clip_eps=jnp.inf, learning_rate=0.05),
    }.items():
        state = start(agent, hyper)
        losses[name] = update(agent, state, rollout_of(agent, state, 8, 4), 0)[1]
    assert losses["off"]["clip_fraction"] == 0
    assert losses["symmetric"]["policy_loss"] == losses["same"]["policy_loss"]
    assert losses["off"]["policy_loss"] < losses["high"]["policy_loss"] < losses["symmetric"]["policy_loss"]
    assert losses["open"]["policy_loss"] <= losses["high"]["policy_loss"]


def linear_policy():
    """A network whose logits and value are products with a matrix each."""

    def init(key, obs):
        return {"logits": jax.random.normal(key, (3, 3)), "value": jnp.zeros(3)}

    return init, lambda params, obs: (obs @ params["logits"], obs @ params["value"])


def test_the_loss_with_every_limit_by_hand():
    agent = ppo.make(ppo.Config(kl_penalty=True), OBS, Discrete(3), networks=linear_policy())
    limits = {"clip_eps": 0.2, "clip_eps_high": 0.4, "dual_clip": 1.5, "vf_clip_eps": 0.3}
    hyper = ppo.Hyper(**limits, vf_coef=0.7, ent_coef=0.1, kl_coef=9.0)
    state, rng, rows = start(agent, hyper).replace(kl_coef=jnp.float32(0.6)), np.random.default_rng(0), np.arange(64)
    obs, old_logits = rng.normal(size=(2, 64, 3)).astype(np.float32)
    action, (old_value, advantage, target) = rng.integers(0, 3, 64), rng.normal(size=(3, 64)).astype(np.float32)
    params = {"logits": np.eye(3, dtype=np.float32), "value": np.float32([1.0, 0.5, -0.5])}
    old, new = log_softmax(old_logits, axis=-1), log_softmax(obs, axis=-1)
    batch = ppo.Batch(
        obs, action, np.zeros(64, bool), old[rows, action], old_value, Categorical(jnp.asarray(old_logits)), advantage,
        target,
    )  # fmt: skip
    loss = jax.jit(partial(ppo.loss, agent.static))
    total, (_, metrics) = loss(params, (), state, batch, (), jnp.float32(0.5), jax.random.key(0))
    ratio, value = np.exp(new - old)[rows, action], obs @ params["value"]
    surrogate = np.minimum(ratio * advantage, np.clip(ratio, 1 - 0.1, 1 + 0.2) * advantage)  # half of each clip
    surrogate = np.where(advantage < 0, np.maximum(surrogate, 1.5 * advantage), surrogate)
    clipped = np.clip(value, old_value - 0.3, old_value + 0.3)
    value_loss = np.maximum((value - target) ** 2, (clipped - target) ** 2).mean() / 2
    entropy, kl = -(np.exp(new) * new).sum(-1).mean(), (np.exp(old) * (old - new)).sum(-1).mean()
    np.testing.assert_allclose(metrics["policy_loss"], -surrogate.mean(), rtol=1e-4)
    np.testing.assert_allclose(metrics["value_loss"], value_loss, rtol=1e-4)
    np.testing.assert_allclose(metrics["kl"], kl, rtol=1e-4)
    np.testing.assert_allclose(metrics["clip_fraction"], np.mean((ratio > 1.2) | (ratio < 0.9)), rtol=1e-6)
    np.testing.assert_allclose(total, -surrogate.mean() + 0.7 * value_loss - 0.1 * entropy + 0.6 * kl, rtol=1e-4)


def test_the_kl_coefficient_adapts_to_what_the_whole_update_moved():
    agent = ppo.make(ppo.Config(kl_penalty=True, num_minibatches=1), OBS, Discrete(3), networks=linear_policy())

    def run(target):
        state = start(agent, ppo.Hyper(kl_coef=0.3, kl_target=target, learning_rate=0.03))
        rollout = rollout_of(agent, state, 8, 4)
        return state, rollout, *update(agent, state, rollout)

    state, rollout, after, metrics = run(jnp.inf)
    old, new = (log_softmax(np.asarray(rollout.obs @ s.params["logits"], float), axis=-1) for s in (state, after))
    moved = (np.exp(old) * (old - new)).sum(-1).mean()
    np.testing.assert_allclose(metrics["update_kl"], moved, rtol=1e-4)
    assert 0 < metrics["kl"] < moved / 1.6  # the mean on the way, which is 0 at first
    factors = {jnp.inf: 1.0, moved / 3: 2.0, moved / 1.55: 2.0, moved: 1.0, moved * 3: 0.5}
    for target, factor in factors.items():
        np.testing.assert_allclose(run(target)[2].kl_coef, 0.3 * factor, rtol=1e-6)


@pytest.mark.thorough
def test_the_kl_of_a_recurrent_update_is_along_the_memories_of_after_it():
    """The memory before each step is another one under other parameters; acting again along the rollout shows it."""
    config = ppo.Config(hidden_sizes=(8,), recurrent="gru", memory_size=4, num_minibatches=1, kl_penalty=True)
    agent = ppo.make(config, OBS, Discrete(3))
    state = start(agent, ppo.Hyper(learning_rate=0.1))
    rollout = rollout_of(agent, state, 8, 4)
    after, metrics = update(agent, state, rollout)
    policy, done = agent.static.policy, rollout.terminated | rollout.truncated

    def says(state):
        core, rows = jax.tree.map(lambda x: x[0], rollout.extras.core), []
        for t in range(8):
            if t:
                core = where_rows(done[t - 1], policy.network.memory, core)
            logits, _, core = policy.network.apply(state.params, (), rollout.obs[t], core)[0]
            rows.append(log_softmax(np.asarray(logits, float), axis=-1))
        return np.stack(rows)

    old, new = says(state), says(state.replace(params=after.params))
    np.testing.assert_allclose(metrics["update_kl"], (np.exp(old) * (old - new)).sum(-1).mean(), rtol=1e-3)


def test_schedules_follow_the_environment_steps(monkeypatch):
    config = ppo.Config(**SMALL, learning_rate_schedule="linear", clip_schedule="cosine")
    agent = ppo.make(config, OBS, Discrete(3))
    state = start(agent, ppo.Hyper(learning_rate=0.02, schedule_steps=80.0))
    rollout, found, learn = rollout_of(agent, state, 5, 4), [], ppo.learn

    def with_clip(static, state, learning_rate, clip, *arguments):
        learner, metrics = learn(static, state, learning_rate, clip, *arguments)
        return learner, metrics | {"clip": clip}

    monkeypatch.setattr(ppo, "learn", with_clip)
    for i in range(6):
        state, metrics = update(agent, state, rollout, i)
        found.append((metrics["learning_rate"], metrics["clip"]))
    expected = [(0.02 * (1 - x), (1 + np.cos(np.pi * x)) / 2) for x in (0, 0.25, 0.5, 0.75, 1, 1)]
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("recurrent", ["none", "gru"])
def test_advantages_are_recomputed_in_each_epoch(recurrent):
    """By the values of the present parameters along their own memories, and the value targets too."""
    settings = {"hidden_sizes": (8,), "num_minibatches": 1, "recurrent": recurrent, "memory_size": 4}
    agent = ppo.make(ppo.Config(num_epochs=1, **settings), OBS, Discrete(3))
    state = start(agent, ppo.Hyper(learning_rate=0.05, gamma=0.9, gae_lambda=0.8))
    rollout = rollout_of(agent, state, 5, 4)
    first, static = update(agent, state, rollout)[0], agent.static
    core = jax.tree.map(lambda x: x[0], rollout.extras.core)
    done, memory = rollout.terminated | rollout.truncated, (core,) if recurrent == "gru" else ()

    def second_epoch(first):
        rows, memory_now = [], memory
        for t in range(5):
            _, value, *after = static.policy.network.apply(first.params, (), rollout.obs[t], *memory_now)[0]
            later = static.policy.network.apply(first.params, (), rollout.next_obs[t], *after)[0][1]
            memory_now = (where_rows(done[t], agent.memory.core, after[0]),) if after else ()
            rows.append((value, later))
        value, later = map(jnp.stack, zip(*rows, strict=True))
        advantage = gae(rollout.reward, value, later, rollout.terminated, rollout.truncated, gamma=0.9, gae_lambda=0.8)
        batch = ppo.prepare(static, state, rollout)._replace(advantage=advantage, target=advantage + value)
        batch = batch if memory else minibatches.flat(batch)
        learner = ppo.Learner(first.params, (), first.opt_state, jnp.array(True), jnp.array(False))
        optimizer = Optimizer.of(static.config, state.hyper, 0.05)
        arguments = static, state, optimizer, jnp.float32(1.0), learner, batch, core, jax.random.key(0)
        return ppo.gradient_step(*arguments)[0].params

    anew = ppo.make(ppo.Config(num_epochs=2, recompute_advantage=True, **settings), OBS, Discrete(3))
    found = update(anew, state, rollout)[0].params
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4), found, jax.jit(second_epoch)(first))


def test_advantages_normalized_over_the_rollout_leave_the_targets():
    found = {}
    for kind in ("none", "batch"):
        agent = ppo.make(ppo.Config(**SMALL, normalize_advantage=kind), OBS, Discrete(3))
        if not found:
            state = start(agent)
            rollout = rollout_of(agent, state, 5, 4)
        found[kind] = jax.jit(partial(ppo.prepare, agent.static))(state, rollout)
    plain = np.asarray(found["none"].advantage)
    np.testing.assert_allclose(found["batch"].advantage, (plain - plain.mean()) / plain.std(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["batch"].target, plain + found["none"].old_value, rtol=1e-4, atol=1e-5)


def test_advantages_are_of_scaled_rewards():
    agent = ppo.make(ppo.Config(**SMALL, normalize_reward=True), OBS, Discrete(3))
    state, prepare = start(agent), jax.jit(partial(ppo.prepare, agent.static))
    rollout = rollout_of(agent, state, 5, 4)
    returns = RunningStatistics(jnp.float32(4), jnp.float32(50), jnp.float32(16))  # a deviation of 2
    found = prepare(state.replace(normalizer=state.normalizer.replace(returns=returns)), rollout)
    expected = prepare(state, rollout._replace(reward=rollout.reward / 2))
    np.testing.assert_allclose(found.advantage, expected.advantage, rtol=1e-4, atol=1e-6)


def test_old_log_probs_from_collection_are_used_as_they_are():
    config = ppo.Config(hidden_sizes=(8,), num_epochs=1, num_minibatches=1)
    older = None
    for setting, kl in (("recompute", 0.0), ("collected", float(np.exp(-0.5) - 1 + 0.5))):
        agent = ppo.make(config.model_copy(update={"old_log_prob": setting}), OBS, Discrete(3))
        if older is None:
            state = start(agent)
            rollout = rollout_of(agent, state, 4, 4)
            older = rollout._replace(extras=rollout.extras._replace(log_prob=np.asarray(rollout.extras.log_prob) + 0.5))
        metrics = update(agent, state, older, 0)[1]
        np.testing.assert_allclose(metrics["approx_kl"], kl, atol=1e-5)


def test_nan_in_the_final_observation_of_a_terminated_episode_does_not_spread():
    agent = ppo.make(ppo.Config(**SMALL), OBS, Discrete(3))
    state = start(agent)
    rollout = rollout_of(agent, state, 4, 4)
    poisoned = np.where(np.asarray(rollout.terminated)[..., None], np.float32(np.nan), rollout.next_obs)
    assert np.isnan(poisoned).any()
    batch = jax.jit(partial(ppo.prepare, agent.static))(state, rollout._replace(next_obs=poisoned))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(batch))


def test_one_sample_minibatches_are_finite():
    agent = ppo.make(ppo.Config(hidden_sizes=(8,), num_epochs=1, num_minibatches=4), OBS, Discrete(3))
    state = start(agent)
    after, _ = update(agent, state, rollout_of(agent, state, 4, 1), 0)
    assert all_finite(after)
