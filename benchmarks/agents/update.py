"""Time of a gradient step of SAC, TD3 and CrossQ, against plain JAX (plain.py) and against SBX, at several widths.

Batches of 256 drawn from 100,000 transitions of HalfCheetah-v5's sizes (17 and 6 numbers). All run in one process, in
alternating rounds: 200 steps in one scan, of SBX those of one call of its `train`. SBX is left out where it is not
installed, and CrossQ is not written in plain JAX.
"""

import argparse
import importlib.util
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import plain

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common import report

from rlkit import agents
from rlkit.spaces import Box
from rlkit.types import Transition

HERE = Path(__file__).resolve().parent
OBS, ACTION, CAPACITY, BATCH, COUNT = 17, 6, 100_000, 256, 200
OBS_SPACE = Box(-np.inf, np.inf, (OBS,))
AGENTS = ("sac", "td3", "crossq")
WAYS = ("plain", "rlkit", "rlkit, RLKIT_CPU_TRICKS=0", "sbx")
TARGET = 1.15  # times the plain version's time, of SAC with 256 units


def arrays(seed: int = 0) -> tuple[Any, ...]:
    rng = np.random.default_rng(seed)
    normal = partial(rng.standard_normal, dtype=np.float32)
    action = rng.uniform(-1, 1, (CAPACITY, ACTION)).astype(np.float32)
    terminated = rng.uniform(size=CAPACITY) < 0.001
    return tuple(
        map(jnp.asarray, (normal((CAPACITY, OBS)), action, normal(CAPACITY), terminated, normal((CAPACITY, OBS))))
    )


def rlkit(name: str, width: int, data: tuple[Any, ...], *, tricks: bool, networks: Any = None) -> Any:
    """A function of the number of a round that makes COUNT gradient steps and waits for them."""
    os.environ["RLKIT_CPU_TRICKS"] = str(int(tricks))
    module = agents.get(name)
    settings: Any = {"critic_hidden_sizes": (width, width)} if name == "crossq" else {}
    settings |= {"hidden_sizes": (width, width), "capacity": CAPACITY, "batch_size": BATCH}
    config = module.Config(learning_starts=0, replay_ratio=1.0, **settings)
    agent = module.make(config, OBS_SPACE, Box(-1.0, 1.0, (ACTION,)), networks)
    obs, action, reward, terminated, next_obs = data
    steps = Transition(obs, action, reward, terminated, jnp.zeros_like(terminated), next_obs, ())
    example = jax.tree.map(lambda x: x[0], steps)
    state = jax.jit(lambda key: agent.init(module.Hyper(), key, example, 1))(jax.random.key(0))
    state = jax.jit(agent.add)(state, jax.tree.map(lambda x: x[:, None], steps))
    learn = jax.jit(partial(agent.learn, num_steps=COUNT), donate_argnums=0)
    held = [state]
    compiled = learn.lower(held[0], jax.random.key(0)).compile()

    def run(index: int) -> None:
        held[0], metrics = compiled(held[0], jax.random.key(index))
        jax.block_until_ready(metrics)

    return run


def peer(name: str, width: int, data: tuple[Any, ...]) -> Any:
    plain.HIDDEN = width
    start, step = plain.make(name, data, BATCH, COUNT)
    held = [start(jax.random.key(0))]
    compiled = step.lower(held[0], jax.random.key(0)).compile()

    def run(index: int) -> None:
        held[0], metrics = compiled(held[0], jax.random.key(index))
        jax.block_until_ready(metrics)

    return run


def sbx(name: str, width: int, data: tuple[Any, ...]) -> Any:
    """SBX's agent with the same transitions in its buffer, and the defaults of both libraries, which are equal."""
    import gymnasium
    import sbx
    from stable_baselines3.common.logger import Logger

    class Env(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (OBS,))
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (ACTION,))

    kind = {"sac": sbx.SAC, "td3": sbx.TD3, "crossq": sbx.CrossQ}[name]
    sizes = {"net_arch": {"pi": [width, width], "qf": [width, width]}}
    model = kind("MlpPolicy", Env(), buffer_size=CAPACITY, batch_size=BATCH, policy_kwargs=sizes, seed=0)
    model.set_logger(Logger(None, []))
    buffer = model.replay_buffer
    names = ("observations", "actions", "rewards", "dones", "next_observations")
    for field, values in zip(names, data, strict=True):
        getattr(buffer, field)[:, 0] = np.asarray(values)
    buffer.full = True

    def run(index: int) -> None:
        model._n_updates = 0  # modulo the delay of the policy it is static
        model.train(gradient_steps=COUNT, batch_size=BATCH)
        jax.block_until_ready(model.policy.qf_state.params)

    return run


def measure(name: str, width: int, rounds: int) -> dict[str, Any]:
    data = arrays()
    functions = {"plain": peer(name, width, data)} if name != "crossq" else {}
    functions["rlkit"] = rlkit(name, width, data, tricks=True)
    functions["rlkit, RLKIT_CPU_TRICKS=0"] = rlkit(name, width, data, tricks=False)
    if importlib.util.find_spec("sbx") is not None:
        functions["sbx"] = sbx(name, width, data)
    report.interleaved(functions, 1)
    seconds = report.interleaved(functions, rounds)
    return {"agent": name, "width": width, "seconds": {k: [x / COUNT for x in v] for k, v in seconds.items()}}


def render(results: Mapping[str, Any]) -> str:
    rows = []
    for result in results.values():
        seconds = result["seconds"]
        ratios = {k: report.ratio(seconds["rlkit"], seconds[k]) for k in ("plain", "sbx") if k in seconds}
        has_target = result["agent"] == "sac" and result["width"] == 256
        rows.append(
            [
                result["agent"],
                result["width"],
                *(f"{1e3 * float(np.median(seconds[k])):.2f}" if k in seconds else "" for k in WAYS),
                *(report.spread(ratios[k]) if k in ratios else "" for k in ("plain", "sbx")),
                f"<= {TARGET} {report.verdict(ratios['plain']['median'] <= TARGET)}" if has_target else "",
            ]
        )
    header = ["agent", "units", "plain JAX ms", "rlkit ms", "without `_cpu` ms", "SBX ms", "rlkit / plain"]
    header += ["rlkit / SBX", "target"]
    return (
        "# Gradient steps of SAC, TD3 and CrossQ\n\nMilliseconds of one step in a scan of 200, batches of 256 from "
        "100,000 transitions; two layers.\n\n"
        + report.table(header, rows)
        + "\n"
        + report.provenance_lines(result["made"] for result in results.values())
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="timed rounds (%(default)s)")
    parser.add_argument("--agents", nargs="+", default=AGENTS, choices=AGENTS)
    parser.add_argument("--widths", nargs="+", type=int, default=[64, 256, 1024])
    parser.add_argument("--results", type=Path, default=HERE, help="where update.json and update.md go")
    options = parser.parse_args()
    results = report.read(options.results, "update")
    for name in options.agents:
        for width in options.widths:
            results[f"{name} {width}"] = measure(name, width, options.rounds) | {"made": report.provenance()}
            report.write(options.results, "update", results, render)


if __name__ == "__main__":
    main()
