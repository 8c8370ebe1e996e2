"""Configs: one flat YAML file, its schema, and its description."""
