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
from rlkit.networks.cores.recurrent import where_rows
from rlkit.spaces import Discrete


def test_target_kl_ends_an_update_before_the_step_that_exceeds_it():
    """The documented stop: the first minibatch whose KL exceeds 1.5 target_kl changes nothing, nor do later ones."""
    config = ppo.Config(hidden_sizes=(8,), num_epochs=4, num_minibatches=2)
    agent = ppo.make(config, OBS, Discrete(3))
    free = start(agent, ppo.Hyper(learning_rate=0.05))
    rollout, key = rollout_of(agent, free, 8, 4), jax.random.key(4)
    assert steps_taken(update(agent, free, rollout, 4)[0]) == 8
    state = free.replace(hyper=free.hyper.replace(target_kl=jnp.float32(0.01)))
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
    assert [bool(kl > 0.015) for _, kl in seen[: count + 1]] == [False] * int(count) + [True]
    np.testing.assert_allclose(metrics["approx_kl"], np.mean([kl for _, kl in seen[: count + 1]]), rtol=1e-3)


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
    kernel = jax.tree.map(lambda x: 10.0 * x, state.params)
    state = state.replace(params=kernel)
    moments = []
    for seed in range(3):
        rollout = rollout_of(agent, state, 8, 4)
        state, metrics = update(agent, state, rollout._replace(obs=rollout.obs + 3.0), seed)
        moments.append(np.asarray(jax.tree.leaves(state.stats)[0]))
        assert float(metrics["approx_kl"]) > 1.5e-4
    assert steps_taken(state) == 3  # one for each update
    assert (np.diff([np.zeros_like(moments[0]), *moments], axis=0) > 0.1).all()  # the means, towards 3


def test_target_kl_zero_takes_no_step_that_moves_the_policy():
    agent = ppo.make(ppo.Config(hidden_sizes=(8,), num_epochs=4, num_minibatches=1), OBS, Discrete(3))
    state = start(agent, ppo.Hyper(target_kl=0.0, learning_rate=0.05))
    after, _ = update(agent, state, rollout_of(agent, state, 8, 4), 0)
    assert steps_taken(after) <= 1  # the KL of the first minibatch is 0 up to rounding, that of the second is not


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
    losses = {}
    for name, hyper in {
        "symmetric": ppo.Hyper(clip_eps=0.1, learning_rate=0.05),
        "high": ppo.Hyper(clip_eps=0.1, clip_eps_high=0.5, learning_rate=0.05),
        "same": ppo.Hyper(clip_eps=0.1, clip_eps_high=0.1, learning_rate=0.05),
        "open": ppo.Hyper(clip_eps=0.1, clip_eps_high=jnp.inf, learning_rate=0.05),
        "off": ppo.Hyper(clip_eps=jnp.inf, learning_rate=0.05),
    }.items():
        agent = ppo.make(ppo.Config(hidden_sizes=(8,), num_epochs=4, num_minibatches=1), OBS, Discrete(3))
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


def test_schedules_follow_the_environment_steps():
    config = ppo.Config(**SMALL, learning_rate_schedule="linear", clip_schedule="cosine")
    agent = ppo.make(config, OBS, Discrete(3))
    state = start(agent, ppo.Hyper(learning_rate=0.02, schedule_steps=80.0))
    rollout, rates = rollout_of(agent, state, 5, 4), []
    for i in range(6):
        state, metrics = update(agent, state, rollout, i)
        rates.append(float(metrics["learning_rate"]))
    np.testing.assert_allclose(rates, [0.02, 0.015, 0.01, 0.005, 0.0, 0.0], atol=1e-8)


@pytest.mark.thorough
def test_advantages_recomputed_each_epoch_change_the_second_epoch_only():
    hyper = ppo.Hyper(learning_rate=0.05)
    for recurrent in ("none", "gru"):
        results, rollout = {}, None
        for recompute in (False, True):
            for epochs in (1, 2):
                config = ppo.Config(
                    hidden_sizes=(8,), num_epochs=epochs, num_minibatches=2, recompute_advantage=recompute,
                    recurrent=recurrent, memory_size=4,
                )  # fmt: skip
                agent = ppo.make(config, OBS, Discrete(3))
                state = start(agent, hyper)
                rollout = rollout_of(agent, state, 5, 4) if rollout is None else rollout
                after, _ = update(agent, state, rollout, 0)
                results[recompute, epochs] = np.concatenate([np.ravel(x) for x in jax.tree.leaves(after.params)])
        np.testing.assert_allclose(results[True, 1], results[False, 1], atol=1e-5)
        assert np.abs(results[True, 2] - results[False, 2]).max() > 1e-4


def test_old_log_probs_from_collection_are_used_as_they_are():
    config = ppo.Config(hidden_sizes=(8,), num_epochs=1, num_minibatches=1)
    for setting, kl in (("recompute", 0.0), ("collected", float(np.exp(-0.5) - 1 + 0.5))):
        agent = ppo.make(config.model_copy(update={"old_log_prob": setting}), OBS, Discrete(3))
        state = start(agent)
        rollout = rollout_of(agent, state, 4, 4)
        older = rollout._replace(extras=rollout.extras._replace(log_prob=rollout.extras.log_prob + 0.5))
        metrics = update(agent, state, older, 0)[1]
        np.testing.assert_allclose(metrics["approx_kl"], kl, atol=1e-5)


def test_nan_in_the_final_observation_of_a_terminated_episode_does_not_spread():
    agent = ppo.make(ppo.Config(**SMALL), OBS, Discrete(3))
    state = start(agent)
    rollout = rollout_of(agent, state, 4, 4)
    poisoned = jnp.where(rollout.terminated[..., None], jnp.nan, rollout.next_obs)
    assert bool(jnp.isnan(poisoned).any())
    after, _ = update(agent, state, rollout._replace(next_obs=poisoned), 0)
    assert all_finite(after)


def test_one_sample_minibatches_are_finite():
    agent = ppo.make(ppo.Config(hidden_sizes=(8,), num_epochs=1, num_minibatches=4), OBS, Discrete(3))
    state = start(agent)
    after, _ = update(agent, state, rollout_of(agent, state, 4, 1), 0)
    assert all_finite(after)
