"""Temporary memory and time of PPO's computations over a whole rollout, in chunks of rows or all rows at once.

The memory is that which the compiled program reserves beyond its inputs and outputs (`memory_analysis()`). The programs
are compiled from shapes alone, so nothing large is allocated.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from rlkit import envs
from rlkit.agents import ppo
from rlkit.agents.common import minibatches, policy_evaluation
from rlkit.runs.pictures import curves
from rlkit.types import Agent, Transition

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common import report

HERE = Path(__file__).resolve().parent
CHUNK = minibatches.CPU_ROWS
FLAT, SLOWDOWN = 1.05, 1.1  # the targets: greatest over least memory, chunked over unchunked time
ODD = 37  # added to a power of two, so that the chunks do not divide the rows
TIMED_ROWS = 2**18
NUM_STEPS = 128  # of each environment; 1 where the rows are odd
MODES = {"chunked": CHUNK, "whole": None}


def make(chunk_size: int | None) -> Agent:
    """PPO on CartPole-v1 with one minibatch."""
    env, params = envs.make("CartPole-v1")
    config = ppo.Config(chunk_size=chunk_size, num_minibatches=1)
    return ppo.make(config, env.observation_space(params), env.action_space(params))


def example() -> Transition:
    flag, obs = jnp.zeros((), bool), jnp.zeros(4, jnp.float32)
    return Transition(obs, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.float32), flag, flag, obs)


def rollout(rows: int) -> Transition:
    """Shapes and dtypes of a rollout [T, N, ...] with this number of rows."""
    num_steps = math.gcd(rows, NUM_STEPS)
    extras = policy_evaluation.Extras((), jnp.zeros((), jnp.float32), ())
    one = example()._replace(extras=extras)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((num_steps, rows // num_steps, *x.shape), x.dtype), one)


def evaluation(chunk_size: int | None, rows: int) -> Any:
    """The compiled program of old log-probs, values and next values: (actor, rollout) -> Evaluated."""
    agent = make(chunk_size)
    state = jax.eval_shape(partial(agent.init, ppo.Hyper(), jax.random.key(0), num_envs=1), example())

    def evaluate(actor: Any, rollout: Transition) -> Any:
        return policy_evaluation.evaluate(agent.static.policy, actor, rollout, (), chunk_size, keep_dist=False)

    return jax.jit(evaluate).lower(jax.eval_shape(agent.actor, state), rollout(rows)).compile()


def update(chunk_size: int | None, rows: int) -> Any:
    """The compiled program of a whole update: (state, rollout, key) -> state, metrics."""
    agent = make(chunk_size or rows)
    init = partial(agent.init, ppo.Hyper(), jax.random.key(0), num_envs=rows // NUM_STEPS)
    state = jax.eval_shape(init, example())
    return jax.jit(agent.update).lower(state, rollout(rows), jax.random.key(0)).compile()


def temporary(compiled: Any) -> int:
    return int(compiled.memory_analysis().temp_size_in_bytes)


def memory(program: Any, rows: Sequence[int]) -> dict[str, dict[str, int]]:
    """Temporary bytes by mode and number of rows."""
    return {mode: {str(n): temporary(program(chunk, n)) for n in rows} for mode, chunk in MODES.items()}


def timing(rows: int, rounds: int) -> dict[str, Any]:
    """Seconds of both modes on the same numbers, in alternating rounds."""
    agent = make(None)
    actor = agent.actor(agent.init(ppo.Hyper(), jax.random.key(0), example(), num_envs=1))
    keys = iter(jax.random.split(jax.random.key(1), 16))

    def random(x: jax.ShapeDtypeStruct) -> jax.Array:
        key = next(keys)
        if jnp.issubdtype(x.dtype, jnp.floating):
            return jax.random.normal(key, x.shape, x.dtype)
        return jax.random.bernoulli(key, 0.5, x.shape).astype(x.dtype)

    data = jax.tree.map(random, rollout(rows))
    programs = {mode: evaluation(chunk, rows) for mode, chunk in MODES.items()}
    for leaves in zip(*(jax.tree.leaves(compiled(actor, data)) for compiled in programs.values()), strict=True):
        assert jnp.allclose(*leaves, rtol=1e-5, atol=1e-5), "the modes differ by more than rounding"

    def call(compiled: Any, _: int) -> None:
        jax.block_until_ready(compiled(actor, data))

    seconds = report.interleaved({mode: partial(call, compiled) for mode, compiled in programs.items()}, rounds)
    return {"rows": rows, "seconds": seconds, "ratio": report.ratio(seconds["chunked"], seconds["whole"])}


def flatness(bytes_of: dict[str, int]) -> float:
    """Greatest over least memory of the row counts above one chunk."""
    values = [size for rows, size in bytes_of.items() if int(rows) > CHUNK]
    return max(values) / min(values)


def draw(num_bytes: dict[str, dict[str, int]], target: Path) -> None:
    """Draw temporary memory over rows, both axes logarithmic."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.2), dpi=150, layout="constrained")
    axes = figure.subplots()
    lines = (("chunked", f"in chunks of {CHUNK:,} rows", "#3465a4"), ("whole", "all rows at once", "#d9822b"))
    for mode, label, color in lines:
        points = sorted((int(rows), size / 2**20) for rows, size in num_bytes[mode].items())
        axes.loglog(*zip(*points, strict=True), color=color, label=label, marker=".", linewidth=1.8, base=2)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("rows")
    axes.set_ylabel("temporary memory, MiB")
    axes.set_title("Old log-probs and values of a rollout", fontsize=11, loc="left")
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors="#444444", labelsize=9)
    axes.legend(frameon=False, fontsize=9)
    curves.save(figure, target)


