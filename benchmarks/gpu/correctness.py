"""The main programs on the accelerator against the same programs on the CPU, from the same arrays, in one process."""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tasks
from measuring import Budget, Update, first_line

import rlkit
from rlkit import replay, runs
from rlkit.replay import segment_tree
from rlkit.runs.exporting.comparison import draw
from rlkit.runs.exporting.policy_function import policy_function
from rlkit.types import Transition

RTOL = {"update": 1e-3, "structure": 1e-6, "policy": 1e-5}  # of a float array's norm


def compare(measured: Any, expected: Any, rtol: float) -> dict[str, Any]:
    """Compare two pytrees: integers and flags have to be equal, float arrays within `rtol` of the expected norm.

    An expected norm below 1e-6 counts as 1e-6.
    """
    flat, structure = jax.tree_util.tree_flatten_with_path(expected)
    worst, where, unequal = 0.0, "", []
    for (path, right), left in zip(flat, structure.flatten_up_to(measured), strict=True):
        left, right, name = np.asarray(left), np.asarray(right), jax.tree_util.keystr(path, simple=True, separator="/")
        if not np.issubdtype(right.dtype, np.floating):
            unequal += [] if np.array_equal(left, right) else [name]
            continue
        same = left == right  # infinities too: they are "off" in Hyper, and the minimum of nothing
        difference = np.subtract(left, right, out=np.zeros(right.shape), where=~same)
        norm = max(np.linalg.norm(right[np.isfinite(right)]), 1e-6)
        error = float(np.nan_to_num(np.linalg.norm(difference) / norm, nan=np.inf))
        if error > worst:
            worst, where = error, name
    return {"unequal": unequal, "error": worst, "of": where, "rtol": rtol, "met": not unequal and worst <= rtol}


def on(device: Any, function: Callable[..., Any], arguments: Any) -> Any:
    """The function's result, computed on a device."""
    with jax.default_device(device):
        return jax.device_get(_data(jax.jit(lambda x: function(*x))(jax.device_put(arguments, device))))


def _data(tree: Any) -> Any:
    """The tree with the numbers of its keys in their places."""
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)  # noqa: E731
    return jax.tree.map(lambda x: jax.random.key_data(x) if is_key(x) else x, tree)


def update(name: str, env: str, sizes: Mapping[str, Any], **settings: Any) -> tuple[Callable[..., Any], Any]:
    """One update of an agent from a rollout: the function of which the result is its state, and the arguments."""
    task = tasks.make(name, env, sizes["envs"], sizes["steps"], {"learning_rate": 1e-3}, **settings)
    state = task.start()
    rollout = task.rollout(state, task.num_steps)
    return lambda *arguments: task.agent.update(*arguments)[0], (state.agent, rollout, jax.random.key(2))


