"""What has to be closed, and is closed whatever happens."""

import atexit
import weakref
from collections.abc import Callable
from typing import Any, Self


class Closing:
    """Closed by hand, by leaving its `with` block, when nobody holds it any longer, or at the end of this process."""

    closed = True

    def _closed_by(self, close: Callable[[], Any]) -> None:
        """Hold something open that `close` closes, in place of what was held before."""
        if not self.closed:
            self._close.detach()
            atexit.unregister(self._close)
        self._close = weakref.finalize(self, close)
        atexit.register(self._close)
        self.closed = False

    def close(self) -> None:
        """Close it; a second call does nothing."""
        if not self.closed:
            self.closed = True
            atexit.unregister(self._close)
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()
