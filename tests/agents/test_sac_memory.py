"""rlkit.agents.sac and tqc with a memory: memories as acting had them, losses and gradients of a loop written out."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mistakes import mistake
from sac_batches import large
from short_trainings import mean_return, trained

from rlkit import training
from rlkit.agents import sac, tqc
from rlkit.agents.common import off_policy
from rlkit.agents.common.recurrent import sequences
from rlkit.envs.probes import Memory, Truncation
from rlkit.networks.cores.recurrent import where_rows
from rlkit.ops.distributions import TanhNormal
from rlkit.spaces import Box, Discrete

SMALL = {
    "hidden_sizes": (4,),
    "memory_size": 4,
    "recurrent": "gru",
    "capacity": 256,
    "learning_starts": 0,
    "replay_ratio": 0.0625,
    "burn_in": 3,
    "unroll_len": 5,
}
STEPS, ENVS, GAMMA, TEMPERATURE = 16, 4, 0.9, 0.3


class Ends(Truncation):
    """Episodes of 3 steps, half of them terminated and half cut off, with actions in [-2, 2] that do nothing."""

    def action_space(self, params=()):
        return Box(-2, 2, (2,))


class Recall(Memory):
    """The last of four steps has the reward 1 - (a - cue)^2, of a cue that the first observation shows."""

    def action_space(self, params=()):
        return Box(-2, 2, (1,))

    def _reward(self, state, action):
        return jnp.where(state.time == self.length - 1, 1.0 - jnp.square(action[0] - state.cue), 0.0)


def config_of(module=sac, **settings):
    settings = SMALL | settings
    return module.Config(**settings, batch_size=12 * settings["unroll_len"])  # of rows


def make(env, module=sac, **settings):
    return module.make(config_of(module, **settings), env.observation_space(), env.action_space())


@pytest.fixture(scope="module", params=[
    {"burn_in": 2, "unroll_len": 3},
    pytest.param(
        {"module": tqc, "burn_in": 1, "unroll_len": 4, "n_step": 2, "num_quantiles": 3, "drop_quantiles": 1},
        marks=pytest.mark.thorough,
    ),
    pytest.param({"recurrent": "lstm", "burn_in": 0, "n_step": 3}, marks=pytest.mark.thorough),
    pytest.param({"recurrent": "mingru", "memory_layers": 2, "store_obs_once": True}, marks=pytest.mark.thorough),
])  # fmt: skip
def setup(request):
    """An agent, its state with a rollout in the buffer, that rollout, and a sample of it; and its file."""
    agent = make(Ends(), **request.param)

    @jax.jit
    def run(key):
        init_key, reset_key, roll_key, params_key, target_key, sample_key = jax.random.split(key, 6)
        pair = training.make(agent, Ends(), (), num_envs=ENVS, num_steps=STEPS)
        state = pair.init(sac.Hyper(gamma=GAMMA, temperature=TEMPERATURE), init_key).agent
        params = {name: large(params_key, state.params[name]) for name in ("policy", "critics")}
        state = state.replace(params=state.params | params, target_params=large(target_key, state.target_params))
        stands = training.reset(agent, Ends(), (), reset_key, ENVS)
        _, rollout, _ = training.rollout(agent, Ends(), (), agent.actor(state), stands, roll_key, STEPS)
        state = off_policy.store(agent.static, state, rollout)
        sample = agent.static.buffer.sample(state.replay.buffer, sample_key)
        return state, rollout, sample._replace(weight=jnp.linspace(0.2, 1.0, 12))

    state, rollout, sample = run(jax.random.key(0))
    assert bool(sample.mask.all())
    assert np.asarray(sample.item.truncated)[:, :-1].any()
    assert np.asarray(sample.item.terminated)[:, :-1].any()
    return agent, state, rollout, sample, request.param.get("module", sac)


def test_the_stored_memories_are_those_before_the_step(setup):
    agent, state, rollout, _, _ = setup
    networks = agent.static.networks

    @jax.jit
    def step(memory, obs, action):
        policy = networks.policy.apply(state.params["policy"], (), obs, memory.policy)[0][-1]
        critics = networks.critics.apply(state.params["critics"], (), obs, action / 2, memory.critics)[0][-1]
        return sequences.Memory(policy, critics)

    memory = jax.tree.map(lambda x: np.zeros((ENVS, *x.shape), np.float32), agent.memory)
    done = np.asarray(rollout.terminated | rollout.truncated)
    for t in range(STEPS):
        stored = jax.tree.map(lambda x, t=t: x[t], rollout.extras)
        jax.tree.map(partial(np.testing.assert_allclose, atol=1e-5), stored, memory)
        memory = step(memory, rollout.obs[t], rollout.action[t])
        memory = jax.tree.map(lambda x, t=t: np.where(done[t][:, None], 0.0, x), memory)
    assert all(np.abs(x).max() > 0.1 for x in jax.tree.leaves(rollout.extras))


def written_out(agent, params, state, sample, keys, warm=jax.lax.stop_gradient):
    """The losses of the critics and of the policy, and the priorities [B], row by row.

    Each critic of SAC has one quantile here, and so has its target.
    """
    config, networks = agent.static.config, agent.static.networks
    item = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), sample.item)
    done, action = item.terminated | item.truncated, item.action / 2
    length, shape = config.unroll_len, (config.unroll_len, *item.action.shape[1:])

    def along(network, variables, start, core, *inputs):
        """Each row's memory before it, and after it."""
        before, after = [], []
        for t in range(config.item_length):
            if t > 0:
                core = where_rows(done[t - 1], start, core)
            if t == config.burn_in:
                core = warm(core)
            before.append(core)
            core = network.apply(variables, (), *[x[t] for x in inputs], core)[0][-1]
            after.append(core)
        return before[config.burn_in :], after[config.burn_in :]

    def act(variables, obs, core, noise):
        loc, log_std, _ = networks.policy.apply(variables, (), obs, core)[0]
        raw = loc + jnp.exp(log_std) * noise
        return jnp.tanh(raw), TanhNormal(loc, jnp.exp(log_std)).log_prob_pre_tanh(raw)

    has_quantiles = isinstance(config, tqc.Config)

    def rate(variables, obs, action, core):
        """Quantiles [K, B, M]."""
        found = networks.critics.apply(variables, (), obs, action, core)[0][0]
        return found if has_quantiles else found[..., None]

    def following(found):
        """Quantiles [B, N] of a target."""
        if not has_quantiles:
            return found.min(0)
        pooled = jnp.sort(jnp.concatenate(list(found), axis=-1))
        return pooled[:, : config.num_critics * (config.num_quantiles - config.drop_quantiles)]

    def chosen_value(found):
        return found.mean((0, 2)) if has_quantiles else found.min(0)[:, 0]

    def loss_of(found, target):
        """[B] of quantiles [K, B, M] and targets [B, N]."""
        if not has_quantiles:
            return jnp.square(found - target[None])[..., 0].sum(0) / 2
        total, count = 0.0, found.shape[-1]
        for k, m in np.ndindex(config.num_critics, count):
            error, tau = target - found[k, :, m, None], (m + 0.5) / count
            huber = jnp.where(jnp.abs(error) < 1, jnp.square(error) / 2, jnp.abs(error) - 0.5)
            total += jnp.mean(jnp.where(error < 0, 1 - tau, tau) * huber, axis=-1) / count
        return total

    fixed = state.params
    core = jax.tree.map(lambda x: x[0], item.extras)
    before, _ = along(networks.policy, params["policy"], agent.memory.policy, core.policy, item.obs)
    _, ahead = along(networks.policy, fixed["policy"], agent.memory.policy, core.policy, item.obs)
    critics = agent.memory.critics, core.critics, item.obs, action
    mine, _ = along(networks.critics, params["critics"], *critics)
    theirs = along(networks.critics, fixed["critics"], *critics)[0]
    _, later = along(networks.critics, state.target_params, *critics)

    rows = slice(config.burn_in, None)
    obs, next_obs, action, reward = item.obs[rows], item.next_obs[rows], action[rows], item.reward[rows]
    noise, next_noise = (jax.random.normal(key, shape) for key in (keys[1], keys[0]))
    values, policy_loss, q = [], 0.0, []
    for t in range(length):
        chosen, log_prob = act(fixed["policy"], next_obs[t], ahead[t], next_noise[t])
        value = following(rate(state.target_params, next_obs[t], chosen, later[t]))
        values.append(value - TEMPERATURE * log_prob[:, None])
        q.append(rate(params["critics"], obs[t], action[t], mine[t]))
        chosen, log_prob = act(params["policy"], obs[t], before[t], noise[t])
        value = chosen_value(rate(fixed["critics"], obs[t], chosen, theirs[t]))
        policy_loss += jnp.mean(TEMPERATURE * log_prob - value)
    errors, losses = [], []
    for t in range(length):
        target, alive = 0.0, 1.0
        for i in range(config.n_step):
            if t + i >= length:
                break
            k = t + i
            value = jnp.where(item.terminated[rows][k][:, None], 0.0, values[k])
            last = (done[rows][k] | (i == config.n_step - 1) | (k == length - 1))[:, None]
            target += alive * GAMMA**i * (reward[k][:, None] + jnp.where(last, GAMMA * value, 0.0))
            alive *= jnp.where(last, 0.0, 1.0)
        target = jax.lax.stop_gradient(target)
        losses.append(sample.weight * loss_of(q[t], target))
        errors.append(q[t].mean(-1) - target.mean(-1)[None])
    errors = jnp.stack(errors)  # [U, K, B]
    critic_loss = jnp.mean(jnp.stack(losses))
    return (critic_loss, policy_loss / length), jnp.abs(errors).mean((0, 1))


