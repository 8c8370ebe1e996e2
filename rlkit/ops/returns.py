"""Returns and advantages along time: GAE, λ-returns, n-step returns, V-trace and Retrace.

Arrays are time-major, [T, ...], with any batch axes after time. Row t holds one transition: `reward[t]` and the flags
of step t, `value[t]` of the observation before it, and `next_value[t]` of the observation after it, before any reset.
Every estimate stops at both kinds of episode end. It bootstraps from `next_value` where a time limit cut the episode
(truncated), and not at a terminal state (terminated); where both are set, terminated wins. The last row bootstraps
from its `next_value` like a truncated one. `next_value` does not enter where terminated is set and may be NaN there.

Inputs below float32 are promoted to float32; float64 stays float64. No function stops a gradient.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from rlkit._mesh import vary_like
from rlkit.ops._arrays import as_floats, as_int, check_bools, check_shapes, scalars
from rlkit.types import Array


def gae(
    reward: ArrayLike,
    value: ArrayLike,
    next_value: ArrayLike,
    terminated: ArrayLike,
    truncated: ArrayLike,
    *,
    gamma: ArrayLike,
    gae_lambda: ArrayLike,
) -> Array:
    """Generalized advantage estimation (Schulman et al. 2016, eq. 16), for one stream or many.

    The estimate stops at every episode end. It bootstraps from `next_value` where the episode was cut by a time limit
    (truncated), and not at a terminal state (terminated); where both are set, terminated wins.

    Args:
      reward: [T, ...] float, r_t.
      value: [T, ...] float, V(o_t).
      next_value: [T, ...] float, V(o_{t+1}), of the observation before any reset.
      terminated, truncated: [T, ...] bool.
      gamma: scalar in [0, 1], discount per step.
      gae_lambda: scalar in [0, 1].

    Returns:
      [T, ...] float, the advantages. The value targets are `advantage + value`.

    Raises:
      ValueError: a shape differs from that of `reward`, a flag is not bool, or gamma or gae_lambda is not a scalar.
    """
    done = _check(reward, terminated, truncated, value=value, next_value=next_value)
    reward, value, next_value = as_floats(reward, value, next_value)
    gamma, gae_lambda = scalars(reward, gamma=gamma, gae_lambda=gae_lambda)
    td_error = reward + gamma * _bootstrap(next_value, terminated) - value
    return _discounted_sum(td_error, gamma * gae_lambda, done)


def lambda_returns(
    reward: ArrayLike,
    next_value: ArrayLike,
    terminated: ArrayLike,
    truncated: ArrayLike,
    *,
    gamma: ArrayLike,
    lambda_: ArrayLike,
) -> Array:
    """λ-returns, G_t = r_t + γ [(1 - λ) V(o_{t+1}) + λ G_{t+1}] (Sutton and Barto 2018, eq. 12.2).

    Args:
      reward: [T, ...] float, r_t.
      next_value: [T, ...] float, V(o_{t+1}), of the observation before any reset.
      terminated, truncated: [T, ...] bool.
      gamma: scalar in [0, 1], discount per step.
      lambda_: scalar in [0, 1]; 0 is one-step TD, 1 is Monte Carlo with a bootstrap at truncations.

    Returns:
      [T, ...] float, the returns.

    Raises:
      ValueError: a shape differs from that of `reward`, a flag is not bool, or gamma or lambda_ is not a scalar.
    """
    done = _check(reward, terminated, truncated, next_value=next_value)
    reward, next_value = as_floats(reward, next_value)
    gamma, lambda_ = scalars(reward, gamma=gamma, lambda_=lambda_)
    bootstrap = _bootstrap(next_value, terminated)
    # The bootstrap has weight 1 at an end and in the last row, and 1 - λ elsewhere.
    weight = jnp.where(done, 1.0, 1.0 - lambda_).at[-1].set(1.0)
    return _discounted_sum(reward + gamma * weight * bootstrap, gamma * lambda_, done)


def n_step_returns(
    reward: ArrayLike,
    next_value: ArrayLike,
    terminated: ArrayLike,
    truncated: ArrayLike,
    *,
    gamma: ArrayLike,
    n: int,
) -> Array:
    """n-step returns, Σ_{i<k} γ^i r_{t+i} + γ^k V(o_{t+k}), k = n or fewer (Sutton and Barto 2018, eq. 7.1).

    k is the number of steps until the episode or the stream ends, where that is less than n; the bootstrap is then
    discounted by that γ^k and taken from the final observation.

    Args:
      reward: [T, ...] float, r_t.
      next_value: [T, ...] float, V(o_{t+1}), of the observation before any reset.
      terminated, truncated: [T, ...] bool.
      gamma: scalar in [0, 1], discount per step.
      n: int >= 1, static.

    Returns:
      [T, ...] float, the returns.

    Raises:
      ValueError: a shape differs from that of `reward`, a flag is not bool, gamma is not a scalar, or n is no integer
        of at least 1.
    """
    done = _check(reward, terminated, truncated, next_value=next_value)
    n = as_int("n", n)
    reward, next_value = as_floats(reward, next_value)
    (gamma,) = scalars(reward, gamma=gamma)
    one_step = reward + gamma * _bootstrap(next_value, terminated)
    return _n_step_recursion(one_step, reward, gamma, done.at[-1].set(True), min(n, reward.shape[0]))


class VTrace(NamedTuple):
    """Result of `vtrace`, two arrays [T, ...]."""

    target: Array  # [T, ...] float, v_t, the regression target of the value function
    advantage: Array  # [T, ...] float, ρ_t (r_t + γ v_{t+1} - V(o_t)), the weight of the gradient of log π(a_t | o_t)


def vtrace(
    reward: ArrayLike,
    value: ArrayLike,
    next_value: ArrayLike,
    terminated: ArrayLike,
    truncated: ArrayLike,
    log_prob: ArrayLike,
    behavior_log_prob: ArrayLike,
    *,
    gamma: ArrayLike,
    rho_clip: ArrayLike = 1.0,
    c_clip: ArrayLike = 1.0,
) -> VTrace:
    """V-trace targets and policy-gradient advantages (Espeholt et al. 2018, eq. 1 and section 4.2).

    Across a truncation, and after the last row, v_{t+1} is `next_value`: the next row belongs to another episode.

    Args:
      reward: [T, ...] float, r_t.
      value: [T, ...] float, V(o_t).
      next_value: [T, ...] float, V(o_{t+1}), of the observation before any reset.
      terminated, truncated: [T, ...] bool.
      log_prob: [T, ...] float, log π(a_t | o_t) of the target policy, which is being learned.
      behavior_log_prob: [T, ...] float, log μ(a_t | o_t) of the behavior policy, which acted.
      gamma: scalar in [0, 1], discount per step.
      rho_clip: scalar > 0, ρ-bar, the largest weight of a TD error; it determines which policy's value is learned.
      c_clip: scalar > 0, c-bar, the largest trace; it determines how far TD errors propagate back in time.

    Returns:
      VTrace(target, advantage), both [T, ...] float.

    Raises:
      ValueError: a shape differs from that of `reward`, a flag is not bool, or a keyword argument is not a scalar.
    """
    done = _check(
        reward,
        terminated,
        truncated,
        value=value,
        next_value=next_value,
        log_prob=log_prob,
        behavior_log_prob=behavior_log_prob,
    )
    reward, value, next_value, log_prob, behavior_log_prob = as_floats(
        reward, value, next_value, log_prob, behavior_log_prob
    )
    gamma, rho_clip, c_clip = scalars(reward, gamma=gamma, rho_clip=rho_clip, c_clip=c_clip)
    log_ratio = log_prob - behavior_log_prob
    rho, c = _clipped_ratio(log_ratio, rho_clip), _clipped_ratio(log_ratio, c_clip)
    bootstrap = _bootstrap(next_value, terminated)
    td_error = rho * (reward + gamma * bootstrap - value)
    target = value + _discounted_sum(td_error, gamma * c, done)
    next_target = jnp.where(done.at[-1].set(True), bootstrap, _shift(target))
    return VTrace(target, rho * (reward + gamma * next_target - value))


def retrace(
    reward: ArrayLike,
    q: ArrayLike,
    next_value: ArrayLike,
    terminated: ArrayLike,
    truncated: ArrayLike,
    log_prob: ArrayLike,
    behavior_log_prob: ArrayLike,
    *,
    gamma: ArrayLike,
    lambda_: ArrayLike,
) -> Array:
    """Retrace(λ) targets for Q(o_t, a_t) (Munos et al. 2016, eq. 3 and 4).

    G_t = r_t + γ [E_π Q(o_{t+1}, .) + c_{t+1} (G_{t+1} - Q(o_{t+1}, a_{t+1}))], c = λ min(1, π(a | o) / μ(a | o)).

    Args:
      reward: [T, ...] float, r_t.
      q: [T, ...] float, Q(o_t, a_t) of the target network for the action in the data; the first row of an
        episode is not used.
      next_value: [T, ...] float, E_π Q(o_{t+1}, .) of the target network, of the observation before any reset.
      terminated, truncated: [T, ...] bool.
      log_prob: [T, ...] float, log π(a_t | o_t) of the target policy, which is evaluated.
      behavior_log_prob: [T, ...] float, log μ(a_t | o_t) of the behavior policy, which acted.
      gamma: scalar in [0, 1], discount per step.
      lambda_: scalar in [0, 1].

    Returns:
      [T, ...] float, the targets G_t.

    Raises:
      ValueError: a shape differs from that of `reward`, a flag is not bool, or gamma or lambda_ is not a scalar.
    """
    done = _check(
        reward,
        terminated,
        truncated,
        q=q,
        next_value=next_value,
        log_prob=log_prob,
        behavior_log_prob=behavior_log_prob,
    )
    reward, q, next_value, log_prob, behavior_log_prob = as_floats(reward, q, next_value, log_prob, behavior_log_prob)
    gamma, lambda_ = scalars(reward, gamma=gamma, lambda_=lambda_)
    trace = lambda_ * _clipped_ratio(log_prob - behavior_log_prob, jnp.ones((), reward.dtype))
    one_step = reward + gamma * _bootstrap(next_value, terminated)
    decay = gamma * _shift(trace)
    # The correction D_t = G_t - Q_t is a discounted sum of one-step errors that decays with the next row's trace.
    correction = _discounted_sum(one_step - q, decay, done)
    return one_step + jnp.where(done, 0.0, decay * _shift(correction))


def _check(reward: ArrayLike, terminated: ArrayLike, truncated: ArrayLike, **others: ArrayLike) -> Array:
    """Check shapes and flags. Returns [T, ...] bool, True at the ends of episodes."""
    if np.ndim(reward) < 1 or np.shape(reward)[0] < 1:
        raise ValueError(f"reward has shape {np.shape(reward)}, expected [T, ...] with T >= 1")
    check_shapes(reward=reward, **others, terminated=terminated, truncated=truncated)
    check_bools(terminated=terminated, truncated=truncated)
    return jnp.asarray(terminated) | jnp.asarray(truncated)


def _bootstrap(next_value: Array, terminated: ArrayLike) -> Array:
    """The next value, and 0 at terminal states: a select and not a product, as 0 * NaN is NaN."""
    return jnp.where(jnp.asarray(terminated), 0.0, next_value)


def _clipped_ratio(log_ratio: Array, clip: Array) -> Array:
    """min(exp(log_ratio), clip), clipped in log space so that neither the value nor its gradient overflows."""
    return jnp.exp(jnp.minimum(log_ratio, jnp.log(clip)))


def _shift(x: Array) -> Array:
    """Each row's successor, x[t + 1] at t, and 0 in the last row."""
    return jnp.concatenate([x[1:], jnp.zeros_like(x[:1])])


