"""Pictures: learning curves, frames of environments, GIFs of policies."""