def test_losses_gradients_and_priorities(setup):
    """The gradient ends where the rows to learn from begin."""
    agent, state, _, sample, module = setup
    keys = jax.random.split(jax.random.key(7))

    def loss(params):
        rows = sequences.rows(agent.static, state, sample)
        args = agent.static, params, state, rows
        of_critics, (_, priority, _) = sequences.critic_loss(module.critic_loss, *args, keys[0])
        _, (_, metrics) = sequences.policy_loss(module.policy_loss, *args, keys[1])
        return of_critics + metrics["policy_loss"], (priority, of_critics)

    def expected_loss(params, warm=jax.lax.stop_gradient):
        (of_critics, of_policy), priority = written_out(agent, params, state, sample, keys, warm)
        return of_critics + of_policy, (priority, of_critics)

    params = {name: state.params[name] for name in ("policy", "critics")}

    def whole(function):
        return jax.jit(jax.value_and_grad(lambda p: function(state.params | p), has_aux=True))(params)

    found, expected = whole(loss), whole(expected_loss)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-3, atol=2e-4), found, expected)


def test_the_rows_of_the_burn_in_have_no_gradient(setup):
    agent, state, _, sample, module = setup
    burn_in = agent.static.config.burn_in

    @jax.jit
    @jax.grad
    def gradient(obs):
        rows = sequences.rows(agent.static, state, sample._replace(item=sample.item._replace(obs=obs)))
        args = agent.static, state.params, state, rows, jax.random.key(0)
        of_critics = sequences.critic_loss(module.critic_loss, *args)[0]
        return of_critics + sequences.policy_loss(module.policy_loss, *args)[0]

    size = np.abs(gradient(sample.item.obs)).max((0, 2))
    np.testing.assert_array_equal(size[:burn_in], 0.0)
    assert (size[burn_in:] > 0).all()


