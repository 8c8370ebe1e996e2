"""Every public function of rlkit.ops and of replay's structures gives the same eagerly, under jit, vmap and scan.

This holds under strict dtype and rank promotion (tests/conftest.py) and with JAX's check for reused keys. A public
function or method that is missing from the table below fails a test.
"""

import inspect
from collections.abc import Callable, Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from public_definitions import definitions

from rlkit import ops
from rlkit.ops import chunked, distributional, images, losses, permutation, returns, schedules, statistics, windows
from rlkit.ops.distributions import Categorical, DiagNormal, Joint, MultiDiscrete, TanhNormal
from rlkit.replay import segment_tree, slice_index

MODULES = {name: getattr(ops, name) for name in ops.__all__} | {
    "segment_tree": segment_tree,
    "slice_index": slice_index,
}
ROWS = 2  # sets of arguments for each function


def public_functions() -> Iterator[str]:
    """Names of functions, `module.function`, and of methods defined by public classes, `module.Class.method`."""
    for module_name, module in MODULES.items():
        for name, member in definitions(module.__name__, methods=True):
            if inspect.isfunction(member):
                yield f"{module_name}.{name}"


# Makers of arguments: functions of a key.


def floats(*shape: int) -> Callable:
    return lambda key: jax.random.normal(key, shape)


def positive(*shape: int) -> Callable:
    return lambda key: jnp.exp(jax.random.normal(key, shape))


def bools(*shape: int) -> Callable:
    return lambda key: jax.random.bernoulli(key, 0.4, shape)


def ints(n: int, *shape: int) -> Callable:
    return lambda key: jax.random.randint(key, shape, 0, n)


def fresh_key(key):
    return jax.random.fold_in(key, 0)


def of(make: Callable, *parts: Callable) -> Callable:
    return lambda key: make(*(part(k) for part, k in zip(parts, jax.random.split(key, len(parts)), strict=True)))


T, B, A = (5,), (4,), (4, 3)
ENDS = (bools(*T), bools(*T))
NVEC = (2, 1)
ATOMS = np.linspace(-1.0, 1.0, 3, dtype=np.float32)
CATEGORICAL = of(Categorical, floats(*A))
MULTI = of(partial(MultiDiscrete, nvec=NVEC), floats(*A))
DIAG = of(DiagNormal, floats(4, 2), positive(4, 2))
TANH = of(partial(TanhNormal, low=-2.0, high=3.0), floats(4, 2), positive(4, 2))
JOINT = of(lambda *parts: Joint({"a": parts[0], "b": (parts[1],)}), CATEGORICAL, DIAG)
RUNNING = of(lambda x: statistics.running_update(statistics.running_init({"x": jnp.zeros(2)}), {"x": x}), floats(6, 2))
SLICES = of(partial(slice_index.build, slice_len=2, num_rows=6), bools(5, 2))
EPISODES = of(partial(slice_index.build, slice_len=2, num_rows=6, sampling="episode"), bools(5, 2))
TREE = of(partial(segment_tree.build, fanout=2), positive(150))
DISCOUNT = of(lambda going: jnp.where(going, 0.9, 0.0), bools(*B))

