"""rlkit.agents.common.off_policy: how often an off-policy agent learns, from what, and what goes back to the buffer.

Most tests put a stand-in for the gradient step, which writes down what it was given.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlkit.agents import dqn
from rlkit.agents.common import normalization, off_policy
from rlkit.agents.common.hyper import as_arrays
from rlkit.replay import segment_tree
from rlkit.spaces import Box, Discrete
from rlkit.types import ConfigError, Sample, Transition

OBS = Box(-100, 100, (1,))
ZERO = jnp.zeros(())
EXAMPLE = Transition(jnp.zeros(1), jnp.zeros((), jnp.int32), ZERO, ZERO > 0, ZERO > 0, jnp.zeros(1))
SMALL = {"capacity": 64, "batch_size": 4, "learning_starts": 0, "replay_ratio": 0.125, "hidden_sizes": (4,)}


def rollout(num_steps=1, num_envs=8, first=0.0):
    """Every observation and reward is the number of its step."""
    time = first + jnp.arange(num_steps * num_envs, dtype=jnp.float32).reshape(num_steps, num_envs)
    never = jnp.zeros(time.shape, bool)
    return Transition(time[..., None], jnp.zeros(time.shape, jnp.int32), time, never, never, time[..., None] + 1)


def stand_in(look, settings=None, hyper=None, num_envs=8):
    """-> state, update. `look(state, sample, due)` gives what is added to the parameters at every gradient step."""
    config = dqn.Config(**(SMALL | (settings or {})))
    static = SimpleNamespace(config=config, obs_space=OBS, buffer=off_policy.buffer(config))

    def step(static, state, sample, schedules, key):
        addend = look(state, sample, schedules.update_target)
        params = jax.tree.map(lambda old, new: old + new, state.params, addend)
        priority = 10.0 + sample.item.reward.reshape(sample.weight.shape[0], -1)[:, 0]
        return state.replace(params=params), priority, {"loss": jnp.ones(())}

    state = dqn.State(
        hyper=as_arrays(dqn.Hyper(**(hyper or {})), config, num_envs),
        params=(),
        target_params=(),
        opt_state=(),
        normalizer=normalization.init(OBS, EXAMPLE, num_envs, obs=config.normalize_obs),
        replay=off_policy.init(static.buffer, EXAMPLE, num_envs),
    )
    sample = jax.eval_shape(static.buffer.sample, state.replay.buffer, jax.random.key(0))
    shapes = jax.eval_shape(look, state, sample, jax.ShapeDtypeStruct((), bool))
    state = state.replace(params=jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes))

    def update(state, rollout, key):
        state = off_policy.store(static, state, rollout)
        state, metrics = off_policy.learn(static, step, state, key, rollout.reward.size)
        return off_policy.update_statistics(static, state, rollout), metrics

    return state, update


def repeated(state, update, count, **size):
    """The states after each of `count` updates, stacked."""

    def body(state, key):
        state, _ = update(state, rollout(**size), key)
        return state, state

    return jax.jit(lambda s: jax.lax.scan(body, s, jax.random.split(jax.random.key(1), count))[1])(state)


@pytest.mark.parametrize(
    ("ratio", "steps", "count"),
    [
        (1.0, 24, 24),
        (0.1, 40, 4),
        (0.3, 10, 3),
        (1 / 3, 24, 8),
        (7 / 24, 24, 7),
        (0.25, 4, 1),
        (2.5, 8, 20),
        (4.0, 1, 4),
    ],
)
def test_gradient_steps_are_exact(ratio, steps, count):
    assert dqn.Config(replay_ratio=ratio).num_gradient_steps(steps) == count


@pytest.mark.parametrize(("ratio", "steps"), [(0.3, 24), (0.01, 8), (1.01, 7), (0.3333, 24), (2 / 7 + 0.01, 49)])
def test_a_broken_number_of_gradient_steps_is_an_error_whose_remedy_works(ratio, steps):
    with pytest.raises(ConfigError, match=r"replay_ratio=.* must be a whole number; try ") as error:
        dqn.Config(replay_ratio=ratio).num_gradient_steps(steps)
    remedy = float(str(error.value).split("try ")[1].split(",")[0])
    assert dqn.Config(replay_ratio=remedy).num_gradient_steps(steps) >= 1
    assert abs(remedy - ratio) <= max(0.5, 1 - ratio * steps) / steps


@pytest.mark.parametrize(
    ("settings", "size", "words"),
    [
        ({"capacity": 100}, (8, 1), "capacity=100 must be a multiple of num_envs = 8; try 96"),
        ({"capacity": 4}, (8, 1), "capacity=4 must be a multiple of num_envs = 8; try 8"),
        ({"capacity": 64}, (8, 16), "capacity=64 must be at least 128, for rollouts of 16 steps, .* try 128"),
        ({"capacity": 16, "n_step": 3}, (8, 2), "capacity=16 must be at least 24, .* items of 3, .* try 24"),
        ({"replay_ratio": 0.3}, (4, 4), "replay_ratio=0.3 times num_envs \\* num_steps = 16 must be a whole number"),
    ],
)
def test_a_rollout_that_does_not_fit_is_an_error(settings, size, words):
    agent = dqn.make(dqn.Config(**settings), OBS, Discrete(2))
    with pytest.raises(ConfigError, match=words):
        agent.check(*size)


def due(state, sample, due):
    return jnp.where(due, 1, 0)


@pytest.mark.parametrize(
    ("settings", "num_steps", "updates"),
    [
        ({"target_every": 1000}, 1, 10),  # one gradient step for 8 environment steps, of which no multiple is 1,000
        ({"target_every": 1000, "replay_ratio": 1.0}, 1, 10),
        ({"target_every": 1000, "replay_ratio": 0.375}, 1, 10),
        ({"target_every": 1000, "replay_ratio": 0.0625}, 2, 10),
        ({"target_every": 1000, "replay_ratio": 0.0005, "capacity": 2000}, 250, 5),  # no more than gradient steps
        ({"target_every": None}, 1, 1250),
        ({"target_every": None, "replay_ratio": 1.0}, 1, 10_000),
        ({"target_every": 1, "replay_ratio": 1.0}, 1, 10_000),
    ],
)
def test_the_target_is_due_as_often_as_said(settings, num_steps, updates):
    """10,000 environment steps of 8 environments."""
    state, update = stand_in(due, settings)
    counts = repeated(state, update, 10_000 // 8 // num_steps, num_steps=num_steps).params
    assert int(counts[-1]) == updates
    if updates == 10 and num_steps == 1:  # the k-th falls in the rollout that ends 1,000 k steps
        assert [int(np.argmax(counts == k)) for k in range(1, 11)] == [125 * k - 1 for k in range(1, 11)]


def test_the_target_is_due_at_the_gradient_step_that_completes_the_interval():
    """12 steps a rollout, 4 gradient steps, every 9 steps: at the 3rd, 6th, 9th and so on."""

    def where(state, sample, due):
        now = state.params["now"] if state.params else jnp.zeros((), jnp.int32)
        return {"now": jnp.ones((), jnp.int32), "due": jnp.where(due & (jnp.arange(12) == now), 1, 0)}

    state, update = stand_in(where, {"target_every": 9, "replay_ratio": 1 / 3}, num_envs=4)
    after = repeated(state, update, 3, num_steps=3, num_envs=4)
    np.testing.assert_array_equal(np.flatnonzero(after.params["due"][-1]), [2, 5, 8, 11])


@pytest.mark.parametrize(
    ("starts", "counts"), [(0, [2, 4, 6, 8]), (8, [2, 4, 6, 8]), (9, [0, 2, 4, 6]), (20, [0, 0, 2, 4])]
)
def test_learning_starts_with_the_rollout_that_reaches_it(starts, counts):
    state, update = stand_in(lambda *_: jnp.ones((), jnp.int32), {"learning_starts": starts, "replay_ratio": 0.25})
    np.testing.assert_array_equal(repeated(state, update, 4).params, counts)


def test_nothing_is_learned_before_there_is_an_item():
    """Windows of 3 rows cannot be drawn from 2."""
    state, update = stand_in(lambda *_: jnp.ones((), jnp.int32), {"n_step": 3})
    np.testing.assert_array_equal(repeated(state, update, 4).params, [0, 0, 1, 2])


def real(settings=None, hyper=None):
    agent = dqn.make(dqn.Config(**(SMALL | {"replay": "prioritized"} | (settings or {}))), OBS, Discrete(2))
    return agent, jax.jit(agent.init, static_argnums=3)(dqn.Hyper(**(hyper or {})), jax.random.key(0), EXAMPLE, 8)


def masses(state, count):
    return np.asarray(segment_tree.read(state.replay.buffer.priorities.mass, np.arange(count)))


def test_nothing_changes_before_learning_starts():
    agent, start = real({"learning_starts": 17, "replay_ratio": 0.5, "target_every": 4})
    update = jax.jit(agent.update)
    state = start
    for i in range(2):
        state, metrics = update(state, rollout(first=8.0 * i), jax.random.key(i))
        for name in ("params", "target_params", "opt_state"):
            jax.tree.map(np.testing.assert_array_equal, getattr(state, name), getattr(start, name))
        assert len(set(masses(state, 8 * i + 8))) == 1
        assert (float(metrics["loss"]), int(metrics["buffer_size"])) == (0.0, 8 * i + 8)
    state, metrics = update(state, rollout(first=16.0), jax.random.key(2))
    for name in ("params", "target_params", "opt_state"):
        both = zip(jax.tree.leaves(getattr(state, name)), jax.tree.leaves(getattr(start, name)), strict=True)
        assert any(np.any(a != b) for a, b in both)
    assert len(set(masses(state, 24))) > 1
    assert float(metrics["loss"]) > 0


def test_priorities_go_back_to_the_items_that_were_drawn():
    """The stand-in's priority is 10 more than the reward of the item, by which its place is told."""
    state, update = stand_in(due, {"replay": "prioritized", "alpha": 1.0, "replay_ratio": 0.25})
    state, _ = jax.jit(update)(state, rollout(num_steps=2), jax.random.key(0))
    found, rewards = masses(state, 16), np.arange(16.0)
    written = found != found.min()
    assert 4 <= written.sum() < 16  # 4 gradient steps of 4 strata each
    np.testing.assert_allclose(found[written], 10 + rewards[written] + 1e-6, rtol=1e-6)
    np.testing.assert_allclose(found[~written], 1 + 1e-6, rtol=1e-6)


