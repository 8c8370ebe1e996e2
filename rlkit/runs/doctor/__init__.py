"""Examination of the installation, the machine and its known faults, for `rlkit doctor`."""
