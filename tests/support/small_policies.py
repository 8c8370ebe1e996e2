"""Policies of every agent for given spaces, with random parameters, as `rlkit.load` returns them for a run."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from models import model_of

from rlkit import agents, spaces
from rlkit.hosts.placeholder import HostEnv
from rlkit.ops.statistics import RunningStatistics
from rlkit.runs.config.parse import parse
from rlkit.runs.policy import Policy
from rlkit.types import Transition

RUN = {"env": "CartPole-v1", "num_envs": 4, "num_steps": 8, "total_steps": 64}
SMALL = {"hidden_sizes": [16, 8], "memory_size": 8}


def random_policy(name, obs_space, action_space, **settings):
    """A policy whose parameters and statistics of observations are random; the environment has spaces alone.

    Weights are wide enough that actions depend on the observation, and biases are not zero.
    """
    module = agents.get(name)
    small = {key: value for key, value in SMALL.items() if key in module.Config.model_fields}
    config = parse(RUN | small | {"agent": name} | settings)
    agent = module.make(config.agent, obs_space, action_space, **model_of(module, obs_space))
    example = Transition(
        spaces.zeros(obs_space),
        spaces.zeros(action_space),
        jnp.zeros(()),
        jnp.zeros((), bool),
        jnp.zeros((), bool),
        spaces.zeros(obs_space),
    )
    state = agent.init(module.Hyper(**config.hyper_arrays), jax.random.key(0), example, RUN["num_envs"])
    actor = agent.actor(state)
    rng = np.random.default_rng(0)
    actor = actor._replace(
        params=jax.tree.map(lambda x: x + 0.3 * rng.normal(size=x.shape).astype(x.dtype), actor.params)
    )
    if isinstance(actor.obs_stats, RunningStatistics):
        mean = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), actor.obs_stats.mean)
        m2 = jax.tree.map(lambda x: jnp.asarray(rng.uniform(1, 9, x.shape), x.dtype), actor.obs_stats.m2)
        actor = actor._replace(obs_stats=actor.obs_stats.replace(count=jnp.float32(3.0), mean=mean, m2=m2))
    env = HostEnv("spaces", obs_space, action_space)
    return Policy(jax.jit(agent.policy), actor, agent.memory, env, None, config, 64, Path("runs/small"))
