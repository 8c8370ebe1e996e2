"""Hints for a run: before it starts on its settings, and in progress from the figures that it measures."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.agents.common.config import OffPolicyConfig
from rlkit.envs.reset_pool import has_pool, make_starts
from rlkit.hosts import devices
from rlkit.hosts.placeholder import HostEnv
from rlkit.hosts.pool import num_cores
from rlkit.runs.config.keys import value_text
from rlkit.runs.config.load import tuned_for
from rlkit.runs.config.run_config import RunConfig
from rlkit.runs.config.schedule import Schedule
from rlkit.runs.evaluations import Evaluations
from rlkit.runs.programs.protocol import Program
from rlkit.spaces import zeros
from rlkit.training.train import with_starts
from rlkit.types import Key, PyTree, num_players

_MOST = 0.8  # share of the time from which environments are the bottleneck
_COSTLY = 0.1  # share of the time from which evaluations, or resets, are shown as costly
_STARTS = 1024  # of a pool, as it is proposed
_SLOW_SECONDS = 0.005  # of a step of one environment


def on_defaults(config: RunConfig) -> list[str]:
    """Return a line with the values that the agent filled in for its run, and one with its tuned configs, if any."""
    if not config.filled:
        return []
    values, run = config.flat(), config.run
    filled = ", ".join(f"{key}: {value_text(values[key])}" for key in config.filled)
    lines = [f"of {run.agent}, as no config is given: {filled}"]
    if tuned := tuned_for(config):
        lines.append(
            f"{' and '.join(tuned)} {'are' if tuned[1:] else 'is'} tuned for {run.env}: rlkit train {tuned[0]}"
        )
    return lines


def on_settings(program: Program) -> list[str]:
    """Return a line for each setting of a run that has no effect, or another one than a user may expect."""
    config = program.config
    run, agent, total = config.run, config.agent, config.num_updates * config.steps_per_update
    env, params = program.env, program.params
    lines = config.without_effect(env.action_space(params), env.observation_space(params))
    if run.dataset is None and (starts := getattr(agent, "learning_starts", 0)) >= total:
        lines.append(f"learning_starts={starts:,} is beyond the run of {total:,} steps, which learns nothing")
    if (every := getattr(agent, "target_every", None)) is not None and every >= total:
        lines.append(f"target_every={every:,} is beyond the run of {total:,} steps: the target is never updated")
    length = getattr(agent, "unroll_len", None) if getattr(agent, "recurrent", None) != "none" else None
    if length is not None and agent.n_step > length:
        lines.append(f"n_step={agent.n_step} is above unroll_len={length}: a target ends with its sequence")
    schedule, line = Schedule(config), config.updates_per_line * config.steps_per_update
    for key, lines_between in (("eval_every", schedule.eval_lines), ("checkpoint_every", schedule.save_lines)):
        asked, made = getattr(run, key), line * (lines_between or 0)
        if asked is not None and asked <= total < made:
            lines.append(f"{key}={asked:,} waits for a metric line, and the first ends the run; set log_every: {asked}")
        elif asked is not None and asked <= total and not 0.5 < made / asked < 2:
            lines.append(f"{key}={asked:,} is rounded to whole metric lines, {made:,} steps; set log_every: {asked}")
        elif asked is not None and asked > total and key == "eval_every":
            lines.append(f"eval_every={asked:,} is beyond the run of {total:,} steps: one evaluation, at the end")
    limit = getattr(program.params, "max_steps_in_episode", None)
    first, _, steps = run.wrappers[0].partition(":") if run.wrappers else ("", "", "")
    if limit is not None and first == "time_limit" and int(limit) <= int(steps):
        lines.append(
            f"wrapper {run.wrappers[0]} has no effect, as episodes end after {int(limit):,} steps; "
            f"set env_kwargs: {{max_steps_in_episode: {steps}}}"
        )
    return lines


def costly_resets(program: Program) -> str | None:
    """Return a hint where a pool of starts saves more than a tenth of the arithmetic of acting and stepping.

    The floating point operations are those that XLA counts in the programs before it compiles them; acting has two for
    each parameter.
    """
    run, env, params = program.config.run, program.env, program.params
    if run.dataset is not None or run.reset_pool is not None or isinstance(env, HostEnv) or not has_pool(env):
        return None
    key, players = jax.eval_shape(jax.random.key, 0), num_players(env)
    (_, state), action = jax.eval_shape(env.reset, key, params), zeros(env.action_space(params))
    if players > 1:
        action = jax.tree.map(lambda x: jnp.stack([x] * players), action)
    keys = jax.eval_shape(lambda key: jax.random.split(key, _STARTS), key)
    starts = jax.eval_shape(lambda keys: make_starts(env, params, keys), keys)

    def flops(starts: PyTree) -> float:
        def step(key: Key, state: PyTree, starts: PyTree) -> PyTree:
            stepped, its_params = with_starts(env, params, starts)
            return stepped.step(key, state, action, its_params)

        return (jax.jit(step).lower(key, state, starts).cost_analysis() or {}).get("flops", 0.0)

    stepping = flops(())
    acting = 2 * players * sum(x.size for x in jax.tree.leaves(program.template.agent.params)) / run.num_seeds
    share = (stepping - flops(starts)) / max(stepping + acting, 1.0)
    if share <= _COSTLY:
        return None
    return (
        f"resets are {share:.0%} of the arithmetic of acting and stepping, as each step computes one: reset_pool: "
        f"{_STARTS} draws starts that were made before"
    )


class HintsOfLines:
    """Shows the hints that the metric lines of a session give, each kind once.

    Args:
      config: of the run.
      players: P, of a world; `num_envs` counts them.
      seconds: of training before the session.
      show: gets a line of text.
    """

    def __init__(self, config: RunConfig, players: int, seconds: float, show: Callable[[str], None]):
        self.config, self.players, self.seconds, self.show = config, players, seconds, show
        self.shown: set[str] = set()
        self.first = True

    def __call__(self, line: Mapping[str, Any], evaluations: Evaluations) -> None:
        """Show the hints of a line that were not shown yet."""
        training = line["seconds"] - self.seconds
        found = {
            "environments": None if self.first else slow_environments(self.config, line, self.players),
            "evaluations": costly_evaluations(training, evaluations.seconds, evaluations.count),
        }
        self.first = False  # the rate of the first line includes the start-up
        for kind, hint in found.items():
            if hint is not None and kind not in self.shown:
                self.shown.add(kind)
                self.show(hint)


def slow_environments(config: RunConfig, line: Mapping[str, Any], players: int = 1) -> str | None:
    """Return a hint where slow environments take most of the time and wait for each other in their workers.

    It is None where more workers cannot help, before learning starts, and for a metric line without `envs_idle`, as no
    environments outside of JAX are stepped. Environments of several players are as many as there are worlds.
    """
    run = config.run
    worlds = run.num_envs // players
    workers = 1 if run.backend == "serial" else min(worlds, run.num_workers or num_cores())
    vector = run.env.startswith(("ale:", "envpool:"))  # stepped in threads of their library
    learns = line["step"] > getattr(config.agent, "learning_starts", 0)
    if line.get("envs_idle") is None or vector or workers == worlds or not learns:
        return None
    idle = float(np.mean(line["envs_idle"]))
    worlds_of_worker = -(-worlds // workers)
    seconds = (1.0 - idle) * run.num_envs / line["steps_per_second"] / worlds_of_worker
    if idle > 1.0 - _MOST or seconds < _SLOW_SECONDS:
        return None
    backend = "backend: process and " if run.backend == "serial" else ""
    takes_turns = not isinstance(config.agent, OffPolicyConfig) or run.num_steps == 1
    may_overlap = takes_turns and run.overlap is None and devices.acting()[1] is None
    return (
        f"environments take {1000 * seconds:.3g} ms a step: if they wait rather than compute, {backend}num_workers: "
        f"{worlds} (one for each environment) may help{'; so may overlap: true' * may_overlap}"
    )


def costly_evaluations(training: float, evaluating: float, count: int) -> str | None:
    """Return a hint where `count` evaluations took more than a tenth of all seconds so far, and a second."""
    share = evaluating / max(training + evaluating, 1e-9)
    if evaluating < 1.0 or share <= _COSTLY:
        return None
    return (
        f"evaluations take {share:.0%} of the time, {evaluating / count:.3g} s each: eval_every makes them rarer, "
        "eval_episodes and eval_max_steps make them shorter"
    )
