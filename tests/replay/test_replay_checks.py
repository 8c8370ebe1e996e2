"""Replay buffers: errors of bad settings, and of a broken state."""

import jax
import jax.numpy as jnp
import pytest
from buffer_invariants import check_buffer
from compiled_buffers import fill, prioritized, with_counts
from replay_model import KINDS, ONE, Harness, N, R, steps

from rlkit import replay
from rlkit.replay import packing, segment_tree
from rlkit.replay.validation import check_capacity
from rlkit.types import ConfigError


def flags_changed(state):
    """Set the terminated flags of the second row."""
    steps = state.ring.steps
    changed = packing.pack(state.ring.stored.layout, steps._replace(terminated=steps.terminated.at[1].set(True)))
    return state.replace(ring=state.ring.replace(stored=changed))


def with_words(state, words):
    return state.replace(ring=state.ring.replace(stored=state.ring.stored.replace(words=words)))


def with_mass(state, place, mass):
    tree = segment_tree.write(state.priorities.mass, jnp.array([place]), jnp.array([mass]))
    return state.replace(priorities=state.priorities.replace(mass=tree))


BROKEN = {  # a kind, a change that breaks it, and the message
    "count": ("uniform", lambda s: with_counts(s, rows=R + 1), "ring.count=9"),
    "beta": ("prioritized", lambda s: s.replace(beta=jnp.float32(jnp.nan)), "beta=nan"),
    "words": (
        "uniform",
        lambda s: with_words(s, s.ring.stored.words[1:]),
        rf"ring.stored.words is \[{R - 1}, {N}, .*not \[{R}, {N}, ",
    ),
    "head": ("slices", lambda s: with_counts(s, head=s.ring.head + 1), "and the ring at"),
    "flags": ("slices", flags_changed, "the index counts .* slices, and the stored flags allow"),
    "ended": ("padded slices", flags_changed, "index.ended differs"),
    "mass": ("prioritized slices", None, "has mass 5 and could be drawn"),
    "final_obs": (
        "uniform, obs once",
        lambda s: s.replace(ring=s.ring.replace(final_obs=s.ring.final_obs.replace(count=s.ring.final_obs.count * 0))),
        "final_obs.number of a truncated step",
    ),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_check_names_the_broken_field(broken):
    kind, change, message = BROKEN[broken]
    harness = Harness(*KINDS[kind])
    for num_steps in (R, 3, 1, 1):
        harness.add(num_steps)
    check_buffer(harness.state)
    if change is None:
        legal = {row % R * N + env for row, env in harness.model.starts()}
        place = min(set(range(R * N)) - legal)
        change = lambda state: with_mass(state, place, 5.0)  # noqa: E731
    with pytest.raises(ValueError, match=message):
        check_buffer(change(harness.state))


ERRORS = {
    "capacity=0 must be an integer of at least 1": lambda: replay.uniform(0, 4),
    "batch_size=0 must be an integer": lambda: replay.prioritized(8, 0),
    "num_envs=0 must be an integer of at least 1": lambda: replay.uniform(8, 4).init(ONE, 0),
    "capacity=10 must be a multiple of num_envs = 4; try 8 or 12$": lambda: replay.uniform(10, 4).init(ONE, 4),
    "capacity=6 must be a multiple of num_envs = 4; try 12$": lambda: replay.uniform(6, 4, length=3).init(ONE, 4),
    "capacity=7 must be a multiple of the 3 streams of dataset='d'; try 12$": lambda: check_capacity(
        7, 3, min_rows=4, divisor="the 3 streams of dataset='d'"
    ),
    "capacity=9 must be at least 12, for the 12 steps of dataset='d'; try 12$": lambda: check_capacity(
        9, 3, min_rows=4, purpose="the 12 steps of dataset='d'"
    ),
    "capacity=2147483647 must be a multiple of num_envs = 4; try 2147483644$": lambda: check_capacity(2**31 - 1, 4),
    "capacity=8 must be at least 12": lambda: replay.uniform(8, 4, length=3).init(ONE, 4),
    "length=0 must be an integer": lambda: replay.uniform(8, 4, length=0),
    "eps=-1 must be finite": lambda: replay.prioritized(8, 4, eps=-1),
    "beta=nan must be finite": lambda: replay.prioritized(8, 4, beta=float("nan")),
    "slice_len=0 must be an integer": lambda: replay.slices(8, 4, 0),
    "sampling='episode' has no meaning with cross": lambda: replay.slices(
        8, 4, 2, sampling="episode", cross_episodes=True
    ),
    "alpha=-1 must be finite": lambda: replay.prioritized(8, 4, alpha=-1),
    "start_priority=0 must be finite and above 0": lambda: replay.prioritized(8, 4, start_priority=0),
    "max_final_obs=3 is for store_obs_once": lambda: replay.uniform(8, 4, max_final_obs=3),
    "max_final_obs=9 must lie in": lambda: replay.uniform(8, 4, store_obs_once=True, max_final_obs=9),
    "num_slices=0 must be an integer": lambda: replay.slices(8, 0, 4),
    "sampling='steps' must be": lambda: replay.slices(8, 4, 2, sampling="steps"),
    "sampling='episode' has no meaning with prioritized": lambda: replay.slices(
        8, 4, 2, sampling="episode", prioritized=True
    ),
    "strict=False": lambda: replay.slices(8, 4, 2, strict=False, cross_episodes=True),
    "obs is float32 of shape": lambda: replay.uniform(8, 4).add(
        replay.uniform(8, 4).init(ONE, 1), steps(2, obs=jnp.zeros((2, 1, 1)))
    ),
    "rollout has the structure": lambda: replay.uniform(8, 4).add(
        replay.uniform(8, 4).init(ONE, 1), steps(2, extras=(jnp.zeros((2, 1)),))
    ),
    "priority has shape": lambda: prioritized(8, 4).update(
        fill(prioritized(8, 4), 8),
        prioritized(8, 4).sample(fill(prioritized(8, 4), 8), jax.random.key(0)).index,
        jnp.zeros((4, 1)),
    ),
}


@pytest.mark.parametrize("message", ERRORS)
def test_mistakes_are_named_in_one_line(message):
    with pytest.raises(ValueError, match=message) as caught:
        ERRORS[message]()
    assert "\n" not in str(caught.value)
    if "shape" not in message and "structure" not in message:
        assert isinstance(caught.value, ConfigError)
