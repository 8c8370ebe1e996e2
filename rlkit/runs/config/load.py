"""Configs: a file by its path, by a run directory or by a short name such as ppo/cartpole; or an agent alone, ppo."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlkit import agents
from rlkit.names import did_you_mean
from rlkit.runs import files, run_directory
from rlkit.runs.config import strict_yaml
from rlkit.runs.config.agent_defaults import is_agent
from rlkit.runs.config.errors import show_value
from rlkit.runs.config.own_code import refuse_in_file
from rlkit.runs.config.parse import parse
from rlkit.runs.config.run_config import RunConfig
from rlkit.types import ConfigError


def load_config(source: str | Path, overrides: Mapping[str, Any] | None = None) -> RunConfig:
    """Load the config of a file: a path, or a name such as ppo/cartpole in ./configs or in the package.

    Args:
      source: path or name, with or without .yaml; or the name of an agent, such as ppo or module:make, which fills in
        what the overrides, that name an environment, leave open.
      overrides: keys that replace those of the file; `env_kwargs.NAME` replaces one entry.

    Raises:
      ConfigError: there is no such file or agent, the file cannot be read, or the config holds a mistake.
    """
    overrides = overrides or {}
    if (agent := agent_alone(source)) is not None:
        return _of_agent(agent, overrides)
    path = find(source)
    values = read(path)
    refuse_in_file(values, overrides)
    _refuse_connections(values, overrides)
    merged = with_overrides(values, overrides)
    try:
        return parse(merged, name="-".join([path.parent.name, path.stem]) if path.parent.name else path.stem)
    except ConfigError as error:
        raise ConfigError(f"{_file_and_line(error, path, values, overrides)}{error}") from None


def agent_alone(source: str | Path) -> str | None:
    """Return the name of an agent that stands in place of a config; None where there is such a file or run."""
    name, path = str(source), Path(source)
    if not is_agent(name) or path.is_file() or (path / run_directory.CONFIG).is_file():
        return None
    return name


def _of_agent(agent: str, overrides: Mapping[str, Any]) -> RunConfig:
    """The config of an agent and the environment that the overrides name."""
    values = with_overrides({"agent": agent}, overrides)
    if "env" not in values:
        examples = [name for name in names() if name.startswith(f"{agent}/")]
        other = f", or give a config, such as {examples[0]}" if examples else ""
        raise ConfigError(f"env is missing; add --env with the id of an environment, such as CartPole-v1{other}")
    return parse(values, name=f"{values['agent']}-{values['env']}")


def tuned_for(config: RunConfig) -> list[str]:
    """Return the names of the configs of the same agent and task as this one, which is started without a config."""

    def task(values: Mapping[Any, Any]) -> list[Any]:
        return [values.get("env"), *(values.get(key) or None for key in ("env_kwargs", "wrappers", "dataset"))]

    mine = [name for name in names() if config.filled and name.startswith(f"{config.run.agent}/")]
    return [name for name in mine if task(read(find(name))) == task(config.flat())]


def with_overrides(values: Mapping[Any, Any], overrides: Mapping[str, Any]) -> dict[Any, Any]:
    """Return the values of a config with others in their place; `env_kwargs.NAME` replaces one entry of a mapping."""
    merged = dict(values)
    for key, value in overrides.items():
        outer, dot, inner = str(key).partition(".")
        if dot and isinstance(entries := merged.get(outer) or {}, dict):
            merged[outer] = {**entries, inner: value}
        else:
            merged[key] = value
    return merged


def _refuse_connections(values: Mapping[Any, Any], overrides: Mapping[str, Any]) -> None:
    """Raise a ConfigError where the values of a file name a service to connect to, which no override replaces."""
    word = values.get("wandb")
    if isinstance(word, str) and "wandb" not in overrides:
        raise ConfigError(
            f"wandb={show_value(word)} connects to a service, and no file may do that; add --wandb {word!s:.80}, or "
            '--wandb null to do without, or overrides={"wandb": ...} in Python'
        )


def _file_and_line(error: ConfigError, path: Path, values: Mapping[Any, Any], overrides: Mapping[str, Any]) -> str:
    """The file and the line of the key that an error begins with; empty where that key is not from the file."""
    key = re.split(r"[=.\s]", str(error), maxsplit=1)[0]
    if key not in values or any(name.partition(".")[0] == key for name in overrides):
        return ""
    lines = files.read(path.resolve(), strict_yaml.MAX_BYTES).decode().splitlines()
    numbers = [number for number, line in enumerate(lines, 1) if re.match(rf"[\"']?{re.escape(key)}[\"']?\s*:", line)]
    return f"{path}, line {numbers[0]}: " if numbers else ""


def read(path: Path) -> dict[Any, Any]:
    """Read the mapping in a YAML file, without validating its keys.

    Raises:
      ConfigError: there is no such file, or it holds no mapping.
    """
    try:
        values = strict_yaml.parse(files.read(path.resolve(), strict_yaml.MAX_BYTES).decode())
    except OSError as error:
        raise ConfigError(f"config={str(path)!r} must be a readable file: {error.strerror}; check the path") from None
    except UnicodeDecodeError:
        raise ConfigError(f"config={str(path)!r} must be UTF-8 text, and it is not; save it as UTF-8") from None
    except ValueError as error:
        raise ConfigError(f"config={str(path)!r} must be flat YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"config={str(path)!r} must hold `key: value` lines, and it does not; copy another config")
    return values


def folders() -> list[Path]:
    """Return the folders that hold configs: ./configs, then the package's, then the checkout's."""
    package = Path(__file__).resolve().parents[2]
    return [folder for folder in (Path("configs"), package / "configs", package.parent / "configs") if folder.is_dir()]


def names(*, sweeps: bool = False) -> list[str]:
    """Return the names that `find` accepts, such as ppo/cartpole; with `sweeps`, those such as sweeps/ppo_cartpole."""
    paths = ((folder, path) for folder in folders() for path in folder.rglob("*.yaml"))
    found = {path.relative_to(folder).with_suffix("").as_posix() for folder, path in paths}
    return sorted(name for name in found if name.startswith("sweeps/") == sweeps)


def find(source: str | Path) -> Path:
    """Return the file of a config.

    Args:
      source: a path; a run directory; or a name such as ppo/cartpole or configs/ppo/cartpole.yaml.

    Raises:
      ConfigError: there is no such config; the error names similar ones.
    """
    path = Path(source)
    try:
        if path.is_file():
            return path
        if path.is_dir() and (path / run_directory.CONFIG).is_file():
            return path / run_directory.CONFIG  # a run directory: its resolved config
        name = path.as_posix().removesuffix(".yaml").removeprefix("configs/")
        if name in (known := names(sweeps=name.startswith("sweeps/"))):
            return next(file for folder in folders() if (file := folder / f"{name}.yaml").is_file())
    except (OSError, ValueError):  # too long, or a zero byte
        name, known = "", names()
    agent, _, task = name.partition("/")
    longer = [config for config in known if task and config.startswith(name.lower())]
    of_agent = [config for config in known if config.startswith(f"{agent.lower()}/")]
    similar = did_you_mean(name, longer or of_agent or [*known, *agents.names()])
    if agent.lower() in agents.names():
        similar = f"; did you mean {agent.lower()!r}?" if not task else similar
        other = f"; `rlkit train {agent.lower()} --env ID` trains in any environment"
    else:
        other = f"; there are {len(known)}, such as {known[0]}: `rlkit list` names them"
    raise ConfigError(f"config={show_value(str(source))} must be a file or the name of a config{similar or other}")
