"""Slow references of the returns: one stream, float64, each a loop over the episode that follows its definition."""

import numpy as np

from rlkit.ops import returns

GAMMA, LAMBDA = 0.9, 0.95


def bootstrap_of(rows: dict, t: int) -> float:
    return 0.0 if rows["terminated"][t] else rows["next_value"][t]


def is_last(rows: dict, t: int) -> bool:
    return rows["terminated"][t] or rows["truncated"][t] or t == len(rows["reward"]) - 1


def slow_gae(rows: dict) -> np.ndarray:
    out = np.zeros(len(rows["reward"]))
    for t in range(len(out)):
        weight = 1.0
        for i in range(t, len(out)):
            out[t] += weight * (rows["reward"][i] + GAMMA * bootstrap_of(rows, i) - rows["value"][i])
            weight *= GAMMA * LAMBDA
            if is_last(rows, i):
                break
    return out


def slow_n_step(rows: dict, n: int, t: int) -> float:
    total, discount = 0.0, 1.0
    for i in range(t, t + n):
        total += discount * rows["reward"][i]
        discount *= GAMMA
        if is_last(rows, i):
            break
    return total + discount * bootstrap_of(rows, i)


def slow_lambda_returns(rows: dict) -> np.ndarray:
    """Mixture of n-step returns: (1 - λ) Σ λ^(n-1) G^(n), the remaining weight on the last of them."""
    out = np.zeros(len(rows["reward"]))
    for t in range(len(out)):
        steps = next(i for i in range(t, len(out)) if is_last(rows, i)) - t + 1
        weights = [(1 - LAMBDA) * LAMBDA ** (n - 1) for n in range(1, steps)] + [LAMBDA ** (steps - 1)]
        out[t] = sum(w * slow_n_step(rows, n, t) for n, w in enumerate(weights, start=1))
    return out


def slow_vtrace(rows: dict) -> returns.VTrace:
    ratio = np.exp(rows["log_prob"] - rows["behavior_log_prob"])
    rho, c = np.minimum(ratio, 1.2), np.minimum(ratio, 0.8)
    target, advantage = np.zeros(len(ratio)), np.zeros(len(ratio))
    for t in range(len(ratio)):
        target[t], weight = rows["value"][t], 1.0
        for i in range(t, len(ratio)):
            target[t] += weight * rho[i] * (rows["reward"][i] + GAMMA * bootstrap_of(rows, i) - rows["value"][i])
            weight *= GAMMA * c[i]
            if is_last(rows, i):
                break
    for t in range(len(ratio)):
        following = bootstrap_of(rows, t) if is_last(rows, t) else target[t + 1]
        advantage[t] = rho[t] * (rows["reward"][t] + GAMMA * following - rows["value"][t])
    return returns.VTrace(target, advantage)


def slow_retrace(rows: dict) -> np.ndarray:
    trace = LAMBDA * np.minimum(1.0, np.exp(rows["log_prob"] - rows["behavior_log_prob"]))
    out = np.zeros(len(trace))
    for t in reversed(range(len(out))):
        out[t] = rows["reward"][t] + GAMMA * bootstrap_of(rows, t)
        if not is_last(rows, t):
            out[t] += GAMMA * trace[t + 1] * (out[t + 1] - rows["q"][t + 1])
    return out


SLOW = {
    "gae": slow_gae,
    "lambda_returns": slow_lambda_returns,
    "n_step_returns": lambda rows: np.array([slow_n_step(rows, 3, t) for t in range(len(rows["reward"]))]),
    "vtrace": slow_vtrace,
    "retrace": slow_retrace,
}
