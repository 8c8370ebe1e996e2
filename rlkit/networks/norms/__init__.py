"""Layers with statistics or noise of their own."""
