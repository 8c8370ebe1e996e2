"""Pictures: learning curves, lineages of populations, frames of environments."""
