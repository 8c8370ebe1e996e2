"""rlkit.agents.common.curiosity.rnd: the bonus of PPO, its advantages, its statistics, and what it leaves alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ppo_rollouts import SMALL, rollout_of, start, update

from rlkit.agents import ppo
from rlkit.agents.common.curiosity import rnd
from rlkit.agents.common.policy_evaluation import Extras
from rlkit.spaces import Box, Dict, Discrete
from rlkit.types import Transition

PLACES = 8
SPACE = Box(0, 1, (PLACES,))
GAMMA, LAMBDA = 0.9, 0.8
HYPER = ppo.Hyper(bonus_gamma=GAMMA, gae_lambda=LAMBDA)
STATIC = rnd.make(ppo.Config(hidden_sizes=(16,), num_epochs=4, num_minibatches=2), SPACE)


@pytest.fixture(scope="module")
def bonus():
    """The state of a bonus for four environments."""
    init = jax.jit(lambda key, example: rnd.init(STATIC, HYPER, key, example, 4))
    return init(jax.random.key(1), jax.tree.map(lambda x: x[0, 0], visits([[0]])))


@jax.jit
def estimate(state, rollout):
    return rnd.estimate(STATIC, HYPER, state, rollout)


@jax.jit
def errors(state, rollout):
    return rnd.error(STATIC, state.params, state, rollout.next_obs)


def made(space=SPACE, weight=1.0, **settings):
    return ppo.make(ppo.Config(**SMALL | settings, exploration_bonus=weight), space, Discrete(2))


def visits(places, ends=()):
    """A rollout [T, N] that goes to these places, with a terminal state at each of these rows, then a time limit."""
    after = jax.nn.one_hot(jnp.asarray(places), PLACES)
    before = jnp.concatenate([jnp.zeros_like(after[:1]).at[..., 0].set(1.0), after[:-1]])
    shape = after.shape[:2]
    done, extras = np.zeros(shape, bool), Extras((), jnp.zeros(shape), ())
    done[list(ends)] = True
    flags = jnp.asarray(done), jnp.asarray(np.roll(done, 1, axis=0))
    return Transition(before, jnp.zeros(shape, jnp.int32), jnp.zeros(shape), *flags, after, extras)


def slow_advantages(bonus, now, last):
    """Generalized advantages of streams without an end."""
    found, ahead, advantage = np.zeros_like(bonus), last, np.zeros_like(last)
    for t in reversed(range(len(bonus))):
        advantage = bonus[t] + GAMMA * ahead - now[t] + GAMMA * LAMBDA * advantage
        found[t], ahead = advantage, now[t]
    return found


def test_advantages_of_the_bonus_go_on_where_an_episode_ends(bonus):
    rollout = visits(np.random.default_rng(0).integers(0, PLACES, (12, 4)), ends=(3, 7))
    after, scaled, advantage, target = estimate(bonus, rollout)
    value = jax.jit(lambda obs: rnd.value(STATIC, after.params, after, obs))
    now, last = value(rollout.obs), value(rollout.next_obs)[-1]
    expected = slow_advantages(*map(np.asarray, (scaled, now, last)))
    np.testing.assert_allclose(advantage, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(target, advantage + now, rtol=1e-5, atol=1e-6)


def test_the_bonus_is_divided_by_the_deviation_of_its_discounted_sum(bonus):
    rng, sums, found = np.random.default_rng(1), np.zeros(4), []
    for _ in range(2):  # the sum goes on in the next rollout, and over the ends of episodes
        rollout = visits(rng.integers(0, PLACES, (12, 4)), ends=(2,))
        bonus, scaled, *_ = estimate(bonus, rollout)
        raw = np.asarray(errors(bonus, rollout))
        for row in raw:
            sums = GAMMA * sums + row
            found.append(sums)
        np.testing.assert_allclose(bonus.normalizer.running_return, sums, rtol=1e-4)
        np.testing.assert_allclose(bonus.normalizer.returns.m2, np.var(found) * 4 * len(found), rtol=1e-2)
        np.testing.assert_allclose(scaled, np.minimum(raw / np.std(found), 10), rtol=5e-3)
    assert bonus.normalizer.obs.count == 96


def test_the_bonus_falls_where_the_agent_was_and_stays_elsewhere(bonus):
    rows = visits(np.random.default_rng(2).integers(0, 3, (12, 4)))
    rows = rows._replace(obs=jnp.broadcast_to(jnp.eye(PLACES)[5], rows.obs.shape))  # what counts is where a step leads

    @jax.jit
    def sixty(bonus):
        def step(bonus, key):
            bonus, _, metrics = rnd.update(STATIC, HYPER, jnp.float32(0.01), bonus, rows, key)
            return bonus, (metrics["predictor_loss"], metrics["bonus_mean"])

        return jax.lax.scan(step, bonus, jax.random.split(jax.random.key(3), 60))

    after, (predictor_loss, mean) = sixty(bonus)
    assert predictor_loss[-1] < 0.05 * predictor_loss[0]
    assert mean[-1] < 0.1 * mean[0]
    places = visits(np.arange(12)[:, None].repeat(4, 1) % PLACES)
    first, now = (errors(b, places)[:PLACES, 0] for b in (bonus.replace(normalizer=after.normalizer), after))
    assert now[:3].max() < 0.05 * first[:3].min()
    assert now[3:].min() > 20 * now[:3].max()
    for a, b in zip(*(jax.tree.leaves(b.target) for b in (bonus, after)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_agent_draws_the_same_numbers_with_a_bonus_of_no_weight():
    """So without it, when nothing of it is made, nothing else can differ either."""
    space = Dict({"privileged": Box(-1, 1, (2,)), "x": Box(-1, 1, (3,))})
    off, on = (made(space, weight, num_epochs=1, num_minibatches=1) for weight in (0.0, 1e-30))
    states = [start(agent, obs_space=space) for agent in (off, on)]
    assert jax.tree.leaves(states[0].bonus) == []
    rollout = rollout_of(off, states[0], 8, 4, space)
    (without, metrics), (silent, more) = (update(a, s, rollout) for a, s in zip((off, on), states, strict=True))
    assert {*more} - {*metrics} == {"predictor_loss", "bonus_value_loss", "bonus_mean"}
    for a, b in zip(*map(jax.tree.leaves, (without, silent.replace(bonus=()))), strict=True):
        np.testing.assert_array_equal(a, b)
    assert more["bonus_mean"] > 0
    assert {*silent.bonus.normalizer.obs.mean} == {"['x']"}
    assert {*on.finite} - {*off.finite} == {*rnd.LOSSES}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "settings",
    [{"recurrent": "mingru", "memory_size": 4}, {"recompute_advantage": True, "normalize_advantage": "batch"}],
)
def test_the_bonus_changes_what_the_policy_learns(settings):
    agents = [made(weight=weight, **settings) for weight in (1e-30, 1.0)]
    states = [start(agent, obs_space=SPACE) for agent in agents]
    rollout = rollout_of(agents[0], states[0], 8, 4, SPACE)
    one, other = (update(agent, state, rollout)[0] for agent, state in zip(agents, states, strict=True))
    policies = [jax.tree.leaves(s.params["params"]["policy"]) for s in (one, other)]
    assert not np.array_equal(policies[0][1], policies[1][1])
    np.testing.assert_array_equal(*(jax.tree.leaves(s.bonus.params)[0] for s in (one, other)))
