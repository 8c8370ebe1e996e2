"""Environments of other JAX libraries, one file a library; each has `names()` and `make(task, **kwargs)`."""
