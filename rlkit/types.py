"""The records that pass between the parts of rlkit: transitions, environments, buffers, agents, networks.

Records are NamedTuples of arrays or of pure functions, without behavior. Shapes: T is time, N is environments, B is a
batch.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from flax import struct

from rlkit.spaces import Space

Array = jax.Array
Key = jax.Array  # a typed key of shape [], as made by jax.random.key
PyTree = Any
Scalar = jax.Array | float  # a traced scalar [], or a Python number that becomes one


def _repr(record: Any) -> str:
    """Two lines about a record of functions: what it has, and the module and the config that it was made of."""
    given = [name for name, value in zip(record._fields, record, strict=True) if value is not None and value != ()]
    function = record[0]
    bound = [x for x in getattr(function, "args", ()) if hasattr(x, "config")]
    module = getattr(getattr(function, "func", function), "__module__", "?")
    lines = [f"{type(record).__name__} of {module}: {', '.join(given)}"]
    lines += [f"  {bound[0].config!r}"] if bound else []
    return "\n".join(lines)


class StateNode(struct.PyTreeNode):
    """Base of states: a pytree whose `repr` is a line with its fields and its size, and not with all its numbers."""

    def __init_subclass__(cls, **settings: Any) -> None:
        own = "__repr__" in vars(cls)  # as of replay's states, which show shapes
        super().__init_subclass__(**settings)
        if not own:  # in place of the one that flax writes
            cls.__repr__ = StateNode.__repr__

    def __repr__(self) -> str:
        """Return the fields with the numbers of their arrays."""
        sizes = {name: sum(np.size(x) for x in jax.tree.leaves(value)) for name, value in vars(self).items()}
        fields = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
        module = type(self).__module__
        return f"{module.rpartition('.')[2]}.{type(self).__name__} of {sum(sizes.values()):,} numbers: {fields}"


class ConfigError(ValueError):
    """A mistake in a setting, found before anything ran. One line: the field, the value, the rule, a remedy."""


class Transition(NamedTuple):
    """One step of one environment; in a rollout every leaf is [T, N, ...], time first.

    Fields:
      obs: the observation that the action was chosen for.
      action: the action.
      reward: [] float32.
      terminated: [] bool, True where next_obs is a terminal state: its value is 0.
      truncated: [] bool, True where a time limit ended the episode: bootstrap from next_obs.
      next_obs: the observation after the action, before the automatic reset.
      extras: results of `Agent.act` that `Agent.update` needs: log-prob, recurrent memory, ...
    """

    obs: PyTree
    action: PyTree
    reward: Array
    terminated: Array
    truncated: Array
    next_obs: PyTree
    extras: PyTree = ()


class Env(Protocol):
    """A functional environment for one stream, in gymnax 1.0's shape. It resets itself at episode ends.

    An environment of several players has a field `num_players`, P > 1. Its actions, observations, rewards, flags and
    the entries of its infos then have a first axis [P]; the spaces are those of one player, and there is one state. An
    episode ends for all players in the same step: `terminated | truncated` is equal for all, and either flag may
    differ. A player that is out before that stays a stream: its mask permits one action alone, by rule action 0, and
    its reward is 0, or its team's. Where the field `shared_reward` is true, the players are a team, and metrics have
    the sum of its returns.

    `reset_pool` of a run needs the method `step_with(start, key, state, action, params)`: the same step, where a new
    episode is `start(key) -> obs, state` in place of a reset.

    Where the field `alternates` is true, one stream moves for two players in turn, and the next observation may be the
    other player's: its value counts with the opposite sign, as agents that plan take it.
    """

    def reset(self, key: Key, params: Any) -> tuple[PyTree, Any]:
        """Start an episode: -> obs, state."""
        ...

    def step(
        self, key: Key, state: Any, action: PyTree, params: Any
    ) -> tuple[PyTree, Any, Array, Array, Array, dict[str, Any]]:
        """Take one step: -> obs, state, reward [] float32, terminated [] bool, truncated [] bool, info.

        Where the episode ended, `obs` and `state` are those of a new episode, and `info["final_observation"]` is the
        observation that the action led to. Elsewhere `info["final_observation"]` equals `obs`.

        A wrapper that changes rewards for learning, such as one that scales them, keeps the reward from before the
        change in `info["own_reward"]`, and one that ends episodes for learning keeps the end of the task itself in
        `info["own_done"]`, unless the environment inside has done so already. Returns and lengths are counted from
        these: they are of the task, whatever is learned from.

        A task with goals may say in `info["is_success"]` or `info["success"]`, [] bool, whether this step reached one:
        an episode is a success where its last step is.
        """
        ...

    def observation_space(self, params: Any) -> Space: ...

    def action_space(self, params: Any) -> Space: ...


def num_players(env: Any) -> int:
    """Return the players of an environment, P: 1 where it has no field `num_players`."""
    return getattr(env, "num_players", 1)


class Model(NamedTuple):
    """The rules of a game for one or two players as pure functions of one stream, for agents that plan.

    Fields:
      state: obs -> model state, which the observation of an environment holds.
      player: obs -> [] int32, the player to move.
      step: (key, state, action) -> state, obs, reward, discount. `obs` is the view of the player to move next, and has
        no model state. `reward` [] float32 is of the player who moved. `discount` [] float32 is -1 where the other
        player moves next, 1 where the same one does, and 0 where the game is over.
    """

    state: Callable[[PyTree], PyTree]
    player: Callable[[PyTree], Array]
    step: Callable[[Key, PyTree, PyTree], tuple[PyTree, PyTree, Array, Array]]


class Sample(NamedTuple):
    """A batch drawn from a buffer.

    Fields:
      item: the stored steps, leaves [B, ...], or [B, L, ...] where the buffer draws windows.
      index: a handle for `Buffer.update`, which ignores slots that have been overwritten since.
      weight: [B] float32, importance weights; 1 where items are drawn uniformly.
      mask: [B] or [B, L] bool, True for valid entries.
    """

    item: PyTree
    index: PyTree
    weight: Array
    mask: Array


class Buffer(NamedTuple):
    """A replay buffer as pure functions.

    Fields:
      init: (example, num_envs) -> state. `example` is one step without batch axes.
      add: (state, rollout) -> state. A rollout is [T, N, ...], with T up to capacity / N.
      sample: (state, key) -> Sample.
      update: (state, index, priority) -> state. `index` is that of a Sample, `priority` [B] float32.
      size: state -> [] int, the number of items that can be drawn now.
      batch_of_pass: (state, key, k) -> Sample, batch k of a pass that visits each item once, in an order that the key
        chooses, as long as nothing is added. A pass has size / B batches, rounded up; the mask is False beyond the
        items, and the weights are 1. None for a buffer without passes.
    """

    init: Callable[[PyTree, int], PyTree]
    add: Callable[[PyTree, PyTree], PyTree]
    sample: Callable[[PyTree, Key], Sample]
    update: Callable[[PyTree, PyTree, Array], PyTree]
    size: Callable[[PyTree], Array]
    batch_of_pass: Callable[..., Sample] | None = None

    def __repr__(self) -> str:
        """Return the functions that it has, their module, and the config that they are bound to."""
        return _repr(self)


class Agent(NamedTuple):
    """A learning algorithm as pure functions of transitions and spaces; it never has access to an environment.

    Fields:
      init: (hyper, key, example, num_envs) -> state. `example` is a Transition of one step with extras=().
      actor: state -> actor, the part that acting needs: parameters, normalizer, exploration.
      act: (actor, memory, obs, key) -> memory, action, extras. Explores, for one environment.
      policy: (actor, memory, obs, key) -> memory, action, extras. The same for evaluation and deployment.
      update: (state, rollout, key) -> state, metrics. The rollout is a Transition of leaves [T, N, ...].
      memory: initial carry of a recurrent policy, for one environment; () for others.
      memories: num_envs -> initial carries [N, ...], where they differ between environments; otherwise None.
      check: (num_envs, num_steps) -> None. Raises ConfigError for a rollout of unsuitable size. With an axis_name it
        takes the number of devices too: (num_envs, num_steps, devices).
      add: (state, rollout) -> state. Stores a rollout, the first part of an off-policy agent's update; None for others.
      learn: (state, key, num_steps) -> state, metrics. The second part: the gradient steps after `num_steps`
        transitions. An agent that has both parts can learn from a dataset alone; None for others.
      wait: (state, rollout) -> state, metrics. Update of an off-policy agent before `learning_starts`, which only
        stores; None for others.
      uniform: key -> action. Exploration before `learning_starts`, where it is uniform and depends on nothing;
        otherwise None.
      static: the arguments that `make` bound, to call the functions of the agent's module with.
      axis_name: mesh axis over which environments and batches are divided, inside of `jax.shard_map`; None for one
        device. Numbers of environments are those of all its devices; rollouts, what is added, and memories are a
        device's own. Classes of the state list in `by_environment` the fields with leaves [N, ...], and in
        `by_device` those of which each device has its own; all others are equal on all devices.
      finite: names of metrics that must be finite after an update, as the actor must.
      trained: fields of the state that another run can start with, as "params" or "normalizer.obs".
    """

    init: Callable[..., PyTree]
    actor: Callable[[PyTree], PyTree]
    act: Callable[..., tuple[PyTree, PyTree, PyTree]]
    policy: Callable[..., tuple[PyTree, PyTree, PyTree]]
    update: Callable[..., tuple[PyTree, dict[str, Array]]]
    memory: PyTree = ()
    memories: Callable[[int], PyTree] | None = None
    check: Callable[..., None] = lambda num_envs, num_steps: None
    add: Callable[..., PyTree] | None = None
    learn: Callable[..., tuple[PyTree, dict[str, Array]]] | None = None
    wait: Callable[..., tuple[PyTree, dict[str, Array]]] | None = None
    uniform: Callable[[Key], PyTree] | None = None
    static: Any = ()
    axis_name: str | None = None
    finite: tuple[str, ...] = ()
    trained: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Return the functions that it has, their module, and the config that they are bound to."""
        return _repr(self)


