"""Population-based training: selection, copies, exploration, against NumPy and against problems with known answers."""

import re
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from rlkit.agents import dqn, ppo
from rlkit.agents.common.normalization import Normalizer
from rlkit.training import TrainState, population
from rlkit.types import ConfigError

RANGES = {"learning_rate": (1e-5, 1e-2), "gamma": (0.9, 0.999, "uniform")}
KEY = jax.random.key(3)


class Learner(struct.PyTreeNode):
    """An agent's state whose every leaf names its member."""

    hyper: dqn.Hyper
    params: dict
    noise_key: jax.Array
    replay: dict
    normalizer: Normalizer


@cache
def stacked(size: int, *, same_key: bool = False) -> TrainState:
    return jax.jit(partial(_stacked, size, same_key))()


def _stacked(size: int, same_key: bool) -> TrainState:
    ids = jnp.arange(size, dtype=jnp.float32)
    hyper = population.initial(dqn.Hyper(), jax.random.key(0), size, RANGES)
    keys = jax.vmap(jax.random.key)(jnp.zeros(size, int) if same_key else jnp.arange(size))
    params = {"w": jnp.broadcast_to(ids[:, None, None], (size, 2, 3)), "count": jnp.arange(size)}
    returns = Normalizer((), {"mean": ids}, jnp.broadcast_to(ids[:, None], (size, 4)))
    agent = Learner(hyper, params, keys, {"rows": jnp.broadcast_to(ids[:, None], (size, 5))}, returns)
    env_keys = jax.vmap(lambda key: jax.random.split(key, 4))(keys)
    return TrainState(
        agent, {"time": jnp.broadcast_to(ids[:, None], (size, 4)), "key": env_keys}, keys, jnp.zeros(size)
    )


def key_rows(keys) -> np.ndarray:
    return np.asarray(jax.random.key_data(keys)).reshape(-1, 2)


def parents_of(scores, select=population.truncation, draws=400, **settings) -> np.ndarray:
    """Parents [draws, P] for many keys."""
    selected = _selected(select, tuple(settings.items()))
    return np.asarray(selected(np.asarray(scores, np.float32), jax.random.split(KEY, draws)))


@cache
def _selected(select, settings):
    return jax.jit(jax.vmap(lambda scores, key: select(scores, key, **dict(settings)), (None, 0)))


def test_truncation_copies_from_all_of_the_best_to_all_of_the_worst():
    scores = np.array([5, 1, 9, 3, 8, 0, 7, 2, 6, 4])
    parent = parents_of(scores)
    assert (parent[:, [1, 5]] != [1, 5]).all()  # the scores 1 and 0
    assert set(np.unique(parent[:, [1, 5]])) == {2, 4}  # the scores 9 and 8
    assert abs((parent[:, 1] == 2).mean() - 0.5) < 0.1
    survivors = [0, 2, 3, 4, 6, 7, 8, 9]
    assert (parent[:, survivors] == survivors).all()
    assert not (parent[:, 1] == parent[:, 5]).all()  # drawn for each member


@pytest.mark.parametrize(
    ("size", "fraction", "copies"),
    [(1, 0.2, 0), (3, 0.5, 1), (8, 0.2, 2)],
)
def test_the_fraction_is_rounded_up_to_at_most_half(size, fraction, copies):
    parent = parents_of(np.arange(size), fraction=fraction, draws=20)
    assert ((parent != np.arange(size)).sum(1) == copies).all()


def test_a_tournament_copies_the_better_of_two():
    scores = np.array([3.0, 1.0, 2.0, 1.0])
    parent = parents_of(scores, population.tournament)
    members = np.arange(4)
    assert (scores[parent] >= scores).all()
    assert (parent[scores[parent] == scores] == np.broadcast_to(members, parent.shape)[scores[parent] == scores]).all()
    share = [[(parent[:, member] == other).mean() for other in members] for member in members]
    third = 1 / 3
    expected = [[1, 0, 0, 0], [third, third, third, 0], [third, 0, 2 / 3, 0], [third, 0, third, third]]
    np.testing.assert_allclose(share, expected, atol=0.08)
    assert parents_of([1.0], population.tournament).tolist() == [[0]] * 400