TABLE: dict[str, tuple] = {
    "chunked.num_chunks": (lambda x: x * chunked.num_chunks(x.shape[0], 3), floats(6, 2)),
    "chunked.chunked_map": (lambda x: chunked.chunked_map(jnp.sin, x, 3), floats(7, 2)),
    "permutation.permutations": (lambda key: permutation.permutations(key, 2, 300), fresh_key),
    "permutation.permute": (lambda key, i: permutation.permute(key, i, 300), fresh_key, ints(300, 5)),
    "images.random_shift": (partial(images.random_shift, pad=2), fresh_key, floats(2, 5, 6, 3)),
    "schedules.schedule": (partial(schedules.schedule, "cosine"), floats(4)),
    "segment_tree.init": (lambda x: segment_tree.init(x.size, ("sum", "max")), floats(150)),
    "segment_tree.build": (partial(segment_tree.build, fanout=4), positive(150)),
    "segment_tree.from_leaves": (segment_tree.from_leaves, positive(150)),
    "segment_tree.write": (segment_tree.write, TREE, ints(150, 4), positive(4)),
    "segment_tree.write_run": (segment_tree.write_run, TREE, ints(146), positive(4)),
    "segment_tree.total": (segment_tree.total, TREE),
    "segment_tree.minimum": (segment_tree.minimum, TREE),
    "segment_tree.maximum": (segment_tree.maximum, TREE),
    "segment_tree.values": (segment_tree.values, TREE),
    "segment_tree.read": (segment_tree.read, TREE, ints(150, 2, 3)),
    "segment_tree.find": (segment_tree.find, TREE, positive(4)),
    "segment_tree.sample": (partial(segment_tree.sample, batch_size=5), TREE, fresh_key),
    "segment_tree.sample_with_values": (partial(segment_tree.sample_with_values, batch_size=5), TREE, fresh_key),
    "slice_index.init": (lambda x: slice_index.init(*x.shape, 2), floats(4, 2)),
    "slice_index.build": (partial(slice_index.build, slice_len=2, strict=False), bools(5, 2)),
    "slice_index.add": (slice_index.add, SLICES, bools(3, 2)),
    "slice_index.completed_slices": (slice_index.completed_slices, SLICES, bools(3, 2)),
    "slice_index.size": (slice_index.size, SLICES),
    "slice_index.num_episodes": (slice_index.num_episodes, EPISODES),
    "slice_index.sample": (partial(slice_index.sample, num_slices=7), EPISODES, fresh_key),
    "slice_index.batch_of_pass": (partial(slice_index.batch_of_pass, num_slices=3), SLICES, fresh_key, ints(2)),
    "slice_index.clear": (slice_index.clear, SLICES),
    "slice_index.at": (slice_index.at, SLICES, ints(6, *B), ints(2, *B)),
    "slice_index.slice_starts_from_done": (partial(slice_index.slice_starts_from_done, slice_len=2), bools(*T)),
    "returns.gae": (partial(returns.gae, gamma=0.9, gae_lambda=0.8), *[floats(*T)] * 3, *ENDS),
    "returns.lambda_returns": (partial(returns.lambda_returns, gamma=0.9, lambda_=0.8), *[floats(*T)] * 2, *ENDS),
    "returns.n_step_returns": (partial(returns.n_step_returns, gamma=0.9, n=3), *[floats(*T)] * 2, *ENDS),
    "returns.vtrace": (partial(returns.vtrace, gamma=0.9), *[floats(*T)] * 3, *ENDS, *[floats(*T)] * 2),
    "returns.retrace": (partial(returns.retrace, gamma=0.9, lambda_=0.8), *[floats(*T)] * 3, *ENDS, *[floats(*T)] * 2),
    "windows.n_step_window": (partial(windows.n_step_window, gamma=0.9), floats(*B, 3), *[bools(*B, 3)] * 2),
    "losses.ppo_clip": (partial(losses.ppo_clip, clip_eps=(0.2, 0.3), dual_clip=2.0), *[floats(*B)] * 3),
    "losses.kl_approx": (losses.kl_approx, *[floats(*B)] * 2),
    "losses.adaptive_kl_coef": (partial(losses.adaptive_kl_coef, target_kl=0.3), *[positive()] * 2),
    "losses.normalize_advantage": (losses.normalize_advantage, floats(*B), bools(*B)),
    "losses.clipped_value_loss": (partial(losses.clipped_value_loss, clip_eps=0.2), *[floats(*B)] * 3),
    "losses.huber": (losses.huber, floats(*B), positive()),
    "losses.td_error": (losses.td_error, *[floats(*B)] * 2, DISCOUNT, floats(*B)),
    "losses.q_learning": (losses.q_learning, floats(*A), ints(3, *B), floats(*B), DISCOUNT, floats(*A)),
    "losses.double_q_learning": (
        losses.double_q_learning,
        floats(*A),
        ints(3, *B),
        floats(*B),
        DISCOUNT,
        *[floats(*A)] * 2,
    ),
    "losses.signed_hyperbolic": (losses.signed_hyperbolic, floats(*B)),
    "losses.signed_parabolic": (losses.signed_parabolic, floats(*B)),
    "distributional.categorical_projection": (
        lambda p, z: distributional.categorical_projection(p, z, ATOMS),
        *[floats(4, 3)] * 2,
    ),
    "distributional.categorical_target": (
        lambda *args: distributional.categorical_target(*args, ATOMS),
        floats(*B),
        DISCOUNT,
        floats(4, 2, 3),
        floats(4, 2),
    ),
    "distributional.categorical_cross_entropy": (
        distributional.categorical_cross_entropy,
        floats(4, 2, 3),
        ints(2, *B),
        positive(4, 3),
    ),
    "distributional.categorical_double_q_learning": (
        lambda *args: distributional.categorical_double_q_learning(*args, ATOMS),
        floats(4, 2, 3),
        ints(2, *B),
        floats(*B),
        DISCOUNT,
        floats(4, 2, 3),
        floats(4, 2),
    ),
    "distributional.quantile_q_learning": (
        distributional.quantile_q_learning,
        floats(4, 2, 3),
        lambda key: jax.random.uniform(key, (2,)),
        ints(3, *B),
        floats(*B),
        DISCOUNT,
        *[floats(4, 2, 3)] * 2,
    ),
    "distributional.quantile_huber": (
        distributional.quantile_huber,
        floats(4, 3),
        lambda key: jax.random.uniform(key, (3,)),
        floats(4, 5),
    ),
    "statistics.running_init": (lambda x: statistics.running_init({"x": x}), floats(3)),
    "statistics.running_update": (statistics.running_update, RUNNING, lambda key: {"x": floats(4, 2)(key)}),
    "statistics.running_merge": (statistics.running_merge, RUNNING, RUNNING),
    "statistics.running_std": (statistics.running_std, RUNNING),
    "statistics.normalize": (statistics.normalize, RUNNING, lambda key: {"x": floats(4, 2)(key)}),
    "statistics.explained_variance": (statistics.explained_variance, *[floats(*B)] * 2),
    "statistics.iqm": (statistics.iqm, floats(5, 2)),
    "statistics.stratified_bootstrap": (partial(statistics.stratified_bootstrap, resamples=7), floats(5, 2), fresh_key),
    "statistics.iqm_interval": (partial(statistics.iqm_interval, resamples=7), floats(5, 2), fresh_key),
    "distributions.Categorical.masked": (lambda x, m: Categorical.masked(x, m).entropy(), floats(*A), bools(*A)),
    "distributions.Categorical.probs": (lambda d: d.probs, CATEGORICAL),
    "distributions.Categorical.log_probs": (lambda d: d.log_probs, CATEGORICAL),
    "distributions.MultiDiscrete.masked": (
        lambda x, m: MultiDiscrete.masked(x, NVEC, m).entropy(),
        floats(*A),
        bools(*A),
    ),
    "distributions.MultiDiscrete.parts": (lambda d: d.parts, MULTI),
    "distributions.Joint.map": (lambda d: d.map(lambda part: part.entropy()), JOINT),
    "distributions.Joint.total": (lambda d: d.total(lambda part: part.entropy()), JOINT),
    "distributions.Joint.split": (lambda d, key: jax.tree.map(jax.random.key_data, d.split(key)), JOINT, fresh_key),
    "distributions.TanhNormal.normal": (lambda d: d.normal, TANH),
    "distributions.TanhNormal.squash": (TanhNormal.squash, TANH, floats(4, 2)),
    "distributions.TanhNormal.sample_pre_tanh": (TanhNormal.sample_pre_tanh, TANH, fresh_key),
    "distributions.TanhNormal.log_prob_pre_tanh": (TanhNormal.log_prob_pre_tanh, TANH, floats(4, 2)),
}
for example, action in (
    (CATEGORICAL, ints(3, 4)),
    (MULTI, ints(1, 4, 2)),
    (DIAG, floats(4, 2)),
    (TANH, lambda key: jax.random.uniform(key, (4, 2))),
    (JOINT, of(lambda a, b: {"a": a, "b": (b,)}, ints(3, 4), floats(4, 2))),
):
    kind = type(example(jax.random.key(0)))
    name = f"distributions.{kind.__name__}"
    TABLE |= {
        f"{name}.sample": (kind.sample, example, fresh_key),
        f"{name}.mode": (kind.mode, example),
        f"{name}.log_prob": (kind.log_prob, example, action),
        f"{name}.entropy": (kind.entropy, example),
        f"{name}.kl": (kind.kl, example, example),
    }


