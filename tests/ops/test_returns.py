"""Returns: numbers by hand, a float64 loop over every pattern of episode ends, identities, jit, vmap and grad."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilations import compilations
from jax.test_util import check_grads
from slow_returns import GAMMA, LAMBDA, SLOW

from rlkit.ops import returns

NAMES = ("reward", "value", "next_value", "terminated", "truncated", "log_prob", "behavior_log_prob")
FUNCTIONS = {
    "gae": (partial(returns.gae, gamma=GAMMA, gae_lambda=LAMBDA), NAMES[:5]),
    "lambda_returns": (
        partial(returns.lambda_returns, gamma=GAMMA, lambda_=LAMBDA),
        ("reward", "next_value", "terminated", "truncated"),
    ),
    "n_step_returns": (
        partial(returns.n_step_returns, gamma=GAMMA, n=3),
        ("reward", "next_value", "terminated", "truncated"),
    ),
    "vtrace": (partial(returns.vtrace, gamma=GAMMA, rho_clip=1.2, c_clip=0.8), NAMES),
    "retrace": (
        partial(returns.retrace, gamma=GAMMA, lambda_=LAMBDA),
        ("reward", "q", "next_value", "terminated", "truncated", "log_prob", "behavior_log_prob"),
    ),
}
JITTED = {name: jax.jit(fn) for name, (fn, _) in FUNCTIONS.items()}
every_function = pytest.mark.parametrize("name", FUNCTIONS)


def stream(seed: int, shape: tuple[int, ...], end_rate: float = 0.3) -> dict[str, np.ndarray]:
    """Random rows in float64; next_value is the next row's value except at episode ends, as in a real rollout."""
    rng = np.random.default_rng(seed)
    rows = {k: rng.normal(size=shape) for k in ("reward", "value", "next_value", "log_prob", "behavior_log_prob")}
    rows |= {k: rng.random(shape) < end_rate for k in ("terminated", "truncated")}
    inside = ~(rows["terminated"] | rows["truncated"])[:-1]
    rows["next_value"][:-1] = np.where(inside, rows["value"][1:], rows["next_value"][:-1])
    rows["q"] = rows["value"]
    return rows


def call(name: str, rows: dict, dtype=np.float32):
    fn, names = JITTED[name], FUNCTIONS[name][1]
    return fn(*(rows[k] if rows[k].dtype == bool else rows[k].astype(dtype) for k in names))


@every_function
@pytest.mark.parametrize("kind", ["terminated", "truncated", "both", "random"])
def test_every_pattern_of_ends_against_a_slow_loop(name: str, kind: str):
    """All 2^6 patterns of ends in six steps, in 64 streams."""
    rows = stream(0, (6, 64))
    ends = np.array(list(itertools.product([False, True], repeat=6))).T
    coin = np.random.default_rng(1).random(ends.shape) < 0.5
    rows["terminated"] = ends & {"terminated": True, "truncated": False, "both": True, "random": coin}[kind]
    rows["truncated"] = ends & {"terminated": False, "truncated": True, "both": True, "random": ~coin}[kind]
    with jax.enable_x64(True):
        ours = call(name, rows, np.float64)
        for j in range(ends.shape[1]):
            theirs = SLOW[name]({k: v[:, j] for k, v in rows.items()})
            jax.tree.map(lambda a, b, j=j: np.testing.assert_allclose(a[:, j], b, rtol=1e-12, atol=1e-12), ours, theirs)


@pytest.mark.parametrize(
    ("terminated", "truncated", "expected"),
    [(False, True, [7.695, 9.0]), (True, False, [-7.695, -9.0]), (True, True, [-7.695, -9.0])],
)
def test_gae_by_hand_at_both_kinds_of_end(terminated: bool, truncated: bool, expected: list[float]):
    """r = 1, V = 10, V(final observation) = 20; the row after the end belongs to another episode."""
    advantage = returns.gae(
        np.float32([1, 1, 1e6]),
        np.float32([10, 10, 10]),
        np.float32([10, 20, 10]),
        np.array([False, terminated, False]),
        np.array([False, truncated, False]),
        gamma=0.9,
        gae_lambda=0.95,
    )
    np.testing.assert_allclose(advantage[:2], expected, rtol=1e-6)


def test_lambda_returns_by_hand():
    """Two steps, γ = λ = 1/2: G_1 = 2 + 4/2, G_0 = 1 + (3/2 + G_1/2)/2."""
    no = np.zeros(2, bool)
    out = returns.lambda_returns(np.float32([1, 2]), np.float32([3, 4]), no, no, gamma=0.5, lambda_=0.5)
    np.testing.assert_allclose(out, [2.75, 4.0])


def test_n_step_stops_at_a_truncation_with_the_power_of_the_steps_taken():
    """n = 3, γ = 0.9, cut after 2: 1 + 0.9 + 0.81 V(final)."""
    cut = np.array([False, True, False, False])
    args = (np.ones(4, np.float32), np.float32([7, 100, 7, 7]), np.zeros(4, bool), cut)
    out = returns.n_step_returns(*args, gamma=0.9, n=3)
    np.testing.assert_allclose(out, [1.9 + 0.81 * 100, 1 + 0.9 * 100, 1.9 + 0.81 * 7, 1 + 0.9 * 7], rtol=1e-6)


