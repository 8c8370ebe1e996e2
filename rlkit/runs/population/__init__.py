"""Population-based training in a run: its evolutions and their record."""
