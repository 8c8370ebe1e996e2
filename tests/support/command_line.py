"""Shared by the tests of the command line: a tiny run's words, a cache of their own, and what a mistake prints."""

import importlib
import os
import re
from contextlib import contextmanager

import jax
import pytest

from rlkit import cli

TINY = [
    *("--num_envs", "4", "--num-steps=8", "--total_steps", "64", "--num_minibatches", "1", "--num_epochs", "1"),
    *("--eval_episodes", "4", "--hidden_sizes", "[8]", "--env_kwargs.max_steps_in_episode", "20"),
]


@contextmanager
def compilations_of_commands():
    """The command line switches a cache on for its process; here it goes to a folder of the session, and off again."""
    from jax.experimental.compilation_cache import compilation_cache

    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in (*names, "jax_persistent_cache_min_entry_size_bytes")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLKIT_CACHE", os.path.join(os.environ["RLKIT_TEST_PROGRAMS"], "commands"))
        importlib.import_module("gymnax")  # which compiles while it is imported, and JAX opens a cache for it
        compilation_cache.reset_cache()
        yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def fails(capsys, *arguments):
    """The one line that a mistake prints."""
    assert cli.main(list(arguments)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"rlkit: [^\n]+\n", err), err
    return err
