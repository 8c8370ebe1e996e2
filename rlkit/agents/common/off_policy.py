"""Off-policy updates: store a rollout, then sample, learn and set priorities.

An update stores a rollout and then makes `replay_ratio` gradient steps for each of its environment steps, in one scan.
Each draws a sample, learns from it, and writes the new priorities back with the handles of the sample. Before
`learning_starts` a `lax.cond` skips the gradient step. The buffer is not part of it: under `vmap` a cond computes both
branches and selects between their results.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlkit import _mesh, replay
from rlkit._mesh import vary_like
from rlkit.agents.common import batches, clocks, normalization, own_parts
from rlkit.agents.common.clocks import ReplayState
from rlkit.agents.common.config import OffPolicyConfig
from rlkit.agents.common.normalization import Normalizer
from rlkit.agents.common.optimizer import Optimizer
from rlkit.names import ACHIEVED_GOAL, DESIRED_GOAL
from rlkit.replay.validation import check_capacity
from rlkit.spaces import Dict, Space, shape_of
from rlkit.types import Agent, Array, Buffer, ConfigError, Key, PyTree, Sample, StateNode, Transition


class State(StateNode):
    """Everything that an off-policy agent carries from update to update."""

    hyper: Any
    params: PyTree
    stats: PyTree  # of the networks; () where they have none
    target_params: PyTree
    target_stats: PyTree
    opt_state: PyTree
    normalizer: Normalizer
    replay: ReplayState


class Schedules(NamedTuple):
    """Scheduled values at one gradient step."""

    learning_rate: Array  # [] float32
    update_target: Array  # [] bool, true where the target network is to be updated
    group_rates: dict[str, Array] = {}  # noqa: RUF012 a constant; [], by the field of Hyper, as actor_learning_rate


# Fields of State that another run can start with.
TRAINED = ("params", "stats", "target_params", "target_stats", "normalizer.obs")

# (static, state, sample, schedules, key) -> state, priority [B], metrics. The state comes without its `replay`.
GradientStep = Callable[[Any, Any, Sample, Schedules, Key], tuple[Any, Array, dict[str, Array]]]


def own_buffer(config: OffPolicyConfig, axis_name: str | None) -> Buffer:
    """The buffer that the user's own function makes of a config. Raises ConfigError as `buffer` does."""
    made = own_parts.find("replay", config.replay)
    if not isinstance(made, Buffer):
        form = "a function of this Config that makes an rlkit.types.Buffer"
        with own_parts.call("replay", config.replay, form, "let it take the Config alone"):
            made = made(config)
    if not isinstance(made, Buffer):
        raise ConfigError(f"replay={config.replay!r} must return an rlkit.types.Buffer, and it returned {made!r:.60}")
    if axis_name is not None:
        raise ConfigError(f"replay={config.replay!r} is a buffer of one device; do not divide the run over several")
    return made


def buffer(config: OffPolicyConfig, axis_name: str | None = None) -> Buffer:
    """The buffer of transitions, or of windows for n-step returns, that a config describes or whose function makes it.

    Raises:
      ConfigError: the user's function does not return a Buffer, or the run is divided over devices.
    """
    if own_parts.is_own(config.replay):
        return own_buffer(config, axis_name)
    if config.replay == "hindsight":
        return hindsight_buffer(config, axis_name)
    settings: Any = {"length": config.item_length, **obs_storage(config), "axis_name": axis_name}
    if config.replay == "prioritized":
        return replay.prioritized(config.capacity, config.batch_size, alpha=config.alpha, **settings)
    return replay.uniform(config.capacity, config.batch_size, **settings)


def sequence_buffer(config: Any, num_sequences: int, axis_name: str | None) -> Buffer:
    """A buffer that draws `num_sequences` sequences of steps, across episode ends; or the one of a user's function."""
    if own_parts.is_own(config.replay):
        return own_buffer(config, axis_name)
    return replay.slices(
        config.capacity,
        num_sequences,
        config.item_length,
        cross_episodes=True,
        prioritized=config.replay == "prioritized",
        alpha=config.alpha,
        axis_name=axis_name,
        **obs_storage(config),
    )


def obs_storage(config: OffPolicyConfig) -> dict[str, Any]:
    """The arguments of a buffer for how it stores observations; a config that leaves the stack open has none."""
    axes = getattr(config, "image_axes", "auto")
    return {"store_obs_once": config.store_obs_once, "frame_stack": config.replay_stack or 1, "image_axes": axes}


