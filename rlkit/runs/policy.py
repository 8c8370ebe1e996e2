"""Trained policies and states from run directories."""

import base64
import dataclasses
import html
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from rlkit.hosts.placeholder import HostEnv
from rlkit.names import ACTION_MASK, GAME_STATE, LEARNING_PARTS, PRIVILEGED
from rlkit.runs import files, run_directory, scores
from rlkit.runs.checkpoints import checkpoint
from rlkit.runs.checkpoints.leaves import layout
from rlkit.runs.config import changes
from rlkit.runs.config.load import load_config, read
from rlkit.runs.config.own_code import OwnCode, is_own, names_of_objects
from rlkit.runs.config.own_code import given as own_code_given
from rlkit.runs.config.run_config import RunConfig
from rlkit.runs.config.schema import schema
from rlkit.runs.programs import shards
from rlkit.runs.programs.make import make_program
from rlkit.runs.programs.protocol import Program
from rlkit.spaces import Dict, Space, Tuple
from rlkit.types import ConfigError, Env, Key, PyTree

_MAY_LACK = {PRIVILEGED, ACTION_MASK, GAME_STATE}  # parts of an observation that acting can do without
_MAX_PICTURE = 16 << 20  # bytes
# For what plays no evaluations, and need not make their environment.
NO_EVAL_ENV = {"eval_env": None, "eval_env_kwargs": None, "eval_wrappers": None}
NO_SERVICES = {"wandb": None}  # for what writes no metric lines; a file that names a service is refused otherwise


class Policy(NamedTuple):
    """A trained policy, its parameters, and the environment that it was trained in."""

    policy: Any  # (actor, memory, obs, key) -> memory, action, extras; pure, for one observation
    actor: PyTree  # parameters and statistics
    memory: PyTree  # of a recurrent policy, at the start of an episode; () for others
    env: Env | HostEnv  # of a HostEnv only the spaces can be used
    params: Any  # of the environment
    config: RunConfig
    step: int  # environment steps learned from
    run: Path  # the run directory

    def __repr__(self) -> str:
        """Describe the policy in a line, without its arrays, and with its evaluation where eval.json has it."""
        run, mean = self.config.run, scores.stored_mean(self.run, self.step)
        evaluated = f", greedy return {mean:.4g}" if mean is not None else ""
        return f"Policy(run={str(self.run)!r}, {run.agent} on {run.env}, step {self.step}{evaluated})"

    def _repr_html_(self) -> str:
        """Describe the policy in a notebook, with the learning curve and the pictures of its run that exist."""
        pictures = []
        for name, media in (("curve.png", "image/png"), ("policy.gif", "image/gif"), ("policy.svg", "image/svg+xml")):
            with suppress(OSError):
                data = base64.b64encode(files.read(self.run / name, _MAX_PICTURE)).decode()
                pictures.append(f'<img src="data:{media};base64,{data}" alt="{name}" style="max-width:48%">')
        return f"<pre>{html.escape(repr(self))}</pre>{''.join(pictures)}"

    def act(self, obs: PyTree, key: Key, memory: PyTree = None) -> tuple[PyTree, PyTree]:
        """Return the greedy action for one observation, and the memory to be passed at the next step.

        For an environment outside of JAX, the action is one of its `action_space`: NumPy in its dtypes, or JAX under
        `jax.vmap`. For others it is an array of JAX.

        All players of an environment of several act by `jax.vmap(policy.act)(obs, jax.random.split(key, P))`, whose
        observations, memories and actions have a first axis [P].

        Args:
          obs: one observation of the environment, of one player where it has several; integers count from where those
            of its space do, as in the action.
          key: for policies that draw their greedy actions.
          memory: as returned at the step before; None at the start of an episode.

        Raises:
          ConfigError: `obs` lacks an entry, or has another shape than one observation, such as that of a batch.
        """
        env = self.env
        _check_single(env.observation_space(self.params), obs, "obs")
        if isinstance(env, HostEnv):
            obs = env.stored_obs(obs)
        memory, action, _ = self.policy(self.actor, self.memory if memory is None else memory, obs, key)
        if not isinstance(env, HostEnv):
            return action, memory
        is_traced = any(isinstance(x, Tracer) for x in jax.tree.leaves(action))
        return env.native_action(action) if is_traced else env.environment_action(action), memory