# Both are jitted, because JAX compiles a loop anew whenever it is called outside of jit.
@partial(jax.jit, static_argnames="n")
def _n_step_recursion(one_step: Array, reward: Array, gamma: Array, stop: Array, n: int) -> Array:
    """Returns of up to n steps from those of one step; `stop` where the next row does not follow."""

    def extend(_: Array, returns: Array) -> Array:
        return jnp.where(stop, one_step, reward + gamma * _shift(returns))

    return jax.lax.fori_loop(1, n, extend, vary_like(one_step, stop))


@jax.jit
def _discounted_sum(x: Array, decay: Array, done: Array) -> Array:
    """Backward recursion y_t = x_t + decay_t y_{t+1}, restarted at every episode end; decay is [] or [T, ...].

    The restart is a select, so that a non-finite number in one episode does not reach the episode before it.
    """

    def step(following: Array, row: tuple[Array, ...]) -> tuple[Array, Array]:
        current, is_last, *row_decay = row
        total = jnp.where(is_last, current, current + (row_decay[0] if row_decay else decay) * following)
        return total, total

    rows = (x, done) if decay.ndim == 0 else (x, done, decay)
    return jax.lax.scan(step, vary_like(jnp.zeros_like(x[0]), rows, decay), rows, reverse=True)[1]
