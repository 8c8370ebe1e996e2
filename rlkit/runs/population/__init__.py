"""Population-based training in a run: its members' hyper-parameters, its evolutions and their record."""
