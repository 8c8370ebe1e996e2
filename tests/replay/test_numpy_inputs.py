"""Functions of replay and ops on NumPy arrays that `jax.vmap` and `jax.jit` close over, while an index is traced."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_buffers import fill
from replay_model import steps

from rlkit import replay
from rlkit.ops import chunked, distributional, losses, permutation, returns, schedules, statistics, windows
from rlkit.replay import hindsight, segment_tree, slice_index
from rlkit.types import Transition

pytestmark = pytest.mark.thorough


def on_host(tree):
    return jax.tree.map(np.asarray, tree)


def random(*shape):
    return np.random.default_rng(sum(shape)).uniform(0.1, 1.0, shape).astype(np.float32)


TREE = on_host(segment_tree.build(random(20)))
DONE = np.arange(8)[:, None] % 4 == 3
STARTS = {
    name: on_host(slice_index.build(DONE, slice_len=2, **settings))
    for name, settings in {"slice": {}, "episode": {"sampling": "episode"}, "padded": {"strict": False}}.items()
}
BUFFERS = {
    "uniform": replay.uniform(8, 4),
    "windows": replay.uniform(8, 4, length=2),
    "once": replay.uniform(8, 4, store_obs_once=True),
    "prioritized": replay.prioritized(8, 4),
    "slices": replay.slices(8, 4, 2),
}
STATES = {name: on_host(fill(buffer, 4)) for name, buffer in BUFFERS.items()}
ITEM = Transition(
    obs={"at": random(4, 2), "goal": random(4, 2)}, action=random(4), reward=random(4),
    terminated=np.zeros(4, bool), truncated=np.zeros(4, bool), next_obs={"at": random(4, 2), "goal": random(4, 2)},
)  # fmt: skip
ROLLOUT = on_host(steps(2))
MASK = np.array([True, True, True, False])
FLAGS = np.zeros((5, 2), bool)
STATISTICS = on_host(statistics.running_init(np.zeros(3, np.float32)))
PROBS, ATOMS = np.full((4, 3), 1 / 3, np.float32), np.array([-1, 0, 1], np.float32)
VALUE, ACTION = random(5, 2), np.array([0, 2, 1, 0])


def key(number):
    return jax.random.key(number)


def relabel(number):
    return hindsight.relabel(
        ITEM, MASK, key(number), goal_of=lambda obs: obs["at"], with_goal=lambda obs, goal: obs | {"goal": goal},
        reward_fn=lambda at, goal: (-jnp.sum(jnp.abs(at - goal)), jnp.all(at == goal)),
    )  # fmt: skip


CALLS = {
    "hindsight.relabel": relabel,
    "segment_tree.read": lambda i: segment_tree.read(TREE, i[None]),
    "segment_tree.find": lambda i: segment_tree.find(TREE, i[None].astype(jnp.float32)),
    "segment_tree.write": lambda i: segment_tree.write(TREE, i[None], random(1)),
    "segment_tree.write_run": lambda i: segment_tree.write_run(TREE, i, random(3)),
    "segment_tree.sample": lambda i: segment_tree.sample(TREE, key(i), 3),
    "segment_tree.sample_with_values": lambda i: segment_tree.sample_with_values(TREE, key(i), 3),
    **{f"slice_index.sample {k}": lambda i, s=s: slice_index.sample(s, key(i), 3) for k, s in STARTS.items()},
    **{f"slice_index.add {k}": lambda i, s=s: slice_index.add(s, (i > 1)[None, None]) for k, s in STARTS.items()},
    "slice_index.batch_of_pass": lambda i: slice_index.batch_of_pass(STARTS["slice"], key(0), i, 2),
    "slice_index.at": lambda i: slice_index.at(STARTS["padded"], i[None], np.zeros(1, np.int32)),
    "slice_index.completed_slices": lambda i: slice_index.completed_slices(STARTS["slice"], (i > 1)[None, None]),
    "slice_index.gather": lambda i: slice_index.gather(
        random(8, 1, 2), slice_index.at(STARTS["slice"], i[None], np.zeros(1, np.int32))
    ),
    **{f"{k}.sample": lambda i, k=k: BUFFERS[k].sample(STATES[k], key(i)) for k in BUFFERS},
    **{
        f"{k}.batch_of_pass": lambda i, k=k: BUFFERS[k].batch_of_pass(STATES[k], key(0), i) for k in ("uniform", "once")
    },
    **{
        f"{k}.add": lambda i, k=k: BUFFERS[k].add(
            STATES[k], ROLLOUT._replace(reward=jnp.full((2, 1), i.astype(jnp.float32)))
        )
        for k in BUFFERS
    },
    "prioritized.update": lambda i: BUFFERS["prioritized"].update(
        STATES["prioritized"],
        BUFFERS["prioritized"].sample(STATES["prioritized"], key(0)).index,
        jnp.full(4, i.astype(jnp.float32)),
    ),
    "permutation.permute": lambda i: permutation.permute(key(i), np.arange(5), 9),
    "permutation.permute at": lambda i: permutation.permute(key(0), i, np.int32(9)),
    "statistics.normalize": lambda i: statistics.normalize(STATISTICS, random(3), i.astype(jnp.float32)),
    "statistics.running_update": lambda i: statistics.running_update(STATISTICS, random(4, 3) * i.astype(jnp.float32)),
    "statistics.running_merge": lambda i: statistics.running_merge(
        STATISTICS, statistics.running_update(STATISTICS, random(4, 3) * i.astype(jnp.float32))
    ),
    "statistics.explained_variance": lambda i: statistics.explained_variance(
        random(4), random(4) * i.astype(jnp.float32)
    ),
    "statistics.iqm": lambda i: statistics.iqm(random(4, 2) * i.astype(jnp.float32)),
    "statistics.stratified_bootstrap": lambda i: statistics.stratified_bootstrap(random(4, 2), key(i), resamples=3),
    "chunked.chunked_map": lambda i: chunked.chunked_map(lambda x: x * i.astype(jnp.float32), random(4, 2), 2),
    "schedules.schedule": lambda i: schedules.schedule("linear", i.astype(jnp.float32) / 4),
    "windows.n_step_window": lambda i: windows.n_step_window(ITEM.reward, MASK, MASK, gamma=i.astype(jnp.float32) / 4),
    "losses.q_learning": lambda i: losses.q_learning(random(3), i, np.float32(1), np.float32(1), random(3)),
    "losses.double_q_learning": lambda i: losses.double_q_learning(
        random(3), i, np.float32(1), np.float32(1), random(3), random(3) * i.astype(jnp.float32)
    ),
    "returns.gae": lambda i: returns.gae(
        VALUE, VALUE, VALUE, FLAGS, FLAGS, gamma=i.astype(jnp.float32) / 4, gae_lambda=0.9
    ),
    "returns.lambda_returns": lambda i: returns.lambda_returns(
        VALUE, VALUE, FLAGS, FLAGS, gamma=i.astype(jnp.float32) / 4, lambda_=0.9
    ),
    "returns.n_step_returns": lambda i: returns.n_step_returns(
        VALUE, VALUE, FLAGS, FLAGS, gamma=i.astype(jnp.float32) / 4, n=2
    ),
    "distributional.categorical_projection": lambda i: distributional.categorical_projection(
        PROBS, np.tile(ATOMS, (4, 1)) * i.astype(jnp.float32), ATOMS
    ),
    "distributional.categorical_cross_entropy": lambda i: distributional.categorical_cross_entropy(
        random(4, 3, 3) * i.astype(jnp.float32), ACTION, PROBS
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_arrays_of_numpy_may_be_closed_over(name):
    """By `jax.jit` and by `jax.vmap`: an index of NumPy, or a branch on a value, fails where it is traced."""
    call, numbers = CALLS[name], jax.ShapeDtypeStruct((3,), jnp.int32)
    alone = jax.eval_shape(call, jax.ShapeDtypeStruct((), jnp.int32))
    mapped = jax.eval_shape(jax.vmap(call), numbers)
    assert jax.tree.map(lambda x: ((3, *x.shape), x.dtype), alone) == jax.tree.map(lambda x: (x.shape, x.dtype), mapped)


@pytest.mark.parametrize("name", ["slice_index.sample slice", "prioritized.sample", "segment_tree.write"])
def test_the_results_are_those_of_a_call_that_is_not_transformed(name):
    call, numbers = CALLS[name], jnp.arange(3)
    expected = [on_host(call(number)) for number in numbers]
    jitted, mapped = jax.jit(call), on_host(jax.vmap(call)(numbers))
    for n, single in enumerate(expected):
        for other in (on_host(jitted(numbers[n])), jax.tree.map(lambda x, n=n: x[n], mapped)):
            jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), single, other)
