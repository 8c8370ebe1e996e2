"""The records that pass between the parts of rlkit: transitions, environments, buffers, agents, networks.

Records are NamedTuples of arrays or of pure functions, without behavior. Shapes: T is time, N is environments, B is a
batch.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax

from rlkit.spaces import Space

Array = jax.Array
Key = jax.Array  # a typed key of shape [], as made by jax.random.key
PyTree = Any
Scalar = jax.Array | float  # a traced scalar [], or a Python number that becomes one


class ConfigError(ValueError):
    """A mistake in a setting, found before anything ran. One line: the field, the value, the rule, a remedy."""


class Transition(NamedTuple):
    """One step of one environment; in a rollout every leaf is [T, N, ...], time first."""

    obs: PyTree
    action: PyTree
    reward: Array  # [] float32
    terminated: Array  # [] bool, next_obs is a terminal state: its value is 0
    truncated: Array  # [] bool, a time limit ended the episode: bootstrap from next_obs
    next_obs: PyTree  # the observation after the action, before the automatic reset
    extras: PyTree = ()  # results of Agent.act that Agent.update needs: log-prob, recurrent memory, ...


class Env(Protocol):
    """A functional environment for one stream, in gymnax 1.0's shape. It resets itself at episode ends."""

    def reset(self, key: Key, params: Any) -> tuple[PyTree, Any]:
        """Start an episode: -> obs, state."""
        ...

    def step(
        self, key: Key, state: Any, action: PyTree, params: Any
    ) -> tuple[PyTree, Any, Array, Array, Array, dict[str, Any]]:
        """Take one step: -> obs, state, reward [] float32, terminated [] bool, truncated [] bool, info.

        Where the episode ended, `obs` and `state` are those of a new episode, and `info["final_observation"]` is the
        observation that the action led to. Elsewhere `info["final_observation"]` equals `obs`.
        """
        ...

    def observation_space(self, params: Any) -> Space: ...

    def action_space(self, params: Any) -> Space: ...


class Sample(NamedTuple):
    """A batch drawn from a buffer."""

    item: PyTree  # leaves [B, ...], or [B, L, ...] where the buffer draws windows
    index: PyTree  # a handle for Buffer.update, which ignores slots that have been overwritten since
    weight: Array  # [B] float32, importance weights; 1 where drawn uniformly
    mask: Array  # [B] or [B, L] bool, true for valid entries


class Buffer(NamedTuple):
    """A replay buffer as pure functions."""

    init: Callable[[PyTree, int], PyTree]  # (example, num_envs) -> state; example: one step, no batch axes
    add: Callable[[PyTree, PyTree], PyTree]  # (state, rollout) -> state; [T, N, ...], T up to capacity / N
    sample: Callable[[PyTree, Key], Sample]
    update: Callable[[PyTree, PyTree, Array], PyTree]  # (state, index, priority) -> state
    size: Callable[[PyTree], Array]  # state -> [] number of items that can be drawn now
    # (state, key, k) -> batch k of a pass that visits each item once, in an order that the key chooses, as long as
    # nothing is added: size / B batches, rounded up; the mask is False beyond them. Weights are 1.
    batch_of_pass: Callable[..., Sample] | None = None


class Agent(NamedTuple):
    """A learning algorithm as pure functions of transitions and spaces; it never has access to an environment."""

    init: Callable[..., PyTree]  # (hyper, key, example: Transition, num_envs) -> state; example: one step, extras=()
    actor: Callable[[PyTree], PyTree]  # state -> the part that acting needs: params, normalizer, exploration
    act: Callable[..., tuple[PyTree, PyTree, PyTree]]  # (actor, memory, obs, key) -> memory, action, extras; explores
    policy: Callable[..., tuple[PyTree, PyTree, PyTree]]  # the same, for evaluation and deployment
    update: Callable[..., tuple[PyTree, dict[str, Array]]]  # (state, rollout [T, N, ...], key) -> state, metrics
    memory: PyTree = ()  # a recurrent policy's initial carry, for one environment
    memories: Callable[[int], PyTree] | None = None  # num_envs -> initial carries [N, ...], where environments differ
    check: Callable[..., None] = lambda num_envs, num_steps: None  # raises ConfigError for a rollout of unsuitable size
    # The two parts of an off-policy agent's update, for learning from a dataset alone: add(state, rollout) -> state;
    # learn(state, key, num_steps) -> state, metrics: the gradient steps after `num_steps` transitions.
    add: Callable[..., PyTree] | None = None
    learn: Callable[..., tuple[PyTree, dict[str, Array]]] | None = None
    # (state, rollout) -> state, metrics: an update of an off-policy agent before `learning_starts`, which only stores.
    wait: Callable[..., tuple[PyTree, dict[str, Array]]] | None = None
    # key -> action: exploration before `learning_starts`, where it is uniform and depends on nothing.
    uniform: Callable[[Key], PyTree] | None = None
    static: Any = ()  # the arguments that `make` bound, to call the functions of the agent's module with
    # The mesh axis over which environments and batches are divided, inside of `jax.shard_map`; None for one device.
    # Numbers of environments are those of all its devices; rollouts, what is added, and memories are a device's own.
    # `check` then takes the number of devices too: (num_envs, num_steps, devices).
    axis_name: str | None = None


class Network(NamedTuple):
    """A function with parameters, for one observation or any batch of them.

    flax modules fit as `Network(module.init, module.apply)`; an NNX or equinox module through its split or partition.
    With `memory` set the network is recurrent: `init(key, obs, memory)` and `apply(params, obs, memory)`, which then
    also returns the next memory, last.
    """

    init: Callable[..., PyTree]  # (key, obs) -> params
    apply: Callable[..., Any]  # (params, obs) -> the outputs that the agent needs
    memory: PyTree = ()  # a recurrent network's initial carry, for one environment
    # A recurrent network may give `apply` in three parts, so that only the second runs step by step along time:
    # encode(params, obs) -> x; advance(params, memory, x) -> (memory, y); decode(params, y) -> apply's other results.
    parts: tuple[Callable, Callable, Callable] | None = None
