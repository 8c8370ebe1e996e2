"""Pictures: learning curves, frames of environments."""