def test_dqn_writes_the_sizes_of_its_td_errors():
    agent, state = real({"alpha": 0.5, "double": False}, {"gamma": 0.9})
    static = agent.static
    key = jax.random.key(3)
    after, _ = jax.jit(agent.update)(state, rollout(), key)

    @jax.jit
    def drawn(state):
        sample_key, _ = jax.random.split(jax.random.split(key, 1)[0])
        sample = static.buffer.sample(off_policy.store(static, state, rollout()).replay.buffer, sample_key)
        return sample, [static.network.apply(state.params, x) for x in (sample.item.obs, sample.item.next_obs)]

    sample, (q, next_q) = jax.tree.map(np.asarray, drawn(state))
    errors = np.abs(sample.item.reward + 0.9 * next_q.max(-1) - q[:, 0])
    expected = np.full(8, (1 + 1e-6) ** 0.5)
    expected[sample.index.row * 8 + sample.index.env] = (errors + 1e-6) ** 0.5
    np.testing.assert_allclose(masses(after, 8), expected, rtol=1e-5)


def test_the_learning_rate_is_of_the_steps_before():
    """As on-policy agents have it: the first rollout learns at the full rate, and the last one still learns."""
    state, update = stand_in(due, {"learning_rate_schedule": "linear"}, {"schedule_steps": 32.0, "learning_rate": 0.5})
    rates = []
    for _ in range(4):
        state, metrics = jax.jit(update)(state, rollout(), jax.random.key(0))
        rates.append(metrics["learning_rate"])
    np.testing.assert_allclose(rates, [0.5, 0.375, 0.25, 0.125], rtol=1e-6)


