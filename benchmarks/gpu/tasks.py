"""Agents, their states and rollouts, for the parts of run.py."""

from typing import Any, NamedTuple

import jax

from rlkit import agents, envs, training
from rlkit.types import Agent, Transition


class Task(NamedTuple):
    """An agent with its environment."""

    agent: Agent
    env: Any
    params: Any
    training: training.Training
    hyper: Any
    num_envs: int
    num_steps: int

    def start(self, seed: int = 0) -> training.TrainState:
        """The state before training."""
        return jax.jit(self.training.init)(self.hyper, jax.random.key(seed))

    def rollout(self, state: training.TrainState, num_steps: int, seed: int = 1) -> Transition:
        """What the agent's first policy does: transitions [num_steps, N, ...]."""

        def collect(state: training.TrainState, key: Any) -> Transition:
            actor = self.agent.actor(state.agent)
            return training.rollout(self.agent, self.env, self.params, actor, state.envs, key, num_steps)[1]

        return jax.jit(collect)(state, jax.random.key(seed))


def make(name: str, env_name: str, num_envs: int, num_steps: int, hyper: dict[str, float], **settings: Any) -> Task:
    """Make an agent of rlkit for an environment, both by name.

    Args:
      name, env_name: as on the command line.
      num_envs, num_steps: of a rollout.
      hyper: values of its Hyper.
      settings: of its Config.
    """
    module = agents.get(name)
    env, params = envs.make(env_name)
    agent = module.make(module.Config(**settings), env.observation_space(params), env.action_space(params))
    made = training.make(agent, env, params, num_envs=num_envs, num_steps=num_steps)
    return Task(agent, env, params, made, module.Hyper(**hyper), num_envs, num_steps)
