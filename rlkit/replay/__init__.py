"""Replay buffers as pure functions on states of arrays: uniform, prioritized, and slices of episodes.

    buffer = replay.prioritized(capacity=2**20, batch_size=256)
    state = buffer.init(example, num_envs)            # example: one Transition, leaves [...]
    state = buffer.add(state, rollout)                # leaves [T, N, ...]
    sample = buffer.sample(state, key)                # item, index, weight [B], mask
    state = buffer.update(state, sample.index, td_error)

In a jitted loop, add first, then sample and update as often as needed. An add that does not depend on every sample
drawn before it in the same iteration costs a copy of the buffer. Called from Python, donate the state, as in
`jax.jit(buffer.add, donate_argnums=0)`; otherwise every call copies it. For a CPU, benchmarks/replay/NOTES.md gives two
settings of the process that make such calls up to three times as fast.
"""

from rlkit.replay.invariants import check
from rlkit.replay.prioritized_buffer import prioritized
from rlkit.replay.slice_buffer import slices
from rlkit.replay.uniform_buffer import uniform

__all__ = ["check", "prioritized", "slices", "uniform"]
