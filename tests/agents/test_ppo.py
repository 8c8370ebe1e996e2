"""rlkit.agents.ppo: what an update does to known rollouts."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.special import log_softmax

from rlkit.agents import ppo
from rlkit.agents.common import action_distributions, policy_evaluation
from rlkit.agents.common.optimizer import Optimizer
from rlkit.networks.recurrent import where_rows
from rlkit.spaces import Box, Dict, Discrete, MultiDiscrete
from rlkit.types import ConfigError, Network, Transition

OBS = Box(-1, 1, (3,))
SPACES = {"discrete": Discrete(3), "multi": MultiDiscrete((2, 3)), "box": Box(-2, 2, (2,))}
SMALL = {"hidden_sizes": (8,), "num_epochs": 2, "num_minibatches": 2}


def update(agent, state, rollout, key=0):
    return jax.jit(agent.update)(state, rollout, jax.random.key(key))


def all_finite(state, metrics=()):
    """Whether nothing in an agent's state is NaN or infinite but the hyper-parameters that are off."""
    return all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves((state.replace(hyper=()), metrics)))


def rollout_of(agent, state, num_steps, num_envs, obs_space=OBS, done=0.2):
    return jax.jit(lambda state: _rollout_of(agent, state, num_steps, num_envs, obs_space, done))(state)


def _rollout_of(agent, state, num_steps, num_envs, obs_space, done):
    """A rollout of random observations, on which the agent itself acts, with both kinds of ends."""
    keys = jax.random.split(jax.random.key(0), 6)
    obs = jax.vmap(jax.vmap(obs_space.sample))(jax.random.split(keys[0], (num_steps + 1, num_envs)))
    terminated = jax.random.bernoulli(keys[1], done, (num_steps, num_envs))
    truncated = jax.random.bernoulli(keys[2], done, (num_steps, num_envs))
    memory = jax.tree.map(lambda x: jnp.broadcast_to(jnp.asarray(x), (num_envs, *jnp.shape(x))), agent.memory)

    def step(memory, row):
        obs, done, key = row
        after, action, extras = jax.vmap(agent.act, (None, 0, 0, 0))(
            agent.actor(state), memory, obs, jax.random.split(key, num_envs)
        )
        return where_rows(done, agent.memory, after), (action, extras)

    rows = jax.tree.map(lambda x: x[:-1], obs), terminated | truncated, jax.random.split(keys[3], num_steps)
    _, (action, extras) = jax.lax.scan(step, memory, rows)
    return Transition(
        obs=jax.tree.map(lambda x: x[:-1], obs),
        action=action,
        reward=jax.random.normal(keys[4], (num_steps, num_envs)),
        terminated=terminated,
        truncated=truncated,
        next_obs=jax.tree.map(lambda x: x[1:], obs),
        extras=extras,
    )


def start(agent, hyper=None, obs_space=OBS, num_envs=4):
    obs = obs_space.sample(jax.random.key(0))
    zero = jnp.zeros(())
    example = Transition(obs, (), zero, zero > 0, zero > 0, obs)
    return jax.jit(agent.init, static_argnums=3)(hyper or ppo.Hyper(), jax.random.key(1), example, num_envs)


def ratios(agent, state, rollout, chunk_size):
    return jax.jit(lambda s, r: _ratios(agent, s, r, chunk_size))(state, rollout)


def _ratios(agent, state, rollout, chunk_size):
    """pi / pi_old of a first minibatch that is the whole rollout, as the loss sees it."""
    static = agent.static
    actor = agent.actor(state)
    old = policy_evaluation.evaluate(static.policy, actor, rollout, rollout.extras.core, chunk_size, keep_dist=False)
    done = rollout.terminated | rollout.truncated
    begins = jnp.concatenate([jnp.zeros_like(done[:1]), done[:-1]])
    core = jax.tree.map(lambda x: x[0], rollout.extras.core)
    output, value, _ = policy_evaluation.apply_along(static.policy, actor, rollout.obs, begins, core)
    dist = policy_evaluation.distribution(static.policy, output, rollout.obs)
    new = action_distributions.log_prob(dist, policy_evaluation.raw_action(static.policy, rollout))
    return jnp.exp(new - old.log_prob), jnp.exp(new - rollout.extras.log_prob), value - old.value