# Of dear programs, those that are part of another function's, or like it.
SLOW = {
    *("segment_tree.build", "segment_tree.from_leaves", "segment_tree.write_run", "segment_tree.sample"),
    *("slice_index.build", "slice_index.add", "slice_index.sample", "slice_index.completed_slices"),
    *("permutation.permute", "statistics.stratified_bootstrap", "distributional.categorical_projection"),
}


def test_the_table_names_every_public_function():
    assert set(public_functions()) == set(TABLE) >= SLOW


def fresh(x: jax.Array) -> jax.Array:
    """The same array; keys in it count as unused."""
    return jax.random.clone(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x


def stack(*leaves: jax.Array) -> jax.Array:
    """The leaves as one array, in which keys count as unused: JAX's check counts stacking as a use."""
    return fresh(jnp.stack(leaves))


@pytest.mark.thorough
@pytest.mark.parametrize("name", [pytest.param(x, marks=pytest.mark.slow if x in SLOW else ()) for x in TABLE])
def test_eager_jit_vmap_and_scan_agree(name: str):
    fn, *makers = TABLE[name]
    keys = jax.random.split(jax.random.key(0), (ROWS, len(makers)))
    arguments = [tuple(make(k) for make, k in zip(makers, row, strict=True)) for row in keys]

    def rows() -> list[tuple]:
        """The sets of arguments, with unused keys, for each way of calling."""
        return jax.tree.map(fresh, arguments)

    traces = []

    def counted(*args):
        traces.append(args)
        return fn(*args)

    @jax.jit
    def compiled(row, batch, sequence):
        """The function of one row, under vmap, and in a scan, in one program."""
        scanned = jax.lax.scan(lambda _, row: (None, fn(*row)), None, sequence)[1]
        return counted(*row), jax.vmap(lambda *args: fn(*args))(*batch), scanned

    with jax.debug_key_reuse(True):
        eager = [fn(*args) for args in rows()]
        results = [compiled(row, *(jax.tree.map(stack, *rows()) for _ in range(2))) for row in rows()]
    assert len(traces) == 1
    (_, *stacked) = results[0]
    for i, expected in enumerate(eager):
        one_by_one = [jax.tree.map(lambda x, i=i: x[i], batch) for batch in stacked]
        ways = dict(zip(("jit", "vmap", "scan"), (results[i][0], *one_by_one), strict=True))
        for way, result in ways.items():
            assert jax.tree.structure(result) == jax.tree.structure(expected), way
            for a, b in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
                assert (a.shape, a.dtype) == (b.shape, b.dtype), way
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5, err_msg=way)


def test_a_key_used_twice_is_reported():
    """The check for reused keys, on which the test above relies, is on."""
    twice = jax.jit(lambda key: jax.random.normal(key) + jax.random.uniform(key))
    with jax.debug_key_reuse(True), pytest.raises(jax.errors.KeyReuseError):
        twice(jax.random.key(0))
