"""rlkit.agents.common.off_policy: how often an off-policy agent learns, when its target is due, and when it starts.

Most tests put a stand-in for the gradient step, which writes down what it was given.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from off_policy_stand_ins import EXAMPLE, OBS, SMALL, due, real, repeated, rollout, stand_in

from rlkit.agents import dqn
from rlkit.agents.base import as_arrays
from rlkit.agents.common import off_policy
from rlkit.spaces import Discrete
from rlkit.types import ConfigError


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
        ({"capacity": 64}, (8, 16), "capacity=64 must be at least 128, for rollouts of 16 steps, .* try 128"),
        ({"capacity": 16, "n_step": 3}, (8, 2), "capacity=16 must be at least 24, .* items of 3, .* try 24"),
    ],
)
def test_a_rollout_that_does_not_fit_is_an_error(settings, size, words):
    agent = dqn.make(dqn.Config(**settings), OBS, Discrete(2))
    with pytest.raises(ConfigError, match=words):
        agent.check(*size)


@pytest.mark.parametrize(
    ("settings", "num_steps", "updates"),
    [
        ({"target_every": 1000}, 1, 10),  # one gradient step for 8 environment steps, of which no multiple is 1,000
        ({"target_every": 1000, "replay_ratio": 0.0625}, 2, 10),
        ({"target_every": 1000, "replay_ratio": 0.0005, "capacity": 2000}, 250, 5),  # no more than gradient steps
        ({"target_every": None}, 1, 1250),
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


@pytest.mark.parametrize(("starts", "counts"), [(8, [2, 4, 6, 8]), (9, [0, 2, 4, 6])])
def test_learning_starts_with_the_rollout_that_reaches_it(starts, counts):
    state, update = stand_in(lambda *_: jnp.ones((), jnp.int32), {"learning_starts": starts, "replay_ratio": 0.25})
    np.testing.assert_array_equal(repeated(state, update, 4).params, counts)


def test_nothing_is_learned_before_there_is_an_item():
    """Windows of 3 rows cannot be drawn from 2."""
    state, update = stand_in(lambda *_: jnp.ones((), jnp.int32), {"n_step": 3})
    np.testing.assert_array_equal(repeated(state, update, 4).params, [0, 0, 1, 2])


def test_the_learning_rate_is_of_the_steps_before():
    """As on-policy agents have it: the first rollout learns at the full rate, and the last one still learns."""
    state, update = stand_in(due, {"learning_rate_schedule": "linear"}, {"schedule_steps": 32.0, "learning_rate": 0.5})
    rates = []
    for _ in range(4):
        state, metrics = jax.jit(update)(state, rollout(), jax.random.key(0))
        rates.append(metrics["learning_rate"])
    np.testing.assert_allclose(rates, [0.5, 0.375, 0.25, 0.125], rtol=1e-6)


def test_a_warm_up_begins_with_the_first_gradient_step_and_learns_in_it():
    """Updates of 8 steps, of which the second reaches learning_starts: it learns at a share of 8/32, the next 16/32."""
    settings = {"learning_starts": 16, "learning_rate_schedule": "linear"}
    hyper = {"schedule_steps": 80.0, "learning_rate": 1.0, "learning_rate_end": 0.5, "warmup_steps": 32.0}
    state, update = stand_in(due, settings, hyper)
    rates = []
    for _ in range(7):
        state, metrics = jax.jit(update)(state, rollout(), jax.random.key(0))
        rates.append(metrics["learning_rate"])
    full = 1 - 0.5 * np.arange(7) * 8 / 80
    np.testing.assert_allclose(rates, full * [0, 0.25, 0.5, 0.75, 1, 1, 1], rtol=1e-6)


@pytest.mark.parametrize(("settings", "hyper", "tau"), [
    ({}, {}, 0.005),
    ({"target_every": 10}, {}, 1.0),
    ({"target_every": 10}, {"tau": 0.25}, 0.25),
    ({}, {"tau": 1.0}, 1.0),
])  # fmt: skip
def test_a_target_network_is_copied_where_it_is_updated_now_and_then(settings, hyper, tau):
    """A share of 0.005 at every tenth step alone would leave the target where it is."""
    hyper = as_arrays(dqn.Hyper(**hyper), dqn.Config(**(SMALL | settings)), 8)
    np.testing.assert_allclose(hyper.tau, tau)


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
        traced = dqn.Hyper(**({"schedule_steps": jnp.inf} | hyper))
        jax.eval_shape(lambda hyper, key: agent.init(hyper, key, EXAMPLE, 8), traced, jax.random.key(0))


@pytest.mark.thorough
def test_before_an_item_can_be_drawn_an_update_without_jit_changes_nothing():
    state, update = stand_in(lambda *_: jnp.ones((), jnp.int32), {"n_step": 3})
    with jax.disable_jit():
        after, metrics = update(state, rollout(), jax.random.key(0))
    assert (int(after.params), float(metrics["loss"])) == (0, 0.0)


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
        steps = rollout(first=8.0 * i)
        whole, _ = jax.jit(agent.update)(state, steps, jax.random.key(i))
        state = jax.jit(agent.add)(state, steps)
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
    """Parameters follow by a share; statistics are copied."""
    state = real(hyper={"tau": 0.25})[1].replace(target_params=jnp.float32(8.0), target_stats=jnp.float32(5.0))
    moved = off_policy.update_target(state, jnp.float32(4.0), jnp.float32(3.0), when=jnp.array(is_due))
    np.testing.assert_allclose([moved.target_params, moved.target_stats], [expected, 3.0 if is_due else 5.0])