def slices(sampling: str, sizes: Mapping[str, Any]) -> tuple[Callable[..., Any], Any]:
    """Samples of a buffer of slices, of integers alone, after rollouts that wrap around."""
    rows, envs = 8 * sizes["steps"], sizes["envs"]
    buffer = replay.slices(5 * sizes["steps"] * envs, 256, 4, sampling=sampling)  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    steps = Transition(
        obs=np.arange(rows * envs, dtype=np.int32).reshape(rows, envs),
        action=(),
        reward=np.zeros((rows, envs), np.float32),
        terminated=rng.random((rows, envs)) < 0.1,
        truncated=rng.random((rows, envs)) < 0.05,
        next_obs=(),
    )

    def function(steps: Transition, key: Any) -> Any:
        state = buffer.init(jax.tree.map(lambda x: jnp.zeros(x.shape[2:], x.dtype), steps), envs)
        for part in range(8):
            state = buffer.add(state, jax.tree.map(lambda x: x[part * rows // 8 : (part + 1) * rows // 8], steps))  # noqa: B023
        sample = buffer.sample(state, key)
        return sample.item, sample.index, sample.mask, buffer.size(state)

    return function, (jax.tree.map(jnp.asarray, steps), jax.random.key(3))


def tree(fanout: int, sizes: Mapping[str, Any]) -> tuple[Callable[..., Any], Any]:
    """A tree that is built, written to and drawn from."""
    rng, leaves = np.random.default_rng(0), sizes["leaves"]
    values = rng.random(leaves, np.float32)
    index = rng.integers(0, leaves, 1024).astype(np.int32)
    new = rng.random(1024, np.float32)

    def function(values: Any, index: Any, new: Any, key: Any) -> Any:
        built = segment_tree.write(segment_tree.build(values, fanout=fanout), index, new)
        roots = segment_tree.total(built), segment_tree.minimum(built), segment_tree.maximum(built)
        mass = jnp.linspace(0.0, 0.999, 1024) * roots[0]
        return roots, segment_tree.find(built, mass), segment_tree.sample(built, key, 1024), built

    return function, (*map(jnp.asarray, (values, index, new)), jax.random.key(4))


def exported(agent: str, env: str, **settings: Any) -> tuple[Callable[..., Any], Any]:
    """The greedy policy of a short run as StableHLO, read back as a program without rlkit would, and 1,000 inputs."""
    settings |= {"agent": agent, "env": env, "num_envs": 4, "num_steps": 16, "total_steps": 256, "eval_episodes": 4}
    with tempfile.TemporaryDirectory() as folder, jax.default_matmul_precision(None):  # that of the file
        run, file = Path(folder, "run"), Path(folder, "policy.stablehlo")
        runs.train(settings, out=run, show=False)
        runs.export(run, "stablehlo", file)
        policy = policy_function(rlkit.load(run))
        read = jax.export.deserialize(bytearray(file.read_bytes()))
    inputs = {value.name: np.zeros((1000, *value.shape), value.dtype) for value in policy.inputs}
    inputs |= draw(policy, jax.random.key(6), 1000)
    return read.call, (inputs,)


def cases(sizes: Mapping[str, Any]) -> dict[str, tuple[str, Callable[[], tuple[Callable[..., Any], Any]]]]:
    """The programs by name, each with its kind."""
    off_policy = {"capacity": 4096, "batch_size": 64, "replay_ratio": 1 / sizes["envs"], "learning_starts": 1}
    small = {"capacity": 512, "batch_size": 8, "learning_starts": 64}
    policies = {
        "exported PPO with a memory": partial(exported, "ppo", "CartPole-v1", recurrent="gru"),
        "exported SAC": partial(exported, "sac", "Pendulum-v1", **small),
        "exported DQN of images": partial(exported, "dqn", "Breakout-MinAtar", encoder="conv", **small),
    }
    return {
        "PPO, one update": ("update", partial(update, "ppo", "CartPole-v1", sizes)),
        "DQN with priorities, one update": (
            "update",
            partial(update, "dqn", "CartPole-v1", sizes, replay="prioritized", **off_policy),
        ),
        "SAC, one update": ("update", partial(update, "sac", "Pendulum-v1", sizes, **off_policy)),
        "slices by step": ("structure", partial(slices, "slice", sizes)),
        "slices by episode": ("structure", partial(slices, "episode", sizes)),
        **{f"segment tree, fan-out {n}": ("structure", partial(tree, n, sizes)) for n in sizes["fanouts"]},
        **{name: ("policy", make) for name, make in [*policies.items()][: sizes["policies"]]},
    }


def run(sizes: Mapping[str, Any], budget: Budget) -> Iterator[Update]:
    """Compare each program; matrix products are in full precision on both devices."""
    device, cpu = jax.devices()[0], jax.local_devices(backend="cpu")[0]
    for name, (kind, make) in cases(sizes).items():
        if budget.over():
            yield name, {"left out": "no time left"}
            continue
        begin = time.perf_counter()
        with jax.default_matmul_precision("highest"):
            with jax.default_device(cpu):
                function, arguments = make()
            try:
                measured, expected = (on(each, function, arguments) for each in (device, cpu))
            except jax.errors.JaxRuntimeError as error:
                yield name, {"left out": first_line(error), "met": False}
                continue
        yield name, compare(measured, expected, RTOL[kind]) | {"took": time.perf_counter() - begin}