def test_vtrace_by_hand():
    """ρ = (2 clipped to 1, 1/2), γ = 1: δ_1 = (4 - 2)/2, δ_0 = 1 + 2 - 1; v_1 = 2 + 1, v_0 = 1 + 2 + 1."""
    no = np.zeros(2, bool)
    ratio = np.log(np.float32([2.0, 0.5]))
    zero = np.zeros(2, np.float32)
    out = returns.vtrace(np.float32([1, 1]), np.float32([1, 2]), np.float32([2, 3]), no, no, ratio, zero, gamma=1.0)
    np.testing.assert_allclose(out.target, [4.0, 3.0], rtol=1e-6)
    np.testing.assert_allclose(out.advantage, [3.0, 1.0], rtol=1e-6)


def test_retrace_by_hand():
    """γ = 1, λ = 1, c_1 = 1/2: G_1 = 1 + 3, G_0 = 1 + [2 + (4 - 2)/2]."""
    no = np.zeros(2, bool)
    log_ratio = np.log(np.float32([9.0, 0.5]))
    zero = np.zeros(2, np.float32)
    for first in (5, 1e9, np.nan):  # Q of a first row is not used
        args = (np.float32([1, 1]), np.float32([first, 2]), np.float32([2, 3]), no, no, log_ratio, zero)
        np.testing.assert_allclose(returns.retrace(*args, gamma=1.0, lambda_=1.0), [4.0, 4.0], rtol=1e-6)


def test_lambda_one_is_monte_carlo_and_lambda_zero_is_one_step():
    rows = stream(2, (32, 4))
    with jax.enable_x64(True):
        args = [jnp.asarray(rows[k]) for k in NAMES[:5]]
        reward, value, next_value, terminated, truncated = args
        one_step = reward + GAMMA * jnp.where(terminated, 0.0, next_value)
        ends = (terminated, truncated)
        gae, lambda_returns = (partial(f, gamma=GAMMA) for f in (returns.gae, returns.lambda_returns))
        monte_carlo = returns.n_step_returns(reward, next_value, *ends, gamma=GAMMA, n=32)
        close = partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12)
        close(gae(*args, gae_lambda=0.0) + value, one_step)
        close(gae(*args, gae_lambda=1.0) + value, monte_carlo)
        close(lambda_returns(reward, next_value, *ends, lambda_=0.0), one_step)
        close(lambda_returns(reward, next_value, *ends, lambda_=1.0), monte_carlo)
        close(lambda_returns(reward, next_value, *ends, lambda_=LAMBDA), gae(*args, gae_lambda=LAMBDA) + value)
        # On policy, V-trace is TD(1) towards the Monte-Carlo return, and so is its advantage one step on.
        on_policy = returns.vtrace(*args, value, value, gamma=GAMMA)
        close(on_policy.target, monte_carlo)
        close(on_policy.advantage, monte_carlo - value)
        close(returns.retrace(*args, value, value, gamma=GAMMA, lambda_=1.0), monte_carlo)


def test_n_beyond_the_stream_is_the_whole_stream():
    rows = stream(3, (5, 2))
    args = [rows[k].astype(np.float32) for k in ("reward", "next_value")] + [rows["terminated"], rows["truncated"]]
    outs = [returns.n_step_returns(*args, gamma=GAMMA, n=n) for n in (5, 6, 1000)]
    assert all(np.array_equal(outs[0], out) for out in outs)


@every_function
@pytest.mark.parametrize(("kind", "value"), [("terminated", np.nan), ("truncated", np.nan), ("truncated", 1e6)])
def test_nothing_leaks_over_an_end(name: str, kind: str, value: float):
    """Rows after the end of step 3 do not change a bit of the rows before it."""
    rows = stream(4, (8,), end_rate=0.0)
    rows[kind] = np.arange(8) == 3
    changed = {k: v.copy() for k, v in rows.items()}
    for k in ("reward", "value", "q", "next_value"):
        changed[k][4:] = value
    before, after = call(name, rows), call(name, changed)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[:4], b[:4]), before, after)


@every_function
def test_a_nan_at_a_terminal_state_does_not_enter(name: str):
    rows = stream(5, (16,))
    rows["next_value"] = np.where(rows["terminated"], np.nan, rows["next_value"])
    assert rows["terminated"].any()
    fn, names = FUNCTIONS[name]
    args = [jnp.asarray(rows[k] if rows[k].dtype == bool else rows[k].astype(np.float32)) for k in names]
    floats = [i for i, x in enumerate(args) if x.dtype != bool]

    def total(*args):
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(fn(*args)))

    loss, grads = jax.jit(jax.value_and_grad(total, argnums=floats))(*args)
    assert all(bool(jnp.all(jnp.isfinite(x))) for x in (loss, *grads))