def test_a_warm_up_begins_with_the_first_gradient_step_and_learns_in_it():
    """Updates of 8 steps, of which the first two are before learning_starts: shares 8/32, 16/32, ... of the rate."""
    settings = {"learning_starts": 16, "learning_rate_schedule": "linear"}
    hyper = {"schedule_steps": 80.0, "learning_rate": 1.0, "learning_rate_end": 0.5, "warmup_steps": 32.0}
    state, update = stand_in(due, settings, hyper)
    rates = []
    for _ in range(7):
        state, metrics = jax.jit(update)(state, rollout(), jax.random.key(0))
        rates.append(metrics["learning_rate"])
    full = 1 - 0.5 * np.arange(7) * 8 / 80
    np.testing.assert_allclose(rates, full * [0, 0, 0.25, 0.5, 0.75, 1, 1], rtol=1e-6)


@pytest.mark.parametrize(("settings", "hyper", "tau"), [
    ({}, {}, 0.005),
    ({"target_every": 10}, {}, 1.0),
    ({"target_every": 10}, {"tau": 0.25}, 0.25),
    ({}, {"tau": 1.0}, 1.0),
])  # fmt: skip
def test_a_target_network_is_copied_where_it_is_updated_now_and_then(settings, hyper, tau):
    """A share of 0.005 at every tenth step alone would leave the target where it is."""
    np.testing.assert_allclose(real(settings, hyper)[1].hyper.tau, tau)


