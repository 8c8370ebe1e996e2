"""What `help` shows of the ops, and what they take from someone who plays in a notebook."""

import inspect

import jax
import numpy as np
import pytest

from rlkit import ops
from rlkit.ops import returns

FUNCTIONS = {name: value for name, value in vars(ops).items() if inspect.isfunction(value)}


@pytest.mark.parametrize("name", [*FUNCTIONS, *(f"returns.{name}" for name in ("gae", "lambda_returns", "vtrace"))])
def test_signatures_are_readable(name):
    function = FUNCTIONS[name] if name in FUNCTIONS else getattr(returns, name.partition(".")[2])
    signature = str(inspect.signature(function))
    assert "Union" not in signature
    assert len(signature) < 400


def test_lists_are_taken_as_arrays():
    lists = [1.0, 2.0], [0.5, 1.0], [1.0, 0.0], [False, True], [False, False]
    arrays = [np.asarray(x) for x in lists]
    found = returns.gae(*lists, gamma=0.9, gae_lambda=0.8)
    np.testing.assert_array_equal(found, returns.gae(*arrays, gamma=0.9, gae_lambda=0.8))
    jitted = jax.jit(lambda gamma: returns.gae(*arrays, gamma=gamma, gae_lambda=0.8))(0.9)
    np.testing.assert_allclose(jitted, found, rtol=1e-6)


@pytest.mark.parametrize("values", [{"gamma": 99}, {"gamma": np.float32(-0.1)}, {"gae_lambda": 1.5}])
def test_a_discount_outside_of_its_range_is_refused(values):
    rows = (
        np.zeros(3, np.float32),
        np.zeros(3, np.float32),
        np.zeros(3, np.float32),
        np.zeros(3, bool),
        np.zeros(3, bool),
    )
    with pytest.raises(ValueError, match=r"must be in \[0, 1\]"):
        returns.gae(*rows, **({"gamma": 0.9, "gae_lambda": 0.9} | values))
