"""Replay buffers at the edges: empty observations, lost final observations, float64, gradients, no mass."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from buffer_invariants import check_buffer
from compiled_buffers import fill, prioritized, slices, uniform
from replay_model import ONE, steps

from rlkit.replay import windows

MAKERS = {
    "uniform": uniform,
    "prioritized": prioritized,
    "slices": partial(slices, slice_len=2),
    "prioritized slices": partial(slices, slice_len=2, prioritized=True),
}


@pytest.mark.parametrize("obs", [(), {"empty": jnp.zeros((4, 1, 2, 0))}], ids=["()", "2,0"])
def test_observations_stored_once_may_be_empty(obs):
    truncated = jnp.array([[False], [True], [True], [False]])
    rollout = steps(4, obs=obs, next_obs=obs, truncated=truncated)
    buffer = uniform(8, 16, store_obs_once=True, max_final_obs=1)
    state = buffer.init(jax.tree.map(lambda x: x[0, 0], rollout), 1)
    for _ in range(3):
        state = buffer.add(state, rollout)
    check_buffer(state)
    sample = buffer.sample(state, jax.random.key(0))
    assert sample.mask.all()
    assert jax.tree.map(jnp.shape, sample.item.next_obs) == jax.tree.map(lambda x: (16, *x.shape[2:]), obs)
    assert 1 not in np.asarray(sample.item.reward[sample.item.truncated])  # its final observation has been overwritten


@pytest.mark.parametrize(
    "make",
    [prioritized, pytest.param(partial(slices, slice_len=1, prioritized=True), marks=pytest.mark.slow)],
    ids=["steps", "slices"],
)
def test_a_stratum_of_lost_final_observations_draws_from_the_others(make):
    """The step with 100 of 107 units of mass lacks its final observation, in most strata of the total."""
    buffer = make(8, 4, alpha=1.0, eps=0.0, store_obs_once=True, max_final_obs=1)
    state = buffer.add(buffer.init(ONE, 1), steps(8, truncated=(jnp.arange(8) < 4)[:, None]))
    handle = buffer.sample(state, jax.random.key(0)).index
    rows = jnp.arange(4, dtype=jnp.uint32)
    state = buffer.update(state, handle._replace(row=rows, env=jnp.zeros(4, jnp.int32)), jnp.array([100.0, 1, 1, 1]))
    drawn = [jax.device_get(buffer.sample(state, jax.random.key(i))) for i in range(40)]
    assert all(sample.mask.all() for sample in drawn)
    assert {float(x) for sample in drawn for x in sample.item.obs.reshape(-1)} == {3.0, 4.0, 5.0, 6.0, 7.0}
    assert max(np.unique(sample.item.obs).size for sample in drawn) > 2  # of the three strata, each draws its own


def test_a_terminal_step_needs_no_final_observation():
    flag = jnp.ones((4, 1), bool)
    buffer = uniform(8, 64, store_obs_once=True, max_final_obs=1)
    state = buffer.add(buffer.init(ONE, 1), steps(4, terminated=flag, truncated=flag))
    assert set(buffer.sample(state, jax.random.key(0)).item.obs.tolist()) == {0.0, 1.0, 2.0, 3.0}


def test_places_that_are_never_found_become_some_of_the_others():
    """Every draw gives the same places, of which the first 40 lack their final observation."""
    buffer = uniform(8, 4, store_obs_once=True, max_final_obs=1)
    state = buffer.add(buffer.init(ONE, 1), steps(8, truncated=(jnp.arange(8) < 4)[:, None]))
    place = windows.Place(jnp.repeat(jnp.array([0, 4, 5, 6, 7], jnp.int32), 40), jnp.zeros(200, jnp.int32))
    draw = jax.jit(lambda ring, key: windows.draw_with_next_obs(ring, lambda key: place, key, 1))
    drawn, valid = draw(state.ring, jax.random.key(0))
    assert valid.all()
    np.testing.assert_array_equal(drawn.slot[40:], place.slot[40:])
    counts = np.bincount(drawn.slot[:40], minlength=8)
    assert counts[:4].sum() == 0
    assert counts[4:].min() > 2


def test_a_padded_slice_needs_the_final_observation_of_its_first_step_only():
    buffer = slices(8, 64, 2, strict=False, store_obs_once=True, max_final_obs=1)
    truncated = jnp.array([[False], [True], [False], [True]])
    state = buffer.add(buffer.init(ONE, 1), steps(4, truncated=truncated))
    sample = buffer.sample(state, jax.random.key(0))
    masks = {row: tuple(mask) for row, mask in zip(sample.index.row.tolist(), sample.mask.tolist(), strict=True)}
    assert masks == {0: (True, False), 2: (True, True), 3: (True, False)}
    assert sample.item.truncated[:, 0][sample.index.row == 0].all()


def test_without_any_complete_item_the_mask_is_false():
    """Slices of two truncated steps need two final observations, of which one is kept."""
    buffer = slices(8, 4, 2, cross_episodes=False, strict=True, store_obs_once=True, max_final_obs=1)
    state = buffer.add(buffer.init(ONE, 1), steps(3, truncated=jnp.array([[False], [True], [True]])))
    assert not buffer.sample(state, jax.random.key(0)).mask.any()
    assert not jax.jit(buffer.batch_of_pass)(state, jax.random.key(0), 0).mask.any()


@pytest.mark.parametrize(
    "kind", [kind if kind == "prioritized slices" else pytest.param(kind, marks=pytest.mark.slow) for kind in MAKERS]
)
def test_weights_are_float32_under_x64(kind):
    with jax.enable_x64(True):
        buffer = MAKERS[kind](8, 4)
        rollout = jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype == jnp.float64 else x, steps(4))
        state = buffer.add(buffer.init(jax.tree.map(lambda x: x[0, 0], rollout), 1), rollout)
        assert buffer.sample(state, jax.random.key(0)).weight.dtype == jnp.float32


@pytest.mark.parametrize("kind", [pytest.param("prioritized", marks=pytest.mark.slow), "prioritized slices"])
def test_size_leaves_out_items_without_mass(kind):
    """With eps = 0 an item of priority 0 cannot be drawn, unless alpha = 0."""
    for settings, expected in (({"eps": 0.0}, 2), ({}, 3), ({"eps": 0.0, "alpha": 0.0}, 3)):
        buffer = MAKERS[kind](8, 4, **settings)
        state = fill(buffer, 4 if "slices" in kind else 3)
        handle = buffer.sample(state, jax.random.key(0)).index
        zero = handle._replace(row=jnp.ones(4, jnp.uint32), env=jnp.zeros(4, jnp.int32))
        assert buffer.size(buffer.update(state, zero, jnp.zeros(4))) == expected


@pytest.mark.parametrize(("size", "once"), [(3, True), (300, False)], ids=["packed, once", "an array of its own"])
def test_stored_leaves_have_no_gradient(size, once):
    buffer = uniform(8, 16, store_obs_once=once)
    rollout = steps(4, obs=jnp.ones((4, 1, size)), next_obs=jnp.ones((4, 1, size)))

    def loss(scale):
        scaled = rollout._replace(obs=scale * rollout.obs, next_obs=scale * rollout.next_obs)
        state = buffer.add(buffer.init(jax.tree.map(lambda x: x[0, 0], rollout), 1), scaled)
        item = buffer.sample(state, jax.random.key(0)).item
        return item.obs.sum() + item.next_obs.sum()

    value, slope = jax.value_and_grad(loss)(2.0)
    assert (value, slope) == (16 * size * 4.0, 0.0)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("num_steps", [0, 9])
def test_a_rollout_of_a_wrong_length_names_the_right_ones(kind, num_steps):
    buffer = MAKERS[kind](8, 4)
    with pytest.raises(ValueError, match=rf"reward has shape \({num_steps}, 1\), expected \[T, 1\] with 1 <= T <= 8"):
        buffer.add(buffer.init(ONE, 1), jax.tree.map(lambda x: x[:num_steps], steps(9)))


@pytest.mark.parametrize("kind", MAKERS)
def test_a_rollout_without_environments_is_named(kind):
    buffer = MAKERS[kind](8, 4)
    with pytest.raises(ValueError, match=r"reward has shape \(4,\), expected \[T, 1\]"):
        buffer.add(buffer.init(ONE, 1), jax.tree.map(lambda x: x[:, 0], steps(4)))
