"""rlkit.agents.r2d2: replay gives what acting gave, and the loss, gradient and priorities of a loop written out."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from q_agents import MASKED, start
from sac_batches import large
from short_trainings import mean_return, trained

from rlkit import envs, training
from rlkit.agents import r2d2
from rlkit.agents.base import as_arrays
from rlkit.agents.common import exploration, off_policy
from rlkit.networks.cores.recurrent import where_rows
from rlkit.spaces import Discrete
from rlkit.types import Sample, Transition

SMALL = {
    "hidden_sizes": (4,),
    "memory_size": 4,
    "capacity": 256,
    "batch_size": 16,
    "learning_starts": 0,
    "replay_ratio": 0.0625,
    "burn_in": 3,
    "unroll_len": 5,
    "n_step": 2,
}
ENV, PARAMS = envs.make("Probe-Truncation")  # episodes of 3 steps, half of them terminated and half cut off
STEPS, ENVS, GAMMA = 16, 4, 0.9


def make(**settings):
    return r2d2.make(r2d2.Config(**(SMALL | settings)), ENV.observation_space(PARAMS), ENV.action_space(PARAMS))


@pytest.fixture(scope="module", params=[
    {"burn_in": 2, "unroll_len": 4},
    pytest.param(
        {"recurrent": "gru", "double": False, "rescale": False, "dueling": False, "burn_in": 0},
        marks=pytest.mark.thorough,
    ),
    pytest.param({"store_obs_once": True, "n_step": 5}, marks=pytest.mark.thorough),
    pytest.param({"recurrent": "mingru"}, marks=pytest.mark.thorough),
    pytest.param({"recurrent": "lru", "memory_layers": 2}, marks=pytest.mark.thorough),
    pytest.param({"recurrent": "s5"}, marks=pytest.mark.slow),
    pytest.param({"recurrent": "gru", "memory_layers": 2}, marks=pytest.mark.slow),
])  # fmt: skip
def setup(request):
    """An agent, its state with a rollout in the buffer, that rollout, and a sample of it."""
    agent = make(**request.param)
    buffer = agent.static.buffer

    @jax.jit
    def run(key):
        init_key, reset_key, roll_key, params_key, target_key, sample_key = jax.random.split(key, 6)
        pair = training.make(agent, ENV, PARAMS, num_envs=ENVS, num_steps=STEPS)
        state = pair.init(r2d2.Hyper(gamma=GAMMA, beta=1.0), init_key).agent
        state = state.replace(params=large(params_key, state.params), target_params=large(target_key, state.params))
        stands = training.reset(agent, ENV, PARAMS, reset_key, ENVS)
        _, rollout, _ = training.rollout(agent, ENV, PARAMS, agent.actor(state), stands, roll_key, STEPS)
        state = off_policy.store(agent.static, state, rollout)
        sample = buffer.sample(state.replay.buffer, sample_key)
        return state, rollout, sample._replace(weight=jnp.linspace(0.2, 1.0, 16))

    state, rollout, sample = run(jax.random.key(0))
    assert bool(sample.mask.all())
    return agent, state, rollout, sample


def apply_of(agent):
    return agent.static.network.apply


def acted(agent, params, rollout):
    """Q [T, N, A] of a rollout from its first step on, as acting sees it, and the memories before each step."""
    apply, start = jax.jit(apply_of(agent)), agent.memory.core
    memory = jax.tree.map(lambda x: np.zeros((ENVS, *np.shape(x)), np.float32), start)
    obs, done = np.asarray(rollout.obs), np.asarray(rollout.terminated | rollout.truncated)
    values, memories = [], []
    for t in range(STEPS):
        memories.append(memory)
        q, memory = apply(params, (), obs[t], memory)[0]
        memory = jax.tree.map(lambda first, x, t=t: np.where(done[t][:, None], first, x), start, memory)
        values.append(q)
    return np.stack(values), jax.tree.map(lambda *x: np.stack(x), *memories)


def test_the_stored_memory_is_the_one_before_the_step(setup):
    agent, state, rollout, _ = setup
    memories = acted(agent, state.params, rollout)[1]
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), rollout.extras, memories)
    assert all(np.abs(x).max() > 0.1 for x in jax.tree.leaves(memories))


def test_replaying_gives_the_values_of_acting(setup):
    """Under the parameters that acted, with ends within the rows that only warm up, and within those learned from."""
    agent, state, rollout, sample = setup
    static, config = agent.static, agent.static.config
    q = acted(agent, state.params, rollout)[0]

    @jax.jit
    @jax.vmap  # a batch of one sequence at a time, whose mean q of what was done the metrics show
    def means(sample):
        one = jax.tree.map(lambda x: x[None], sample)
        return r2d2.loss(static, state.params, state, one, jax.random.key(0))[1][2]["q"]

    rows, env = np.asarray(sample.index.row), np.asarray(sample.index.env)
    learned = [slice(r + config.burn_in, r + config.item_length) for r in rows]
    taken = np.take_along_axis(q, np.asarray(rollout.action)[..., None], axis=-1)[..., 0]
    expected = [taken[rows, e].mean() for rows, e in zip(learned, env, strict=True)]
    np.testing.assert_allclose(means(sample), expected, rtol=1e-5, atol=1e-5)
    done = np.asarray(rollout.terminated | rollout.truncated)
    inside = [done[r : r + config.item_length - 1, e] for r, e in zip(rows, env, strict=True)]
    assert np.any([x[config.burn_in + 1 :].any() for x in inside])
    assert not config.burn_in or np.any([x[: config.burn_in - 1].any() for x in inside])


def written_out(agent, params, state, sample):
    """The loss [] and the priorities [B], row by row; also where the rows to learn from begin, for the gradient."""
    config, apply, start = agent.static.config, apply_of(agent), agent.memory.core
    item: Transition = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), sample.item)
    done = item.terminated | item.truncated

    def along(params):
        memory, values, later = jax.tree.map(lambda x: x[0], item.extras), [], []
        for t in range(config.item_length):
            if t > 0:
                memory = where_rows(done[t - 1], start, memory)
            if t == config.burn_in:
                memory = jax.lax.stop_gradient(memory)
            q, memory = apply(params, (), item.obs[t], memory)[0]
            values.append(q)
            later.append(apply(params, (), item.next_obs[t], memory)[0][0])  # after the step, before any reset
        return values[config.burn_in :], jax.lax.stop_gradient(later[config.burn_in :])

    def h(x):
        return jnp.sign(x) * (jnp.sqrt(jnp.abs(x) + 1) - 1) + 1e-3 * x if config.rescale else x

    def h_inverse(x):
        root = (jnp.sqrt(1 + 4e-3 * (jnp.abs(x) + 1 + 1e-3)) - 1) / 2e-3
        return jnp.sign(x) * (jnp.square(root) - 1) if config.rescale else x

    (q, mine), (_, theirs) = along(params), along(state.target_params)
    reward, terminated, done, action = (x[config.burn_in :] for x in (item.reward, item.terminated, done, item.action))
    length, rows = config.unroll_len, jnp.arange(reward.shape[1])
    errors = []
    for t in range(length):
        target, alive = jnp.zeros(rows.shape), jnp.ones(rows.shape)
        for i in range(config.n_step):
            k = t + i
            if k >= length:
                break
            target += alive * GAMMA**i * reward[k]
            chooser = mine[k] if config.double else theirs[k]
            value = h_inverse(theirs[k][rows, chooser.argmax(-1)]) * jnp.where(terminated[k], 0.0, 1.0)
            last = done[k] | (i == config.n_step - 1) | (k == length - 1)
            target += alive * jnp.where(last, GAMMA ** (i + 1) * value, 0.0)
            alive *= jnp.where(last, 0.0, 1.0)
        errors.append(h(jax.lax.stop_gradient(target)) - q[t][rows, action[t]])
    errors = jnp.stack(errors)
    size = jnp.abs(errors)
    priority = 0.9 * size.max(0) + 0.1 * size.mean(0)
    return jnp.mean(sample.weight * jnp.square(errors).mean(0) / 2), priority


def test_loss_gradient_and_priorities(setup):
    agent, state, _, sample = setup
    static = agent.static

    def loss(params):
        total, (_, priority, _) = r2d2.loss(static, params, state, sample, jax.random.key(0))
        return total, priority

    found = jax.jit(jax.value_and_grad(loss, has_aux=True))(state.params)
    expected = jax.jit(jax.value_and_grad(lambda p: written_out(agent, p, state, sample), has_aux=True))(state.params)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-5), found, expected)
    assert np.asarray(sample.item.truncated)[:, :-1].any()
    assert np.asarray(sample.item.terminated)[:, :-1].any()


def test_rows_that_were_not_drawn_weigh_nothing(setup):
    agent, state, _, sample = setup
    static = agent.static
    loss = jax.jit(lambda sample: r2d2.loss(static, state.params, state, sample, jax.random.key(0))[:2])
    total, (_, priority, _) = loss(sample._replace(mask=sample.mask.at[0].set(False)))
    assert float(priority[0]) == 0.0
    without = loss(sample._replace(weight=sample.weight.at[0].set(0.0)))[0]
    np.testing.assert_allclose(total, without, rtol=1e-6)


def test_illegal_actions_are_neither_taken_nor_bootstrapped_from():
    def apply(params, obs, memory):
        return jnp.broadcast_to(params, (*obs["obs"].shape[:-1], 4)), memory

    network = lambda key, obs, memory: jnp.arange(4.0), apply, np.zeros((), np.float32)
    config = r2d2.Config(burn_in=0, unroll_len=1, n_step=1, rescale=False, batch_size=1, capacity=8)
    agent = r2d2.make(config, MASKED, Discrete(4), network)
    state = start(agent, r2d2.Hyper(gamma=0.5), MASKED)
    obs = {"action_mask": jnp.array([True, False, True, False]), "obs": jnp.zeros(3)}  # the best legal value is 2
    act = jax.jit(jax.vmap(agent.act, (None, None, None, 0)))
    actor, keys = agent.actor(state), jax.random.split(jax.random.key(0), 64)
    assert set(np.asarray(act(actor, agent.memory, obs, keys)[1]).tolist()) == {0, 2}
    assert jax.jit(agent.policy)(actor, agent.memory, obs, keys[0])[1] == 2
    item = Transition(obs, jnp.int32(0), jnp.float32(1), jnp.array(False), jnp.array(False), obs, jnp.float32(0))
    item = jax.tree.map(lambda x: np.asarray(x)[None, None], item)
    sample = Sample(item, (), jnp.ones(1), jnp.ones((1, 1), bool))
    _, (_, priority, _) = jax.jit(partial(r2d2.loss, agent.static))(state.params, state, sample, keys[0])
    np.testing.assert_allclose(priority, [1 + 0.5 * 2])


def constant():
    """A recurrent network that always prefers action 1, and counts."""
    return (
        lambda key, obs, memory: jnp.zeros(2),
        lambda params, obs, memory: (jnp.zeros((*obs.shape[:-1], 2)) + jnp.array([[0.0, 1.0]])[0], memory + 1.0),
        np.zeros((), np.float32),
    )


def test_each_environment_explores_less_than_the_one_before():
    """Epsilon is ε^(1 + 7 i / (N - 1)), and stays with its environment when an episode ends."""
    agent = r2d2.make(r2d2.Config(), ENV.observation_space(PARAMS), ENV.action_space(PARAMS), constant())
    memories = agent.memories(5)
    np.testing.assert_allclose(memories.rung, [0, 0.25, 0.5, 0.75, 1])
    np.testing.assert_array_equal(agent.memories(1).rung, [0])

    @jax.jit
    def run(key):
        pair = training.make(agent, ENV, PARAMS, num_envs=5, num_steps=1)
        state = pair.init(r2d2.Hyper(epsilon_start=0.6), key)
        stands, rollout, _ = training.rollout(agent, ENV, PARAMS, agent.actor(state.agent), state.envs, key, 4000)
        return stands.memory, rollout

    memory, rollout = run(jax.random.key(0))
    assert int((rollout.terminated | rollout.truncated).sum()) > 5000
    np.testing.assert_array_equal(memory.rung, memories.rung)
    assert float(memory.core.max()) <= 3  # the network's own memory was put back
    share = 2 * np.mean(np.asarray(rollout.action) == 0, axis=0)  # a random action is 0 or 1
    np.testing.assert_allclose(share, 0.6 ** (1 + 7 * np.arange(5) / 4), atol=0.03)


@pytest.mark.parametrize(
    ("num_envs", "given", "expected"), [(1, {}, 0.05), (5, {}, 0.4), (1, {"epsilon_end": 0.3}, 0.3)]
)
def test_one_environment_alone_explores_less_at_last(num_envs, given, expected):
    """The first of several keeps 0.4 for ever, while others hardly explore; one alone has no others."""
    hyper = as_arrays(r2d2.Hyper(**given), r2d2.Config(), num_envs)
    np.testing.assert_allclose(exploration.epsilon(hyper, jnp.uint32(10**6)), expected, rtol=1e-6)


@pytest.mark.thorough
def test_memory_is_learned_where_it_is_needed():
    env = envs.make("Probe-Memory")
    settings = {"hidden_sizes": (16,), "memory_size": 16, "capacity": 4096, "burn_in": 2, "unroll_len": 6}
    config = r2d2.Config(**(SMALL | settings), target_every=64, rescale=False)
    hyper = r2d2.Hyper(gamma=0.9, learning_rate=5e-3, tau=1.0, epsilon_steps=5000.0)
    agent, state = trained(r2d2, config, hyper, env, 150, num_envs=16)
    assert mean_return(agent, state, env) == 1.0
