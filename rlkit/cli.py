"""The command line: `rlkit`, and `python -m rlkit`.

JAX is imported only where a command needs it, so that help answers at once.
"""

import argparse
import os
import stat
import sys
from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

_EXAMPLES = """\
examples:
  rlkit train ppo/cartpole                      train as a config says, into runs/ppo-cartpole
  rlkit train ppo/cartpole --seeds 10           ten seeds in one program
  rlkit train ppo/cartpole --learning-rate 1e-3 --out runs/fast
  rlkit train ppo/cartpole --help               the keys of that config
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, 1 for a run that failed, 2 for a mistake, 130 or 143 when stopped."""
    options = _parser().parse_args(arguments)
    _import_from_here(sys.argv[1:] if arguments is None else arguments)
    try:
        return options.command(options)
    except KeyboardInterrupt:
        print("rlkit: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # e.g. rlkit list | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        code = _exit_code(error)
        if code is None:
            raise
        print(f"rlkit: {error}", file=sys.stderr)
        return code


def _import_from_here(arguments: Sequence[str]) -> None:
    """Let `--env module:Class` find modules of the current folder, as `python -m rlkit` does."""
    names = [word.removeprefix("--env=") for word in arguments if word.startswith("--env=")]
    names += [name for flag, name in pairwise(arguments) if flag == "--env"]
    if any(":" in name for name in names):
        from rlkit.hosts.registry import is_own

        if any(map(is_own, names)) and not {"", os.getcwd()} & set(sys.path):
            sys.path.insert(0, os.getcwd())


def _exit_code(error: Exception) -> int | None:
    """2 for a mistake, 1 for what went wrong outside of rlkit, None for what deserves a traceback."""
    from rlkit.types import ConfigError

    if isinstance(error, ConfigError):
        return 2
    names = (("rlkit.runs.loop", "NonFiniteError"), ("rlkit.hosts.pool", "HostError"))  # each there if it was raised
    failed = [getattr(sys.modules[module], name) for module, name in names if module in sys.modules]
    return 1 if isinstance(error, (OSError, *failed)) else None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rlkit",
        description="A JAX-first functional reinforcement-learning toolkit.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(function: Any, name: str, help: str, usage: str | None = None) -> argparse.ArgumentParser:
        child = commands.add_parser(name, help=help, description=help, usage=usage, allow_abbrev=False)
        child.set_defaults(command=function)
        return child

    config_help = "a file, or a name such as ppo/cartpole; with --help, its keys"
    usage = "rlkit train CONFIG [--key value ...] [--seeds N] [--out DIR] [--init-from RUN]"
    train = command(_train, "train", "train as a config says", usage)
    train.add_argument("config", metavar="CONFIG", help=config_help)
    train.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    usage = "rlkit check CONFIG [--key value ...]"
    check = command(_check, "check", "say what a config would run; compiles nothing", usage)
    check.add_argument("config", metavar="CONFIG", help=config_help)
    check.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)

    resume = command(_resume, "resume", "go on from the newest checkpoint")
    resume.add_argument("run", metavar="RUN")
    env_help = "the run's environment once more, where it is code of your own (module:Class)"
    resume.add_argument("--env", help=env_help)
    evaluate = command(_eval, "eval", "greedy episodes of the newest checkpoint: mean, IQM and interval")
    evaluate.add_argument("run", metavar="RUN")
    evaluate.add_argument("--env", help=env_help)
    plot = command(_plot, "plot", "learning curves with intervals, PNG and SVG")
    plot.add_argument("runs", metavar="RUN", nargs="+")
    plot.add_argument("--out", default="curves", help="the pictures' name, without ending (%(default)s)")
    plot.add_argument("--title")
    render = command(_render, "render", "a GIF of the policy")
    render.add_argument("run", metavar="RUN")
    render.add_argument("--out", help="the GIF (RUN/policy.gif)")
    render.add_argument("--seed", type=int, help="which seed's policy (the first)")
    render.add_argument("--env", help=env_help)
    render.add_argument("--max-steps", type=int, default=500, help="at most so many frames (%(default)s)")
    collect = command(
        _collect, "collect", "a dataset of the policy's transitions, to learn from without an environment"
    )
    collect.add_argument("run", metavar="RUN")
    collect.add_argument("--steps", type=int, required=True, help="steps of all environments together")
    collect.add_argument("--out", help="the dataset's folder (RUN/dataset)")
    collect.add_argument("--num-envs", type=int, default=16, help="environments side by side (%(default)s)")
    collect.add_argument("--greedy", action="store_true", help="act as in evaluation, not as in training")
    collect.add_argument("--checkpoint", type=int, metavar="STEP", help="of which step (the newest)")
    collect.add_argument("--seed", type=int, default=0, help="of the environments and the exploration (%(default)s)")
    collect.add_argument("--env", help=env_help)
    listing = command(_list, "list", "agents, environments, configs; or the tasks of a suite")
    listing.add_argument("suite", nargs="?", metavar="SUITE", help="brax, craftax, ...: the names of its tasks")
    return parser


