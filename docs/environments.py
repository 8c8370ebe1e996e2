"""Tables of the pages of environments, which a build puts where a page has `<!-- table: KIND NAME -->`.

Kinds: `install`, `environments` and `configs` of a suite, and the comparison of all, `suites`.

A build reads gymnax and Gymnasium, which rlkit always has. The other libraries are extras: `python docs/environments.py
NAME ...` records what those that are installed have in environments.json, and a test compares the two.
"""

import json
import re
import sys
import warnings
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import yaml
from packaging.requirements import Requirement

from rlkit import envs, spaces
from rlkit.hosts import spaces as host_spaces
from rlkit.hosts.worker import contract, recipe
from rlkit.spaces import Space
from rlkit.types import ConfigError

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "docs/environments.json"
_MARK = re.compile(r"^<!-- table: (\w+) ?(\w*) -->$", re.MULTILINE)
_LIMITS = ("max_steps_in_episode", "max_timesteps", "max_steps")  # fields of the parameters
_SUFFIXES = ("-MinAtar", "-bsuite", "-misc")  # of gymnax's ids
# By name: the packages of what is recorded, whose versions decide on it.
PACKAGES = {
    "brax": ("brax",),
    "craftax": ("craftax",),
    "jaxmarl": ("jaxmarl",),
    "jumanji": ("jumanji",),
    "pgx": ("pgx",),
    "playground": ("playground", "mujoco-mjx"),
    "xland": ("xminigrid",),
    "mujoco": ("gymnasium", "mujoco"),
    "atari": ("ale-py",),
}


class Suite(NamedTuple):
    """A row of the comparison."""

    title: str
    page: str
    libraries: tuple[str, ...]  # whose tasks it has
    extras: tuple[str, ...]
    agents: str = "no"
    device: str = "any device of JAX"


SUITES = (
    Suite("gymnax", "suites/gymnax.md", ("gymnax",), ()),
    Suite("Brax", "suites/brax.md", ("brax",), ("brax",)),
    Suite("MuJoCo Playground", "suites/playground.md", ("playground",), ("playground",)),
    Suite("Craftax", "suites/craftax.md", ("craftax",), ("craftax",)),
    Suite("XLand-MiniGrid", "suites/xland.md", ("xland",), ("xland",)),
    Suite("Jumanji", "suites/jumanji.md", ("jumanji",), ("jumanji",), "controlled as one"),
    Suite("JaxMARL", "suites/jaxmarl.md", ("jaxmarl",), ("jaxmarl",), "players of a world"),
    Suite("pgx", "suites/pgx.md", ("pgx",), ("pgx",), "self-play, or the others play at random"),
    Suite(
        "Gymnasium, Atari, envpool, PettingZoo",
        "host-environments.md",
        ("gymnasium", "mujoco", "atari"),
        ("host", "mujoco", "atari", "envpool", "pettingzoo"),
        device="CPU, in processes or threads",
    ),
)


class Task(NamedTuple):
    """A row of a table. A task that could not be made, for a reason that its page states, has no spaces."""

    name: str  # after the colon of its full name
    observation: str = ""
    action: str = ""
    limit: int | None = None  # steps of an episode
    kinds: tuple[str, str] = ("", "")  # of observation and action


def fill(text: str) -> str:
    """Return a page's Markdown with its tables."""
    example = re.search(r"^env: (\S+)$", text, re.MULTILINE)  # of a config
    return _MARK.sub(lambda match: "\n".join(_table(match[1], match[2], example[1] if example else "")), text)


def tasks(name: str) -> list[Task]:
    """Return the tasks of a library, from itself.

    Raises:
      ConfigError: the library is not installed.
    """
    if name in ("gymnasium", "mujoco", "atari"):
        return list(_on_the_host(name))
    found = []
    full_names = envs.names() if name == "gymnax" else envs.names(name)
    for full_name in sorted(full_names) if name == "jumanji" else full_names:  # Jumanji's order is a new one each time
        if full_name.startswith("Probe-"):
            continue
        task = full_name.removeprefix(f"{name}:")
        try:
            env, params = envs.make(full_name)
        except ConfigError as error:
            if name != "playground":
                raise ConfigError(f"{full_name}: {error}") from error
            found.append(Task(task))
            continue
        limit = next((getattr(params, field) for field in _LIMITS if hasattr(params, field)), None)
        limit = getattr(getattr(env, "env", None), "time_limit", None) if limit is None else limit
        found.append(_task(task, env.observation_space(params), env.action_space(params), limit))
    return found


