"""A slow, plain model of every replay buffer, and rollouts in which no two steps are equal."""

from dataclasses import dataclass, field, replace
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from rlkit import replay
from rlkit.replay import segment_tree
from rlkit.types import Buffer, Key, Sample, Transition

Start = tuple[int, int]  # an absolute row, from 0, and an environment


def steps(num_steps: int, num_envs: int = 1, **fields: object) -> Transition:
    """Rows of one endless episode, obs counting from 0; a field may be given."""
    obs = np.broadcast_to(np.arange(num_steps, dtype=np.float32)[:, None], (num_steps, num_envs))
    flag = np.zeros((num_steps, num_envs), bool)
    return Transition(obs, obs, obs, flag, flag, obs + 1)._replace(**fields)


ONE = jax.tree.map(lambda x: jnp.asarray(x[0, 0]), steps(1))


class Stream:
    """Endless steps of N environments with random episode ends; obs["id"] is (env, its observations before).

    obs["stack"] has the last four frames, with every kind of step and of reset: others for it are chance.
    """

    def __init__(self, num_envs: int, seed: int, *, end: float = 0.25):
        self.random = np.random.default_rng(seed)
        self.end = end
        self.counts = np.zeros((num_envs,), np.int32)
        self.pictures = np.random.default_rng(seed + 1)
        self.stack = self._frames((num_envs, 66, 4))

    def rollout(self, num_steps: int) -> Transition:
        """[T, N, ...] arrays of NumPy. Final observations have ids of their own."""
        return jax.tree.map(lambda *rows: np.stack(rows), *(self._row() for _ in range(num_steps)))

    def _row(self) -> Transition:
        num_envs = self.counts.size
        terminated, truncated = self.random.random((2, num_envs)) < self.end / 2
        obs = self._obs()
        self.counts = self.counts + 1
        self.stack = np.stack([self._after_step(stack) for stack in self.stack])
        next_obs = self._obs()
        self.counts = self.counts + (terminated | truncated)
        self.stack = np.stack(
            [self._after_end(x) if end else x for x, end in zip(self.stack, terminated | truncated, strict=True)]
        )
        action = self.random.integers(5, size=num_envs, dtype=np.int32)
        reward = self.random.normal(size=num_envs).astype(np.float32)
        return Transition(obs, action, reward, terminated, truncated, next_obs)  # type: ignore[arg-type]

    def _obs(self) -> dict[str, np.ndarray]:
        pixels = np.repeat(self.counts[:, None] % 256, 3, axis=1).astype(np.uint8)
        return {"id": np.stack([np.arange(self.counts.size, dtype=np.int32), self.counts], axis=1)} | {
            "pixels": pixels,
            "stack": self.stack,
        }

    def _frames(self, shape: tuple[int, ...]) -> np.ndarray:
        return self.pictures.integers(256, size=shape, dtype=np.uint8)

    def _after_step(self, stack: np.ndarray) -> np.ndarray:
        """The next stack [66, 4]: one frame later, of which some stand still, or rarely another."""
        kind = self.pictures.choice(["next", "still", "other"], p=[0.7, 0.2, 0.1])
        if kind == "other":
            return self._frames(stack.shape)
        new = stack[:, -1:] if kind == "still" else self._frames((66, 1))
        return np.concatenate([stack[:, 1:], new], 1)

    def _after_end(self, stack: np.ndarray) -> np.ndarray:
        """The stack after an episode: of its first frame, with zeros before it, or some frames later in the game."""
        kind, frame = self.pictures.choice(["repeats", "zeros", "goes on", "two later"]), self._frames((66, 1))
        return {
            "repeats": np.repeat(frame, 4, 1),
            "zeros": np.concatenate([np.zeros((66, 3), np.uint8), frame], 1),
            "goes on": stack,
            "two later": np.concatenate([stack[:, 2:], self._frames((66, 2))], 1),
        }[kind]


def example() -> Transition:
    """One step of a `Stream`, leaves [...]: nested observations, three dtypes."""
    return jax.tree.map(lambda x: x[0, 0], Stream(1, 0).rollout(1))