@pytest.mark.parametrize("chunk_size", [1, 3, 4, 10, 16, None])
def test_the_first_ratio_is_one_for_every_chunk_size(chunk_size):
    agent = ppo.make(ppo.Config(**SMALL), OBS, SPACES["box"])
    state = start(agent)
    rollout = rollout_of(agent, state, 5, 2)
    recomputed, collected, value = ratios(agent, state, rollout, chunk_size)
    for x, expected in ((recomputed, 1), (collected, 1), (value, 0)):
        np.testing.assert_allclose(x, expected, atol=1e-5)


@pytest.mark.parametrize("settings", [
    {"recurrent": "gru"},
    {"recurrent": "lstm", "shared_torso": True},
    {"gsde": True},
    {"gsde": True, "gsde_steps": 2, "squash": True, "recurrent": "gru"},
    {"squash": True},
    {"normalize_obs": True},
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


def test_next_values_of_a_recurrent_agent_advance_its_memory_over_obs():
    agent = ppo.make(ppo.Config(**SMALL, memory_size=5, recurrent="lstm"), OBS, SPACES["discrete"])
    state, static = start(agent), agent.static
    rollout = rollout_of(agent, state, 6, 4, done=0.0)
    old = policy_evaluation.evaluate(
        static.policy, agent.actor(state), rollout, rollout.extras.core, 5, keep_dist=False
    )
    np.testing.assert_allclose(old.next_value[:-1], old.value[1:], atol=1e-5)


SETTINGS = {
    "discrete": [{}, {"shared_torso": True, "layer_norm": True}, {"recurrent": "gru"}, {"compute_dtype": "bfloat16"}],
    "multi": [{}],
    "box": [
        {},
        {"squash": True},
        {"gsde": True},
        {"kl_penalty": True, "gsde": True},
        {"normalize_obs": True, "normalize_reward": True},
    ],
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


def one_minibatch(hyper, **settings):
    return ppo.make(ppo.Config(hidden_sizes=(8,), num_epochs=1, num_minibatches=1, **settings), OBS, Discrete(3)), hyper


def test_one_update_against_optax_by_hand():
    """One epoch, one minibatch: the same Adam step as on the loss written out here."""
    hyper = ppo.Hyper(learning_rate=0.01, gamma=0.9, gae_lambda=0.8, ent_coef=0.1, vf_coef=0.7, max_grad_norm=0.05)
    agent, _ = one_minibatch(hyper)
    state = start(agent, hyper)
    rollout = rollout_of(agent, state, 5, 4)
    apply = jax.jit(agent.static.policy.network.apply)
    logits, value = apply(state.params, rollout.obs)
    next_value = np.asarray(apply(state.params, rollout.next_obs)[1])
    value, reward = np.asarray(value), np.asarray(rollout.reward)
    advantage, later = np.zeros((5, 4)), np.zeros(4)
    for t in reversed(range(5)):
        delta = reward[t] + 0.9 * next_value[t] * ~np.asarray(rollout.terminated[t]) - value[t]
        later = delta + 0.9 * 0.8 * later * ~np.asarray(rollout.terminated | rollout.truncated)[t]
        advantage[t] = later
    normalized = jnp.asarray((advantage - advantage.mean()) / advantage.std(), jnp.float32)
    target = jnp.asarray(advantage + value, jnp.float32)
    taken = jax.nn.one_hot(rollout.action, 3)
    old_log_prob = (jax.nn.log_softmax(logits) * taken).sum(-1)

    def loss(params):
        logits, value = apply(params, rollout.obs)
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


def test_gradients_are_clipped_by_their_global_norm():
    gradient = {"a": jnp.array([6.0, 0.0]), "b": jnp.array([0.0, 8.0])}
    clip = optax.clip_by_global_norm(0.5)
    clipped, _ = clip.update(gradient, clip.init(gradient))
    transform = Optimizer(1.0, 0.5, 1e-5).transformation(1.0)
    with jax.numpy_dtype_promotion("standard"):
        state = transform.update(gradient, transform.init(gradient))[1]
    (first_moment,) = [s.mu for s in state if isinstance(s, optax.ScaleByAdamState)]
    jax.tree.map(lambda m, c: np.testing.assert_allclose(m, 0.1 * c, rtol=1e-6), first_moment, clipped)
    np.testing.assert_allclose(clipped["a"][0] / clipped["b"][1], 0.75, rtol=1e-6)


def test_each_sample_is_used_once_an_epoch():
    """With plain averaging and a learning rate of 0, the mean over minibatches is the mean over the rollout."""
    hyper = ppo.Hyper(learning_rate=0.0)
    rollout, losses = None, {}
    for minibatches in (1, 2, 4, 20):
        config = ppo.Config(hidden_sizes=(8,), num_epochs=3, num_minibatches=minibatches, normalize_advantage="none")
        agent = ppo.make(config, OBS, Discrete(3))
        state = start(agent, hyper)
        rollout = rollout_of(agent, state, 5, 4) if rollout is None else rollout
        losses[minibatches] = update(agent, state, rollout, minibatches)[1]
    for minibatches in (2, 4, 20):
        for name in ("loss", "policy_loss", "value_loss", "entropy"):
            np.testing.assert_allclose(losses[minibatches][name], losses[1][name], rtol=1e-4, atol=1e-6)


def test_a_batch_that_does_not_divide_is_named_with_the_nearest_that_do():
    agent = ppo.make(ppo.Config(num_minibatches=7), OBS, Discrete(3))
    with pytest.raises(ConfigError, match=r"num_minibatches=7 must divide num_envs \* num_steps = 8192; try 4 or 8"):
        agent.check(64, 128)
    recurrent = ppo.make(ppo.Config(num_minibatches=8, recurrent="gru"), OBS, Discrete(3))
    with pytest.raises(ConfigError, match=r"num_minibatches=8 must divide num_envs = 12; try 6 or 12"):
        recurrent.check(12, 128)
    recurrent.check(16, 5)


def steps_taken(state):
    """[] or [S], how often Adam has moved the parameters."""
    (adam,) = [s for s in state.opt_state if isinstance(s, optax.ScaleByAdamState)]
    return np.asarray(adam.count)


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
        "off": ppo.Hyper(clip_eps=jnp.inf, learning_rate=0.05),
    }.items():
        agent = ppo.make(ppo.Config(hidden_sizes=(8,), num_epochs=4, num_minibatches=1), OBS, Discrete(3))
        state = start(agent, hyper)
        losses[name] = update(agent, state, rollout_of(agent, state, 8, 4), 0)[1]
    assert losses["off"]["clip_fraction"] == 0
    assert losses["symmetric"]["policy_loss"] == losses["same"]["policy_loss"]
    assert losses["off"]["policy_loss"] < losses["high"]["policy_loss"] < losses["symmetric"]["policy_loss"]


def linear_policy():
    """A network whose logits and value are products with a matrix each."""

    def init(key, obs):
        return {"logits": jax.random.normal(key, (3, 3)), "value": jnp.zeros(3)}

    return init, lambda params, obs: (obs @ params["logits"], obs @ params["value"])


def test_the_kl_coefficient_adapts_to_what_the_whole_update_moved():
    agent = ppo.make(ppo.Config(kl_penalty=True, num_minibatches=1), OBS, Discrete(3), network=linear_policy())

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
            logits, _, core = policy.network.apply(state.params, rollout.obs[t], core)
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


MASKED = Dict({"action_mask": Box(0, 1, (3,), np.int8), "x": OBS})


def test_illegal_actions_are_never_taken():
    agent = ppo.make(ppo.Config(**SMALL), MASKED, Discrete(3))
    state = start(agent, obs_space=MASKED)
    obs = {"action_mask": jnp.array([1, 0, 1], jnp.int8), "x": jnp.zeros(3)}
    keys = jax.random.split(jax.random.key(0), 2000)
    actions = jax.vmap(lambda k: agent.act(agent.actor(state), agent.memory, obs, k)[1])(keys)
    counts = np.bincount(actions, minlength=3)
    assert counts[1] == 0
    assert min(counts[0], counts[2]) > 800
    assert agent.policy(agent.actor(state), agent.memory, obs, keys[0])[1] != 1


def test_bounded_actions_span_their_box():
    for squash in (False, True):
        space = Box(np.array([-2.0, 0.0]), np.array([2.0, 10.0]))
        agent = ppo.make(ppo.Config(**SMALL, squash=squash, log_std_init=2.0), OBS, space)
        actor = agent.actor(start(agent))
        keys = jax.random.split(jax.random.key(0), 500)
        actions, raw = jax.vmap(
            lambda k: (lambda out: (out[1], out[2].raw))(agent.act(actor, agent.memory, jnp.zeros(3), k))  # noqa: B023
        )(keys)
        assert np.all(np.asarray(actions) >= space.low)
        assert np.all(np.asarray(actions) <= space.high)
        np.testing.assert_allclose(actions.mean(0), [0, 5], atol=0.6)
        assert np.abs(raw).max() > 5  # log-probs are of the action before it was clipped or squashed


def test_gsde_holds_its_noise_for_the_episode_or_some_steps():
    for steps, distinct in ((0, 1), (2, 3)):
        agent = ppo.make(ppo.Config(**SMALL, gsde=True, gsde_steps=steps), OBS, SPACES["box"])
        actor, memory, raws = agent.actor(start(agent)), agent.memory, []
        for i in range(6):
            memory, _, extras = agent.act(actor, memory, jnp.full(3, 0.5), jax.random.key(i))
            raws.append(tuple(np.asarray(extras.raw).round(5)))
        assert len(set(raws)) == distinct
        other = agent.act(actor, agent.memory, jnp.full(3, 0.5), jax.random.key(99))[2].raw
        assert not np.allclose(other, raws[0])


def test_gsde_begins_within_the_bounds():
    agent = ppo.make(ppo.Config(gsde=True), OBS, Box(-1.0, 1.0, (2,)))
    actor = agent.actor(start(agent))
    obs, keys = jax.random.normal(jax.random.key(1), (500, 3)), jax.random.split(jax.random.key(2), 500)
    actions = np.asarray(jax.vmap(lambda obs, key: agent.act(actor, agent.memory, obs, key)[1])(obs, keys))
    assert np.mean(np.abs(actions) > 0.99) < 0.03
    assert actions.std() > 0.1


def test_settings_that_do_not_fit_the_action_space_are_named():
    for field, space in (("squash", Discrete(2)), ("gsde", Discrete(2)), ("squash", Box(-np.inf, np.inf, (1,)))):
        with pytest.raises(ConfigError, match=rf"{field}=True needs"):
            ppo.make(ppo.Config(**{field: True}), OBS, space)
    with pytest.raises(ConfigError, match=r"agent='ppo' needs .* no agent can act in it"):
        ppo.make(ppo.Config(), OBS, Dict({"a": Discrete(2)}))
    image = Box(0, 1, (5, 5, 1))
    for settings, space, words in (
        ({"torso": "conv"}, OBS, "torso='conv' needs observations of one image"),
        ({"channels": (4, 4, 4)}, image, "use at most 2 layers"),
        ({"gsde": True, "hidden_sizes": ()}, OBS, "gsde=True needs a hidden layer"),
    ):
        with pytest.raises(ConfigError, match=words):
            ppo.make(ppo.Config(**settings), space, SPACES["box"])
    with pytest.raises(ConfigError, match="gsde=True"):
        ppo.make(ppo.Config(gsde=True), OBS, SPACES["box"], network=(lambda k, o: 0, lambda p, o: 0))


def test_a_value_with_a_last_axis_of_one_is_refused():
    """(B, 1) against (B,) would broadcast to (B, B), and train all the same, only worse."""
    network = Network(lambda key, obs: {"w": jnp.ones(3)}, lambda p, obs: (obs * p["w"], (obs * p["w"])[..., :1]))
    agent = ppo.make(ppo.Config(num_minibatches=1), OBS, Discrete(3), network=network)
    state = start(agent)
    with jax.numpy_rank_promotion("allow"), pytest.raises(ValueError, match="value has shape"):
        update(agent, state, rollout_of(agent, state, 4, 4), 0)


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

    def eqx_apply(params, obs):
        batch = obs["a"].shape[:-1]
        flat = jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), obs)
        return jax.tree.map(lambda x: x.reshape(*batch, *x.shape[1:]), jax.vmap(params)(flat))

    graph = nnx.split(nnx.eval_shape(lambda: NNX(nnx.Rngs(0))))[0]
    networks = {
        "equinox": (lambda key, obs: Equinox(key), eqx_apply),
        "nnx": (
            lambda key, obs: nnx.to_pure_dict(nnx.state(NNX(nnx.Rngs(params=key)))),
            lambda params, obs: nnx.merge(graph, params)(obs),
        ),
    }
    for name, network in networks.items():
        with jax.numpy_rank_promotion("allow"):
            agent = ppo.make(ppo.Config(num_minibatches=2), space, Discrete(2), network=network)
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
    ends = jnp.broadcast_to(((jnp.arange(12) % 4) == 3)[:, None], (12, 2))
    for kind in ("terminated", "truncated"):
        last = rollout._replace(reward=jnp.ones((12, 2)), **{kind: ends})
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
    np.testing.assert_allclose(after.normalizer.obs.mean[0], rollout.obs.mean((0, 1)), atol=1e-5)
    # Empty statistics change nothing, so that an update under them equals one without normalization.
    plain = ppo.make(ppo.Config(**SMALL), OBS, Discrete(3))
    same, _ = update(plain, start(plain), rollout)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6), after.params, same.params)


