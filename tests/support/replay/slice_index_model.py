"""A plain model of a slice index, compiled functions of the index, and kinds of slices."""

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.ops import _integers
from rlkit.replay import slice_index
from rlkit.replay.slice_index.sampling import start_of

KINDS = {
    "strict": {},
    "strict, by episode": {"sampling": "episode"},
    "padded": {"strict": False},
    "padded, by episode": {"strict": False, "sampling": "episode"},
    "cross episodes": {"cross_episodes": True},
    "padded, cross episodes": {"strict": False, "cross_episodes": True},
}

add = jax.jit(slice_index.add)

build = jax.jit(slice_index.build, static_argnames=("slice_len", "num_rows", "strict", "cross_episodes", "sampling"))


def to_numpy(fn, **kwargs):
    """Compile a function, and return its results as NumPy arrays."""
    jitted = jax.jit(fn, **kwargs)
    return lambda *args, **kwargs: jax.device_get(jitted(*args, **kwargs))


completed_slices = to_numpy(slice_index.completed_slices)

sample = to_numpy(slice_index.sample, static_argnames="num_slices")

batch_of_pass = to_numpy(slice_index.batch_of_pass, static_argnames="num_slices")


def picture(*envs: str) -> np.ndarray:
    """Make done [T, N] of one string an environment, where `|` follows the last step of an episode: `..|...`."""
    ends = [[c == "|" for c in env.replace(".|", "|")] for env in envs]
    return np.array(ends).T


@to_numpy
def listing(state):
    """List all slices in the order of completion, with sampling "slice"; masks are False beyond their number."""
    item = jnp.arange(state.num_rows * state.num_envs, dtype=jnp.uint32)
    slices = slice_index.at(state, *start_of(state, item))
    return slices._replace(mask=slices.mask & (item < _integers.uint32(slice_index.size(state)))[:, None])


def starts(state) -> list[tuple[int, int]]:
    """List (row, env) of all slices in the order of completion, with sampling "slice"."""
    slices = listing(state)
    real = slices.mask.any(axis=1)
    return list(zip(slices.row[real].tolist(), slices.env[real].tolist(), strict=True))


class Model:
    """The ring as a list of rows, from which every slice and episode is listed anew each time."""

    def __init__(self, num_rows, num_envs, slice_len, strict=True, cross_episodes=False, sampling="slice", head=0):
        self.num_rows, self.num_envs, self.slice_len = num_rows, num_envs, slice_len
        self.strict, self.cross = strict, cross_episodes
        self.rows, self.head = [], head  # rows: (absolute row, done [N])

    def add(self, done):
        self.rows += [(self.head + i, row) for i, row in enumerate(done)]
        self.head += len(done)
        self.rows = self.rows[-self.num_rows :]

    def slices(self) -> dict[tuple[int, int], int]:
        """Map (absolute row, env) of each slice to its number of real steps."""
        lengths = {}
        for i, (row, _) in enumerate(self.rows):
            for env in range(self.num_envs):
                steps = self.rows[i : i + self.slice_len]
                ends = [] if self.cross else [j for j, (_, done) in enumerate(steps) if done[env]]
                length = ends[0] + 1 if ends else len(steps)
                if length == self.slice_len or not self.strict:
                    lengths[row, env] = length
        return lengths

    def episodes(self) -> list[list[tuple[int, int]]]:
        """List the slices of each episode that has some."""
        slices, groups = self.slices(), []
        for env in range(self.num_envs):
            group = []
            for row, done in self.rows:
                group += [(row, env)] if (row, env) in slices else []
                if done[env] or row == self.head - 1:
                    groups, group = [*groups, group], []
        return [group for group in groups if group]


def filled_twice(**kind) -> tuple[slice_index.SliceIndex, Model]:
    """Fill a ring with episodes that are whole, partly overwritten, or unfinished; env 2 has one episode only."""
    rng = np.random.default_rng(5)
    done = rng.random((48, 3)) < [0.1, 0.2, 0.0]
    state, model = slice_index.init(30, 3, 4, **kind), Model(30, 3, 4, **kind)
    for chunk in np.split(done, 3):
        state = add(state, chunk)
        model.add(chunk)
    return state, model
