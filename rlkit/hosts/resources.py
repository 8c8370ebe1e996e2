"""Base class of pools, whose resources are released on exit or garbage collection."""

import atexit
import weakref
from collections.abc import Callable
from typing import Any, Self

from rlkit.hosts.failure import HostError


class Closeable:
    """A pool that is closed by `close`, by its `with` block, by garbage collection, or at interpreter exit."""

    name: str  # for errors
    closed = True

    def _set_close(self, close: Callable[[], Any]) -> None:
        """Register the function that releases the resources, in place of the one registered before."""
        if not self.closed:
            self._close.detach()
            atexit.unregister(self._close)
        self._close = weakref.finalize(self, close)
        atexit.register(self._close)
        self.closed = False

    def close(self) -> None:
        """Release the resources; a second call does nothing."""
        if not self.closed:
            self.closed = True
            atexit.unregister(self._close)
            self._close()

    def _check_open(self) -> None:
        if self.closed:
            raise HostError(f"env={self.name!r}: the pool is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()
