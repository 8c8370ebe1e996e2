"""Strictness for every test: no silent dtype promotion, no silent rank promotion, warnings are errors."""

import os
from collections.abc import Iterator

import jax
import pytest

PLATFORMS = os.environ.get("JAX_PLATFORMS")


def pytest_configure(config: pytest.Config) -> None:
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")
    # A later line takes precedence: what gymnax and the packages it drags in warn about is not ours to mend.
    config.addinivalue_line("filterwarnings", "error")
    config.addinivalue_line("filterwarnings", r"default:::gymnax(\.|$)")


@pytest.fixture(autouse=True, scope="session")
def _platform_is_the_users_choice() -> Iterator[None]:
    """The tests run on whatever device JAX finds; neither the package nor a test may force one on the process."""
    yield
    assert os.environ.get("JAX_PLATFORMS") == PLATFORMS, "JAX_PLATFORMS was set during the tests"