def hindsight_buffer(config: OffPolicyConfig, axis_name: str | None) -> Buffer:
    """The buffer of goals in hindsight that a config describes.

    Raises:
      ConfigError: there is no function of rewards, or another setting does not go with such a buffer.
    """
    for name, value, only in (("n_step", config.n_step, 1), ("store_obs_once", config.store_obs_once, False)):
        if value != only:
            raise ConfigError(f"{name}={value} must be {only} with replay='hindsight'; leave it out")
    if config.item_length != 1:
        raise ConfigError(
            "replay='hindsight' draws single steps, and this agent learns from two at a time; leave it out"
        )
    if config.goal_reward == "environment":  # programs put its function here, if it has one
        raise ConfigError(
            "replay='hindsight' needs the rewards of other goals: the environment has no method compute_reward; set "
            "goal_reward to a function (achieved, desired) -> reward, or (reward, terminated)"
        )
    return replay.hindsight.buffer(
        config.capacity,
        config.batch_size,
        reward_fn=reward_of_goals(config),
        ratio=config.relabel_ratio,
        axis_name=axis_name,
    )


def reward_of_goals(config: OffPolicyConfig) -> Callable[[PyTree, PyTree], tuple[Array, Array]]:
    """The function of a config from goals (achieved, desired) to reward [] and terminated [].

    It raises a ConfigError where the user's own raises, or does not return these.
    """
    function = own_parts.find("goal_reward", config.goal_reward)

    def reward_and_end(achieved: PyTree, desired: PyTree) -> tuple[Array, Array]:
        form = "a function (achieved, desired) -> reward, or (reward, terminated)"
        with own_parts.call("goal_reward", config.goal_reward, form, "it gets one pair of goals"):
            result = function(achieved, desired)
        reward, terminated = result if isinstance(result, tuple) else (result, False)
        for name, value in (("reward", reward), ("terminated", terminated)):
            if (shape := jnp.shape(value)) != ():
                raise ConfigError(
                    f"goal_reward must return a {name} [] for one pair of goals, and it returned {list(shape)}"
                )
        return jnp.asarray(reward, jnp.float32), jnp.asarray(terminated, bool)

    return reward_and_end


def check_goals(obs_space: Space) -> None:
    """Raise a ConfigError unless observations have both goals, of one shape."""
    spaces = obs_space.spaces if isinstance(obs_space, Dict) else {}
    goals = [ACHIEVED_GOAL, DESIRED_GOAL]
    missing = [name for name in goals if name not in spaces]
    if missing:
        raise ConfigError(
            f"replay='hindsight' needs observations with the leaves {' and '.join(goals)}, and they have no "
            f"{missing[0]}; use replay='uniform', or an environment with goals"
        )
    achieved, desired = (jax.tree.map(lambda x: x.shape, shape_of(spaces[name])) for name in goals)
    if achieved != desired:
        raise ConfigError(f"{goals[0]} of shape {achieved} must have the shape of {goals[1]}, {desired}; change one")


def init(
    static: Any,
    hyper: Any,
    example: Transition,
    num_envs: int,
    variables: tuple[PyTree, PyTree],
    target: tuple[PyTree, PyTree] | None = None,
    learning_rate: Any = None,
) -> State:
    """The state before learning, with an empty replay buffer.

    Args:
      static, hyper: of the agent; `hyper` as `as_arrays` returns it.
      example: a transition, leaves [...].
      num_envs: environments.
      variables: the parameters and the statistics of the networks.
      target: those of which there is a target network; None for all.
      learning_rate: one for each entry of the parameters, as `Optimizer` has them; None for `hyper.learning_rate`.
    """
    if static.config.replay == "hindsight":
        check_goals(static.obs_space)
        achieved, desired = (example.next_obs[name] for name in (ACHIEVED_GOAL, DESIRED_GOAL))
        jax.eval_shape(reward_of_goals(static.config), achieved, desired)  # mistakes come before anything is compiled
    params, stats = variables
    target_params, target_stats = jax.tree.map(jnp.array, variables if target is None else target)
    start = jnp.zeros((), jnp.uint32), jnp.zeros((), jnp.int32)
    state = State(
        hyper=hyper,
        params=params,
        stats=stats,
        target_params=target_params,
        target_stats=target_stats,
        opt_state=Optimizer.of(static.config, hyper, learning_rate or hyper.learning_rate).init(params),
        normalizer=normalization.init(
            static.obs_space,
            example,
            num_envs,
            obs=static.config.normalize_obs,
            image_axes=static.config.image_axes,
        ),
        replay=ReplayState(static.buffer.init(example, num_envs), *start),
    )
    return vary_like(state, without=static.axis_name)