def _on_the_host(name: str) -> Iterator[Task]:
    """Tasks of Gymnasium without extras, of its newest MuJoCo environments, or the games of the ALE."""
    if name == "atari":
        import ale_py  # pyright: ignore[reportMissingImports]

        gymnasium.register_envs(ale_py)
    modules = {"gymnasium": ("classic_control", "toy_text"), "mujoco": ("mujoco",), "atari": ("ale_py",)}[name]
    for task, spec in gymnasium.registry.items():
        entry = str(spec.entry_point)
        of_library = any(f"envs.{module}." in entry or entry.startswith(f"{module}.") for module in modules)
        if not of_library or (name == "mujoco" and not task.endswith("-v5")):
            continue
        if name == "atari" and not re.fullmatch(r"ALE/\w+-v5", task):
            continue
        short = task.removeprefix("ALE/").removesuffix("-v5") if name == "atari" else task
        limit = spec.max_episode_steps
        if name == "atari":
            limit = spec.kwargs["max_num_frames_per_episode"] // spec.kwargs["frameskip"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                env = recipe.constructor(recipe.Recipe("atari" if name == "atari" else "gymnasium", short, {}))()
            except AssertionError:  # Gymnasium's preprocessing refuses games whose first action is not to do nothing
                yield Task(short)
                continue
        trees = contract.describe(env.observation_space), contract.describe(env.action_space, field="action_space")
        yield _task(short, *map(host_spaces.space, trees), limit)
        env.close()


def _task(name: str, obs: Space, action: Space, limit: Any) -> Task:
    masked = isinstance(obs, spaces.Dict) and "action_mask" in obs.spaces
    kinds = (_kind(obs), "masked " * masked + type(action).__name__)
    return Task(name, observation_text(obs), action_text(action), None if limit is None else int(limit), kinds)


def _kind(space: Space) -> str:
    """Describe observations in a word or two."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return "dictionaries" if isinstance(space, spaces.Dict) else "tuples"
    return "numbers" if isinstance(space, spaces.Discrete) else "images" if len(space.shape) == 3 else "vectors"


def observation_text(space: Space, name: str = "") -> str:
    """Return shape and dtype, in the notation of the docstrings, of each leaf of an observation."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        children = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        return "; ".join(observation_text(child, f"{name}/{key}".lstrip("/")) for key, child in children)
    is_box = isinstance(space, spaces.Box)
    return (
        f"{name} {list(space.shape)} {space.dtype.name}".lstrip() if is_box else f"{name} {action_text(space)}".lstrip()
    )


def action_text(space: Space) -> str:
    """Return a space of actions, with its bounds where they are the same in all entries."""
    if isinstance(space, spaces.Discrete):
        return f"Discrete({space.n})"
    if isinstance(space, spaces.MultiDiscrete):
        equal = len(set(space.nvec)) == 1 and len(space.nvec) > 3
        return (
            f"MultiDiscrete([{space.nvec[0]}] * {len(space.nvec)})" if equal else f"MultiDiscrete({list(space.nvec)})"
        )
    assert isinstance(space, spaces.Box)
    low, high = (sorted({float(x) for x in bound.ravel()}) for bound in (space.low, space.high))
    plain = space.bounded and len(low) == len(high) == 1
    return f"{list(space.shape)} " + (f"in [{low[0]:g}, {high[0]:g}]" if plain else space.dtype.name)


def recorded(name: str) -> tuple[dict[str, str], list[Task]]:
    """Return what environments.json has of a library: the versions of its packages, and its tasks."""
    stored = json.loads(RECORDED.read_text())[name]
    return stored["packages"], [Task(*row[:4], tuple(row[4])) for row in stored["tasks"]]


