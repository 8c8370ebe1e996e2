"""Code that exists only because of XLA's CPU backend; elsewhere, and with RLKIT_CPU_TRICKS=0, the plain computation."""