def check(config: OffPolicyConfig, num_envs: int, num_steps: int, devices: int = 1) -> None:
    """Raise a ConfigError where a rollout or a batch does not fit the buffer, the gradient steps or the devices."""
    config.num_gradient_steps(num_envs * num_steps)
    purpose = f"rollouts of {num_steps} steps, and items of {config.item_length}, of {num_envs} environments"
    check_capacity(config.capacity, num_envs, min_rows=max(num_steps, config.item_length), purpose=purpose)
    _mesh.share("num_envs", num_envs, devices)
    config.check_batch_size(devices)


def num_steps(static: Any, rollout: Transition) -> int:
    """The environment steps of a rollout, on all devices together."""
    return rollout.reward.size * _mesh.size(static.axis_name)


def store(static: Any, state: Any, rollout: Transition) -> Any:
    """The state with a rollout [T, N, ...] in its buffer."""
    return state.replace(replay=state.replay.replace(buffer=static.buffer.add(state.replay.buffer, rollout)))


def update_statistics(static: Any, state: Any, rollout: Transition) -> Any:
    """The state with a rollout [T, N, ...] in its observation statistics."""
    normalizer = normalization.update(state.normalizer, rollout, state.hyper.gamma, static.axis_name)
    return state.replace(normalizer=normalizer)


def add(static: Any, state: Any, rollout: Transition) -> Any:
    """The state with a rollout [T, N, ...] in its buffer and its statistics: `Agent.add`, for datasets."""
    return update_statistics(static, store(static, state, rollout), rollout)


def update(
    gradient_step: GradientStep, static: Any, state: Any, rollout: Transition, key: Key
) -> tuple[Any, dict[str, Array]]:
    """Store a rollout [T, N, ...], then learn from the buffer. Observation statistics change at the end."""
    state, metrics = learn(static, gradient_step, store(static, state, rollout), key, num_steps(static, rollout))
    return update_statistics(static, state, rollout), metrics


