"""Configs: one flat YAML file, its schema, its validation, and the description of its keys."""
