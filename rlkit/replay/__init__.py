"""Replay buffers as pure functions on states of arrays: uniform, prioritized, and slices of episodes.

    buffer = replay.prioritized(capacity=2**20, batch_size=256)
    state = buffer.init(example, num_envs)            # example: one Transition, leaves [...]
    state = buffer.add(state, rollout)                # leaves [T, N, ...]
    sample = buffer.sample(state, key)                # item, index, weight [B], mask
    state = buffer.update(state, sample.index, td_error)

A step is a `Transition`, or any pytree of arrays with at least one leaf. Windows (`length` above 1) and slices need the
fields `terminated` and `truncated`, bool [], in a named tuple, a dataclass or a dict; `store_obs_once` needs a
Transition. All rows have the structure, shapes and dtypes of the example.

A rollout has one row for each time and one column for each environment, all of them full. Environments that advance
out of step do not give such rows. Either wait until each has taken its next step, and add the row then; or keep one
buffer for each environment, `init(example, 1)`, with an equal share of the capacity and of the batch, and add whatever
that environment has: rollouts [T, 1, ...], T from case to case. (A column stands for one stream in order of time:
never fill it from whichever environment is ready, as windows, slices and `store_obs_once` read the next row as the
next step.)

    sample = buffer.batch_of_pass(state, key, k)      # without replacement: batch k of an epoch over all items
    item = jax.vmap(relabel)(sample.item, sample.mask, keys)    # of slices; relabel: hindsight.relabel, bound
    state = replay.clear(state)                       # empty, in the same memory where the state is donated

In a jitted loop, add first, then sample and update as often as needed. An add that does not depend on every sample
drawn before it in the same iteration costs a copy of the buffer. Called from Python, donate the state, as in
`jax.jit(buffer.add, donate_argnums=0)`; otherwise every call copies it. For a CPU, benchmarks/replay/NOTES.md gives two
settings of the process that make such calls up to three times as fast.
"""

from rlkit.replay import hindsight
from rlkit.replay.clearing import clear
from rlkit.replay.prioritized_buffer import prioritized
from rlkit.replay.slice_buffer import slices
from rlkit.replay.uniform_buffer import uniform

__all__ = ["clear", "hindsight", "prioritized", "slices", "uniform"]