def learn(
    static: Any, gradient_step: GradientStep, state: Any, key: Key, num_steps: int
) -> tuple[Any, dict[str, Array]]:
    """Make the gradient steps that follow `num_steps` environment steps, from samples of the buffer.

    Before learning starts they change nothing but counts, and nothing is computed for them unless the states of several
    seeds are vmapped.

    Args:
      static: the agent's static arguments.
      gradient_step: of the agent: (static, state, sample, schedules, key) -> state, priority [B], metrics.
      state: the agent's state, with the rollout stored.
      key: a key.
      num_steps: environment steps of all environments together since the last call.

    Returns:
      The state, and the means of the metrics over the gradient steps; zeros before learning starts.
    """
    config, buffer, axis_name = static.config, static.buffer, static.axis_name
    count = config.num_gradient_steps(num_steps)
    elapsed = np.diff(np.arange(count + 1) * num_steps // count).astype(np.int32)  # steps before each gradient step
    rates = clocks.learning_rates(config, state, num_steps)
    state = state.replace(replay=clocks.advance(state, num_steps))
    step_if_started = _if_started(static, gradient_step, state)

    def step(state: Any, inputs: tuple[Key, Array]) -> tuple[Any, dict[str, Array]]:
        key, elapsed = inputs
        sample_key, step_key = jax.random.split(key)
        sample = buffer.sample(state.replay.buffer, sample_key)
        state, update_target = clocks.target_clock(config, state, elapsed)
        schedules = Schedules(rates["learning_rate"], update_target, rates)
        state, priority, metrics = step_if_started(state, sample, schedules, step_key)
        return _reprioritize(static, state, sample, priority), metrics

    key = _mesh.own_key(key, axis_name)
    start, inputs = vary_like(state, key, without=axis_name), (jax.random.split(key, count), jnp.asarray(elapsed))
    state, metrics = jax.lax.scan(step, start, inputs)
    metrics = jax.tree.map(jnp.mean, metrics)
    size = _mesh.total(buffer.size(state.replay.buffer), axis_name)
    return state, metrics | Optimizer.rate_metric(config, rates["learning_rate"]) | {"buffer_size": size}


def _if_started(static: Any, gradient_step: GradientStep, state: Any) -> Callable[..., Any]:
    """The gradient step from `learning_starts` on and where the buffer has items; before, one that changes nothing.

    The function takes and returns a state with its replay state. The gradient step gets the state without it, because
    a `lax.cond` around a buffer would copy the buffer. The images of its sample are shifted by `random_shift`.
    """
    axis_name = static.axis_name
    # On each device, so that all learn or none.
    has_items = _mesh.least(static.buffer.size(state.replay.buffer), axis_name) > 0
    started = (state.replay.num_steps >= np.uint32(static.config.learning_starts)) & has_items

    def shifting(state: Any, sample: Sample, schedules: Schedules, key: Key) -> tuple[Any, Array, dict[str, Array]]:
        if pad := static.config.random_shift:
            key, shift_key = jax.random.split(key)
            sample = batches.shift_images(sample, static.obs_space, pad, static.config.image_axes, shift_key)
        return gradient_step(static, state, sample, schedules, key)

    bound = jax.jit(shifting)  # traced once, for its shapes and for its branch

    def step(state: Any, *arguments: Any) -> tuple[Any, Array, dict[str, Array]]:
        replay, state = state.replay, state.replace(replay=())
        shapes = jax.eval_shape(bound, state, *arguments)

        def unchanged(state: Any, *_: Any) -> tuple[Any, Array, dict[str, Array]]:
            _, priority, metrics = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
            priority = jnp.full_like(priority, jnp.nan)  # leaves the buffer's
            return vary_like((state, _mesh.vary(priority, axis_name), metrics), shapes, without=axis_name)

        state, priority, metrics = jax.lax.cond(started, bound, unchanged, state, *arguments)
        return state.replace(replay=replay), priority, metrics

    return step


def _reprioritize(static: Any, state: Any, sample: Sample, priority: Array) -> Any:
    """The state with new priorities [B] of a sample's items in its buffer."""
    # A weight is never negative. The condition orders the write of priorities after the read of weights, so that the
    # priorities are changed in place.
    priority = jnp.where(sample.weight >= 0, priority, jnp.nan)
    buffer = static.buffer.update(state.replay.buffer, sample.index, priority)
    return state.replace(replay=state.replay.replace(buffer=buffer))


def wait(static: Any, state: Any, rollout: Transition) -> tuple[Any, dict[str, Array]]:
    """An update before learning starts, which stores a rollout [T, N, ...] and counts its steps: `Agent.wait`.

    The metrics are those of `learn` that need no gradient step.
    """
    config, axis_name, count = static.config, static.axis_name, num_steps(static, rollout)
    rates = clocks.learning_rates(config, state, count)
    state = store(static, state, rollout)
    replay = clocks.advance(state, count)
    state = state.replace(replay=replay.replace(since_target=clocks.since_target(config, replay.since_target + count)))
    size = _mesh.total(static.buffer.size(state.replay.buffer), axis_name)
    metrics = Optimizer.rate_metric(config, rates["learning_rate"]) | {"buffer_size": size}
    return update_statistics(static, state, rollout), metrics


def update_target(state: Any, params: PyTree, stats: PyTree, *, when: Array) -> Any:
    """The state with the target moved by a share `tau` towards `params`, and with a copy of `stats`.

    Both change only where `when` [] bool is true. A state without targets, which are (), stays as it is.
    """
    if not jax.tree.leaves(state.target_params):
        return state
    tau = state.hyper.tau

    def follow(new: Array, old: Array) -> Array:
        return jnp.where(when, (1.0 - tau) * old + tau * new, old)

    return state.replace(
        target_params=jax.tree.map(follow, params, state.target_params),
        target_stats=jax.tree.map(lambda new, old: jnp.where(when, new, old), stats, state.target_stats),
    )


def agent(static: Any, *, actor: Callable[..., Any], gradient_step: GradientStep, **functions: Any) -> Agent:
    """The `Agent` of an off-policy algorithm's functions, with `static` bound to all of them.

    Args:
      static: the agent's static arguments.
      actor: (static, state) -> actor.
      gradient_step: see `learn`.
      functions: `init`, `act` and `policy`, which take `static` first, and other fields of `Agent`.
    """
    declared = {
        "finite": ("loss", "grad_norm"),
        "trained": TRAINED,
        "learn": partial(learn, static, gradient_step),
    }
    bound = {name: partial(functions.pop(name), static) for name in ("init", "act", "policy")}
    return Agent(
        **bound,
        actor=partial(actor, static),
        update=partial(update, gradient_step, static),
        check=partial(check, static.config),
        add=partial(add, static),
        wait=partial(wait, static),
        static=static,
        axis_name=static.axis_name,
        **(declared | functions),
    )