class Parts(NamedTuple):
    """`Network.apply` of a recurrent network in three functions, so that only `advance` runs step by step along time.

    Fields:
      encode: (params, stats, obs, train=False, key=None) -> x, stats.
      advance: (params, stats, memory, x) -> memory, y.
      decode: (params, stats, y, train=False, key=None) -> the other outputs of `apply`, stats.
      unroll: `advance` for all times at once, of a memory that can do that, or None: (params, stats, memory, x, start)
        -> y, the memory before each row, for x [T, B, ...], start [T, B] bool and the memory [B, ...] before the first
        row. The memory is that of the start of an episode at rows where `start` is true, except at the first row.
    """

    encode: Callable
    advance: Callable
    decode: Callable
    unroll: Callable | None = None


class Network(NamedTuple):
    """A function with trained parameters, and with statistics of its own where it has any.

    It works on one observation and on any batch of them. `params` are trained; `stats`, such as the moments of a batch
    normalization, are written by `apply` alone, and only where `train` is true. Both are saved, transferred and loaded
    together. With `memory` set the network is recurrent. `networks.as_network` makes one from a flax, NNX or equinox
    module.

    Fields:
      init: (key, *inputs) -> params, stats, for inputs without batch axes. The inputs are an observation and what an
        agent adds to it, as critics an action; of a recurrent network also its memory, last. `stats` is () for most.
      apply: (params, stats, *inputs, train=False, key=None) -> outputs, stats. The outputs are those that the agent
        needs; of a recurrent network a tuple whose last entry is the next memory. `key` draws the noise of noisy
        layers, and of dropout where `train` is true; None for no noise.
      memory: initial carry of a recurrent network, for one environment; () for others.
      parts: `apply` of a recurrent network in the functions of `Parts`; None for `apply` alone.
    """

    init: Callable[..., tuple[PyTree, PyTree]]
    apply: Callable[..., tuple[Any, PyTree]]
    memory: PyTree = ()
    parts: Parts | None = None

    def __repr__(self) -> str:
        """Return the functions that it has, their module, and the config that they are bound to."""
        return _repr(self)
