"""The state of a run whose environments are outside of JAX, and therefore not in it."""

import jax
import jax.numpy as jnp
from flax import struct

from rlkit import _cpu
from rlkit.hosts.collect import act_shapes
from rlkit.hosts.placeholder import HostEnv
from rlkit.spaces import zeros
from rlkit.training import TrainState
from rlkit.types import Agent, Array, Key, PyTree, Transition


class HeldSteps(struct.PyTreeNode):
    """The last step of each environment, which the collector of a replaying agent holds back until the next rollout.

    Only then is it known whether a failing worker has ended the episode with it. Checkpoints hold the field names.
    """

    steps: PyTree  # Transition, leaves [N, ...]; () for an agent that does not replay
    there: Array  # [] bool, False before the first rollout


@_cpu.straight_line_keys
def init(agent: Agent, env: HostEnv, num_envs: int, hold: bool, key: Key, hyper: PyTree) -> TrainState:
    """Return the TrainState before the first update.

    Args:
      agent, env: the agent, and the spaces of its environment.
      num_envs: N, environments or streams of a dataset.
      hold: True where the collector holds steps back.
      key: of the agent's parameters and of the run.
      hyper: the agent's Hyper.
    """
    agent_key, run_key = jax.random.split(key)
    obs, action = zeros(env.obs), zeros(env.action)
    reward, flag = jnp.zeros((), jnp.float32), jnp.zeros((), bool)
    example = Transition(obs, action, reward, flag, flag, obs)
    state = agent.init(hyper, agent_key, example, num_envs)
    steps: PyTree = ()
    if hold:
        extras = act_shapes(agent, env.obs, agent.actor(state), num_envs)[2]
        steps = jax.tree.map(lambda x: jnp.zeros((num_envs, *x.shape), x.dtype), example)._replace(
            extras=jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), extras)
        )
    return TrainState(state, HeldSteps(steps, jnp.zeros((), bool)), run_key, jnp.zeros((), jnp.int32))
