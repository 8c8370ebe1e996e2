"""Bonuses for what an agent has rarely seen, which on-policy agents add to their advantages."""