def mib(size: int) -> str:
    return f"{size / 2**20:,.2f}"


def rows_of(num_bytes: dict[str, dict[str, int]]) -> list[list[str]]:
    sizes = sorted(num_bytes["chunked"], key=int)
    return [[f"{int(rows):,}", mib(num_bytes["chunked"][rows]), mib(num_bytes["whole"][rows])] for rows in sizes]


def render(results: Mapping[str, Any]) -> str:
    time, flat = results["time"], results["flatness"]
    milliseconds = {mode: 1e3 * statistics.median(s) for mode, s in time["seconds"].items()}
    header = ["rows", f"chunks of {CHUNK}, MiB", "whole, MiB"]
    return (
        "# Memory of PPO's computations over a whole rollout\n\n"
        "Temporary bytes of the compiled program, beyond its inputs and outputs; CartPole-v1, separate 2x64 tanh "
        "networks.\n\n"
        "## Old log-probs, values and next values\n\n"
        f"In chunks, the greatest is {flat:.4f} times the least (target: <= {FLAT}, {report.verdict(flat <= FLAT)}). "
        f"At {time['rows']:,} rows: {milliseconds['chunked']:.1f} ms in chunks, {milliseconds['whole']:.1f} ms whole, "
        f"ratio {report.spread(time['ratio'])} "
        f"(target: <= {SLOWDOWN}, {report.verdict(time['ratio']['median'] <= SLOWDOWN)}).\n\n"
        "![Temporary memory over rows](memory.png)\n\n"
        + report.table(header, rows_of(results["evaluation"]))
        + "\n## A whole update with one minibatch\n\n"
        "It holds the shuffled minibatch, so it grows with the rollout; the memory for the network does not.\n\n"
        + report.table(header, rows_of(results["update"]))
        + f"\n{report.provenance_line(results['made'])}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-log2", type=int, default=22, help="the most rows, as a power of two (%(default)s)")
    parser.add_argument("--rounds", type=int, default=21, help="timed rounds (%(default)s)")
    parser.add_argument("--results", type=Path, default=HERE, help="where memory.json, .md and .png go")
    options = parser.parse_args()
    powers = [2**k for k in range(14, options.max_log2 + 1)]
    num_bytes = memory(evaluation, sorted([*powers, *(rows + ODD for rows in powers)]))
    results = {
        "chunk_size": CHUNK,
        "evaluation": num_bytes,
        "flatness": flatness(num_bytes["chunked"]),
        "time": timing(min(TIMED_ROWS, powers[-1]), options.rounds),
        "update": memory(update, [rows for rows in powers if rows <= 2**20]),
        "made": report.provenance(),
    }
    report.write(options.results, "memory", results, render)
    draw(num_bytes, options.results / "memory.png")


if __name__ == "__main__":
    main()
