"""Encoders: an observation to features."""
