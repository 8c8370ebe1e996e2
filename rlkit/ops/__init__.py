"""Pure functions on arrays: no state, no environment, no network. Each module can be used alone."""

from rlkit.ops import distributional, distributions, losses, returns, statistics

__all__ = ["distributional", "distributions", "losses", "returns", "statistics"]
