"""A small agent of SAC or TQC, a batch made by hand, and the three losses of the one on the other."""

from functools import partial

import jax
import numpy as np

from rlkit.agents import sac
from rlkit.agents.common.batches import Batch
from rlkit.spaces import Box, Dict, zeros
from rlkit.types import Transition

OBS = Box(-10, 10, (3,))
MASKED = Dict({"action_mask": Box(False, True, (4,), np.bool_), "obs": OBS})
BOX = Box(np.float32([-2, 0]), np.float32([2, 10]))
SMALL = {"hidden_sizes": (8,), "capacity": 32, "batch_size": 4, "learning_starts": 0, "replay_ratio": 0.25}
B = 6


def example(obs_space, action_space):
    zero, no, obs = np.float32(0), np.bool_(False), zeros(obs_space)
    return Transition(obs, zeros(action_space), zero, no, no, obs)


AGENTS = {}  # with their compiled `init`, by their settings


def make(obs_space=OBS, action_space=BOX, hyper=None, module=sac, **settings):
    """-> agent, static, state. The weights are drawn, for those at the start make all policies and values alike."""
    known = repr((module.__name__, obs_space, action_space, settings))
    if known not in AGENTS:
        agent = module.make(module.Config(**(SMALL | settings)), obs_space, action_space)
        AGENTS[known] = agent, jax.jit(agent.init, static_argnums=3)
    agent, init = AGENTS[known]
    state = init(module.Hyper(**(hyper or {})), jax.random.key(0), example(obs_space, action_space), 4)
    networks = {name: drawn(state.params[name]) for name in ("policy", "critics")}
    target = jax.tree.map(lambda x: x + np.float32(0.1), networks["critics"])
    return agent, agent.static, state.replace(params=state.params | networks, target_params=target)


def drawn(params, scale=0.5, seed=0):
    """Other weights; drawn outside of JAX, for to compile a draw of each takes longer than all else here."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: (scale * rng.normal(size=x.shape)).astype(np.float32), params)


def large(key, params):
    """Weights of about 1: those at the start are so small that a wrong memory would hardly show."""
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(key, len(leaves))
    return tree.unflatten([jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)])


def hand_made(masked=False, box=True):
    """A batch with ends, weights, and a next observation that must not be read."""
    rng = np.random.default_rng(0)
    obs, next_obs = rng.normal(size=(2, B, 3)).astype(np.float32)
    next_obs[2] = np.nan
    action = rng.uniform(BOX.low, BOX.high, (B, 2)).astype(np.float32) if box else np.int32([0, 1, 2, 3, 0, 1])
    if masked:
        mask = rng.random((2, B, 4)) < 0.6
        mask[:, np.arange(B), action] = True
        obs, next_obs = ({"action_mask": m, "obs": x} for m, x in zip(mask, (obs, next_obs), strict=True))
    return Batch(
        obs=obs,
        action=action,
        reward=rng.normal(size=B).astype(np.float32),
        discount=np.float32([0.9, 0.81, 0.0, 0.9, 0.0, 0.9]),
        next_obs=next_obs,
        weight=np.float32([1, 0.5, 0.25, 1, 1, 0]),
    )


def shares(agent, state, counts):
    """Shares [2, 4] of actions in the quarters of `BOX`, where the environments have made `counts` steps: for each."""
    act = jax.jit(jax.vmap(agent.act, (None, None, None, 0)))
    for num_steps in counts:
        actor = agent.actor(state.replace(replay=state.replay.replace(num_steps=np.uint32(num_steps))))
        keys = jax.random.split(jax.random.key(0), 4000)
        action = np.asarray(act(actor, agent.memory, np.ones(3, np.float32), keys)[1])
        assert (action >= BOX.low).all()
        assert (action <= BOX.high).all()
        yield np.stack([np.histogram(unit(action)[:, i], 4, (-1, 1))[0] / 4000 for i in range(2)])


def unit(action):
    """Actions of `BOX` in [-1, 1]."""
    return np.stack([action[:, 0] / 2, action[:, 1] / 5 - 1], axis=-1)


def squashed(loc, log_std, key):
    """Actions in [-1, 1] [B, 2] of a normal that tanh squashes, and their log-probabilities [B]."""
    noise = np.asarray(jax.random.normal(key, (B, 2)), float)
    raw = loc + np.exp(log_std) * noise
    log_prob = -(noise**2) / 2 - log_std - np.log(2 * np.pi) / 2 - np.log(1 - np.tanh(raw) ** 2)
    return np.tanh(raw).astype(np.float32), log_prob.sum(-1)


def losses(static, state, batch, key, module=sac):
    """-> total, priority, metrics, jitted."""
    total, (priority, metrics) = jax.jit(partial(both, static, module=module))(state.params, state, batch, key)
    return float(total), np.asarray(priority), metrics


def both(static, params, state, batch, key, module=sac):
    """The sum of the losses of the critics and of the policy with its temperature; the priorities, and metrics."""
    keys = jax.random.split(key)
    of_critics, (_, priority, critic_metrics) = module.critic_loss(static, params, state, batch, keys[0])
    of_policy, (_, metrics) = module.policy_loss(static, params, state, batch, keys[1])
    return of_critics + of_policy, (priority, critic_metrics | metrics)
