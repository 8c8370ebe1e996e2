"""A user's mistake: an error in one line, with the field, the value and a remedy."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rlkit.types import ConfigError


def assert_mistake(error: BaseException | str, *parts: str) -> None:
    """Require one line that holds all parts, such as `gamma=2`, "must" and "try"."""
    text = str(error)
    assert len(text.splitlines()) == 1, text
    assert [part for part in parts if part not in text] == [], text


@contextmanager
def mistake(*parts: str, kind: type[Exception] | tuple[type[Exception], ...] = ConfigError) -> Iterator[Any]:
    """Require that the block raises an error in one line that holds all parts."""
    with pytest.raises(kind) as caught:
        yield caught
    assert_mistake(caught.value, *parts)
