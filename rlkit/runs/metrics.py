"""Metric lines: what the updates between two lines did, as one JSON object a line, and copies for other viewers.

A line holds `step` (environment steps of one seed), `seconds` (of training, compilation apart), `steps_per_second` (of
all seeds together), `episodes`, `return_mean`, `return_iqm`, `return_min`, `return_max` and `length_mean` over the
episodes that finished since the last line, then the agent's own metrics, averaged over the updates. With several seeds
each of these is a list, one entry a seed, but for the first three. What is not finite, or has no episode, is null.
"""

import json
import math
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlkit.runs import files
from rlkit.types import ConfigError

_LIMIT = 1 << 30
_EPISODES = ("returns", "lengths", "num_episodes", "episode_return", "episode_length")  # said better here


def summarize(metrics: Mapping[str, np.ndarray], num_seeds: int) -> dict[str, Any]:
    """The entries of a line, from the metrics of its updates.

    Args:
      metrics: "returns" and "lengths" [K, T, N], others [K]; with several seeds [K, S, ...].
      num_seeds: S.

    Returns:
      name -> float, or a list of S where num_seeds > 1.
    """
    if num_seeds == 1:
        return _summary(metrics)
    seeds = [_summary({name: array[:, seed] for name, array in metrics.items()}) for seed in range(num_seeds)]
    return {name: [summary[name] for summary in seeds] for name in seeds[0]}


def _summary(metrics: Mapping[str, np.ndarray]) -> dict[str, Any]:
    finished = metrics["lengths"] > 0
    returns, lengths = metrics["returns"][finished].astype(np.float64), metrics["lengths"][finished]
    cut = returns.size // 4

    def some(statistic: Callable, values: np.ndarray) -> float | None:
        return _number(statistic(values)) if values.size else None

    line = {
        "episodes": int(returns.size),
        "return_mean": some(np.mean, returns),
        "return_iqm": some(lambda x: np.mean(np.sort(x)[cut : x.size - cut]), returns),
        "return_min": some(np.min, returns),
        "return_max": some(np.max, returns),
        "length_mean": some(np.mean, lengths),
    }
    return line | {name: _mean(array) for name, array in metrics.items() if name not in _EPISODES}


def _mean(values: np.ndarray) -> float | None:
    """The mean of the finite ones."""
    values = np.asarray(values, np.float64)
    finite = values[np.isfinite(values)]
    return _number(finite.mean()) if finite.size else None


def _number(value: Any) -> float | None:
    return float(f"{value:.7g}") if math.isfinite(value) else None


class Lines:
    """The metric lines of a run: metrics.jsonl, and TensorBoard or Weights & Biases where the config asks for them.

    Raises:
      ConfigError: a writer's package is not installed.
    """

    def __init__(self, run: Path, config: Any, *, length: int = 0, step: int = 0):
        self.path = run / files.METRICS
        self.writers = [
            make(run, config, step)
            for make, wanted in ((_tensorboard, config.run.tensorboard), (_wandb, config.run.wandb))
            if wanted
        ]
        files.cut(self.path, length)  # what was written after the checkpoint is written again

    def add(self, line: Mapping[str, Any]) -> None:
        files.append(self.path, json.dumps(line, allow_nan=False).encode() + b"\n")
        for write, _ in self.writers:
            write(_scalars(line), line["step"])

    def sync(self) -> int:
        """Bring the lines to the disk; returns the file's length in bytes."""
        return files.append(self.path, b"", durable=True)

    def close(self) -> None:
        for _, close in self.writers:
            close()


_Writer = tuple[Callable[[dict[str, float], int], None], Callable[[], None]]


def require(config: Any) -> None:
    """Raise a ConfigError where a package is missing that a metric writer of the config needs."""
    for key, package in (("tensorboard", "tensorboardX"), ("wandb", "wandb")):
        if value := getattr(config.run, key):
            try:
                __import__(package)
            except ImportError:
                raise ConfigError(
                    f"{key}={value!r} needs the package {package}; install it: pip install 'rlkit-jax[{key}]'"
                ) from None


def _tensorboard(run: Path, config: Any, step: int) -> _Writer:
    from tensorboardX import SummaryWriter  # pyright: ignore[reportMissingImports]

    writer = SummaryWriter(str(run / "tensorboard"), purge_step=step or None)

    def write(scalars: dict[str, float], step: int) -> None:
        for name, value in scalars.items():
            writer.add_scalar(name, value, step)

    return write, writer.close


def _wandb(run: Path, config: Any, step: int) -> _Writer:
    import wandb  # pyright: ignore[reportMissingImports]

    identity = run / "wandb.id"  # by which a resumed run goes on in the same curves
    if not identity.exists():
        files.replace(identity, secrets.token_hex(4).encode())
    session = wandb.init(
        project=config.run.wandb,
        id=files.read(identity, 64).decode(),
        resume="allow",
        name=run.name,
        dir=str(run),
        config=config.flat(),
    )
    return lambda scalars, step: session.log(scalars, step=step), session.finish


def _scalars(line: Mapping[str, Any]) -> dict[str, float]:
    """A line for viewers that know numbers only: with several seeds the mean over them."""
    values = {name: _mean(np.asarray(value, np.float64)) for name, value in line.items() if name != "step"}
    return {name: value for name, value in values.items() if value is not None}


def read(run: Path) -> list[dict[str, Any]]:
    """The metric lines of a run; an unfinished last line is left out.

    Raises:
      ConfigError: there is no such file, or a line is not a metric line.
    """
    path = run / files.METRICS
    try:
        text = files.read(path, _LIMIT)
        lines = [json.loads(line) for line in text[: text.rfind(b"\n") + 1].decode().splitlines()]
        if not all(isinstance(line, dict) and isinstance(line.get("step"), int) for line in lines):
            raise ValueError
    except OSError as error:
        raise ConfigError(f"{path} must be a file of metric lines: {error.strerror}; train the run first") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{path} must hold one JSON object with a step in each line, and it does not") from None
    return lines
