"""Pages of the algorithms, the keys of a run, and the matrix of algorithms and features, from the code."""

import importlib
import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import results
import yaml
from api import heading, table
from docstrings import to_rst

from rlkit import agents, envs, spaces, training, types
from rlkit.runs.config.keys import limits_text, type_text, value_text
from rlkit.runs.config.schema import schema
from rlkit.training.train import EPISODES, SUMMARIES

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "configs"
METRICS = ROOT / "docs/metrics.md"
_BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
SPACES = {
    "Discrete": spaces.Discrete(2),
    "MultiDiscrete": spaces.MultiDiscrete((2, 3)),
    "bounded Box": _BOX,
    "unbounded Box": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "Dict, Tuple": spaces.Dict({"a": _BOX, "b": spaces.Discrete(2)}),
}
_NO_GAME = types.Model(*3 * (lambda *_: None,))  # of agents that plan, of which nothing is computed here
FEATURES = ("recurrent", "replay", "prioritized", "offline", "own networks")
_WHERE_TO_START = (  # (task, agents, reason)
    (
        "any actions, and steps that cost little",
        ("ppo",),
        "PPO takes the most action spaces, and works with few settings",
    ),
    (
        "discrete actions, and steps that cost little",
        ("pqn", "ppo"),
        "PQN has neither a replay buffer nor a target network; over MinAtar's games it is about as good as PPO",
    ),
    (
        "discrete actions, and a limited number of steps",
        ("c51", "dqn"),
        "C51 has the greatest returns over MinAtar's games after 1M steps; DQN is the simplest agent with replay",
    ),
    (
        "actions in a bounded Box, and a limited number of steps",
        ("sac", "td3"),
        "on Pendulum they have returns of -144 and -146 after 50,000 steps, and PPO -192 after 2M",
    ),
    (
        "observations that hide a part of the state",
        ("ppo", "r2d2", "sac", "tqc"),
        "``recurrent: gru`` gives PPO a memory, and PQN, SAC and TQC too; R2D2 always has one",
    ),
    ("stored data, and no environment", ("td3_bc", "rebrac", "iql", "bc"), "IQL and BC take discrete actions too"),
)


def supported(module: ModuleType) -> dict[str, bool]:
    """Return the action spaces and features of an agent, by their names."""
    result = {name: bool(module.supports(space)) for name, space in SPACES.items()}
    config, fields = module.Config(), module.Config.model_fields
    needed: dict[str, Any] = {"model": _NO_GAME} if "model" in inspect.signature(module.make).parameters else {}
    agent = module.make(config, _BOX, next(SPACES[name] for name, fits in result.items() if fits), **needed)
    return result | {
        "recurrent": "recurrent" in fields,
        "replay": config.replay_capacity is not None,
        "prioritized": "replay" in fields and "prioritized" in str(fields["replay"].annotation),
        "offline": agent.learn is not None,
        "own networks": "networks" in inspect.signature(module.make).parameters,
    }


def pages() -> dict[str, str]:
    """Return the pages' texts in reStructuredText, by their names."""
    names = agents.names()
    texts = {name: _algorithm(name) for name in names}
    return {"index": _matrix(names), "run-keys": _run_keys(names[0])} | texts


def _matrix(names: tuple[str, ...]) -> str:
    rows = []
    for name in names:
        row = supported(agents.get(name))
        rows.append([f":doc:`{name} <{name}>`", *("✓" if value else "" for value in row.values())])
    lines = [
        *heading("Algorithms", "="),
        "Each algorithm is one file, ``rlkit/agents/NAME.py``. All of them run vmapped over seeds, bootstrap over time",
        "limits from the true final observation, and respect action masks.",
        "",
        *heading("Where to start", "-"),
        *table(["your task has", "start with", "because"], _where_to_start()),
        "The figures behind this are in :doc:`/figures` and :doc:`/benchmarks/learning/minatar`.",
        "",
        *heading("Action spaces", "-"),
        *table(["agent", *SPACES], [row[: 1 + len(SPACES)] for row in rows]),
        *heading("Features", "-"),
        *table(["agent", *FEATURES], [[row[0], *row[1 + len(SPACES) :]] for row in rows]),
        "recurrent: a memory (GRU, LSTM, minGRU, LRU, S5). replay: learns from a replay buffer; prioritized: which may",
        "draw by priority. offline: can learn from a :py:mod:`dataset <rlkit.runs.datasets>` alone. own networks:",
        "takes :doc:`networks of yours </your-own-network>`.",
        "",
        ".. toctree::",
        "   :hidden:",
        "",
        *(f"   {name}" for name in (*names, "run-keys")),
    ]
    return "\n".join(lines)


def _where_to_start() -> list[list[str]]:
    return [
        [task, ", ".join(f":doc:`{name} <{name}>`" for name in names), reason]
        for task, names, reason in _WHERE_TO_START
    ]


