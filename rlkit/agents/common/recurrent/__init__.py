"""Agents with critics of actions and a memory: learning from sequences."""
