"""Golden values of other libraries (tests/parity/README.md): 1e-6 relative in float64, 1e-4 in float32."""

from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np
import pytest

from rlkit.ops import distributional, losses, returns
from rlkit.ops.distributions import Categorical

GOLDEN = Path(__file__).parents[1] / "parity"


def flags(golden: dict) -> tuple[np.ndarray, np.ndarray]:
    """Flags for golden values of rlax, which has a discount of 0 at terminal states and no truncation."""
    terminated = golden["discount"] == 0
    return terminated, np.zeros_like(terminated)


def gae(g: dict) -> Iterator[tuple]:
    advantage = returns.gae(
        *(g[k] for k in ("reward", "value", "next_value", "terminated", "truncated")),
        gamma=g["gamma"],
        gae_lambda=g["gae_lambda"],
    )
    yield advantage, g["advantage"]
    yield advantage + g["value"], g["target"]


def lambda_returns(g: dict) -> Iterator[tuple]:
    args = (g[k] for k in ("reward", "next_value", "terminated", "truncated"))
    yield returns.lambda_returns(*args, gamma=g["gamma"], lambda_=g["lam"]), g["returns"]


def n_step(g: dict) -> Iterator[tuple]:
    gamma = g["discount"].max()
    yield returns.n_step_returns(g["reward"], g["next_value"], *flags(g), gamma=gamma, n=int(g["n"])), g["returns"]


def vtrace(g: dict) -> Iterator[tuple]:
    names = ("reward", "value", "next_value", "terminated", "truncated", "log_prob", "behaviour_log_prob")
    scalars = {k: g[k] for k in ("gamma", "rho_clip", "c_clip")}
    yield returns.vtrace(*(g[k] for k in names), **scalars).target, g["target"]


def retrace(g: dict) -> Iterator[tuple]:
    """Row t of rlax's q_t, pi_t and mu_t is of (o_{t+1}, a_{t+1}), here of (o_t, a_t). It divides by mu + 1e-8."""
    rows = np.arange(len(g["reward"]))
    later = {
        "q": g["q_t"][rows, g["a_t"]],
        "log_prob": np.log(g["pi_t"][rows, g["a_t"]]),
        "behavior_log_prob": np.log(g["mu_t"] + 1e-8),
    }
    at_row = {k: np.concatenate([[np.nan], v[:-1]]).astype(v.dtype) for k, v in later.items()}
    at_row["q"][0] = 0.0  # not used by any target
    target = returns.retrace(
        g["reward"],
        at_row["q"],
        np.sum(g["pi_t"] * g["q_t"], axis=-1),
        *flags(g),
        at_row["log_prob"],
        at_row["behavior_log_prob"],
        gamma=g["discount"].max(),
        lambda_=g["lam"],
    )
    yield target - g["q_tm1"][rows, g["a_tm1"]], g["error"]


def ppo_clip(g: dict) -> Iterator[tuple]:
    loss = losses.ppo_clip(g["log_prob"], g["old_log_prob"], g["advantage"], clip_eps=g["clip_eps"])
    yield loss.mean(), g["mean_loss"]


def q_learning(g: dict) -> Iterator[tuple]:
    args = [g[k] for k in ("q", "action", "reward", "discount", "q_next_target")]
    yield losses.q_learning(*args), g["td_error"]
    yield losses.double_q_learning(*args, g["q_next_online"]), g["double_td_error"]


def c51(g: dict) -> Iterator[tuple]:
    projected = distributional.categorical_projection(g["project_probs"], g["project_source_atoms"], g["atoms"])
    yield projected, g["projected"]
    names = ("logits", "action", "reward", "discount", "logits_next_target", "q_next_selector", "atoms")
    yield distributional.categorical_double_q_learning(*(g[k] for k in names)), g["loss"]


def quantile(g: dict) -> Iterator[tuple]:
    names = ("quantiles", "tau", "action", "reward", "discount", "quantiles_next_target", "quantiles_next_selector")
    yield distributional.quantile_q_learning(*(g[k] for k in names), kappa=g["kappa"]), g["loss"]


def signed_hyperbolic(g: dict) -> Iterator[tuple]:
    yield losses.signed_hyperbolic(g["x"], float(g["eps"])), g["h"]
    yield losses.signed_parabolic(g["x"], float(g["eps"])), g["h_inv"]


def categorical_kl(g: dict) -> Iterator[tuple]:
    yield Categorical(g["p_logits"]).kl(Categorical(g["q_logits"])), g["kl"]


CASES: dict[str, Callable[[dict], Iterator[tuple]]] = {
    "gae": gae,
    "lambda_returns": lambda_returns,
    "n_step_1": n_step,
    "n_step_3": n_step,
    "n_step_5": n_step,
    "vtrace": vtrace,
    "retrace": retrace,
    "ppo_clip": ppo_clip,
    "q_learning": q_learning,
    "c51": c51,
    "quantile_kappa0": quantile,
    "quantile_kappa1": quantile,
    "signed_hyperbolic": signed_hyperbolic,
    "categorical_kl": categorical_kl,
}


def test_every_golden_file_is_compared():
    assert {path.stem for path in GOLDEN.glob("*.npz")} == set(CASES)


@pytest.mark.parametrize(("dtype", "rtol"), [("float64", 1e-6), ("float32", 1e-4)])
@pytest.mark.parametrize("name", CASES)
def test_golden_values(name: str, dtype: str, rtol: float):
    with np.load(GOLDEN / f"{name}.npz", allow_pickle=False) as archive:
        golden = {k: archive[k].astype(dtype) if archive[k].dtype == np.float64 else archive[k] for k in archive.files}
    with jax.enable_x64(dtype == "float64"):
        for ours, theirs in CASES[name](golden):
            assert ours.dtype == dtype
            assert ours.shape == theirs.shape
            # Rounding inputs to float32 changes a sum of terms of size 1 by 1e-7: near 0 the bound must be absolute.
            np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol if dtype == "float32" else 1e-12)
