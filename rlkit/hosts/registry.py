"""Environments outside of JAX by name: recognizing the names, and making pools from them."""

import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rlkit.envs import own, registry
from rlkit.hosts import gymnasium_names, library_vectors
from rlkit.hosts.pool import Pool
from rlkit.hosts.vector import VectorPool
from rlkit.hosts.worker import atari, pettingzoo_names, wrapper_names
from rlkit.hosts.worker.recipe import Recipe, registered_specs
from rlkit.names import MODULE_ID, OWN_CODE, did_you_mean, name_of_object, registered
from rlkit.types import ConfigError

PREFIXES = registry.OUTSIDE
_ID = re.compile(r"[\w./-]+")  # no colon, because gymnasium would import the module before it


def is_own(name: str) -> bool:
    """Return true for a name `module:attribute`, code of the user's own; it runs only if the user passes the name.

    So does the module of `module:ID`, an id that Gymnasium has once an installed module has been imported.
    """
    prefix = name.partition(":")[0]
    if prefix in (*PREFIXES, "gym", *getattr(registry, "SUITES", ())):
        return False
    return bool(OWN_CODE.fullmatch(name)) or (bool(MODULE_ID.fullmatch(name)) and _is_installed(prefix))


def is_host(name: str) -> bool:
    """Return true for the name of an environment outside of JAX. The module of a `module:Class` is imported."""
    prefix, colon, _ = name.partition(":")
    return bool(colon and prefix in PREFIXES) or (is_own(name) and not own.is_in_jax(name))


def name_of(env: Any) -> str:
    """Return the name `module:name` of an environment that is given as an object.

    It is an environment in JAX or its class; or outside of JAX a class or a function that makes one environment, or an
    instance, of which each environment of a pool is a copy.

    Raises:
      ConfigError: it is none of these.
    """
    if not (own.has_interface(env) or callable(env) or (hasattr(env, "step") and hasattr(env, "reset"))):
        raise ConfigError(
            f"env={env!r} must be a name, an environment or its class, or a function that makes one; for one in JAX "
            "see rlkit.types.Env, for others Gymnasium's interface"
        )
    return name_of_object(env)


def require_known_prefix(name: str) -> None:
    """Raise ConfigError for a name whose prefix resembles one of environments outside of JAX, such as gym:."""
    prefix, colon, task = name.partition(":")
    if MODULE_ID.fullmatch(name) and prefix not in registry.SUITES:
        _check_module(name)
    if colon and prefix not in registry.SUITES and not did_you_mean(prefix, registry.SUITES, cutoff=0.5):
        remedy = did_you_mean(prefix, PREFIXES, cutoff=0.5, suffix=f":{task}")
        if remedy:
            raise ConfigError(f"env={name!r} does not start with the name of a suite{remedy}")


def names(prefix: str) -> list[str]:
    """Return the installed environments of a prefix, as in `names("atari")`, or of a group of Gymnasium's: "mujoco".

    Raises:
      ConfigError: the library is not installed.
    """
    if prefix in gymnasium_names.GROUPS:
        return [f"gymnasium:{task}" for task in sorted(gymnasium_names.ids(prefix))]
    extra = {"gymnasium": "host", "ale": "atari"}.get(prefix, prefix)
    package = prefix if prefix in ("gymnasium", "envpool", "pettingzoo") else "ale_py"
    _check_installed(package, extra, f"suite={prefix!r}")
    if prefix == "envpool":
        import envpool  # pyright: ignore[reportMissingImports]

        return [f"envpool:{task}" for task in sorted(envpool.list_all_envs())]
    if prefix == "pettingzoo":
        return [f"pettingzoo:{task}" for task in pettingzoo_names.names()]
    import gymnasium

    if prefix == "gymnasium":
        return [f"gymnasium:{task}" for task in sorted(gymnasium.registry)]
    import ale_py  # pyright: ignore[reportMissingImports]

    gymnasium.register_envs(ale_py)
    games = {task[len("ALE/") : -len("-v5")] for task in gymnasium.registry if re.fullmatch(r"ALE/\w+-v5", task)}
    return [f"{prefix}:{game}" for game in sorted(games)]


def checked_name(env: str) -> str:
    """Return a name for which `is_host` is true, without importing anything.

    Raises:
      ConfigError: it does not name a single environment.
    """
    prefix, _, task = env.partition(":")
    is_atari = prefix in ("atari", "ale")
    if is_atari and (game := re.fullmatch(r"(?:ALE/)?(\w+?)(?:-ram)?(?:NoFrameskip|Deterministic)?-v\d+", task)):
        raw = f"gymnasium:ALE/{game[1]}-v5"
        raise ConfigError(f"env={env!r} must name the game alone; try {prefix}:{game[1]}, or for raw frames {raw}")
    if prefix in PREFIXES and not _ID.fullmatch(task):
        examples = {"atari": "Breakout", "ale": "Breakout", "pettingzoo": "mpe2/simple_spread_v3"}
        example = examples.get(prefix, "CartPole-v1")
        raise ConfigError(f"env={env!r} must name one environment after the colon; try {prefix}:{example}")
    return env