@dataclass
class Model:
    """All rows ever added, in a list; the items that may be drawn are found by a search through it."""

    num_rows: int
    num_envs: int
    window: int = 1
    kind: Literal["window", "strict", "padded", "across"] = "window"
    alpha: float = 0.6
    eps: float = 1e-6
    start_priority: float = 1.0
    max_final_obs: int | None = None  # of observations stored once
    rows: list[Transition] = field(default_factory=list)
    mass: dict[Start, float] = field(default_factory=dict)
    measured: dict[Start, float] = field(default_factory=dict)

    def add(self, rollout: Transition) -> None:
        before = set(self.starts())
        length = rollout.reward.shape[0]
        self.rows += [jax.tree.map(lambda x, t=t: x[t], rollout) for t in range(length)]
        live = set(self.starts())
        self.mass = {start: mass for start, mass in self.mass.items() if start in live}
        self.measured = {start: mass for start, mass in self.measured.items() if start in live}
        new = max(self.measured.values(), default=(self.start_priority + self.eps) ** self.alpha)
        self.mass |= dict.fromkeys(live - before, new)

    def update(self, starts: list[Start], priority: np.ndarray) -> None:
        values: dict[Start, float] = {}
        for start, p in zip(starts, priority, strict=True):
            if start in self.mass and np.isfinite(p):
                values[start] = max(values.get(start, 0.0), (abs(float(p)) + self.eps) ** self.alpha)
        self.mass |= values
        self.measured |= values

    @property
    def tail(self) -> int:
        return max(len(self.rows) - self.num_rows, 0)

    def done(self, row: int, env: int) -> bool:
        return bool(self.rows[row].terminated[env] | self.rows[row].truncated[env])

    def starts(self) -> list[Start]:
        """All places where an item may start, also those whose final observations are no longer stored."""
        places = [(row, env) for row in range(self.tail, len(self.rows)) for env in range(self.num_envs)]
        if self.kind == "padded":
            return places
        full = [(row, env) for row, env in places if row + self.window <= len(self.rows)]
        if self.kind != "strict":
            return full
        return [(row, env) for row, env in full if not any(self.done(row + k, env) for k in range(self.window - 1))]

    def has_next_obs(self, row: int, env: int) -> bool:
        """Tell if next_obs of a step is stored: not if its final observation has been overwritten."""
        if self.max_final_obs is None or not self._needs_final_obs(row, env):
            return True
        truncated = [(r, e) for r in range(len(self.rows)) for e in range(self.num_envs) if self._needs_final_obs(r, e)]
        size = 1 << (self.max_final_obs - 1).bit_length()
        return (row, env) in truncated[-size:]

    def _needs_final_obs(self, row: int, env: int) -> bool:
        return bool(self.rows[row].truncated[env] & ~self.rows[row].terminated[env])

    def drawable(self) -> list[Start]:
        needed = self.window if self.kind == "strict" else 1
        return [(r, e) for r, e in self.starts() if all(self.has_next_obs(r + k, e) for k in range(needed))]

    def mask(self, row: int, env: int) -> np.ndarray:
        """Mark the real rows of the window that starts here, [L] bool."""
        mask = []
        for k in range(self.window):
            stored = row + k < len(self.rows)
            same = self.kind == "across" or not any(self.done(row + j, env) for j in range(k) if stored)
            mask.append(stored and same and self.has_next_obs(row + k, env))
        return np.array(mask)

    def item(self, row: int, env: int) -> Transition:
        """Return the step at a row and environment, leaves [...]."""
        return jax.tree.map(lambda x: x[env], self.rows[row])

    def weight(self, start: Start, beta: float) -> float:
        total = sum(self.mass.values())
        weights = {s: (len(self.mass) * m / total) ** -beta for s, m in self.mass.items() if m > 0}
        return weights[start] / max(weights.values())


