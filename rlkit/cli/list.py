"""`rlkit list`: name agents, environments and configs."""

import argparse
from typing import Any

from rlkit.cli.command import add_command


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "list", run, "agents, environments, configs; or the tasks of a suite")
    parser.add_argument("suite", nargs="?", metavar="SUITE", help="brax, atari, mujoco, ...: the names of its tasks")


def run(options: argparse.Namespace) -> int:
    """Print the names of agents, environments and configs, or those of a suite's tasks."""
    from rlkit import agents, envs
    from rlkit.envs.registry import SUITES
    from rlkit.hosts import registry as hosts
    from rlkit.hosts.gymnasium_names import GROUPS
    from rlkit.names import did_you_mean
    from rlkit.runs.config.load import names
    from rlkit.types import ConfigError

    if options.suite is not None:
        suite = options.suite.removesuffix(":")
        outside = (*hosts.PREFIXES, *GROUPS)
        suites = [*SUITES, *outside]
        if suite not in suites:
            remedy = did_you_mean(suite, suites, cutoff=0.5) or f"; try {', '.join(suites)}"
            raise ConfigError(f"suite={options.suite!r} is not the name of a suite{remedy}")
        print(*(hosts.names if suite in outside else envs.names)(suite), sep="\n")
        return 0
    known = {"agents": agents.names(), "environments": envs.names(), "configs": names(), "sweeps": names(sweeps=True)}
    for title, entries in known.items():
        print(f"{title}:", *sorted(entries), sep="\n  ")
    print("environments of other libraries, each an extra:")
    print("  in JAX (rlkit list SUITE names the tasks):", ", ".join(f"{suite}:TASK" for suite in SUITES))
    print("  outside of JAX:", ", ".join(f"{prefix}:NAME" for prefix in hosts.PREFIXES), "or, with --env, MODULE:CLASS")
    return 0
