"""Everything that exists only because of XLA's CPU backend: faster programs for computations that are plain elsewhere.

No function changes a result beyond the rounding of a sum; random bits are the same bits. What each buys, measured on
two cores with the commands of benchmarks/ppo/NOTES.md:

  affine: 1.25 to 1.8 times the speed of the gradient of a dense layer of up to 128 x 128 numbers.
  convolution: 14 times the speed of the gradient of the Nature CNN inside of a loop (benchmarks/networks/NOTES.md).
  keep_layout: 1.24 to 1.31 times the speed of PPO with 64 environments, together with the next two.
  softmax_log_prob, softmax_entropy: see `keep_layout`.
  materialize: no recomputation of a tree's descent in each of its levels.
  padded_size: 4 to 10 times the speed of elementwise code on arrays of odd sizes.
  sequence: 1.22 times the speed of PPO with 4 environments, 1.0 from 32 on.
  straight_line_keys: 159 compiled loops instead of 222, and 1.2 times the speed of a prioritized replay cycle.

All but `convolution` have derivatives in forward mode (`jax.jvp`), too. With RLKIT_CPU_TRICKS=0 in the environment, or
inside of `plain`, each is the plain computation. Where JAX lacks an API that one of them needs, that one is the plain
computation, too: another version of JAX costs speed and never a crash.
"""

from rlkit._cpu.affine import affine
from rlkit._cpu.convolution import convolution
from rlkit._cpu.primitives import keep_layout, materialize, padded_size, sequence
from rlkit._cpu.random_bits import straight_line_keys
from rlkit._cpu.recurrence import recurrence
from rlkit._cpu.softmax import softmax_entropy, softmax_log_prob
from rlkit._cpu.switch import plain

__all__ = [
    "affine",
    "convolution",
    "keep_layout",
    "materialize",
    "padded_size",
    "plain",
    "recurrence",
    "sequence",
    "softmax_entropy",
    "softmax_log_prob",
    "straight_line_keys",
]
