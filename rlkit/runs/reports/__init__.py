"""Reports: one page about runs and sweeps, as a file that needs no network. Read from records alone."""