@pytest.mark.parametrize("select", [population.truncation, population.tournament])
def test_scores_that_are_not_finite_are_the_worst(select):
    scores = np.array([1.0, np.nan, 2.0, np.inf, -1e30, -np.inf, 3.0, 4.0, 5.0, 6.0])
    parent = parents_of(scores, select, **({"fraction": 0.3} if select is population.truncation else {}))
    assert np.isfinite(scores[parent[:, [0, 2, 4, 6, 7, 8, 9]]]).all()
    lost = parent[:, [1, 3, 5]]
    if select is population.truncation:
        assert set(np.unique(lost)) == {7, 8, 9}
    else:
        assert {4, 9} < set(np.unique(lost))
    members = np.broadcast_to(np.arange(6), (400, 6))
    for nothing in (np.full(6, np.nan), np.ones(6)):  # no score, or no difference
        np.testing.assert_array_equal(parents_of(nothing, select), members)


def test_the_order_of_the_members_does_not_matter():
    """The member of each rank is copied with the same probability, wherever it is."""
    scores, order = np.array([5.0, 1.0, 9.0, 3.0, 8.0]), np.array([3, 0, 4, 1, 2])
    for select, settings in ((population.truncation, {"fraction": 0.4}), (population.tournament, {})):
        here, there = (parents_of(x, select, **settings) for x in (scores, scores[order]))
        counts = [[np.mean(scores[here[:, m]] == score) for score in scores] for m in range(5)]
        moved = [[np.mean(scores[order][there[:, m]] == score) for score in scores] for m in np.argsort(order)]
        np.testing.assert_allclose(counts, moved, atol=0.1)


def test_equal_scores_are_ranked_by_chance():
    parent = parents_of([0.0, 0.0, 0.0, 0.0, 1.0], fraction=0.2)
    copied = (parent != np.arange(5)).mean(0)
    np.testing.assert_allclose(copied, [0.25, 0.25, 0.25, 0.25, 0.0], atol=0.08)


@pytest.mark.parametrize(("copy_replay", "copy_envs"), [(False, True), (True, False)])
def test_copies_have_all_of_the_parent_but_its_keys_and_surroundings(copy_replay, copy_envs):
    state, parent = stacked(5), np.array([0, 3, 2, 3, 3])
    inherit = jax.jit(partial(population.inherit, copy_replay=copy_replay, copy_envs=copy_envs))
    after = inherit(state, parent, KEY)
    jax.tree.map(
        lambda old, new: np.testing.assert_array_equal(new, np.asarray(old)[parent]),
        (state.agent.params, state.agent.hyper, state.agent.normalizer.returns),
        (after.agent.params, after.agent.hyper, after.agent.normalizer.returns),
    )
    np.testing.assert_array_equal(after.agent.normalizer.running_return, after.envs["time"])
    np.testing.assert_array_equal(after.agent.replay["rows"][:, 0], parent if copy_replay else np.arange(5))
    np.testing.assert_array_equal(after.envs["time"][:, 0], parent if copy_envs else np.arange(5))
    np.testing.assert_array_equal(after.step, state.step)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), state)


def test_surroundings_can_be_copied_for_some_members():
    state, parent = stacked(4), jnp.array([0, 0, 0, 3])
    some = jnp.array([False, True, False, True])
    after = jax.jit(population.inherit)(state, parent, KEY, copy_replay=some, copy_envs=some)
    np.testing.assert_array_equal(after.agent.params["count"], parent)
    np.testing.assert_array_equal(after.agent.replay["rows"][:, 0], [0, 0, 2, 3])
    np.testing.assert_array_equal(after.envs["time"][:, 0], [0, 0, 2, 3])
    assert len(np.unique(key_rows(after.envs["key"]), axis=0)) == 16
    np.testing.assert_array_equal(key_rows(after.envs["key"][2:]), key_rows(state.envs["key"][2:]))


