"""Any state in a directory, and back, bit for bit: for notebooks and loops of one's own."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.runs import files
from rlkit.runs.checkpoints import checkpoint
from rlkit.types import ConfigError, PyTree


def save(out: str | Path, state: PyTree) -> Path:
    """Write a pytree of arrays, typed keys included, over what was saved there before: the new one whole, or the old.

        runs.save("saved/buffer", state)
        state = runs.restore("saved/buffer", like=state)

    Args:
      out: a directory that is new, empty, or held only what was saved there.
      state: the state of a buffer, an agent, a training run; of jax.Arrays, or what becomes one unchanged.

    Returns:
      The directory.

    Raises:
      ConfigError: the directory holds something else, or a leaf is no such array; it is named.
      OSError: the disk is full or fails; what was saved before is still there.
    """
    path = Path(out)
    _check_arrays(state)
    if not _is_ours(path):
        files.new_run(path)
    steps = checkpoint.steps(path)
    checkpoint.save(path, steps[-1] + 1 if steps else 0, state, {}, keep=1)
    return path


def restore(folder: str | Path, like: PyTree) -> PyTree:
    """What `save` wrote, on the devices of `like`: equal bytes, so that whatever comes next is as it would have been.

    Args:
      folder: as given to `save`.
      like: a state of the same structure, shapes and dtypes, such as a fresh one; or `jax.eval_shape` of what makes it.

    Raises:
      CheckpointError: there is none, or it is damaged.
      ConfigError: a leaf of `like` is not what was saved; it is named.
    """
    _check_arrays(like)
    try:
        return checkpoint.restore(Path(folder), like)[0]
    except ConfigError as error:  # its remedies are those for a run
        damaged = isinstance(error, checkpoint.CheckpointError)
        remedy = "save it anew" if damaged else "make `like` with the settings of what was saved"
        raise type(error)(f"{str(error).rpartition('; ')[0]}; {remedy}") from None


def _check_arrays(state: PyTree) -> None:
    """Raise ConfigError, naming the leaf, where one would come back as something else."""
    for where, leaf in jax.tree_util.tree_leaves_with_path(state):
        if not _is_array(leaf):
            name = jax.tree_util.keystr(where, simple=True, separator="/") or "itself"
            kind = getattr(leaf, "dtype", type(leaf).__name__)
            raise ConfigError(
                f"the leaf {name} is {kind} and must be an array that JAX keeps as it is; use jnp.asarray"
            )


def _is_ours(path: Path) -> bool:
    """Whether a directory holds what `save` writes and nothing else, not even a run's config."""
    if path.is_symlink() or not path.is_dir() or (path / files.CHECKPOINTS).is_symlink():
        return False
    return [found.name for found in path.iterdir()] == [files.CHECKPOINTS]


def _is_array(leaf: PyTree) -> bool:
    """Whether JAX has arrays of that dtype under its present settings."""
    try:
        kept = jax.dtypes.canonicalize_dtype(leaf.dtype, allow_extended_dtype=True) == leaf.dtype
        return kept and any(jnp.issubdtype(leaf.dtype, kind) for kind in (np.number, np.bool_, jax.dtypes.prng_key))
    except (AttributeError, TypeError):
        return False