def known(name: str) -> tuple[dict[str, str], list[Task]]:
    """As `recorded`, and of the libraries that are always installed what they have."""
    if name in PACKAGES:
        return recorded(name)
    return {name: metadata.version(name)}, tasks(name)


def _table(kind: str, name: str, example: str) -> list[str]:
    if kind == "suites":
        return _comparison()
    if kind == "configs":
        return _configs(name, example)
    return {"install": _install, "environments": _environments}[kind](name)


def _install(extra: str) -> list[str]:
    needed = [Requirement(text) for text in metadata.requires("rlkit-jax") or ()]
    own = [r for r in needed if r.marker and f'extra == "{extra}"' in str(r.marker).replace("'", '"')]
    texts = ", ".join(f"`{r.name}{r.specifier}`" for r in own if r.specifier)
    tried = ", ".join(f"{package} {version}" for package, version in recorded(extra)[0].items())
    return [f"The extra needs {texts}.", f"The tables of this page are those of {tried}."]


def _environments(name: str) -> list[str]:
    found = known(name)[1]
    groups: dict[tuple, list[str]] = {}
    for task in sorted(found, key=lambda task: not task.observation):  # those without spaces come last
        suffix = next((suffix for suffix in _SUFFIXES if task.name.endswith(suffix)), "") if name == "gymnax" else ""
        groups.setdefault((suffix, *task[1:4]), []).append(task.name)
    rows = []
    for (_, obs, action, limit), members in groups.items():
        leaves = ", ".join(f"`{leaf}`" for leaf in obs.split("; "))
        cells = (leaves, f"`{action}`", f"{limit:,}" if limit else "none") if obs else ("", "", "")
        rows.append((", ".join(f"`{member}`" for member in members), *cells))
    return _markdown(("environment", "observation", "action", "time limit"), rows)


def _configs(prefix: str, example: str) -> list[str]:
    """The configs of a suite: the files whose environment it has; without any, a command with its example."""
    rows, folder = [], "algorithms" if prefix in ("gymnasium", "ale", "envpool") else "../algorithms"
    for path in sorted((ROOT / "configs").glob("*/*.yaml")):
        config = yaml.safe_load(path.read_text())
        env, short = str(config.get("env", "")), path.relative_to(ROOT / "configs").with_suffix("").as_posix()
        if short.startswith("sweeps/") or (env.partition(":")[0] if ":" in env else "gymnax") != prefix:
            continue
        agent = config["agent"]
        rows.append((f"`rlkit train {short}`", f"`{env}`", f"[{agent}]({folder}/{agent}.rst)"))
    if not rows:
        command = f"    rlkit train ppo/cartpole --env {example}"
        return ["There is none for this suite. `--env` puts its environments into another config:", "", command]
    return _markdown(("command", "environment", "algorithm, with the config"), rows)


def _comparison() -> list[str]:
    rows = []
    for suite in SUITES:
        found = [task for library in suite.libraries for task in known(library)[1]]
        kinds = [", ".join(sorted({task.kinds[i] for task in found} - {""})) for i in (0, 1)]
        extras = ", ".join(f"`{extra}`" for extra in suite.extras) or "none"
        rows.append((f"[{suite.title}]({suite.page})", *kinds, suite.agents, suite.device, extras))
    return _markdown(("suite", "observations", "actions", "several agents", "runs on", "extra"), rows)


def _markdown(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """Lines of a table of Markdown."""
    return [f"| {' | '.join(row)} |" for row in (header, ("---",) * len(header), *rows)]


def main(chosen: list[str]) -> None:
    """Write environments.json anew for the libraries that are named; the others keep what it has."""
    for name in chosen:
        stored = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
        versions = {package: metadata.version(package) for package in PACKAGES[name]}
        stored[name] = {"packages": versions, "tasks": tasks(name)}
        lines = []
        for library in sorted(stored):
            rows = ",\n".join(f"      {json.dumps(row)}" for row in stored[library]["tasks"])
            packages = json.dumps(stored[library]["packages"])
            lines.append(f'  "{library}": {{\n    "packages": {packages},\n    "tasks": [\n{rows}\n    ]\n  }}')
        RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:] or list(PACKAGES))
