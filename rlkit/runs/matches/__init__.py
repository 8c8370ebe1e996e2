"""Matches: two trained policies, or one and random moves, play a game of two players against each other."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import jax
import numpy as np

from rlkit import envs
from rlkit.envs.checks import legal_action
from rlkit.hosts.placeholder import HostEnv
from rlkit.runs import records, run_directory
from rlkit.runs.config.errors import plain_value
from rlkit.runs.config.load import read
from rlkit.runs.config.own_code import OwnCode, is_own
from rlkit.runs.policy import Policy, load
from rlkit.spaces import Dict, Space
from rlkit.training.matches import Contestant, Match
from rlkit.training.matches import match as play
from rlkit.types import ConfigError, Env, Key, PyTree, num_players

RANDOM = "random"
_STATELESS = ("flatten", "clip_reward", "scale_reward", "time_limit")  # wrappers of which a policy notices nothing


class Score(NamedTuple):
    """Results of a match from the view of its first policy.

    Fields:
      run, against: the run directories, or "random".
      games: finished games; of half of them the first policy is player 0, of the others player 1.
      unfinished: games that `max_steps` or a time limit cut; they count nowhere else.
      wins, draws, losses: shares of the games. A game is won with a higher return than the other's.
      intervals: (low, high) of each of these shares, Wilson's 95% intervals.
      mean: return of the first policy.
      length_mean: in steps.
    """

    run: str
    against: str
    games: int
    unfinished: int
    wins: float
    draws: float
    losses: float
    intervals: dict[str, tuple[float, float]]
    mean: float
    length_mean: float

    def __str__(self) -> str:
        """Return the shares with their intervals in a line."""
        shares = ", ".join(
            f"{name} {getattr(self, name):.3f} [{low:.3f}, {high:.3f}]" for name, (low, high) in self.intervals.items()
        )
        cut = f", {self.unfinished} unfinished" if self.unfinished else ""
        return f"{shares} in {self.games} games against {self.against}{cut}"


def match(
    run: str | Path,
    against: str | Path = RANDOM,
    *,
    games: int = 1000,
    opening: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    step: int | None = None,
    best: bool = False,
    max_steps: int = 10_000,
    **own_code: Unpack[OwnCode],
) -> Score:
    """Play games of two players between the greedy policies of two runs, or of one and random legal moves.

    Each plays both sides equally often: games come in pairs that begin alike, with changed places.

    Args:
      run: a run directory; of several seeds the first one plays.
      against: another one, or "random".
      games: their number, even.
      opening: the first steps of a game, whose moves are random for both: policies do not draw their actions, and would
        play the same games over and over. None for 2 between two runs, and 0 against random moves.
      seed: of the starts and the random moves.
      out: a file for the scores as JSON; None for none.
      step, best: the checkpoint of `run`, as for `rlkit.load`.
      max_steps: limit on the steps of a game.
      own_code: of `run`, as for `rlkit.load`, and of the other run where that has code of its own there.

    Returns:
      `Score`.

    Raises:
      ConfigError: there is no such run, the environments differ or are not of two players, the number of games is odd,
        or no game ended.
    """
    if games < 2 or games % 2:
        raise ConfigError(
            f"games={games} must be even and at least 2, as both sides are played equally often; try 1000"
        )
    if opening is not None and opening < 0:
        raise ConfigError(f"opening={opening} must be at least 0; try 2")
    policies = [load(run, step=step, best=best, **own_code)]
    if str(against) != RANDOM:
        stored = read(run_directory.existing(against) / run_directory.CONFIG)
        shared: Any = {key: x for key, x in own_code.items() if x is not None and is_own(key, stored.get(key))}
        policies.append(load(against, **shared))
    env, params = _arena(policies)
    contestants = [_contestant(policy, env.observation_space(params)) for policy in policies]
    contestants += [_random(env.action_space(params))] if len(policies) == 1 else []
    opening = (2 if len(policies) == 2 else 0) if opening is None else opening
    sizes = {"num_pairs": games // 2, "opening": opening, "max_steps": max_steps}
    actors = [contestant.actor for contestant in contestants]

    def run_match(actors: list[PyTree], key: Key) -> Match:
        pair = [contestant._replace(actor=actor) for contestant, actor in zip(contestants, actors, strict=True)]
        return play(env, params, (pair[0], pair[1]), key, **sizes)

    score = _score(jax.device_get(jax.jit(run_match)(actors, jax.random.key(seed))), str(run), str(against))
    if out is not None:
        records.write(Path(out), score._asdict())
    return score


def _arena(policies: list[Policy]) -> tuple[Env, Any]:
    """The environment with both players in which these policies were trained."""
    tasks = [policy.config.task for policy in policies]
    for policy, task in zip(policies, tasks, strict=True):
        if isinstance(policy.env, HostEnv):
            raise ConfigError(f"env={task.env!r} is outside of JAX, and matches are played in JAX; use pgx:NAME")
        if (task.env, task.wrappers) != (tasks[0].env, tasks[0].wrappers):
            raise ConfigError(
                f"against={str(policy.run)!r} must have the env and wrappers of run={str(policies[0].run)!r}, "
                f"{tasks[0].env!r} and {list(tasks[0].wrappers)}, and it has {task.env!r} and {list(task.wrappers)}"
            )
    task, params = tasks[0], policies[0].params
    env, _ = envs.make(task.env, **plain_value(task.kwargs))
    if (whole := getattr(env, "with_all_players", None)) is not None:
        env = whole()
    elif any(other.kwargs != task.kwargs for other in tasks):
        raise ConfigError(
            f"against={str(policies[1].run)!r} must have the env_kwargs of run={str(policies[0].run)!r}, "
            f"{plain_value(task.kwargs)}, and it has {plain_value(tasks[1].kwargs)}"
        )
    for policy in policies:
        kept = [name for name in task.wrappers if name.partition(":")[0] not in _STATELESS]
        if num_players(policy.env) == 1 and num_players(env) > 1 and (kept or jax.tree.leaves(policy.memory)):
            what = f"the wrapper {kept[0]!r}" if kept else "a memory"
            raise ConfigError(
                f"run={str(policy.run)!r} was trained by one player alone, who did not see the other's turns, and "
                f"has {what}, which would see them in a match; train it with env_kwargs {{opponent: self}}"
            )
    if num_players(env) != 2:
        raise ConfigError(
            f"env={task.env!r} has {num_players(env)} player(s), and a match needs 2; train in a game such as "
            "pgx:connect_four with env_kwargs {opponent: self}"
        )
    return envs.wrap(env, task.wrappers), params


def _contestant(policy: Policy, space: Space) -> Contestant:
    """A policy that takes the leaves of an observation that it knows. Raises ConfigError where it lacks one."""
    own = policy.env.observation_space(policy.params)
    shared = space
    if isinstance(own, Dict) and isinstance(space, Dict):
        shared = Dict({name: child for name, child in space.spaces.items() if name in own.spaces})
    if shared != own:
        raise ConfigError(f"run={str(policy.run)!r} observes {own}, and players of the match observe {space}")

    def act(actor: PyTree, memory: PyTree, obs: PyTree, key: Key) -> tuple[PyTree, PyTree, PyTree]:
        known = {name: x for name, x in obs.items() if name in own.spaces} if isinstance(own, Dict) else obs
        return policy.policy(actor, memory, known, key)

    return Contestant(act, policy.actor, policy.memory)


def _random(space: Space) -> Contestant:
    """Random legal moves."""

    def act(actor: PyTree, memory: PyTree, obs: PyTree, key: Key) -> tuple[PyTree, PyTree, PyTree]:
        return memory, legal_action("match", space, key, obs), ()

    return Contestant(act, ())


def _score(result: Match, run: str, against: str) -> Score:
    returns = result.returns[result.finished]  # [games, 2]
    games = len(returns)
    if not games:
        raise ConfigError(f"run={run!r}: no game ended; give a larger max_steps")
    outcomes: dict[str, Callable] = {"wins": np.greater, "draws": np.equal, "losses": np.less}
    shares = {name: float(compare(*returns.T).mean()) for name, compare in outcomes.items()}
    intervals = {name: wilson(share, games) for name, share in shares.items()}
    mean, length = float(returns[:, 0].mean()), float(result.lengths[result.finished].mean())
    unfinished = int(result.finished.size - games)
    return Score(run, against, games, unfinished, **shares, intervals=intervals, mean=mean, length_mean=length)


def wilson(share: float, count: int) -> tuple[float, float]:
    """Return the 95% interval of a share of so many trials (Wilson 1927)."""
    z2 = 1.959964**2
    center = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = math.sqrt(z2 * (share * (1 - share) / count + z2 / (4 * count**2))) / (1 + z2 / count)
    return max(0.0, center - half), min(1.0, center + half)
