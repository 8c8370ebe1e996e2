"""The parts of run.py that are timed: training, replay structures, convolutions, gradient steps."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import correctness
import jax
import jax.numpy as jnp
import numpy as np
import tasks
from jax import lax
from measuring import LOOPS_AS_GRAPHS, Budget, Program, Update, measure, repeated

from rlkit import replay

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "replay"))

from common.workers import Worker
from rlkit_buffers import example, slices
from trees import Trees
from workload import bytes_of_steps

PPO = {"hidden_sizes": (64, 64), "activation": "tanh", "num_epochs": 4, "num_minibatches": 4}
PPO_HYPER = {"learning_rate": 1e-3, "gamma": 0.99, "gae_lambda": 0.95, "max_grad_norm": 0.5}
ROLLOUT = 128  # steps of a rollout of benchmarks/ppo
SHARE_OF_MEMORY = 0.5  # of the device's, for a buffer and its copies while it is filled


def ppo(
    sizes: Mapping[str, Any], num_envs: int, num_seeds: int | None = None, options: dict[str, Any] | None = None
) -> Program:
    """Updates of PPO on CartPole-v1, of one seed or of several under vmap."""
    task = tasks.make("ppo", "CartPole-v1", num_envs, sizes["steps"], PPO_HYPER, **PPO)
    init, step = partial(task.training.init, task.hyper), lambda state: task.training.step(state)[0]
    amount = num_envs * sizes["steps"] * sizes["updates"] * (num_seeds or 1)
    if num_seeds is None:
        return Program(repeated(step, sizes["updates"]), jax.jit(init)(jax.random.key(0)), amount, "steps", options)
    state = jax.jit(jax.vmap(init))(jax.random.split(jax.random.key(0), num_seeds))
    return Program(repeated(jax.vmap(step), sizes["updates"]), state, amount, "steps")


def by_envs(sizes: Mapping[str, Any], budget: Budget) -> Iterator[Update]:
    cases = {f"{count} environments": partial(ppo, sizes, count) for count in sizes["num_envs"]}
    return measure(cases, sizes["rounds"], budget)


def by_seeds(sizes: Mapping[str, Any], budget: Budget) -> Iterator[Update]:
    cases = {}
    for count in sizes["seeds"]:
        name = "1 seed" if count == 1 else f"{count} seeds"
        cases[name] = partial(ppo, sizes, sizes["envs_of_seed"], count)
    return measure(cases, sizes["rounds"], budget)


class Training:
    """A whole training by the worker of benchmarks/ppo, compiled by its process; a run is one call of it."""

    def __init__(self, worker: Worker, num_envs: int, updates: int):
        self.worker, amount = worker, updates * num_envs * ROLLOUT
        compiled = worker.call("compile", num_envs, updates)["seconds"]
        self.about = {"compile": compiled, "amount": amount, "unit": "steps"}

    def run(self, seed: int) -> dict[str, float]:
        finished = self.worker.call("run", seed)
        assert finished["steps"] == self.about["amount"], finished
        return {"call": finished["seconds"]}


def against_rejax(sizes: Mapping[str, Any], budget: Budget) -> Iterator[Update]:
    """Trainings of PPO on CartPole-v1 beside rejax's, in processes that wait while the other one works."""
    interpreters = {"rlkit": sys.executable} | ({"rejax": sizes["python"]} if sizes["python"] else {})
    with ExitStack() as stack:
        workers = {}
        for name, python in interpreters.items():
            command = [python, Path(__file__).resolve().parents[1] / "ppo" / "worker.py", name]
            # Both processes share the device's memory.
            variables = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "JAX_ENABLE_COMPILATION_CACHE": "false"}
            workers[name] = stack.enter_context(Worker(name, command, variables))
        for num_envs in sizes["num_envs"]:
            updates = max(2, sizes["steps"] // (num_envs * ROLLOUT))
            cases = {
                f"{num_envs} environments, {name}": partial(Training, workers[name], num_envs, updates)
                for name in workers
            }
            yield from measure(cases, sizes["rounds"], Budget(budget.seconds / len(sizes["num_envs"])))


class Case:
    """A case of the benchmark of replay buffers; its first run compiles."""

    def __init__(self, make: Callable[[], Any], modes: tuple[str, ...], batch: int, **about: Any):
        begin = time.perf_counter()
        self.case, self.modes = make(), modes
        filled = time.perf_counter()
        self._run(0)
        compiled = time.perf_counter() - filled
        checked = self.case.check()
        self.about = about | {"fill": filled - begin, "first run": compiled, "amount": batch, "unit": "items"}
        self.about["check"] = {name: str(value) for name, value in checked.items()}

    def _run(self, seed: int) -> dict[str, float]:
        return {f"{mode} {name}": s for mode in self.modes for name, s in self.case.modes[mode](seed).items()}

    run = _run


def trees(sizes: Mapping[str, Any], budget: Budget) -> Iterator[Update]:
    def make(leaves: int, batch: int, fanout: int) -> Case:
        return Case(partial(Trees, leaves, batch, fanout), ("jit",), batch)

    cases = {
        f"2^{leaves.bit_length() - 1} leaves, batch {batch}, fan-out {fanout}": partial(make, leaves, batch, fanout)
        for batch in sizes["tree_batches"]
        for leaves in sizes["tree_leaves"]
        for fanout in sizes["fanouts"]
    }
    return measure(cases, sizes["rounds"], budget)


def of_slices(sizes: Mapping[str, Any], budget: Budget) -> Iterator[Update]:
    """Large buffers of slices beside a small one, all scaled down where the device has too little memory."""
    wanted = sizes["slices"]
    limit = (jax.devices()[0].memory_stats() or {}).get("bytes_limit")
    factor = 1
    while limit and 2 * num_bytes(wanted[-1][1] // factor) > SHARE_OF_MEMORY * limit:
        factor *= 2

    def make(stored: int, capacity: int, wish: str) -> Case:
        build = partial(slices, stored, capacity, 256, 4, 256)
        return Case(build, ("jit", "python"), 256, wanted=wish, scaled=factor, num_bytes=num_bytes(capacity))

    cases = {}
    for stored, capacity in wanted:
        wish, fits = f"{stored:,} of {capacity:,}", (stored // factor, capacity // factor)
        cases[f"{fits[0]:,} steps of {fits[1]:,}"] = partial(make, *fits, wish)
    return measure(cases, sizes["rounds"], budget)


def num_bytes(capacity: int) -> int:
    """Bytes of a buffer of slices."""
    step = example(bytes_of_steps(np.random.default_rng(0), (1,)))
    state = jax.eval_shape(lambda: replay.slices(capacity, 256, 4).init(step, 1))
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))


def convolution(way: str, batch: int, size: int, channels: int, filters: int, stride: int) -> Callable[..., Any]:
    """Return the layer (kernel [9 C, F], images [B, H, W, C]) -> [B, H', W', F], one of two ways."""

    def patches(kernel: Any, x: Any) -> Any:
        end = size - 2
        shifted = [x[:, i : i + end : stride, j : j + end : stride] for i in range(3) for j in range(3)]
        return jnp.concatenate(shifted, axis=-1) @ kernel

    def direct(kernel: Any, x: Any) -> Any:
        kernel = kernel.reshape(3, 3, channels, filters)
        return lax.conv_general_dilated(
            x, kernel, (stride, stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    return {"patches": patches, "lax.conv_general_dilated": direct}[way]


def convolutions(sizes: Mapping[str, Any], budget: Budget) -> Iterator[Update]:
    """The value and both gradients of a layer; both ways have to agree."""

    def arrays(batch: int, size: int, channels: int, filters: int, stride: int) -> tuple[Any, Any]:
        kernel_key, image_key = jax.random.split(jax.random.key(0))
        kernel = jax.random.normal(kernel_key, (9 * channels, filters)) / (9 * channels) ** 0.5
        return kernel, jax.random.normal(image_key, (batch, size, size, channels))

    def step(layer: Callable[..., Any], state: tuple[Any, Any]) -> tuple[Any, Any]:
        gradients = jax.grad(lambda kernel, x: jnp.mean(jnp.square(layer(kernel, x))), (0, 1))(*state)
        return jax.tree.map(lambda x, gradient: x - 1e-3 * gradient, state, gradients)

    def make(way: str, shape: tuple[int, ...]) -> Program:
        layer = convolution(way, *shape)
        with jax.default_matmul_precision("highest"):
            both = [jax.jit(partial(step, convolution(name, *shape)))(arrays(*shape)) for name in ways]
        agreement = correctness.compare(*both, rtol=1e-4)
        program = Program(repeated(partial(step, layer), sizes["repeats"]), arrays(*shape), sizes["repeats"], "passes")
        program.about |= {"agreement": agreement["error"], "met": agreement["met"]}
        return program

    ways = ("patches", "lax.conv_general_dilated")
    cases = {
        f"{b} of {n} x {n} x {c}, {f} filters, stride {s}, {way}": partial(make, way, (b, n, c, f, s))
        for b, n, c, f, s in sizes["images"]
        for way in ways
    }
    return measure(cases, sizes["rounds"], budget)


def of_agent(
    sizes: Mapping[str, Any], name: str, batch: int, options: dict[str, Any] | None = None, **settings: Any
) -> Program:
    """Gradient steps of DQN on CartPole-v1 or of SAC on Pendulum-v1 from a full buffer, without an environment."""
    count, envs = sizes["gradient_steps"], sizes["envs_of_buffer"]
    steps = sizes["capacity"] // envs
    settings |= {"capacity": sizes["capacity"], "batch_size": batch, "learning_starts": 1, "replay_ratio": 1.0}
    hyper, env = {"learning_rate": 1e-4, "schedule_steps": 1e9}, {"dqn": "CartPole-v1", "sac": "Pendulum-v1"}[name]
    task = tasks.make(name, env, envs, steps, hyper, hidden_sizes=sizes["hidden_sizes"], **settings)
    start = task.start()
    state = jax.jit(task.agent.add, donate_argnums=0)(start.agent, task.rollout(start, steps))
    learn = task.agent.learn
    assert learn is not None

    def function(state: tuple[Any, Any]) -> tuple[Any, Any]:
        key, next_key = jax.random.split(state[1])
        return learn(state[0], key, count)[0], next_key

    return Program(function, (state, jax.random.key(5)), count, "gradient steps", options)


def gradient_steps(sizes: Mapping[str, Any], budget: Budget) -> Iterator[Update]:
    cases = {}
    for batch in sizes["batches"]:
        cases[f"DQN, batch {batch}"] = partial(of_agent, sizes, "dqn", batch)
        cases[f"DQN with priorities, batch {batch}"] = partial(of_agent, sizes, "dqn", batch, replay="prioritized")
        cases[f"SAC, batch {batch}"] = partial(of_agent, sizes, "sac", batch)
    return measure(cases, sizes["rounds"], budget)


def loops_as_graphs(sizes: Mapping[str, Any], budget: Budget) -> Iterator[Update]:
    """Gradient steps and updates as XLA compiles them by default, and with whole loops as CUDA graphs."""
    batch = sizes["batch"]
    programs = {
        "DQN": partial(of_agent, sizes, "dqn", batch),
        "DQN with priorities": partial(of_agent, sizes, "dqn", batch, replay="prioritized"),
        "SAC": partial(of_agent, sizes, "sac", batch),
    } | {f"PPO, {count} environments": partial(ppo, sizes, count) for count in sizes["num_envs"]}
    cases = {
        name + suffix: partial(program, options=options)
        for name, program in programs.items()
        for suffix, options in (("", None), (", loops as graphs", LOOPS_AS_GRAPHS))
    }
    return measure(cases, sizes["rounds"], budget)


PARTS = {
    "correctness": correctness.run,
    "environments": by_envs,
    "seeds": by_seeds,
    "rejax": against_rejax,
    "trees": trees,
    "slices": of_slices,
    "convolutions": convolutions,
    "gradients": gradient_steps,
    "loops": loops_as_graphs,
}
