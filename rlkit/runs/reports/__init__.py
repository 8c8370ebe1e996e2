"""Reports: one page about runs, sweeps and populations, as a file that needs no network. Read from records alone."""
