"""Rollouts of random observations on which a PPO agent acts, and its updates."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rlkit.agents import ppo
from rlkit.agents.common import action_distributions, policy_evaluation
from rlkit.networks.cores.recurrent import where_rows
from rlkit.spaces import Box, Discrete, MultiDiscrete
from rlkit.types import Transition

OBS = Box(-1, 1, (3,))
SPACES = {"discrete": Discrete(3), "multi": MultiDiscrete((2, 3)), "box": Box(-2, 2, (2,))}
SMALL = {"hidden_sizes": (8,), "num_epochs": 2, "num_minibatches": 2}


def update(agent, state, rollout, key=0):
    return jax.jit(agent.update)(state, rollout, jax.random.key(key))


def all_finite(state, metrics=()):
    """Whether nothing in an agent's state is NaN or infinite but the hyper-parameters that are off."""
    return all(np.isfinite(x).all() for x in jax.tree.leaves((state.replace(hyper=()), metrics)))


COMPILED = {}  # rollouts, by what is not traced


def rollout_of(agent, state, num_steps, num_envs, obs_space=OBS, done=0.2):
    key = agent.act, num_steps, num_envs, repr(obs_space), done
    if key not in COMPILED:
        COMPILED[key] = jax.jit(lambda state: _rollout_of(agent, state, num_steps, num_envs, obs_space, done))
    return COMPILED[key](state)


def _rollout_of(agent, state, num_steps, num_envs, obs_space, done):
    """A rollout of random observations, on which the agent itself acts, with both kinds of ends."""
    rng, key = np.random.default_rng(0), jax.random.key(0)
    if isinstance(obs_space, Box) and obs_space.dtype == np.float32:
        low, high = obs_space.low, obs_space.high
        obs = rng.uniform(low, high, (num_steps + 1, num_envs, *obs_space.shape)).astype(np.float32)
    else:
        obs = jax.vmap(jax.vmap(obs_space.sample))(jax.random.split(key, (num_steps + 1, num_envs)))
    terminated, truncated = rng.random((2, num_steps, num_envs)) < done
    memory = jax.tree.map(lambda x: jnp.broadcast_to(jnp.asarray(x), (num_envs, *jnp.shape(x))), agent.memory)

    def step(memory, row):
        obs, done, key = row
        after, action, extras = jax.vmap(agent.act, (None, 0, 0, 0))(
            agent.actor(state), memory, obs, jax.random.split(key, num_envs)
        )
        return where_rows(done, agent.memory, after), (action, extras)

    rows = jax.tree.map(lambda x: x[:-1], obs), terminated | truncated, jax.random.split(key, num_steps)
    _, (action, extras) = jax.lax.scan(step, memory, rows)
    return Transition(
        obs=jax.tree.map(lambda x: jnp.asarray(x[:-1]), obs),
        action=action,
        reward=jnp.asarray(rng.normal(size=(num_steps, num_envs)), jnp.float32),
        terminated=jnp.asarray(terminated),
        truncated=jnp.asarray(truncated),
        next_obs=jax.tree.map(lambda x: jnp.asarray(x[1:]), obs),
        extras=extras,
    )


def start(agent, hyper=None, obs_space=OBS, num_envs=4):
    obs = obs_space.sample(jax.random.key(0))
    zero = jnp.zeros(())
    example = Transition(obs, (), zero, zero > 0, zero > 0, obs)
    return jax.jit(agent.init, static_argnums=3)(hyper or ppo.Hyper(), jax.random.key(1), example, num_envs)


def ratios(agent, state, rollout, chunk_size):
    return jax.jit(lambda s, r: _ratios(agent, s, r, chunk_size))(state, rollout)


def _ratios(agent, state, rollout, chunk_size):
    """pi / pi_old of a first minibatch that is the whole rollout, as the loss sees it."""
    static = agent.static
    actor = agent.actor(state)
    old = policy_evaluation.evaluate(static.policy, actor, rollout, rollout.extras.core, chunk_size, keep_dist=False)
    done = rollout.terminated | rollout.truncated
    begins = jnp.concatenate([jnp.zeros_like(done[:1]), done[:-1]])
    core = jax.tree.map(lambda x: x[0], rollout.extras.core)
    output, value, _ = policy_evaluation.apply_in_training(
        static.policy, actor, rollout.obs, begins, core, jax.random.key(0)
    )
    dist = policy_evaluation.distribution(static.policy, output, rollout.obs)
    new = action_distributions.log_prob(dist, policy_evaluation.raw_action(static.policy, rollout))
    return jnp.exp(new - old.log_prob), jnp.exp(new - rollout.extras.log_prob), value - old.value


def one_minibatch(hyper, **settings):
    return ppo.make(ppo.Config(hidden_sizes=(8,), num_epochs=1, num_minibatches=1, **settings), OBS, Discrete(3)), hyper


def steps_taken(state):
    """[] or [S], how often Adam has moved the parameters."""
    (adam,) = [s for s in state.opt_state if isinstance(s, optax.ScaleByAdamState)]
    return np.asarray(adam.count)