@pytest.mark.parametrize(("settings", "hyper", "words"), [
    ({"learning_rate_schedule": "cosine"}, {}, "learning_rate_schedule='cosine' needs schedule_steps"),
    ({}, {"epsilon_fraction": 0.1}, "epsilon_fraction=0.1 needs schedule_steps"),
    ({}, {"learning_rate_end": 1e-5}, "learning_rate_end=1e-05 needs learning_rate_schedule='linear'"),
    ({}, {"weight_decay": 0.1}, "weight_decay=0.1 needs optimizer='adamw', and it is 'adam'"),
    ({"batch_size": 65}, {}, "batch_size=65 must be at most capacity=64"),
])  # fmt: skip
def test_settings_without_an_effect_are_refused(settings, hyper, words):
    agent = dqn.make(dqn.Config(**(SMALL | settings)), OBS, Discrete(2))
    with pytest.raises(ConfigError, match=words):
        jax.eval_shape(lambda key: agent.init(dqn.Hyper(**hyper), key, EXAMPLE, 8), jax.random.key(0))
    if "batch_size" in settings:
        with pytest.raises(ConfigError, match=words):
            agent.check(8, 1)
    else:  # what is traced is not known
        jax.eval_shape(lambda hyper, key: agent.init(hyper, key, EXAMPLE, 8), dqn.Hyper(**hyper), jax.random.key(0))


@pytest.mark.parametrize(("schedule_steps", "betas"), [(40.0, [0.52, 0.64, 0.76, 0.88, 1.0, 1.0]), (np.inf, [0.4] * 6)])
def test_beta_is_annealed(schedule_steps, betas):
    state, update = stand_in(due, {"replay": "prioritized"}, {"schedule_steps": schedule_steps})
    after = repeated(state, update, 6)
    np.testing.assert_allclose(after.replay.buffer.beta, betas, rtol=1e-6)


def test_weights_follow_the_annealed_beta():
    """With alpha 1 the first rollout's items have masses 10 to 17, as their rewards say, and new ones the largest."""

    def look(state, sample, due):
        return {"weight": sample.weight, "reward": sample.item.reward}

    settings = {"replay": "prioritized", "alpha": 1.0, "batch_size": 8}
    state, update = stand_in(look, settings, {"beta": 0.0, "beta_end": 3.0, "schedule_steps": 32.0})
    first, _ = jax.jit(update)(state, rollout(), jax.random.key(0))
    np.testing.assert_array_equal(first.params["weight"], np.ones(8))  # of equal masses each is drawn once
    np.testing.assert_allclose(masses(first, 8), np.arange(10.0, 18.0), rtol=1e-6)
    second, _ = jax.jit(update)(first, rollout(first=8.0), jax.random.key(1))
    drawn = jax.tree.map(lambda a, b: np.asarray(a - b), second.params, first.params)
    assert float(second.replay.buffer.beta) == 1.5
    np.testing.assert_allclose(drawn["weight"], (np.minimum(10 + drawn["reward"], 17) / 10) ** -1.5, rtol=1e-4)
    assert drawn["weight"].min() < 0.6


def mid_rollout():
    """8 steps of one environment: cut off at step 2, terminated at step 5; next_obs of step t is 100 + t."""
    time = jnp.arange(8.0)[:, None]
    return Transition(
        time[..., None], time.astype(jnp.int32), 2.0**time, time == 5, time == 2, time[..., None] + 100.0
    )  # fmt: skip


