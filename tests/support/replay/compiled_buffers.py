"""Replay buffers with compiled functions, and states made of them."""

import jax
from replay_model import ONE, steps

from rlkit import replay


def compiled(make):
    """Wrap a constructor so that its buffers have compiled functions; op by op they take seconds to compile."""

    def compiled_buffer(*args, **kwargs):
        buffer = make(*args, **kwargs)
        return buffer._replace(**{name: jax.jit(getattr(buffer, name)) for name in ("add", "sample", "update", "size")})

    return compiled_buffer


uniform, prioritized, slices = map(compiled, (replay.uniform, replay.prioritized, replay.slices))


def fill(buffer, num_steps: int, num_envs: int = 1):
    return jax.jit(buffer.add)(buffer.init(ONE, num_envs), steps(num_steps, num_envs))


def with_counts(state, **counts):
    return state.replace(ring=state.ring.replace(cursor=state.ring.cursor.with_counts(**counts)))