def recipe(env: str | Callable[..., Any], kwargs: dict[str, Any]) -> Recipe:
    """Return the recipe for an environment of this name, or for a function that makes one.

    Raises:
      ConfigError: the name is unknown, or a package that the environment needs is missing.
    """
    if not isinstance(env, str):
        return _recipe_of_object(env, kwargs)
    if (found := registered(env)) is not None:
        return _recipe_of_object(found, kwargs)
    env = gymnasium_names.full_name(env)
    prefix, colon, task = env.partition(":")
    if is_own(env) and MODULE_ID.fullmatch(env):
        _check_installed("gymnasium", "host", f"env={env!r}")
        return Recipe("gymnasium", env, kwargs)
    if is_own(env):
        _check_callable(env)
        return Recipe("module", env, kwargs)
    if not is_host(env):
        gymnasium_names.check_bare_name(env)
        if MODULE_ID.fullmatch(env):
            _check_module(env)
        remedy = did_you_mean(prefix, PREFIXES, cutoff=0.5, suffix=f":{task}") if colon else ""
        if gymnasium_names.in_gymnasium_too(env):
            remedy = f"; did you mean 'gymnasium:{env}'?"
        remedy = remedy or "; try gymnasium:CartPole-v1 or module:Class"
        raise ConfigError(f"env={env!r} is not the name of an environment outside of JAX{remedy}")
    checked_name(env)
    _check_installed("gymnasium", "host", f"env={env!r}")
    if prefix == "gymnasium":
        gymnasium_names.check_id(task)
    if prefix in ("atari", "ale") or task.startswith("ALE/"):
        _check_installed("ale_py", "atari", f"env={env!r}")
    if prefix in ("atari", "ale"):
        try:
            atari.preprocessing(kwargs)
        except ValueError as error:
            raise ConfigError(f"env={env!r}: {error}") from None
    if prefix == "envpool":
        _check_installed("envpool", "envpool", f"env={env!r}")
    if prefix == "pettingzoo":
        _check_pettingzoo(task)
    return Recipe(prefix, task, kwargs)


def _recipe_of_object(env: Any, kwargs: dict[str, Any]) -> Recipe:
    """The recipe for copies of an environment, or for those that a class or a function makes."""
    name = name_of_object(env)
    _check_installed("cloudpickle", "host", f"env={name!r}")
    import cloudpickle

    if not callable(env) and kwargs:
        raise ConfigError(f"env_kwargs={kwargs!r} do not go with env={name!r}, which has been made; give its class")
    try:
        data = b"" if callable(env) else cloudpickle.dumps(env)
        make = (lambda: env(**kwargs)) if callable(env) else (lambda: cloudpickle.loads(data))
        make.shared_reward = bool(getattr(env, "shared_reward", False))
        return Recipe("pickled", name, {}, cloudpickle.dumps(make))
    except Exception as error:  # whatever an object raises where it cannot be pickled
        line = str(error).partition("\n")[0]
        raise ConfigError(
            f"env={name!r} must be picklable, as each environment of a pool is a copy, and {line}; give a class or a "
            "function that makes it"
        ) from None


def _with_specs(env_recipe: Recipe) -> Recipe:
    """The recipe for worker processes, with the ids that this process has registered."""
    try:
        return env_recipe._replace(specs=registered_specs(env_recipe.name))
    except Exception as error:  # whatever a spec raises where it cannot be pickled
        line = str(error).partition("\n")[0]
        raise ConfigError(
            f"env='gymnasium:{env_recipe.name}' is registered with what no worker process can be sent: {line}; "
            "register a class or 'module:Class', or use backend: serial"
        ) from None


def pool(
    env: str | Callable[..., Any],
    kwargs: dict[str, Any],
    *,
    num_envs: int,
    seed: int = 0,
    num_workers: int | None = None,
    wrappers: Sequence[str] = (),
    **options: Any,
) -> Pool | VectorPool:
    """Make a pool as `make` does, with the environment's arguments in `kwargs`; `options` are arguments of `Pool`."""
    name = env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)
    env_recipe = recipe(env, kwargs)._replace(wrappers=tuple(wrappers))
    try:
        for spec in wrappers:
            wrapper_names.check(spec)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if env_recipe.kind in library_vectors.MAKERS:
        if wrappers:
            remedy = "atari:NAME" if env_recipe.kind == "ale" else "an environment that is not a vector environment"
            raise ConfigError(
                f"wrappers={list(wrappers)!r} do not go with env={name!r}; leave them out, or use {remedy}"
            )
        for key, value in options.items():
            if value != (default := inspect.signature(Pool).parameters[key].default):
                raise ConfigError(
                    f"{key}={value!r} does not go with env={name!r}, which its library steps; leave it at {default!r}"
                )
        make_vector = partial(library_vectors.make, env_recipe, num_envs, num_workers or 0)
        return VectorPool(make_vector, name=name, seed=seed)
    if options.get("backend", "process") == "process":
        env_recipe = _with_specs(env_recipe)
    return Pool(env_recipe, name=name, num_envs=num_envs, seed=seed, num_workers=num_workers, **options)


