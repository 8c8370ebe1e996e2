"""The modules that a worker process imports. None of them imports JAX."""