def _check_single(space: Space, obs: PyTree, name: str) -> None:
    """Raise ConfigError where a leaf of an observation is missing or has another shape; some leaves may be missing."""
    if isinstance(space, Dict):
        if not isinstance(obs, Mapping) or (missing := space.spaces.keys() - obs.keys() - _MAY_LACK):
            found = f"lacks {sorted(missing)[0]!r}" if isinstance(obs, Mapping) else f"is {type(obs).__name__}"
            raise ConfigError(f"{name} must be a dict with the entries {', '.join(space.spaces)}, and it {found}")
        for key in space.spaces.keys() & obs.keys():
            _check_single(space.spaces[key], obs[key], f"{name}[{key!r}]")
    elif isinstance(space, Tuple):
        if not isinstance(obs, tuple | list) or len(obs) != len(space.spaces):
            found = f"has {len(obs)}" if isinstance(obs, tuple | list) else f"is {type(obs).__name__}"
            raise ConfigError(f"{name} must be a tuple of {len(space.spaces)} entries, and it {found}")
        for index, (child, value) in enumerate(zip(space.spaces, obs, strict=True)):
            _check_single(child, value, f"{name}[{index}]")
    elif np.shape(obs) != space.shape:
        raise ConfigError(
            f"{name} must be one observation, {list(space.shape)}, and it has the shape {list(np.shape(obs))}; "
            "for a batch of them use jax.vmap(policy.act), with a key for each"
        )


def load(
    run: str | Path,
    *,
    seed: int | None = None,
    step: int | None = None,
    best: bool = False,
    **own_code: Unpack[OwnCode],
) -> Policy:
    """Load the policy of a run.

        agent = rlkit.load("runs/ppo-cartpole")
        obs, state = agent.env.reset(jax.random.key(0), agent.params)
        action, memory = agent.act(obs, jax.random.key(1))

    Args:
      run: a run directory.
      seed: seed of the policy, where the run has several; None for the first.
      step: step of the checkpoint; None for the newest whole one.
      best: True for the checkpoint that was evaluated best, in a run with keep_best.
      own_code: `agent`, `env`, `wrappers` and `network` of the run again, where they are the user's own code, as
        `module:name` or as objects. What only learning uses, such as an optimizer, is not needed.

    Raises:
      ConfigError: there is no such run, checkpoint or seed.
    """
    path = run_directory.existing(run)
    program, state, step = load_state(path, step, best=best, overrides=NO_EVAL_ENV, own_code=own_code)
    program.close()
    settings = program.config.run
    first, seeds = settings.seed, range(settings.seed, settings.seed + settings.num_seeds)
    if seed is not None and seed not in seeds:
        raise ConfigError(f"seed={seed!r} must be one of the run's, {first} to {seeds[-1]}; try {first}")
    index = seed - first if seed is not None else 0
    return Policy(
        policy=jax.jit(program.agent.policy),
        actor=actor_of(program, state, index),
        memory=program.agent.memory,
        env=program.env,
        params=program.params,
        config=program.config,
        step=step,
        run=path,
    )


def actor_of(program: Program, state: PyTree, index: int) -> PyTree:
    """Return what acting needs of a program's state; of several runs, that of the run `index`, on the first device.

    The states of several runs may be spread over devices. An entry of such an array would be on all of them, and so
    would everything that is computed from it.
    """
    actor = program.agent.actor
    if not program.batched:
        return actor(state.agent)
    chosen = jax.tree.map(lambda x: x[index], jax.vmap(actor)(state.agent))
    return jax.device_put(chosen, jax.devices()[0]) if program.num_devices > 1 else chosen


def stored_config(run: Path, overrides: Mapping[str, Any] | None, own_code: Mapping[str, Any]) -> RunConfig:
    """Load the config of a run directory.

    Args:
      run: a run directory.
      overrides: keys that replace those of the file.
      own_code: that of the run again, as for `load`; None for what is not given.

    Raises:
      ConfigError: own code is needed and not given, or differs from the run's.
    """
    path = run / run_directory.CONFIG
    stored = read(path)
    if "torso" in stored:  # a key that is in every config of that time
        raise ConfigError(
            f"run={str(run)!r} was made by an earlier version, whose networks had other parameters: its checkpoints "
            "cannot be read; train it anew, or use the version that made it"
        )
    given, _ = names_of_objects(own_code_given(own_code))
    if "wrappers" in given:
        given["wrappers"] = list(given["wrappers"])
    if isinstance(stored.get("wrappers"), str):  # the only one
        stored["wrappers"] = [stored["wrappers"]]
    for key, value in given.items():
        if value != stored.get(key):
            raise ConfigError(
                f"{key}={value!r} must be that of run={str(run)!r}, {stored.get(key)!r}; leave it out or give that one"
            )
    return load_config(path, {**(overrides or {}), **given})


