"""Helpers that several algorithms share."""
