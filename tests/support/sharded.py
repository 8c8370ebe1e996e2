"""Programs run once under `jax.shard_map`, one seed a device, and once under `jax.vmap`; they must agree.

Run in a process of its own, as the number of devices is set before JAX starts: python sharded.py PROGRAM ...
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from rlkit import _cpu, envs, replay, training
from rlkit.agents import dqn, ppo, pqn, sac, td3
from rlkit.ops import chunked, permutation, returns
from rlkit.replay import segment_tree, slice_index
from rlkit.spaces import Box, Discrete
from rlkit.types import Transition

N = 4  # environments
REPLAY = {"hidden_sizes": (8,), "capacity": 2048, "batch_size": 8, "learning_starts": 8, "replay_ratio": 0.25}


ONCE = {"store_obs_once": True, "max_final_obs": 4}


def buffers():
    """Add, sample, update, a pass and clear, in a loop, on states made inside and outside of it."""
    kinds = {
        "uniform": replay.uniform(64, 8),
        "prioritized windows": replay.prioritized(2048, 8, length=3, **ONCE),
    }
    return {name: buffer_program(name, buffer) for name, buffer in kinds.items()}


def slice_buffers():
    """The same of buffers of slices."""
    kinds = {
        "slices": replay.slices(64, 8, 3),
        "slices by episode": replay.slices(64, 8, 3, sampling="episode"),
        "slices not strict": replay.slices(64, 8, 3, strict=False, **ONCE),
    }
    return {name: buffer_program(name, buffer) for name, buffer in kinds.items()}


def more_buffers():
    """The same of slices by priority and across ends of episodes, of windows, and of single steps by priority."""
    kinds = {
        "uniform windows": replay.uniform(64, 8, length=3, **ONCE),
        "prioritized": replay.prioritized(2048, 8),
        "slices by priority": replay.slices(2048, 8, 3, prioritized=True),
        "slices across ends": replay.slices(64, 8, 3, cross_episodes=True),
    }
    return {name: buffer_program(name, buffer) for name, buffer in kinds.items()}


def buffer_program(name, buffer):
    def rollout(key):
        obs = jax.random.normal(key, (2, N, 3))
        done = jax.random.bernoulli(key, 0.2, (2, N))
        return Transition(obs, jnp.zeros((2, N), jnp.int32), obs[..., 0], done & (obs[..., 1] > 0), done, obs + 1)

    def program(key):
        def step(state, key):
            add_key, sample_key, key = jax.random.split(key, 3)
            state = buffer.add(state, rollout(add_key))
            sample = buffer.sample(state, sample_key)
            return buffer.update(state, sample.index, jax.random.normal(key, sample.weight.shape)), sample

        inside = buffer.init(jax.tree.map(lambda x: x[0, 0], rollout(key)), N)
        result = jax.lax.scan(step, inside, jax.random.split(key, 6))
        # Of a constant example, as at the top of a script: here the first step of all marks the state as varying.
        constant = buffer.init(jax.tree.map(lambda x: jnp.zeros(x.shape[2:], x.dtype), jax.eval_shape(rollout, key)), N)
        batch = () if name == "slices by episode" else buffer.batch_of_pass(result[0], key, 1)
        return result, step(constant, key), buffer.size(result[0]), batch, replay.clear(result[0])

    return program


def permutations():
    """Permutations whose key, or number of elements alone, differs between devices."""

    def permute(key):
        n = jax.random.randint(key, (), 300, 999)
        images = [permutation.permute(key, jnp.arange(7), n) for n in (7, 300, 1000, n)]
        constant_key = permutation.permute(jax.random.key(3), jnp.arange(7), n)
        return images, constant_key, permutation.permutations(key, 3, 1000)

    return {"permute": permute}


def structures():
    """Segment trees and slice indices of constants, changed by values that differ between devices; ops with loops."""

    def tree(key):
        where, value = jax.random.randint(key, (6,), 0, 5000), jax.random.uniform(key, (6,))
        trees = [segment_tree.init(5000), segment_tree.build(jnp.ones(5000))]
        trees += [segment_tree.write(tree, where, value) for tree in trees]
        trees += [segment_tree.write_run(tree, where[0] % 4000, value) for tree in trees]
        return [(tree, segment_tree.sample(tree, key, 8), segment_tree.find(tree, value)) for tree in trees]

    def index(key):
        done = jnp.zeros((20, 2), bool).at[::7].set(True)
        state = slice_index.build(done, slice_len=3, num_rows=30)
        state = slice_index.add(state, jax.random.bernoulli(key, 0.3, (5, 2)))
        return state, slice_index.sample(state, key, 4), slice_index.batch_of_pass(state, key, 1, 4)

    def ops(key):
        x, zeros, never = jax.random.normal(key, (7, 2)), jnp.zeros((7, 2)), jnp.zeros((7, 2), bool)
        at_end = never.at[-1].set(True)
        kept = returns.n_step_returns(zeros, zeros, x > 0, never, gamma=0.9, n=3)
        return (
            returns.n_step_returns(x, zeros, at_end, never, gamma=0.9, n=3),
            kept,
            returns.gae(zeros, zeros, zeros, never, x > 0, gamma=x[0, 0], gae_lambda=0.9),
            chunked.chunked_map(lambda rows: rows * x[0], zeros, 3),
        )

    return {"tree": tree, "index": index, "ops": ops}


def primitives():
    """The functions of `_cpu`, of arguments of which only one differs between devices."""
    kernel, bias, action = jnp.ones((4, 3)), jnp.ones(3), jnp.zeros(384, jnp.int32)
    functions = {
        "materialize": _cpu.materialize,
        "keep_layout": lambda x: _cpu.keep_layout(x.T),
        "sequence": lambda x: _cpu.sequence(jnp.add, [bias, x, bias, x], [bias, x, 2 * bias, x]),
        "affine": lambda x: _cpu.affine(x, kernel, bias),
        "affine of the kernel": lambda x: _cpu.affine(
            jnp.cos(jnp.arange(256.0 * 384)).reshape(256, 384), x, jnp.ones(4)
        ),
        "convolution": lambda x: _cpu.convolution(x.reshape(6, 8, 8, 4), jnp.ones((2, 3, 4, 4)), 2, "SAME"),
        "convolution of the kernel": lambda x: _cpu.convolution(
            jnp.cos(jnp.arange(900.0)).reshape(3, 5, 5, 12), x.reshape(4, 4, 12, 8), 1, 1
        ),
        "softmax_log_prob": lambda x: _cpu.softmax_log_prob(x, action),
        "softmax_log_prob of constants": lambda x: _cpu.softmax_log_prob(jnp.ones((384, 4)), jnp.int32(x[:, 0])),
        "softmax_entropy": _cpu.softmax_entropy,
    }

    def with_gradient(function):
        def run(key):
            value, pull = jax.vjp(function, jax.random.normal(key, (384, 4)))
            return value, pull(value)

        return run

    @_cpu.straight_line_keys
    def draws(key):
        first, second = jax.random.split(key)
        return jax.random.normal(jax.random.fold_in(first, 3), (5,)), jax.random.key_data(second)

    return {name: with_gradient(function) for name, function in functions.items()} | {"straight_line_keys": draws}


def agents():
    """Training steps of agents, and an evaluation."""
    prioritized = REPLAY | {"replay": "prioritized", "n_step": 3, "store_obs_once": True}
    return {
        "ppo": agent_program(ppo, "CartPole-v1", {"hidden_sizes": (8,), "num_minibatches": 2, "chunk_size": 8}, 16),
        "dqn": agent_program(dqn, "CartPole-v1", prioritized, 8),
    }


def more_agents():
    """The same of another agent, and of agents without `training`."""
    alone = {"hidden_sizes": (8,), "capacity": 2048, "batch_size": 8}
    return {
        "ppo alone": updates(ppo, Discrete(2), {"hidden_sizes": (8,), "num_minibatches": 2}),
        "pqn alone": updates(pqn, Discrete(2), {"hidden_sizes": (8,), "num_minibatches": 2}),
        "dqn alone": updates(dqn, Discrete(2), alone),
        "td3 alone": updates(td3, Box(-1, 1, (1,)), alone),
        "sac": agent_program(sac, "Pendulum-v1", REPLAY, 8),
    }


def agent_program(module, name, settings, num_steps):
    env, params = envs.make(name)
    agent = module.make(module.Config(**settings), env.observation_space(params), env.action_space(params))
    init, step = training.make(agent, env, params, num_envs=N, num_steps=num_steps)

    def run(key):
        state, metrics = jax.lax.scan(lambda state, _: step(state), init(module.Hyper(), key), None, length=2)
        evaluated = training.evaluate(agent, env, params, agent.actor(state.agent), key, num_envs=2, max_steps=5)
        return state.agent.params, metrics, evaluated, jax.random.key_data(state.key)

    return run


def updates(module, action_space, settings):
    """An agent in a loop of the user's own, without `training`."""
    obs_space = Box(-np.inf, np.inf, (3,))
    agent = module.make(module.Config(**settings), obs_space, action_space)
    obs, reward, never = jnp.zeros(3), jnp.float32(0), jnp.zeros((), bool)

    def update(state, key):
        keys = jax.random.split(key, (8, N))
        rollout_obs = jax.random.normal(key, (8, N, 3))
        act = jax.vmap(jax.vmap(agent.act, (None, None, 0, 0)), (None, None, 0, 0))
        _, action, extras = act(agent.actor(state), agent.memory, rollout_obs, keys)
        flag = jnp.zeros((8, N), bool)
        rollout = Transition(rollout_obs, action, rollout_obs[..., 0], flag, flag, rollout_obs, extras)
        return agent.update(state, rollout, key)

    def run(key):
        example = Transition(obs, action_space.sample(jax.random.key(0)), reward, never, never, obs)
        state = agent.init(module.Hyper(), key, example, N)
        state, metrics = jax.lax.scan(update, state, jax.random.split(key, 2))
        return agent.actor(state), metrics

    return run


def compare(name, program, keys, mesh):
    def one(key):
        return jax.tree.map(lambda x: x[None], program(key[0]))

    sharded = jax.jit(jax.shard_map(one, mesh=mesh, in_specs=P("run"), out_specs=P("run")))(keys)
    expected = jax.jit(jax.vmap(program))(keys)
    for a, b in zip(*(jax.tree.leaves(tree) for tree in (sharded, expected)), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-4, err_msg=name)


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 2)
    jax.config.update("jax_disable_most_optimizations", True)
    assert jax.device_count() == 2, jax.devices()
    mesh = jax.make_mesh((2,), ("run",), axis_types=(AxisType.Auto,))
    for made in sys.argv[1:]:
        for name, program in globals()[made]().items():
            compare(name, program, jax.random.split(jax.random.key(0), 2), mesh)
            print("agrees:", name, flush=True)
