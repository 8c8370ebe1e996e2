"""The floors of the house: who may import what, the violations in a file, and circles of imports."""

import ast
import re
import sys
from collections.abc import Iterator, Mapping

FLOORS = {
    "names": 0,
    "spaces": 0,
    "types": 1,
    "_cpu": 2,
    "_mesh": 2,
    "ops": 3,
    "networks": 3,
    "replay": 4,
    "envs": 4,
    "agents": 5,
    "training": 6,
    "hosts": 7,
    "runs": 8,
    "cli": 9,
    "__main__": 10,
}
RIM = 7  # from here up files, clocks, printing and heavy imports are allowed
APART = {"agents": {"envs", "training"}}  # an agent's input is transitions, never an environment

# Below the rim: libraries that compute, and the parts of the standard library without effects.
LIBRARIES = {"jax", "jaxlib", "numpy", "flax", "optax", "chex", "pydantic", "annotated_types"}
ADAPTERS = {
    "rlkit/agents/alphazero.py": {"mctx"},
    "rlkit/networks/network.py": {"equinox"},
    "rlkit/_cpu/switch.py": {"os"},  # a variable of the environment turns the tricks off
    "rlkit/envs/gymnax.py": {"gymnax"},
    "rlkit/envs/suites/brax.py": {"brax"},
    "rlkit/envs/suites/craftax.py": {"craftax"},
    "rlkit/envs/suites/jaxmarl.py": {"jaxmarl"},
    "rlkit/envs/suites/jumanji.py": {"jumanji"},
    "rlkit/envs/suites/pgx.py": {"pgx"},
    "rlkit/envs/suites/playground.py": {"mujoco_playground"},
    "rlkit/envs/suites/xland.py": {"xminigrid"},
}
IMPURE = (
    {"asyncio", "concurrent", "multiprocessing", "selectors", "signal", "socket", "subprocess", "threading"}
    | {"glob", "io", "logging", "mmap", "os", "pathlib", "pickle", "shutil", "sqlite3", "tempfile", "http", "urllib"}
    | {"datetime", "time", "random", "secrets", "uuid", "builtins", "ctypes"}
)
IMPURE_CALLS = re.compile(
    r"(?:print|input|open|exec|eval|breakpoint)"
    r"|sys\.(?:stdout|stderr)\..*"
    r"|jax\.debug\..*|(?:jax\.(?:experimental\.)?)?(?:io_callback|pure_callback)"  # callbacks of compiled programs
    r"|jax\.config\..*|(?:jax\.)?random\.(?:key|PRNGKey)"  # settings and keys are the caller's
    r"|(?:np|numpy|jnp)\.(?:load|loadtxt|save|savez|savez_compressed|savetxt|fromfile|memmap)"
)


# Parts of JAX that may change without notice: only where the plain computation replaces them when they are missing.
UNSTABLE = re.compile(r"jax\._src|jax\.(?:extend|interpreters|lib)\b|jaxlib")
UNSTABLE_ROOM = "rlkit/_cpu/"
# A worker process of `hosts` starts without JAX.
WORKER_ROOM = "rlkit/hosts/worker/"
WORKER_LIBRARIES = {"numpy", "gymnasium", "cloudpickle", "ale_py", "cv2"}
WORKER_MODULES = ("rlkit.hosts.worker", "rlkit.names")


def floor_name(path: str) -> str:
    """Key of FLOORS for a file: `rlkit/ops/returns.py` -> `ops`; `__init__` for the public face."""
    return path.removesuffix(".py").split("/")[1]


