"""Compiled programs of the buffers: nothing in a loop touches a whole buffer, and a donated one is not copied."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from hlo import large_operations
from replay_model import ONE, steps

from rlkit import replay

pytestmark = pytest.mark.thorough
CAPACITY = 2**20
BUFFERS = {
    "uniform": replay.uniform(CAPACITY, 256),
    "uniform windows, obs once": replay.uniform(CAPACITY, 256, length=3, store_obs_once=True),
    "prioritized": replay.prioritized(CAPACITY, 256),
    "slices": replay.slices(CAPACITY, 256, 4),
    "slices by episode": replay.slices(CAPACITY, 256, 4, sampling="episode"),
    "padded slices": replay.slices(CAPACITY, 256, 4, strict=False),
    "prioritized slices": replay.slices(CAPACITY, 256, 4, prioritized=True),
}


def cycles(buffer, state, keys):
    """Add, sample and update in a loop; return the samples.

    The new priorities do not depend on the samples, and the samples are returned: so only the buffer's own code orders
    the writes of the update after the reads of the sample.
    """

    def cycle(state, key):
        state = buffer.add(state, steps(2, 8))
        sample = buffer.sample(state, key)
        return buffer.update(state, sample.index, jnp.ones((256,))), sample

    return jax.lax.scan(cycle, state, keys)


@pytest.mark.parametrize(
    ("name", "batch"),
    [
        pytest.param(
            *(name, batch),
            id=f"{name}-{'vmapped' if batch else 'one'}",
            marks=() if (batch is None) == (name in ("uniform", "slices")) else pytest.mark.slow,
        )
        for name in BUFFERS
        for batch in (None, 4)
    ],
)
def test_nothing_in_the_loop_touches_a_whole_buffer(name, batch):
    buffer = BUFFERS[name]
    state, keys = jax.eval_shape(lambda: (buffer.init(ONE, 8), jax.random.split(jax.random.key(0), 3)))
    run = partial(cycles, buffer)
    if batch:
        state, keys = jax.tree.map(lambda x: jax.ShapeDtypeStruct((batch, *x.shape), x.dtype), (state, keys))
        run = jax.vmap(run)
    program = jax.jit(run, donate_argnums=0).lower(state, keys).compile()
    assert large_operations(program.as_text(), CAPACITY // 4) == []  # a quarter: the levels of trees count too
    memory = program.memory_analysis()
    held = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
    assert memory.alias_size_in_bytes >= held  # donated: the state is changed in place
    assert memory.temp_size_in_bytes < 2**20 < held


@pytest.mark.parametrize("name", BUFFERS)
def test_a_donated_buffer_keeps_its_memory_address(name):
    buffer = BUFFERS[name]
    state = buffer.init(ONE, 8)
    address = state.ring.stored.words.unsafe_buffer_pointer()
    state = jax.jit(buffer.add, donate_argnums=0)(state, steps(2, 8))
    assert state.ring.stored.words.unsafe_buffer_pointer() == address


@pytest.mark.parametrize(
    "touch",
    [
        lambda x: jnp.where(x[0] > 0, x, x + 1),
        lambda x: jnp.sort(x),
        lambda x: x.at[3].set(x.sum()),
        lambda x: (x.at[0].set(1.0), x),  # two versions: one of them is a copy
        lambda x: jax.lax.cond(x[0] > 0, lambda: x[::-1], lambda: x),
    ],
    ids=["select", "sort", "reduce", "copy", "cond under vmap"],
)
def test_the_check_fails_for_operations_on_a_whole_buffer(touch):
    loop = jax.vmap(lambda x: jax.lax.scan(lambda x, _: (jax.tree.leaves(touch(x))[0], 0), x, None, length=3)[0])
    copy = jax.vmap(touch)
    shape = jax.ShapeDtypeStruct((2, CAPACITY), jnp.float32)
    texts = [jax.jit(f, donate_argnums=0).lower(shape).compile().as_text() for f in (loop, copy)]
    assert any(large_operations(text, CAPACITY) for text in texts)