def _overrides(rest: Sequence[str], special: Sequence[str] = ()) -> tuple[dict[str, Any], dict[str, str]]:
    """`--key value` and `--key=value` as YAML values by key, and the special flags' texts.

    Raises:
      ConfigError: a word that is no flag, a flag without a value, or one given twice.
    """
    from rlkit.runs.config.strict_yaml import parse
    from rlkit.types import ConfigError

    values: dict[str, Any] = {}
    texts: dict[str, str] = {}
    words = list(rest)
    while words:
        word = words.pop(0)
        flag, equals, text = word.partition("=")
        if not flag.startswith("--") or flag == "--":
            raise ConfigError(f"{word!r} must be a flag; write --key value")
        name, dot, inner = flag[2:].partition(".")
        key = "num_seeds" if name == "seeds" else name.replace("-", "_") + dot + inner
        if not equals:
            if not words or words[0].startswith("--"):
                raise ConfigError(f"{flag} needs a value; write {flag} VALUE, e.g. true for a switch")
            text = words.pop(0)
        if key in values or key in texts:
            raise ConfigError(f"{flag} is given twice; keep one")
        if key in special:
            texts[key] = text
            continue
        try:
            values[key] = parse(text)
        except ValueError as error:
            raise ConfigError(f"{flag}={text!r} must be one YAML value: {error}") from None
    return values, texts


def _train(options: argparse.Namespace) -> int:
    if _asks_for_help(options):
        return 0
    from rlkit.runs.config.run_config import load_config

    overrides, special = _overrides(options.rest, ("out", "init_from"))
    config = load_config(options.config, overrides)
    _cache_compilations()
    from rlkit.runs.loop import train

    return _report(train(config, out=special.get("out"), init_from=special.get("init_from")))


def _resume(options: argparse.Namespace) -> int:
    _cache_compilations()
    from rlkit.runs.loop import resume

    return _report(resume(options.run, env=options.env))


def _report(trained: Any) -> int:
    if trained.signal is not None:
        return 128 + trained.signal
    print(f"{_evaluated(trained.evaluation)}\n{trained.run}")
    return 0


def _evaluated(found: dict[str, Any]) -> str:
    if not found["episodes"]:
        return f"step {found['step']}: no greedy episode ended"
    numbers = (found["mean"], found["iqm"], *found["interval"])
    mean, center, low, high = ("not finite" if number is None else f"{number:.4g}" for number in numbers)
    return (
        f"step {found['step']}: greedy return {mean}, IQM {center} "
        f"[{low}, {high}] over {len(found['seeds'])} seed(s) and {found['episodes']} episodes"
    )


def _eval(options: argparse.Namespace) -> int:
    _cache_compilations()
    from rlkit.runs import files, scores
    from rlkit.runs.loop import evaluate
    from rlkit.runs.policy import load_state

    run = files.open_run(options.run)
    program, state, step = load_state(run, env=options.env)
    with closing(program):
        found = evaluate(program, program.evaluate, state, step)
    print(_evaluated(found))
    files.require_writable(run, f"run={options.run!r}")
    scores.save(run, found)
    return 0


def _plot(options: argparse.Namespace) -> int:
    from rlkit.runs.pictures.curves import plot

    print("\n".join(map(str, plot(options.runs, options.out, title=options.title))))
    return 0


def _render(options: argparse.Namespace) -> int:
    _cache_compilations()
    from rlkit.runs.pictures.record import record

    print(record(options.run, options.out, seed=options.seed, max_steps=options.max_steps, env=options.env))
    return 0


def _collect(options: argparse.Namespace) -> int:
    _cache_compilations()
    from rlkit.runs.collecting import collect

    folder = collect(
        options.run,
        options.steps,
        options.out,
        num_envs=options.num_envs,
        greedy=options.greedy,
        checkpoint=options.checkpoint,
        seed=options.seed,
        env=options.env,
    )
    print(f"{folder}\nlearn from it: rlkit train CONFIG --dataset {folder}")
    return 0


def _list(options: argparse.Namespace) -> int:
    from rlkit import agents, envs
    from rlkit.envs.registry import SUITES
    from rlkit.hosts.registry import PREFIXES
    from rlkit.runs.config.run_config import names

    if options.suite is not None:
        print(*envs.names(options.suite), sep="\n")
        return 0
    for title, found in (("agents", agents.names()), ("environments", envs.names()), ("configs", names())):
        print(f"{title}:", *sorted(found), sep="\n  ")
    print("environments of other libraries, each an extra:")
    print("  in JAX (rlkit list SUITE names the tasks):", ", ".join(f"{suite}:TASK" for suite in SUITES))
    print("  outside of JAX:", ", ".join(f"{prefix}:NAME" for prefix in PREFIXES), "or, with --env, MODULE:CLASS")
    return 0


def _check(options: argparse.Namespace) -> int:
    if _asks_for_help(options):
        return 0
    from rlkit.runs.config.describe import describe
    from rlkit.runs.config.run_config import load_config

    print(describe(load_config(options.config, _overrides(options.rest)[0])))
    return 0


def _asks_for_help(options: argparse.Namespace) -> bool:
    """Prints a config's keys, where the words after it hold --help."""
    if not {"-h", "--help"} & set(options.rest):
        return False
    from rlkit.runs.config.describe import keys
    from rlkit.runs.config.run_config import load_config

    print(keys(load_config(options.config)))
    return True


def _cache_compilations() -> None:
    """Keep compiled programs in a private folder, so that the second run of a config starts at once.

    RLKIT_CACHE=off turns it off, another value is the folder. A cached program is code, so a folder that others could
    write to is not used.
    """
    import jax

    wanted = os.environ.get("RLKIT_CACHE", "")
    if wanted.lower() in ("off", "0", "false"):
        return
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(wanted) if wanted else home / "rlkit" / "xla"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        print(f"rlkit: no compilation cache in {folder}: {error.strerror}", file=sys.stderr)
        return
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        print(f"rlkit: no compilation cache: {folder} must be a folder only you can use (chmod 700)", file=sys.stderr)
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