def test_no_copy_is_a_twin():
    """Not of its parent, nor of another copy of it, even where all members began with one key."""
    state, parent = stacked(6, same_key=True), jnp.array([0, 0, 0, 3, 0, 5])
    inherit = jax.jit(partial(population.inherit, copy_envs=True))
    after = inherit(state, parent, KEY)
    survivors = [0, 3, 5]
    for old, new in ((state.key, after.key), (state.agent.noise_key, after.agent.noise_key)):
        np.testing.assert_array_equal(key_rows(new)[survivors], key_rows(old)[survivors])
        assert len(np.unique(key_rows(new), axis=0)) == 4  # the three survivors' one, and three others
    assert len(np.unique(key_rows(after.envs["key"]), axis=0)) == 4 * 4
    other = inherit(state, parent, jax.random.key(4))
    assert len(np.unique(np.concatenate([key_rows(other.key), key_rows(after.key)]), axis=0)) == 1 + 3 + 3
    kept = jax.jit(population.inherit)(state, parent, KEY)
    np.testing.assert_array_equal(key_rows(kept.envs["key"]), key_rows(state.envs["key"]))


def test_perturbation_multiplies_and_clips():
    size = 512
    hyper = dqn.Hyper(**{name: jnp.full(size, 1.0) for name in dqn.Hyper.__dataclass_fields__})
    hyper = hyper.replace(learning_rate=jnp.full(size, 9e-3), gamma=jnp.full(size, 0.95), tau=jnp.full(size, jnp.inf))
    chosen = jnp.arange(size) % 2 == 0
    after = population.perturb(hyper, chosen, KEY, {**RANGES, "tau": (0.1, 0.5)})
    rate, gamma = np.asarray(after.learning_rate), np.asarray(after.gamma)
    np.testing.assert_array_equal(rate[1::2], np.float32(9e-3))
    np.testing.assert_allclose(np.unique(rate[::2]), [0.8 * 9e-3, 1e-2], rtol=1e-6)  # 1.25 * 9e-3 is clipped
    np.testing.assert_allclose(np.unique(gamma[::2]), [0.9, 0.999], rtol=1e-6)
    assert abs((rate[::2] < 9e-3).mean() - 0.5) < 0.1
    assert abs(((rate < 9e-3) == (gamma < 0.95))[::2].mean() - 0.5) < 0.1  # each field is drawn apart
    np.testing.assert_array_equal(np.asarray(after.tau)[:2], [0.5, np.inf])
    np.testing.assert_array_equal(after.epsilon_end, hyper.epsilon_end)


def test_draws_fill_their_ranges_on_their_scales():
    ranges = {"learning_rate": (1e-6, 1e-1), "gamma": (0.9, 0.999, "uniform"), "weight_decay": (0.0, 2.0)}
    hyper = population.initial(ppo.Hyper(), KEY, 4096, ranges)
    thirds = lambda x: np.histogram(x, 3)[0] / 4096  # noqa: E731
    log = np.log10(np.asarray(hyper.learning_rate))
    assert log.min() >= -6.0001
    assert log.max() <= -0.9999
    for values in (log, hyper.gamma, hyper.weight_decay):
        np.testing.assert_allclose(thirds(np.asarray(values)), 1 / 3, atol=0.04)
    assert float(hyper.weight_decay.max()) > 1.9
    np.testing.assert_array_equal(hyper.clip_eps, np.full(4096, 0.2, np.float32))
    assert {leaf.shape for leaf in jax.tree.leaves(hyper)} == {(4096,)}
    assert {leaf.dtype for leaf in jax.tree.leaves(hyper)} == {jnp.dtype("float32")}
    assert abs(np.corrcoef(log, hyper.gamma)[0, 1]) < 0.1
    narrow = population.initial(ppo.Hyper(), KEY, 4096, {"learning_rate": (3e-4, 3.001e-4)}).learning_rate
    assert float(narrow.min()) >= np.float32(3e-4)
    assert float(narrow.max()) <= np.float32(3.001e-4)