@every_function
def test_a_batch_of_streams_agrees_with_streams_one_by_one(name: str):
    rows = stream(6, (12, 3))
    batch = call(name, rows)
    fn, names = FUNCTIONS[name]
    args = [jnp.asarray(rows[k] if rows[k].dtype == bool else rows[k].astype(np.float32)) for k in names]
    for j in range(3):
        one = fn(*(x[:, j] for x in args))  # eagerly
        jax.tree.map(lambda a, b, j=j: np.testing.assert_allclose(a[:, j], b, rtol=1e-5, atol=1e-6), batch, one)


@every_function
def test_gradients(name: str):
    rows = stream(7, (6,))
    fn, names = FUNCTIONS[name]
    with jax.enable_x64(True):
        floats = {k: jnp.asarray(rows[k]) for k in names if rows[k].dtype != bool}

        def of_floats(*values):
            given = dict(zip(floats, values, strict=True))
            return fn(*(given.get(k, rows[k]) for k in names))

        check_grads(jax.jit(of_floats), tuple(floats.values()), order=1, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["vtrace", "retrace"])
def test_gradients_are_finite_where_the_ratio_is_not(name: str):
    rows = {k: v if v.dtype == bool else jnp.float32(v) for k, v in stream(11, (6,)).items()}
    fn, names = FUNCTIONS[name]

    def total(log_prob):
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(fn(*((rows | {"log_prob": log_prob})[k] for k in names))))

    value, slope = jax.jit(jax.value_and_grad(total))(rows["log_prob"] + 200)
    assert bool(jnp.isfinite(value))
    np.testing.assert_array_equal(slope, np.zeros(6))  # clipped


def test_discounts_may_be_traced_and_mapped():
    """Hyper-parameters are float32 arrays in a state: one vmap sweeps them."""
    rows = stream(8, (6,))
    args = [jnp.asarray(rows[k] if rows[k].dtype == bool else rows[k].astype(np.float32)) for k in NAMES[:5]]
    gammas = jnp.float32([0.0, 0.5, 0.99])
    swept = jax.vmap(lambda gamma: returns.gae(*args, gamma=gamma, gae_lambda=LAMBDA))(gammas)
    for gamma, advantage in zip(gammas.tolist(), swept, strict=True):
        np.testing.assert_allclose(advantage, returns.gae(*args, gamma=gamma, gae_lambda=LAMBDA), rtol=1e-6)


@every_function
def test_dtypes_go_up_to_float32_and_never_down(name: str):
    rows = stream(9, (4,))
    for dtype, expected in ((jnp.bfloat16, "float32"), (np.float32, "float32"), (np.float64, "float64")):
        with jax.enable_x64(True):
            assert {leaf.dtype.name for leaf in jax.tree.leaves(call(name, rows, dtype))} == {expected}


@every_function
def test_another_shape_or_dtype_is_an_error_that_names_the_argument(name: str):
    fn, names = FUNCTIONS[name]
    rows = {k: v if v.dtype == bool else v.astype(np.float32) for k, v in stream(10, (4,)).items()}
    for wrong in names[1:]:
        with pytest.raises(ValueError, match=rf"^{wrong} has shape \(4, 1\), expected \(4,\)"):
            fn(*(rows[k][:, None] if k == wrong else rows[k] for k in names))
    for flag in ("terminated", "truncated"):
        with pytest.raises(ValueError, match=rf"^{flag} has dtype float32, expected bool"):
            fn(*(rows[k].astype(np.float32) if k == flag else rows[k] for k in names))
    with pytest.raises(ValueError, match=r"^reward has shape \(\)"):
        fn(*(rows[k][0] for k in names))
    with pytest.raises(ValueError, match=r"^gamma has shape \(4,\), expected a scalar"):
        fn(*(rows[k] for k in names), gamma=np.ones(4, np.float32))


def test_n_below_one_is_an_error():
    x, no = np.zeros(3, np.float32), np.zeros(3, bool)
    with pytest.raises(ValueError, match="n=0 must"):
        returns.n_step_returns(x, x, no, no, gamma=0.9, n=0)


def test_the_loop_over_time_carries_one_row(monkeypatch):
    """The carry of GAE's loop is one row, not the matrix, and all that does not depend on it is outside of the loop."""
    loops, scan = [], jax.lax.scan

    def recorded(body, carry, rows, **kwargs):
        loops.append((body, carry, jax.tree.map(lambda x: x[0], rows)))
        return scan(body, carry, rows, **kwargs)

    monkeypatch.setattr(jax.lax, "scan", recorded)
    shape = (16, 3)
    x, flag = jnp.zeros(shape), jnp.zeros(shape, bool)
    returns.gae(x, x, x, flag, flag, gamma=GAMMA, gae_lambda=LAMBDA)
    ((body, carry, row),) = loops
    assert carry.shape == (3,)
    assert len(jax.make_jaxpr(body)(carry, row).eqns) <= 3  # multiply, add, select


@every_function
def test_a_second_call_outside_of_jit_compiles_nothing(name):
    fn, names = FUNCTIONS[name]
    rows = stream(0, (5, 2))
    arrays = [jnp.asarray(rows[key], bool if key in ("terminated", "truncated") else jnp.float32) for key in names]
    fn(*arrays)
    with compilations() as compiled:
        fn(*arrays)
    assert not compiled
