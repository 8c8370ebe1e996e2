"""`rlkit eval`: evaluate a run."""

import argparse
import sys
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from rlkit.cli.command import add_command, add_policy, integer, yaml_value
from rlkit.cli.jax_settings import enable_compilation_cache, use_cores


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    words = "greedy episodes of a checkpoint: mean, IQM and interval; or games against another policy"
    parser = add_command(commands, "eval", run, words)
    parser.add_argument("--episodes", type=integer, help="greedy episodes for each seed (eval_episodes of the run)")
    words = "play --episodes games (1000) of two players against another run, or against random moves"
    parser.add_argument("--against", metavar="RUN2|random", help=words)
    parser.add_argument("--opening", type=integer, help="first steps of a game with random moves (2; 0 against random)")
    parser.add_argument("--out", metavar="FILE.json", help="where the results of the games are written as well")
    words = "the environment of the episodes (eval_env of the run, or its env)"
    parser.add_argument("--eval-env", "--eval_env", help=words)
    parser.add_argument("--eval-env-kwargs", "--eval_env_kwargs", type=yaml_value, help="its parameters: {name: value}")
    parser.add_argument("--eval-wrappers", "--eval_wrappers", type=yaml_value, help="its wrappers: [name, ...]")
    add_policy(parser)


def run(options: argparse.Namespace) -> int:
    """Print the scores of a run's checkpoint, and write those of the newest one into the run.

    Scores in another environment than that of the run's own evaluations are printed only, and those of games against
    another policy are printed and written to `--out`.
    """
    use_cores()
    enable_compilation_cache()
    from rlkit.runs.config.own_code import OwnCode

    own_code = {key: value for key, value in vars(options).items() if key in OwnCode.__annotations__}
    if options.against is not None:
        return _match(options, own_code)
    from rlkit.runs import files, run_directory, scores
    from rlkit.runs.policy import NO_EVAL_ENV, NO_SERVICES, load_state, stored_config, without_learning_parts
    from rlkit.runs.progress import note_if_slow
    from rlkit.types import ConfigError

    if (unused := next((key for key in ("out", "opening") if getattr(options, key) is not None), None)) is not None:
        raise ConfigError(f"--{unused} goes with --against alone; add --against RUN2 or --against random")
    path = run_directory.existing(options.run)
    if options.episodes is not None and options.episodes < 1:
        raise ConfigError(f"episodes={options.episodes} must be at least 1")
    given = {"eval_episodes": options.episodes, **{key: getattr(options, key) for key in NO_EVAL_ENV}}
    overrides = {key: value for key, value in given.items() if value is not None}
    with note_if_slow("compiling ..."):
        program, state, step = load_state(path, options.step, best=options.best, overrides=overrides, own_code=own_code)
        with closing(program):
            if not program.config.run.eval_episodes:
                raise ConfigError(f"run={options.run!r} has eval_episodes: 0, no evaluation; add e.g. --episodes 128")
            program.on_progress = lambda text: print(text, file=sys.stderr, flush=True)
            evaluation = scores.evaluate(program, state, step)
    print(scores.evaluation_line(evaluation))
    settings = {**NO_SERVICES, **without_learning_parts(path, own_code)}
    own = not overrides.keys() & NO_EVAL_ENV.keys()
    own = own or stored_config(path, settings, own_code).run.eval_task == program.config.run.eval_task
    if options.step is None and not options.best and own:  # eval.json describes the run as it ended
        files.require_writable(path, f"run={options.run!r}")
        scores.save(path, evaluation)
    return 0


def _match(options: argparse.Namespace, own_code: Mapping[str, Any]) -> int:
    """Play games against another policy and print the shares of the results."""
    from rlkit.runs.matches import match
    from rlkit.runs.policy import NO_EVAL_ENV
    from rlkit.runs.progress import note_if_slow
    from rlkit.types import ConfigError

    if (unused := next((key for key in NO_EVAL_ENV if getattr(options, key) is not None), None)) is not None:
        raise ConfigError(f"{unused} does not go with --against, whose games are of the run's env; leave it out")
    games = 1000 if options.episodes is None else options.episodes
    if games < 2 or games % 2:
        raise ConfigError(
            f"episodes={games} must be even with --against, as both sides are played equally often; try 1000"
        )
    settings = {"opening": options.opening, "out": options.out, "step": options.step, "best": options.best}
    with note_if_slow("compiling ..."):
        print(match(options.run, options.against, games=games, **settings, **own_code))
    return 0