def _algorithm(name: str) -> str:
    module = agents.get(name)
    doc = inspect.getdoc(module) or ""
    title = doc.split(" (")[0].split(",")[0].split(":")[0]
    has = supported(module)
    lines = [
        *heading(f"{name}: {title}", "="),
        *to_rst(doc.splitlines()),
        "",
        *heading("Fits", "-"),
        "- Action spaces: " + ", ".join(space for space in SPACES if has[space]),
        "- Features: " + (", ".join(feature for feature in FEATURES if has[feature]) or "none of the matrix"),
        "",
        ":doc:`index` compares all algorithms; :py:mod:`the API <rlkit.agents." + name + ">` has its functions.",
        "",
    ]
    lines += _losses(module)
    _, config, hyper = schema(name).models
    lines += [
        *_metrics(module),
        *results.section(name),
        *heading("Keys", "-"),
        "Keys of a config file, and flags of ``rlkit train``. :doc:`run-keys` lists those of every run.",
        "",
        *heading("Config", "~"),
        "Static: another value is another program.",
        "",
        *keys_table(config.model_fields),
        *heading("Hyper", "~"),
        "Traced: a sweep runs many values in one program.",
        "",
        *keys_table(hyper.model_fields),
        *_configs(name),
    ]
    return "\n".join(lines)


def _losses(module: ModuleType) -> list[str]:
    """The section of an agent's losses: of its own module, or else of the one whose gradient step it has."""

    def of(module: ModuleType) -> list[Callable]:
        functions = [function for name, function in vars(module).items() if "loss" in name]
        return [f for f in functions if inspect.isfunction(f) and f.__module__ == module.__name__]

    lines, losses = heading("Loss", "-"), of(module)
    if not losses:
        parent = importlib.import_module(module.gradient_step.__module__)
        name, losses = parent.__name__.rpartition(".")[2], of(parent)
        lines += [f"That of :doc:`{name} <{name}>`, with this agent's ``Config`` and ``Hyper``.", ""]
    for function in losses:
        lines += [".. code-block:: python", "", *_indent(inspect.getsource(function)), ""]
    return lines


def logged(module: ModuleType) -> list[str]:
    """Return the names of an agent's metrics: those that docs/metrics.md explains in its order, then the others."""
    plans = "model" in inspect.signature(module.make).parameters
    made = (envs.make(name) for name in ("Probe-Nim",) * plans + ("Probe-ObservationAction", "Probe-Continuous"))
    env, params = next(pair for pair in made if module.supports(pair[0].action_space(pair[1])))
    needed: dict[str, Any] = {"model": env.game_model(params)} if plans else {}  # type: ignore[attr-defined]
    parts = {"kl_penalty": True, "exploration_bonus": 1.0}  # with metrics of their own
    config = module.Config(**{key: value for key, value in parts.items() if key in module.Config.model_fields})
    agent = module.make(config, env.observation_space(params), env.action_space(params), **needed)
    init, step = training.make(agent, env, params, num_envs=8, num_steps=64)
    names = set(jax.eval_shape(lambda key: step(init(module.Hyper(), key))[1], jax.random.key(0)))
    return [name for name in _explained() if name in names] + sorted(names - {*_explained(), *EPISODES, *SUMMARIES})


def _explained() -> list[str]:
    """The agents' metrics that docs/metrics.md explains, in its order."""
    marks = (
        line.removeprefix("<!-- ").removesuffix(" -->") for line in METRICS.read_text().splitlines() if "<!--" in line
    )
    return [mark for mark in marks if mark not in ("run", "end")]


def _metrics(module: ModuleType) -> list[str]:
    lines = [
        *heading("Metrics", "-"),
        "What a run logs about learning, beside :doc:`what every run logs </metrics>`. Each is a mean over the updates",
        "since the line before.",
        "",
    ]
    for name in logged(module):
        lines += [".. include:: /metrics.md", "   :parser: myst_parser.sphinx_", f"   :start-after: <!-- {name} -->"]
        lines += ["   :end-before: <!-- end -->", ""]
    return lines


def _configs(name: str) -> list[str]:
    """The section of an agent's config files."""
    found = []
    for path in sorted(CONFIGS.rglob("*.yaml")):
        text = path.read_text()
        short = path.relative_to(CONFIGS).with_suffix("").as_posix()
        if not short.startswith("sweeps/") and yaml.safe_load(text).get("agent") == name:
            found += [*heading(short, "~"), f"``rlkit train {short}`` runs it.", ""]
            found += [".. code-block:: yaml", "", *_indent(text), ""]
    return [*heading("Configs", "-"), *found] if found else []


def _run_keys(agent: str) -> str:
    lines = [*heading("Keys of every run", "="), "These keys belong to the run rather than to the agent.", ""]
    return "\n".join(lines + keys_table(schema(agent).models[0].model_fields))


def keys_table(fields: dict[str, Any]) -> list[str]:
    """Lines of a table of pydantic fields: name, type, default, range, description."""
    rows = []
    for name, field in fields.items():
        value = field.get_default(call_default_factory=True)
        value = value_text(list(value) if isinstance(value, tuple) else value)
        default = "required" if field.is_required() else f"``{value}``"
        limits = f"``{text}``" if (text := limits_text(field)) else ""
        description = "\n".join(to_rst([field.description or ""]))
        rows.append([f"``{name}``", f"``{type_text(field.annotation)}``", default, limits, description])
    return table(["key", "type", "default", "range", "description"], rows)


def _indent(text: str) -> list[str]:
    return textwrap.indent(text.rstrip(), "   ").splitlines()
