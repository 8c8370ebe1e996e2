"""Speed and compile time of this checkout against another one, such as the main branch before a change.

    git worktree add ../before origin/main
    python benchmarks/against/run.py ../before

Both train the same agents, each in a process of its own; rounds alternate. Only a table is printed: such figures belong
in the message of a commit.
"""

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common import report
from common.workers import Worker

HERE = Path(__file__).resolve().parent
REPLAY = {"capacity": 20_000, "batch_size": 128, "learning_starts": 256, "hidden_sizes": [64, 64], "replay_ratio": 0.25}
WIDE = REPLAY | {"batch_size": 256, "hidden_sizes": [256, 256]}
PROGRAMS = {  # agent, environment, environments, steps, settings, updates in a round
    "PPO, CartPole, 4 envs": ("ppo", "CartPole-v1", 4, 128, {}, 40),
    "PPO, CartPole, 64 envs": ("ppo", "CartPole-v1", 64, 128, {}, 8),
    "PPO, CartPole, 2048 envs": ("ppo", "CartPole-v1", 2048, 32, {}, 2),
    "PPO, Breakout-MinAtar, 64 envs": ("ppo", "Breakout-MinAtar", 64, 32, {"shared_torso": True}, 4),
    "DQN, CartPole, 8 envs": ("dqn", "CartPole-v1", 8, 16, REPLAY, 100),
    "SAC, Pendulum, 8 envs, 2x256": ("sac", "Pendulum-v1", 8, 16, WIDE, 10),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="the other checkout")
    parser.add_argument("--rounds", type=int, default=10, help="timed calls of each program (%(default)s)")
    parser.add_argument("--compilations", type=int, default=5, help="of each program (%(default)s)")
    parser.add_argument("--programs", nargs="+", default=list(PROGRAMS), choices=PROGRAMS)
    options = parser.parse_args()
    checkouts = {"before": options.checkout.resolve(), "now": HERE.parents[1]}
    if not (checkouts["before"] / "rlkit" / "__init__.py").is_file():
        parser.error(f"{options.checkout} is no checkout of rlkit")

    def start(name: str) -> Worker:
        environment = {"PYTHONPATH": str(checkouts[name]), "JAX_PLATFORMS": "cpu"}
        return Worker(name, [sys.executable, HERE / "worker.py"], environment | {"JAX_ENABLE_COMPILATION_CACHE": "0"})

    rows = []
    with start("before") as before, start("now") as now:
        for title in options.programs:
            compile_seconds, seconds = ({"before": [], "now": []} for _ in range(2))
            for index in range(max(options.compilations, options.rounds)):
                for worker in (before, now) if index % 2 else (now, before):
                    if index < options.compilations:
                        compile_seconds[worker.name].append(worker.call("prepare", title, *PROGRAMS[title]))
            for index in range(options.rounds):
                for worker in (before, now) if index % 2 else (now, before):
                    seconds[worker.name].append(worker.call("run", title))
            speed = report.ratio(seconds["before"], seconds["now"])
            ratio = statistics.median(compile_seconds["now"]) / statistics.median(compile_seconds["before"])
            rows.append(
                [title, report.spread(speed), f"{statistics.median(compile_seconds['now']):.2f}", f"{ratio:.2f}"]
            )
            print(*rows[-1], sep=" | ", flush=True)
    print("\n" + report.table(["program", "speed over before", "compile s", "compile time over before"], rows))


if __name__ == "__main__":
    main()
