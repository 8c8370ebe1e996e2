"""rlkit.replay.slice_index: errors of bad arguments, and of a broken index."""

import jax
import numpy as np
import pytest
from index_invariants import check_index
from slice_index_model import KINDS, build, picture

from rlkit.replay import slice_index


def test_mistakes_are_named():
    for kwargs, message in [
        ({"num_rows": 0}, "num_rows=0 must be an integer of at least 1"),
        ({"slice_len": 0}, "slice_len=0 must be an integer of at least 1"),
        ({"slice_len": 9}, "slice_len=9 must be at most num_rows=8"),
        ({"num_rows": 2**30}, "num_rows \\* num_envs = 2147483648 must be below 2\\^31"),
        ({"sampling": "step"}, "sampling='step' must be one of 'slice', 'episode'"),
        ({"sampling": "episode", "cross_episodes": True}, "sampling='episode' needs cross_episodes=False"),
    ]:
        with pytest.raises(ValueError, match=message):
            slice_index.init(**({"num_rows": 8, "num_envs": 2, "slice_len": 3} | kwargs))
    state = slice_index.init(8, 2, 3)
    for done, message in [
        (np.zeros((9, 2), bool), "done has 9 rows, expected 1 to 8"),
        (np.zeros((4, 3), bool), r"done has shape \(4, 3\), expected \(4, 2\)"),
        (np.zeros((4, 2), np.float32), "done has dtype float32, expected bool"),
    ]:
        for fn in (slice_index.add, slice_index.completed_slices):
            with pytest.raises(ValueError, match=message):
                fn(state, done)
    with pytest.raises(ValueError, match="sampling='slice' must be 'episode' for num_episodes"):
        slice_index.num_episodes(state)
    with pytest.raises(ValueError, match="sampling='episode' must be 'slice' for batch_of_pass"):
        slice_index.batch_of_pass(slice_index.init(8, 2, 3, sampling="episode"), jax.random.key(0), 0, 4)
    with pytest.raises(ValueError, match="slice_len=0 must be an integer of at least 1"):
        slice_index.slice_starts_from_done(np.zeros((3, 2), bool), 0)
    with pytest.raises(ValueError, match="call it outside of jit"):
        jax.jit(lambda state: check_index(state))(state)


def break_ring(**values):
    return lambda s: s.replace(ring=s.ring.with_counts(**values))


def break_queue(name, **changes):
    def change(state):
        queue = getattr(state, name)
        return state.replace(**{name: queue.replace(**{k: f(getattr(queue, k)) for k, f in changes.items()})})

    return change


def swap(x):
    return x.at[:2].set(x[:2][::-1])


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("strict", break_ring(rows=21), "rows=21 is at most num_rows=20"),
        ("strict", break_ring(slot=20), "slot=20 is below"),
        ("strict", lambda s: s.replace(age=s.age + 9), "no longer than what is stored"),
        ("strict", break_queue("starts", head=lambda x: x + 10_000), "below twice the capacity"),
        ("strict", break_queue("starts", tail=lambda x: x + 1), "come after those of the row before"),
        ("strict", break_queue("starts", before=lambda x: x.at[2].set(1)), "the first row .* has the tail"),
        ("strict", break_queue("starts", items=swap), "environments of one row are in order"),
        ("strict, by episode", break_queue("starts", head=lambda x: x + 1), "slices are the"),
        ("strict, by episode", break_queue("episodes", items=lambda x: (x[0], x[1] - 3)), "episodes have a slice"),
        ("strict, by episode", break_queue("episodes", items=lambda x: (x[0], x[1] + 3)), "slices are the|overlap"),
        ("padded, by episode", break_queue("episodes", items=lambda x: (x[0], x[1] + 3)), "do not overlap"),
        ("padded, by episode", lambda s: s.replace(age=s.age.at[0].add(3)), "comes after the finished"),
        ("padded, by episode", lambda s: s.replace(ended=s.ended.at[5, 1].set(~s.ended[5, 1])), "`ended` marks"),
        ("padded", lambda s: s.replace(ended=s.ended[:5]), "`ended` is"),
    ],
)
def test_check_names_the_broken_rule(kind, change, message):
    done = picture("...|....|.....", "......|....|..", "............")
    state = build(done, num_rows=20, slice_len=3, **KINDS[kind])
    check_index(state)
    with pytest.raises(ValueError, match=message):
        check_index(change(state))
