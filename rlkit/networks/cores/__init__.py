"""Recurrent cores: cells with a memory, and networks along time."""
