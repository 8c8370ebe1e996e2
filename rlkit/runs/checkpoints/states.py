"""Any state in a directory, and back, bit for bit: for notebooks and training loops outside of `runs.train`."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.runs import run_directory
from rlkit.runs.checkpoints import checkpoint
from rlkit.types import ConfigError, PyTree


def save(out: str | Path, state: PyTree) -> Path:
    """Write a pytree of arrays, typed keys included; an older one in the same place is replaced atomically.

        runs.save("saved/buffer", state)
        state = runs.restore("saved/buffer", like=state)

    Args:
      out: a directory that is new, empty, or written by `save`.
      state: state of a buffer, an agent or a training run: jax.Arrays, or what becomes one unchanged.

    Returns:
      The directory.

    Raises:
      ConfigError: the directory holds something else, or a leaf is no such array; the error names it.
      OSError: the disk is full or fails; what was saved before is still there.
    """
    path = Path(out)
    _check_arrays(state)
    if not _is_saved_state(path):
        run_directory.create(path)
    steps = checkpoint.steps(path)
    checkpoint.save(path, steps[-1] + 1 if steps else 0, state, {}, keep=1)
    return path


def restore(folder: str | Path, like: PyTree) -> PyTree:
    """Read what `save` wrote, onto the devices of `like`, bit for bit.

    Args:
      folder: as given to `save`.
      like: a state of the same structure, shapes and dtypes, such as a new one; or `jax.eval_shape` of its function.

    Raises:
      CheckpointError: there is no saved state, or it is damaged.
      ConfigError: a leaf of `like` differs from what was saved; the error names it.
    """
    _check_arrays(like)
    try:
        return checkpoint.restore(Path(folder), like)[0]
    except ConfigError as error:  # its remedies are those for a run
        damaged = isinstance(error, checkpoint.CheckpointError)
        remedy = "save it anew" if damaged else "make `like` with the settings of what was saved"
        raise type(error)(f"{str(error).rpartition('; ')[0]}; {remedy}") from None


def _check_arrays(state: PyTree) -> None:
    """Raise ConfigError, naming the leaf, where a leaf would be restored as something else."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if not _is_array(leaf):
            name = jax.tree_util.keystr(path, simple=True, separator="/") or "itself"
            kind = getattr(leaf, "dtype", type(leaf).__name__)
            raise ConfigError(
                f"the leaf {name} is {kind} and must be an array of a dtype that JAX keeps; use jnp.asarray"
            )


def _is_saved_state(path: Path) -> bool:
    """True where a directory holds what `save` writes and nothing else, not even a run's config."""
    if path.is_symlink() or not path.is_dir() or (path / run_directory.CHECKPOINTS).is_symlink():
        return False
    return [entry.name for entry in path.iterdir()] == [run_directory.CHECKPOINTS]


def _is_array(leaf: PyTree) -> bool:
    """True where JAX has arrays of the leaf's dtype under its present settings."""
    try:
        same = jax.dtypes.canonicalize_dtype(leaf.dtype, allow_extended_dtype=True) == leaf.dtype
        return same and any(jnp.issubdtype(leaf.dtype, kind) for kind in (np.number, np.bool_, jax.dtypes.prng_key))
    except (AttributeError, TypeError):
        return False
