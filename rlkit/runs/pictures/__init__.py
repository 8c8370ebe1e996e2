"""Learning curves and GIFs."""