def test_bfloat16_losses_are_float32():
    agent = ppo.make(ppo.Config(**SMALL, compute_dtype="bfloat16"), OBS, Discrete(3))
    state = start(agent)
    rollout = rollout_of(agent, state, 4, 4)
    assert rollout.extras.log_prob.dtype == jnp.float32
    _, metrics = update(agent, state, rollout, 0)
    assert {x.dtype for x in metrics.values()} == {jnp.dtype(jnp.float32)}


@pytest.mark.thorough
def test_images_go_through_convolutions():
    space = Box(0, 255, (10, 10, 2), np.uint8)
    agent = ppo.make(ppo.Config(**SMALL, channels=(4,), shared_torso=True), space, Discrete(3))
    state = start(agent, obs_space=space)
    assert (3 * 3 * 2, 4) in [leaf.shape for leaf in jax.tree.leaves(state.params)]  # a kernel over patches
    rollout = rollout_of(agent, state, 4, 2, obs_space=space)
    assert rollout.obs.dtype == jnp.uint8
    after, _ = update(agent, state, rollout, 0)
    assert all_finite(after)


def test_unknown_agents_are_named_with_the_nearest():
    from rlkit import agents

    with pytest.raises(ConfigError, match=r"agent='pppo' must be one of .*did you mean 'ppo'"):
        agents.get("pppo")