class Harness:
    """A buffer and its model: each operation is done on both, and each sample is checked."""

    def __init__(self, buffer: Buffer, model: Model, beta: float = 0.4, seed: int = 0):
        self.buffer, self.model, self.beta = buffer, model, beta
        self.restart(seed)
        self.add_jit, self.sample_jit, self.update_jit = (
            jax.jit(buffer.add),
            jax.jit(buffer.sample),
            jax.jit(buffer.update),
        )

    def restart(self, seed: int) -> None:
        """Empty both; nothing is compiled again."""
        self.stream = Stream(self.model.num_envs, seed)
        self.state = self.buffer.init(example(), self.model.num_envs)
        self.model = replace(self.model, rows=[], mass={}, measured={})

    def add(self, num_steps: int) -> None:
        rollout = self.stream.rollout(num_steps)
        self.state = self.add_jit(self.state, rollout)
        self.model.add(rollout)
        assert int(self.buffer.size(self.state)) == len(self.model.starts())

    def sample(self, key: Key) -> tuple[Sample, list[Start]]:
        """Draw and check a sample; return it with the starts of its items."""
        sample = jax.device_get(self.sample_jit(self.state, key))
        drawable = set(self.model.drawable())
        if not drawable:
            assert not sample.mask.any()
            return sample, []
        starts = [(int(row), int(env)) for row, env in zip(sample.index.row, sample.index.env, strict=True)]
        assert set(starts) <= drawable
        for i, start in enumerate(starts):
            self._check_item(jax.tree.map(lambda x, i=i: x[i], sample.item), sample.mask[i], start)
        if "beta" in dir(self.state):
            expected = [self.model.weight(start, self.beta) for start in starts]
            np.testing.assert_allclose(sample.weight, expected, rtol=1e-4)
        else:
            assert (sample.weight == 1).all()
        return sample, starts

    def _check_item(self, item: Transition, mask: np.ndarray, start: Start) -> None:
        model = self.model
        if mask.ndim == 0:  # a single step
            assert mask
            return self._check_step(item, model.item(*start), start)
        np.testing.assert_array_equal(mask, model.mask(*start))
        for k in np.flatnonzero(mask).tolist():
            step = model.item(start[0] + k, start[1])
            if k + 1 == mask.size or not mask[k + 1]:
                step = step._replace(truncated=step.truncated | ~step.terminated)
            self._check_step(jax.tree.map(lambda x, k=k: x[k], item), step, start)

    def _check_step(self, got: Transition, expected: Transition, start: Start) -> None:
        if self.model.max_final_obs is not None and expected.terminated:
            got = got._replace(next_obs=expected.next_obs)  # undefined where observations are stored once
        for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            assert (x.dtype, x.shape) == (y.dtype, y.shape)
            assert (x == y).all(), f"{got} of {start}, expected {expected}"

    def update(self, sample: Sample, starts: list[Start], priority: np.ndarray) -> None:
        self.state = self.update_jit(self.state, sample.index, priority)
        self.model.update(starts, priority)
        if "beta" in dir(self.state):
            self.check_masses()

    def check_masses(self) -> None:
        """Compare the masses of all places in the tree and in the model."""
        model, tree = self.model, self.state.priorities.mass
        expected = np.zeros((model.num_rows, model.num_envs))
        measured = np.zeros_like(expected)
        for (row, env), mass in model.mass.items():
            expected[row % model.num_rows, env] = mass
        for (row, env), mass in model.measured.items():
            measured[row % model.num_rows, env] = mass
        np.testing.assert_allclose(segment_tree.values(tree), expected.reshape(-1), rtol=1e-5)
        np.testing.assert_allclose(segment_tree.maximum(tree), measured.max(), rtol=1e-5)
        np.testing.assert_allclose(segment_tree.total(tree), expected.sum(), rtol=1e-5)


R, N, B = 8, 2, 64

KINDS = {  # a buffer and its model
    "uniform": (replay.uniform(R * N, B), Model(R, N)),
    "uniform windows": (replay.uniform(R * N, B, length=3), Model(R, N, 3)),
    "uniform, obs once": (replay.uniform(R * N, B, store_obs_once=True), Model(R, N, max_final_obs=16)),
    "uniform windows, obs once, few final obs": (
        replay.uniform(R * N, B, length=3, store_obs_once=True, max_final_obs=2),
        Model(R, N, 3, max_final_obs=2),
    ),
    "uniform, frames once": (replay.uniform(R * N, B, frame_stack=4), Model(R, N)),
    "uniform windows, frames once": (replay.uniform(R * N, B, length=3, frame_stack=4), Model(R, N, 3)),
    "prioritized": (replay.prioritized(R * N, B), Model(R, N)),
    "prioritized windows": (replay.prioritized(R * N, B, length=3), Model(R, N, 3)),
    "prioritized windows, obs once": (
        replay.prioritized(R * N, B, length=3, store_obs_once=True),
        Model(R, N, 3, max_final_obs=16),
    ),
    "prioritized windows, frames once": (
        replay.prioritized(R * N, B, length=3, frame_stack=4),
        Model(R, N, 3),
    ),
    "slices": (replay.slices(R * N, B, 3), Model(R, N, 3, "strict")),
    "slices, frames once": (replay.slices(R * N, B, 3, frame_stack=4), Model(R, N, 3, "strict")),
    "slices by episode": (replay.slices(R * N, B, 3, sampling="episode"), Model(R, N, 3, "strict")),
    "slices, obs once, few final obs": (
        replay.slices(R * N, B, 3, store_obs_once=True, max_final_obs=2),
        Model(R, N, 3, "strict", max_final_obs=2),
    ),
    "padded slices": (replay.slices(R * N, B, 3, strict=False), Model(R, N, 3, "padded")),
    "slices across ends": (replay.slices(R * N, B, 3, cross_episodes=True), Model(R, N, 3, "across")),
    "prioritized slices": (replay.slices(R * N, B, 3, prioritized=True), Model(R, N, 3, "strict")),
    "prioritized padded slices": (
        replay.slices(R * N, B, 3, strict=False, prioritized=True),
        Model(R, N, 3, "padded"),
    ),
    "prioritized slices across ends": (
        replay.slices(R * N, B, 3, cross_episodes=True, prioritized=True),
        Model(R, N, 3, "across"),
    ),
}
FEW = [
    "uniform windows, obs once, few final obs",
    "prioritized windows, obs once",
    "prioritized windows, frames once",
    "slices by episode",
    "prioritized slices",
    "prioritized slices across ends",
]
HEART = ["uniform windows, obs once, few final obs", "prioritized windows, frames once", "prioritized slices"]