def dotted(node: ast.expr) -> str:
    """`a.b.c` of an attribute chain of names, otherwise an empty string."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{base}.{node.attr}" if isinstance(node, ast.Attribute) and (base := dotted(node.value)) else ""


def imports(path: str, tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Line, module and name (or empty) of each import, including those in functions and under TYPE_CHECKING."""
    folder = path.split("/")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = folder[: len(folder) + 1 - node.level] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            yield from ((node.lineno, module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] in (
            "import_module",
            "__import__",
            "library",
        ):
            yield from ((node.lineno, str(arg.value), "") for arg in node.args[:1] if isinstance(arg, ast.Constant))


def violations(path: str, source: str) -> list[str]:
    """Breaches of the rules about imports and effects by the file at `path`, one line each."""
    tree = ast.parse(source)
    name = floor_name(path)
    if name == "__init__":  # the public face imports modules by their names in strings, when they are first used
        return [
            f"{path}:{line}: imports {module}"
            for line, module, _ in imports(path, tree)
            if module not in ("importlib", "typing")
        ]
    if name not in FLOORS:
        return [f"{path}: {name} has no floor"]
    pure, breaches = FLOORS[name] < RIM, []
    # `from rlkit import ops` names a module behind the dot; deeper ones belong to the same floor either way.
    modules = {
        (line, f"{module}.{imported}" if module == "rlkit" and imported else module)
        for line, module, imported in imports(path, tree)
    }
    for line, module in sorted(modules):
        top, _, rest = module.partition(".")
        other = rest.partition(".")[0]
        if UNSTABLE.match(module) and not path.startswith(UNSTABLE_ROOM):
            breaches.append(f"{path}:{line}: imports {module} outside of {UNSTABLE_ROOM}")
        elif path.startswith(WORKER_ROOM):
            allowed = top in sys.stdlib_module_names | WORKER_LIBRARIES or module.startswith(WORKER_MODULES)
            breaches += [] if allowed else [f"{path}:{line}: a worker imports {module}"]
        elif top == "rlkit" and other == "__version__" and not pure:
            continue
        elif top == "rlkit" and other not in FLOORS:
            breaches.append(f"{path}:{line}: imports {module}: import from the module where the name lives")
        elif top == "rlkit" and other != name and (FLOORS[other] >= FLOORS[name] or other in APART.get(name, ())):
            breaches.append(f"{path}:{line}: {name} (floor {FLOORS[name]}) imports {module} (floor {FLOORS[other]})")
        elif top != "rlkit" and pure:
            known = top in sys.stdlib_module_names - IMPURE or top in LIBRARIES | ADAPTERS.get(path, set())
            breaches += [] if known else [f"{path}:{line}: imports {module} below floor {RIM}"]
    for node in ast.walk(tree) if pure else ():
        if isinstance(node, ast.Call) and IMPURE_CALLS.fullmatch(call := dotted(node.func)):
            breaches.append(f"{path}:{node.lineno}: calls {call} below floor {RIM}")
    return breaches


def file_of(module: str, files: Mapping[str, str]) -> str | None:
    """Path of a module's file, `rlkit.a` -> `rlkit/a.py` or `rlkit/a/__init__.py`; None if there is no such file."""
    path = module.replace(".", "/")
    return next((file for file in (f"{path}.py", f"{path}/__init__.py") if file in files), None)


def circles(files: Mapping[str, str], folder: str = "") -> list[list[str]]:
    """Groups of files that import each other, directly or not (strongly connected components of the imports).

    `from rlkit.a import b` is an import of the file of `rlkit.a.b` if there is one, else of that of `rlkit.a`.

    Args:
      files: text by path.
      folder: with its `/` at the end, for the groups of what it holds instead: its files, and its folders as wholes.
    """

    def part(path: str) -> str:
        return folder + path.removeprefix(folder).split("/")[0] if folder and path.startswith(folder) else path

    graph: dict[str, set[str]] = {part(path): set() for path in files}
    for path, source in files.items():
        for _, module, name in imports(path, ast.parse(source)):
            target = file_of(f"{module}.{name}", files) or file_of(module, files)
            if target and (not folder or part(target) != part(path)):
                graph[part(path)].add(part(target))

    def reachable(start: str) -> set[str]:
        reached, waiting = set(), [start]
        while waiting:
            new = graph[waiting.pop()] - reached
            reached |= new
            waiting += new
        return reached

    reached = {path: reachable(path) for path in graph}
    groups = {frozenset(b for b in reached[a] if a in reached[b]) for a in graph if a in reached[a]}
    return sorted(map(sorted, groups))