# start: reward, discount, next_obs, with n = 3 and γ = 1/2
BY_HAND = {
    0: (1 + 1 + 1, 1 / 8, 102),
    1: (2 + 2, 1 / 4, 102),
    2: (4, 1 / 2, 102),
    3: (8 + 8 + 8, 0, None),
    4: (16 + 16, 0, None),
    5: (32, 0, None),
}


@pytest.mark.parametrize("replay", ["uniform", "prioritized"])
@pytest.mark.parametrize("n_step", [1, 3])
def test_batches_by_hand(replay, n_step):
    buffer = off_policy.buffer(dqn.Config(capacity=8, batch_size=64, n_step=n_step, replay=replay))

    @jax.jit
    def draw(key):
        state = buffer.add(buffer.init(EXAMPLE, 1), mid_rollout())
        return off_policy.n_step_batch(buffer.sample(state, key), 0.5)

    batch = draw(jax.random.key(0))
    assert batch.obs.shape == (64, 1)
    np.testing.assert_allclose(batch.weight, 1.0)
    assert set(np.asarray(batch.action)) == (set(range(8)) if n_step == 1 else set(range(6)))
    for obs, action, reward, discount, next_obs, _ in zip(*map(np.asarray, batch), strict=True):
        start = int(obs[0])
        assert action == start
        one = (2.0**start, 0.0 if start == 5 else 0.5, 100 + start)
        expected = BY_HAND[start] if n_step == 3 else one
        np.testing.assert_allclose((reward, discount), expected[:2])
        assert discount == 0 or next_obs[0] == expected[2]


@pytest.mark.parametrize("windows", [False, True])
def test_what_was_not_drawn_weighs_nothing(windows):
    item = jax.tree.map(lambda x: x[:3, 0], mid_rollout())
    mask = np.array([True, False, True])
    if windows:
        item = jax.tree.map(lambda x: jnp.stack([x, x], axis=1), item)
        mask = np.stack([mask, mask & [True, False, False]], axis=1)
    batch = off_policy.n_step_batch(Sample(item, (), jnp.full(3, 0.5), jnp.asarray(mask)), 0.9)
    np.testing.assert_array_equal(batch.weight, [0.5, 0.0, 0.5])


def test_observation_statistics_stand_still_during_an_update():
    state, update = stand_in(
        lambda state, *_: state.normalizer.obs.count, {"normalize_obs": True, "replay_ratio": 0.25}
    )
    after = repeated(state, update, 3)
    counts = np.asarray(after.normalizer.obs.count)
    np.testing.assert_array_equal(counts, [8, 16, 24])
    np.testing.assert_array_equal(after.params, np.cumsum([0, 2 * 8, 2 * 16]))


def test_add_and_learn_are_what_an_update_is_made_of():
    agent, state = real({"learning_starts": 12, "normalize_obs": True})
    for i in range(3):
        whole, _ = jax.jit(agent.update)(state, rollout(first=8.0 * i), jax.random.key(i))
        state = jax.jit(agent.add)(state, rollout(first=8.0 * i))
        jax.tree.map(np.testing.assert_array_equal, state.normalizer, whole.normalizer)
        jax.tree.map(np.testing.assert_array_equal, state.replay.buffer.ring, whole.replay.buffer.ring)
        assert int(state.replay.num_steps) == 8 * i
        state, _ = jax.jit(agent.learn, static_argnums=2)(state, jax.random.key(i), 8)
        assert int(state.replay.num_steps) == int(whole.replay.num_steps) == 8 * i + 8


def test_the_count_of_steps_stays_at_its_end():
    state, update = stand_in(due, {"learning_starts": 2**32 - 1})
    memory = state.replay.replace(num_steps=jnp.uint32(2**32 - 13))
    counts = repeated(state.replace(replay=memory), update, 3).replay.num_steps
    np.testing.assert_array_equal(counts, np.uint32([2**32 - 5, 2**32 - 1, 2**32 - 1]))


@pytest.mark.parametrize(("is_due", "expected"), [(True, 0.25 * 4 + 0.75 * 8), (False, 8.0)])
def test_target_update_by_hand(is_due, expected):
    moved = off_policy.target_update({"w": jnp.array([4.0])}, {"w": jnp.array([8.0])}, 0.25, when=jnp.array(is_due))
    np.testing.assert_allclose(moved["w"], [expected])
