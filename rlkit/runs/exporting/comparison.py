"""Comparison of an exported policy with the function that it was made from."""

from collections.abc import Callable

import jax
import numpy as np

from rlkit.hosts.placeholder import HostEnv
from rlkit.runs.exporting.policy_function import ACTION, FIRST, MEMORY, Arrays, PolicyFunction
from rlkit.types import ConfigError, Key, PyTree

TOLERANCE = 1e-5
_BATCHES = (1, *[111] * 9)  # 1,000 observations
_REMEDY = "choose another format"
_VARIANTS, _ROUNDING = 16, 1e-6  # neighbours of the parameters, and their relative distance


def compare(name: str, function: PolicyFunction, exported: Callable[[Arrays], Arrays]) -> None:
    """Compare an exported policy with the policy on 1,000 observations, drawn from their space.

    A policy with a memory goes two steps, of which a quarter of the second ones begin an episode. Floats may differ by
    1e-5, relative to their size where that is above 1. Integer actions may differ where a change of the parameters by a
    millionth leads to the same other action: there the two best values are equal but for rounding.

    Args:
      name: of the format, for the error.
      function: the policy.
      exported: inputs -> outputs, NumPy arrays by name.

    Raises:
      ConfigError: the outputs differ.
    """
    apply = jax.jit(jax.vmap(function.apply, in_axes=(None, 0)))  # as `rlkit.load` acts, for one observation
    for count, key in zip(_BATCHES, jax.random.split(jax.random.key(0), len(_BATCHES)), strict=True):
        obs_key, next_key, first_key = jax.random.split(key, 3)
        inputs = {value.name: np.zeros((count, *value.shape), value.dtype) for value in function.inputs}
        inputs |= draw(function, obs_key, count)
        if FIRST not in inputs:
            _require_equal(name, function, apply, exported, inputs)
            continue
        inputs[FIRST] = np.ones(count, bool)
        outputs = _require_equal(name, function, apply, exported, inputs)
        memory = {k: outputs[f"next_{k}"] for k in inputs if k.split("/")[0] == MEMORY}
        first = np.asarray(jax.random.bernoulli(first_key, 0.25, (count,)))
        _require_equal(name, function, apply, exported, draw(function, next_key, count) | memory | {FIRST: first})


def draw(function: PolicyFunction, key: Key, count: int) -> Arrays:
    """Return `count` observations, by the names of the policy's inputs, NumPy arrays [count, ...]."""
    env, obs = function.policy.env, jax.vmap(function.obs_space.sample)(jax.random.split(key, count))
    drawn = jax.tree.leaves(env.native_obs(obs) if isinstance(env, HostEnv) else obs)
    return {v.name: np.asarray(x, v.dtype) for v, x in zip(function.inputs[: len(drawn)], drawn, strict=True)}


def _require_equal(
    name: str, function: PolicyFunction, apply: Callable, exported: Callable[[Arrays], Arrays], inputs: Arrays
) -> Arrays:
    """Return the policy's outputs. Raises ConfigError where those of the exported one differ."""
    expected = {k: np.asarray(x) for k, x in apply(function.policy.actor, inputs).items()}
    got = exported(inputs)
    for value in function.outputs:
        a, b = expected[value.name], got[value.name]
        if a.shape != b.shape or a.dtype != b.dtype:
            raise ConfigError(
                f"format={name!r} must return {value.name} {a.dtype}{list(a.shape)}, and it returned "
                f"{b.dtype}{list(b.shape)}; {_REMEDY}"
            )
        if np.issubdtype(a.dtype, np.floating):
            wide = a.astype(np.float64)
            error = np.max(np.abs(wide - b) / np.maximum(np.abs(wide), 1.0), initial=0.0)
            if not error <= TOLERANCE:
                raise ConfigError(
                    f"format={name!r} must compute {value.name} to {TOLERANCE}, and it differs by {error:.2g}; "
                    f"{_REMEDY}"
                )
        elif wrong := _wrong_rows(function, apply, inputs, value.name, a, b):
            raise ConfigError(
                f"format={name!r} must compute the same {value.name}, and {wrong} of {len(a)} rows differ; {_REMEDY}"
            )
    return expected


def _wrong_rows(
    function: PolicyFunction, apply: Callable, inputs: Arrays, name: str, expected: np.ndarray, got: np.ndarray
) -> int:
    """Return how many rows of integers differ by more than rounding can explain."""
    wrong = expected != got
    for variant in range(_VARIANTS if name.split("/")[0] == ACTION and wrong.any() else 0):
        key = jax.random.key(variant)

        def neighbour(x: PyTree, key: Key = key) -> PyTree:
            if not np.issubdtype(x.dtype, np.floating):
                return x
            return x * (1 + _ROUNDING * jax.random.normal(key, x.shape, x.dtype))

        actor = jax.tree.map(neighbour, function.policy.actor)
        wrong &= np.asarray(apply(actor, inputs)[name]) != got
    return int(wrong.reshape(len(wrong), -1).any(-1).sum())
