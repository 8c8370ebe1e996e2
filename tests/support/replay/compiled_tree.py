"""Compiled functions of the segment tree."""

import jax

from rlkit.replay import segment_tree
from rlkit.replay.segment_tree import maximum, minimum, total

ALL = ("sum", "min", "max")

# Functions that are called often are compiled: op by op, each operation costs a compilation of its own.
init = jax.jit(segment_tree.init, static_argnums=(0, 1), static_argnames="fanout")

build = jax.jit(segment_tree.build, static_argnums=1, static_argnames="fanout")

write = jax.jit(segment_tree.write, static_argnames="in_maximum")

values, read, find = jax.jit(segment_tree.values), jax.jit(segment_tree.read), jax.jit(segment_tree.find)

sample = jax.jit(segment_tree.sample, static_argnums=2, static_argnames="stratified")


def summary(tree):
    return float(total(tree)), float(minimum(tree)), float(maximum(tree))