def make(
    env: str | Callable[..., Any],
    *,
    num_envs: int,
    backend: str = "process",
    seed: int = 0,
    num_workers: int | None = None,
    timeout: float = 5.0,
    restarts: int = 10,
    wrappers: Sequence[str] = (),
    **kwargs: Any,
) -> Pool | VectorPool:
    """Make a pool of environments with Gymnasium's interface, or with PettingZoo's parallel one.

        with hosts.make("gymnasium:CartPole-v1", num_envs=16) as pool:
            obs = pool.reset()
            step = pool.step(actions)

    Args:
      env: "gymnasium:ID" or the id alone, "atari:Breakout" (with the usual preprocessing), "ale:Breakout" or
        "envpool:ID" (in their own threads), "pettingzoo:mpe2/simple_spread_v3", or "module:Class", or a function or
        class that makes one environment, or an instance.
      num_envs: N. Of environments of P players it counts players, which are adjacent: a multiple of P.
      backend: "process": worker processes; "serial": in this process, one after another. The transitions are the same,
        unless an environment draws from the global generators of Python or NumPy, which only worker processes seed.
      seed: of the pool; a seed for each environment is derived from it.
      num_workers: number of processes; None for one per core. Each worker steps its environments in turn.
      timeout: seconds, the longest duration of a call of an environment's code before its worker is replaced; without
        effect for "serial". A process has 60 s to start and to import the environment's module.
      restarts: number of workers that may be replaced in the lifetime of the pool. A restart truncates the episodes of
        its worker.
      wrappers: of each environment, from the inside out: "frame_stack:4", "action_repeat:2", "time_limit:200",
        "clip_reward:-1,1", "scale_reward:0.1", or "module:Class", called with the environment.
      kwargs: arguments of the environment.

    Raises:
      ConfigError: the environment cannot be made, or it violates its contract already then.
      HostError: the constructor of the environment fails.
    """
    return pool(
        env,
        kwargs,
        num_envs=num_envs,
        backend=backend,
        seed=seed,
        num_workers=num_workers,
        timeout=timeout,
        restarts=restarts,
        wrappers=wrappers,
    )


def from_vector(envs: Callable[[], Any], *, seed: int = 0) -> VectorPool:
    """Make a pool from a vector environment with Gymnasium's interface, in any autoreset mode.

        pool = hosts.from_vector(lambda: gymnasium.make_vec("CartPole-v1", num_envs=8))

    Args:
      envs: function that makes the vector environment; it is called again when the pool is reset.
      seed: of the first reset.

    Raises:
      ConfigError: `envs` is no function, or `VectorPool` does not accept what it returns.
    """
    if not callable(envs):
        kind = type(envs).__name__
        raise ConfigError(f"envs must be a function, as a reset makes them anew, and it is a {kind}; add lambda: ...")
    return VectorPool(lambda seed: envs(), name=getattr(envs, "__name__", "vector"), seed=seed)


def _check_callable(name: str) -> None:
    """Raise ConfigError where `module:attribute`, of a module that is imported already, cannot make an environment."""
    path, _, attribute = name.partition(":")
    found = getattr(sys.modules.get(path), attribute, type)
    if not callable(found):
        kind = type(found).__name__
        raise ConfigError(f"env={name!r} must be a class or a function that makes an environment, not of type {kind}")


def _check_module(name: str) -> None:
    """Raise ConfigError where the module of `module:ID` is not installed, and does not resemble a known prefix."""
    module, _, task = name.partition(":")
    known = (*PREFIXES, *registry.SUITES)
    if module not in (*known, "gym") and not did_you_mean(module, known, cutoff=0.8) and not _is_installed(module):
        raise ConfigError(
            f"env={name!r} is the id {task!r} of a module {module!r}, which is not here or among the installed ones; "
            "install the package that registers the id"
        )


def _check_pettingzoo(task: str) -> None:
    """Raise ConfigError where `pettingzoo:FAMILY/NAME` names no environment of an installed package."""
    env, (family, _, _) = f"pettingzoo:{task}", task.partition("/")
    package = pettingzoo_names.FAMILIES.get(family, "pettingzoo").partition(".")[0]
    _check_installed("pettingzoo", "pettingzoo", f"env={env!r}")
    if not _is_installed(package):
        raise ConfigError(f"env={env!r} needs the package {package}; install it: pip install {package}")
    if task not in (known := pettingzoo_names.names()):
        remedy = did_you_mean(task, known, cutoff=0.5, prefix="pettingzoo:") or "; try pettingzoo:mpe2/simple_spread_v3"
        raise ConfigError(f"env={env!r} is not an installed environment of PettingZoo's{remedy}")


def _is_installed(module: str) -> bool:
    """True where a module, or the package that it is in, can be imported; nothing is."""
    package = module.partition(".")[0]
    return package in sys.modules or importlib.util.find_spec(package) is not None


def _check_installed(package: str, extra: str, subject: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ConfigError(f"{subject} needs the package {package}; install it: pip install 'rlkit-jax[{extra}]'")