@pytest.mark.parametrize(("exploit", "explore"), [("truncation", "perturb"), ("tournament", "resample")])
def test_evolution_under_jit_is_that_of_its_parts(exploit, explore):
    state, scores = stacked(10), jnp.asarray([5, 1, 9, 3, 8, 0, 7, 2, 6, jnp.nan])
    evolve = jax.jit(partial(population.evolve, ranges=RANGES, exploit=exploit, explore=explore))
    after, lineage = evolve(state, scores, KEY)
    parent = np.asarray(lineage.parent)
    copied = parent != np.arange(10)
    assert lineage.parent.dtype == jnp.int32
    assert 2 <= copied.sum() < 10
    np.testing.assert_array_equal(after.agent.params["count"], parent)
    assert lineage.hyper.keys() == RANGES.keys()
    for name, values in lineage.hyper.items():
        before, now = np.asarray(getattr(state.agent.hyper, name)), np.asarray(values)
        np.testing.assert_array_equal(now, getattr(after.agent.hyper, name))
        np.testing.assert_array_equal(now[~copied], before[~copied])
        if explore == "perturb":
            possible = np.clip(before[parent][:, None] * np.float32([0.8, 1.25]), *RANGES[name][:2])
            assert np.isclose(now[:, None], possible, rtol=1e-6).any(1)[copied].all()
        else:
            assert not np.isclose(now, before[parent], rtol=1e-6)[copied].any()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"ranges": {}}, r"ranges=\{\} must name a field of Hyper; try"),
        (
            {"ranges": {"learning_rat": (1e-5, 1e-2)}},
            "must be of a field of Hyper, .* did you mean 'learning_rate'",
        ),
        ({"ranges": {"gamma": (0.999, 0.9)}}, r"ranges.gamma=\(0.999, 0.9\) must go from a finite float32 up"),
        ({"ranges": {"gamma": (0.5, 0.5)}}, "up to a greater one"),
        ({"ranges": {"gamma": (0.9, 1.5)}}, "ranges.gamma=1.5 must be at least 0 and at most 1"),
        ({"ranges": {"learning_rate": (-1.0, 1e-3)}}, "ranges.learning_rate=-1 must be at least 0"),
        ({"ranges": {"gamma": (0.5, float("nan"))}}, "up to a greater one"),
        ({"ranges": {"gamma": (0.5, 1e39)}}, "up to a greater one"),
        ({"ranges": {"gamma": "0.5"}}, "must be a lowest and a highest value"),
        ({"ranges": {"gamma": (0.5,)}}, "must be a lowest and a highest value"),
        ({"ranges": {"gamma": (0.5, 0.9, "logarithmic")}}, "must have the scale 'log' or 'uniform'"),
        ({"ranges": {"gamma": (0.0, 0.9, "log")}}, "must begin above 0 on a log scale; try the scale 'uniform'"),
        ({"exploit": "truncate"}, "exploit='truncate' must be truncation or tournament; did you mean 'truncation'"),
        ({"explore": "mutate"}, "explore='mutate' must be perturb or resample"),
        ({"fraction": 0.6}, "fraction=0.6 must be above 0 and at most 0.5; try 0.2"),
        ({"factors": (0.8, 0.0)}, r"factors=\(0.8, 0.0\) must be positive numbers; try \(0.8, 1.25\)"),
        ({"scores": jnp.zeros(3)}, r"scores of shape \(3,\) must be one for each member .* shape \(4,\)"),
    ],
)
def test_a_mistake_is_one_line(change, text):
    arguments = {"state": stacked(4), "scores": jnp.arange(4.0), "key": KEY, "ranges": RANGES} | change
    with pytest.raises(ConfigError, match=text) as caught:
        population.evolve(**arguments)
    assert not re.search("\n", str(caught.value))