@pytest.mark.thorough
@pytest.mark.parametrize("settings", [
    {"policy_every": 2},
    pytest.param({"module": tqc}, marks=pytest.mark.slow),
    {"module": tqc, "recurrent": "mingru", "num_quantiles": 5},
], ids=["sac", "tqc", "tqc-mingru"])  # fmt: skip
def test_all_seeds_learn_in_one_program(settings):
    """And with other draws: the states of a vmap learn apart."""
    agent = make(Recall(), **settings)
    pair = training.make(agent, Recall(), (), num_envs=4, num_steps=8)
    hyper, keys = sac.Hyper(), jax.random.split(jax.random.key(0), 3)
    states = jax.jit(jax.vmap(pair.init, (None, 0)))(hyper, keys)
    step, traces = jax.jit(jax.vmap(pair.step)), []
    for _ in range(3):
        states, metrics = step(states)
        traces.append(step._cache_size())
    assert traces == [1, 1, 1]
    assert metrics["critic_loss"].shape == (3,)
    assert np.unique(np.asarray(metrics["critic_loss"])).size == 3


@pytest.mark.thorough
@pytest.mark.parametrize(("env", "module"), [
    (Recall(), sac),
    pytest.param(Memory(), sac, marks=pytest.mark.slow),
    pytest.param(Recall(), tqc, marks=pytest.mark.slow),
], ids=["box", "discrete", "tqc"])  # fmt: skip
def test_memory_is_learned_where_it_is_needed(env, module):
    settings = {"hidden_sizes": (16,), "memory_size": 16, "capacity": 4096, "replay_ratio": 0.125}
    config = config_of(module, **settings, burn_in=2, unroll_len=6)
    hyper = sac.Hyper(gamma=0.9, learning_rate=5e-3, tau=0.05, temperature=0.1, target_entropy=-2.0)
    agent, state = trained(module, config, hyper, (env, ()), 100, num_envs=16)
    assert mean_return(agent, state, (env, ())) > 0.9  # without a memory at most 0