def without_learning_parts(run: Path, own_code: Mapping[str, Any]) -> dict[str, Any]:
    """Return overrides of a run's config for acting: defaults for parts of the user's own that only learning uses.

    Args:
      run: a run directory.
      own_code: that of the run again, as for `load`; a part that it has is kept.
    """
    stored, given = read(run / run_directory.CONFIG), own_code_given(own_code)
    left_out = [key for key in LEARNING_PARTS if is_own(key, stored.get(key)) and key not in given]
    if not left_out:
        return {}
    agent, _ = names_of_objects({"agent": given.get("agent", stored.get("agent"))})
    fields = schema(agent["agent"]).fields
    return {key: fields[key].get_default() for key in {*left_out, "replay"} if key in fields and key not in given}


def load_state(
    run: Path,
    step: int | None = None,
    *,
    best: bool = False,
    overrides: Mapping[str, Any],
    own_code: Mapping[str, Any],
) -> tuple[Program, PyTree, int]:
    """Load a checkpoint of a run, to act with.

    Args:
      run: a run directory.
      step: step of the checkpoint; None for the newest whole one.
      best: True for the checkpoint that was evaluated best.
      overrides, own_code: as for `stored_config`.

    Returns:
      The run's program, which the caller closes, the state, and its step. Where a part of the user's own is missing
      that only learning uses, what acting does not read is zero.

    Raises:
      ConfigError: there is no such checkpoint, or it does not fit the run's config.
    """
    if best and step is not None:
        raise ConfigError(f"step={step} does not go with best, which is a step of its own; leave out one of them")
    checkpoints = checkpoint.Reader(run)
    left_out = without_learning_parts(run, own_code)
    config, extra = stored_config(run, {**NO_SERVICES, **left_out, **overrides}, own_code), checkpoints.extra()
    if best:
        step = best_step(extra, run, keep_best=config.run.keep_best)
    changes.find(extra, config, run, ignored=left_out)
    if config.run.num_seeds == 1:  # on one device, over however many the run is divided
        config = dataclasses.replace(config, run=config.run.model_copy(update={"devices": 1}))
    program = make_program(config, dataset_streams(extra))
    try:
        restore = _restore_actor if left_out else shards.restore
        state, step, _ = restore(checkpoints, program, step)
    except BaseException:
        program.close()
        raise
    return program, state, step


def _restore_actor(
    checkpoints: checkpoint.Reader, program: Program, step: int | None = None
) -> tuple[PyTree, int, dict[str, Any]]:
    """Read those leaves of a checkpoint that `Agent.actor` reads, into a state that is zero otherwise."""
    template = program.template
    actor_of = jax.vmap(program.agent.actor) if program.batched else program.agent.actor
    jaxpr = jax.make_jaxpr(actor_of)(template.agent).jaxpr
    read = {id(variable) for equation in jaxpr.eqns for variable in equation.invars} | set(map(id, jaxpr.outvars))
    leaves, treedef = jax.tree.flatten(template.agent)
    paths = [entry["path"] for entry in layout({"agent": template.agent})[0]]
    wanted = {
        path: leaf for path, leaf, variable in zip(paths, leaves, jaxpr.invars, strict=True) if id(variable) in read
    }
    found, step, extra = checkpoints.restore(wanted, step, fields=wanted)
    agent = treedef.unflatten([found.get(path, leaf) for path, leaf in zip(paths, leaves, strict=True)])
    return jax.tree.map(_zeros, template.replace(agent=agent)), step, extra


def _zeros(like: Any) -> Any:
    """An array of zeros or of equal keys for the description of one; an array as it is."""
    if not isinstance(like, jax.ShapeDtypeStruct):
        return like
    if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
        return jnp.broadcast_to(jax.random.key(0), like.shape)
    return jnp.zeros(like.shape, like.dtype)


def best_evaluation(extra: Mapping[str, Any]) -> tuple[int, float] | None:
    """Return the step and the mean return of the best evaluation that a checkpoint knows; None where it knows none."""
    match extra.get("best"):
        case [int(step), int() | float() as mean]:
            return step, float(mean)
    return None


def best_step(extra: Mapping[str, Any], run: Path, *, keep_best: bool) -> int:
    """Return the step of the best evaluation. Raises ConfigError where the run did not keep it, or has none yet."""
    found = best_evaluation(extra)
    if found is None:
        rule = "have finished an evaluation" if keep_best else "have been trained with keep_best: true"
        raise ConfigError(
            f"run={str(run)!r} must {rule} for its best checkpoint; "
            f"give a step, one of {', '.join(map(str, checkpoint.steps(run)))}"
        )
    return found[0]


def dataset_streams(extra: Mapping[str, Any]) -> int | None:
    """Return the number of streams of a run's dataset, from a checkpoint's `extra`; None where it holds none."""
    streams = extra.get("streams")
    return streams if type(streams) is int and 0 < streams < 2**31 else None