def no_memory():
    return lambda key, obs: {}, lambda params, obs: (obs[..., :2], obs[..., :2])


@pytest.mark.parametrize(("settings", "space", "networks", "words"), [
    ({"target_subset": 3}, Box(-1, 1, (2,)), None, ["target_subset=3 must be at most num_critics=2"]),
    ({}, Box(-np.inf, np.inf, (2,)), None, ["agent='sac' needs", "finite bounds"]),
    ({}, Box(-1, 1, (2,)), {"policy": no_memory()}, ["policy must have a memory"]),
    ({}, Discrete(2), {"value": no_memory()}, ["networks must have no 'value'"]),
    ({"gsde": True}, Box(-1, 1, (2,)), None, ["gsde=True needs recurrent='none'"]),
    ({"replay": "hindsight"}, Discrete(2), None, ["replay='hindsight' needs recurrent='none'"]),
])  # fmt: skip
def test_mistakes(settings, space, networks, words):
    with mistake(*words):
        sac.make(sac.Config(recurrent="gru", **settings), Box(-1, 1, (3,)), space, networks)


def test_a_batch_has_whole_sequences():
    with mistake("batch_size=250 must be a multiple of unroll_len=16", "try 256"):
        sac.Config(recurrent="gru", batch_size=250).check_batch_size()
    sac.Config(batch_size=250).check_batch_size()


def test_networks_of_the_user():
    """Both with a memory, which the critics have once for all of them."""
    start = np.zeros((3,), np.float32)
    policy = lambda key, *_: {}, lambda p, obs, memory: (obs[..., :2], obs[..., :2] - 1, memory + 1), start

    def rate(params, obs, action, memory):
        return jnp.stack([memory[..., 0] + action.sum(-1)] * 2), memory + obs

    agent = sac.make(
        sac.Config(**SMALL, batch_size=10),
        Box(-1, 1, (3,)),
        Box(-1, 1, (2,)),
        {"policy": policy, "critics": (lambda key, *_: {}, rate, start)},
    )
    actor = sequences.Actor({"policy": {}, "critics": {}}, {"policy": (), "critics": ()}, (), jnp.array(False))
    memory, _, extras = jax.jit(agent.act)(actor, agent.memory, jnp.full(3, 0.5), jax.random.key(0))
    np.testing.assert_array_equal(memory.policy, np.ones(3))
    np.testing.assert_array_equal(memory.critics, np.full(3, 0.5))
    jax.tree.map(np.testing.assert_array_equal, extras, agent.memory)
