"""Whole runs on 1, 2 and 8 devices, over which environments are divided: the numbers of one device.

Run in a process of its own, as the number of devices is set before JAX starts:
python data_parallel_runs.py PROGRAM ...
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from devices import OFF_POLICY, SGD, N, close, main, make, mesh, run
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from rlkit import envs, training
from rlkit.agents import dqn, iql, ppo, pqn, r2d2, sac, td3, tqc
from rlkit.types import Transition

TARGET_KL = 1e-4


def compare_runs(module, name, settings, hyper, **sizes):
    expected, expected_metrics = run(make(module, name, settings, **sizes)[1], hyper, 3)
    for devices, check_vma in ((2, True), (8, False)):
        pair = make(module, name, settings, "data", **sizes)[1]
        pair = training.data_parallel(pair, mesh(devices), "data", check_vma=check_vma)
        state, metrics = run(pair, hyper, 3)
        label = f"{module.__name__} on {devices}"
        close(state.agent.params, expected.agent.params, label, rtol=0, atol=1e-6)
        close(state, expected, label, rtol=1e-4, atol=1e-5)
        close(metrics, expected_metrics, label, rtol=1e-4, atol=1e-5)


def whole_ppo():
    """All of a run of PPO with one minibatch, which is then the same batch; early stopping in the third update."""
    settings = SGD | {"num_minibatches": 1, "num_epochs": 4, "normalize_obs": True, "normalize_reward": True}
    compare_runs(ppo, "CartPole-v1", settings, ppo.Hyper(learning_rate=0.3, ent_coef=0.01, target_kl=TARGET_KL))


def whole_recurrent_ppo():
    """The same of a recurrent network, with advantages normalized over the rollout, estimated anew, and KL penalty."""
    settings = SGD | {"recurrent": "gru", "memory_size": 4, "num_minibatches": 1, "num_epochs": 2}
    settings |= {"normalize_advantage": "batch", "kl_penalty": True, "recompute_advantage": True, "normalize_obs": True}
    compare_runs(ppo, "Pendulum-v1", settings, ppo.Hyper(learning_rate=0.1, kl_target=0.01))


def whole_mingru_ppo():
    """The same of a memory that runs over all steps at once, whose gradient is written by hand; and of a bonus."""
    settings = SGD | {"recurrent": "mingru", "memory_size": 4, "num_minibatches": 1, "num_epochs": 2}
    settings |= {"exploration_bonus": 0.5}
    compare_runs(ppo, "Probe-Memory", settings, ppo.Hyper(learning_rate=0.1))


def whole_players():
    """The same of the three players of each of eight worlds, which stay on the device of their world."""
    settings = SGD | {"recurrent": "gru", "memory_size": 4, "num_minibatches": 1, "num_epochs": 1}
    compare_runs(ppo, "Probe-Players", settings, ppo.Hyper(learning_rate=0.1), num_envs=24)


def whole_pool():
    """The same where episodes begin in a pool of starts, which is the same on each device."""
    settings = SGD | {"num_minibatches": 1, "num_epochs": 1}
    compare_runs(ppo, "Probe-Players", settings, ppo.Hyper(learning_rate=0.1), num_envs=24, reset_pool=6)


def whole_pqn():
    """The same of PQN, with its minibatch in chunks of rows."""
    settings = SGD | {"num_minibatches": 1, "normalize_obs": True, "chunk_size": 4}
    compare_runs(pqn, "CartPole-v1", settings, pqn.Hyper(learning_rate=0.1))


def whole_recurrent_pqn():
    """The same with a memory."""
    settings = SGD | {"recurrent": "gru", "memory_size": 4, "num_minibatches": 1}
    compare_runs(pqn, "Probe-Memory", settings, pqn.Hyper(learning_rate=0.1))


def seeds():
    """Seeds over one axis of a mesh, each with its environments over another: those of one device."""
    settings = SGD | {"num_minibatches": 1, "normalize_obs": True, "normalize_reward": True, "chunk_size": 8}
    hyper, keys = ppo.Hyper(learning_rate=0.1), jax.random.split(jax.random.key(0), 2)

    def two_steps(pair, key):
        return jax.lax.scan(lambda state, _: pair.step(state), pair.init(hyper, key), None, length=2)[0].agent.params

    def own(key):
        return jax.tree.map(lambda x: x[None], two_steps(make(ppo, "CartPole-v1", settings, "data")[1], key[0]))

    both = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("run", "data"), axis_types=(AxisType.Auto,) * 2)
    params = jax.jit(jax.shard_map(own, mesh=both, in_specs=P("run"), out_specs=P("run")))(keys)
    expected = jax.jit(jax.vmap(partial(two_steps, make(ppo, "CartPole-v1", settings)[1])))(keys)
    close(params, expected, "two axes", rtol=0, atol=1e-6)

    pair = training.data_parallel(make(ppo, "CartPole-v1", settings, "data")[1], mesh(2), "data")
    close(jax.jit(jax.vmap(partial(two_steps, pair)))(keys), expected, "vmap", rtol=0, atol=1e-6)


def warm_up():
    """Environments before learning starts are those of one device, by the same keys and places among all."""
    cases = {
        r2d2: ("CartPole-v1", {"burn_in": 1, "unroll_len": 3, "n_step": 2, "memory_size": 4}),
        sac: ("Pendulum-v1", {"normalize_obs": True}),
    }
    for module, (name, settings) in cases.items():
        settings = OFF_POLICY | {"learning_starts": 10**6} | settings
        expected, _ = run(make(module, name, settings)[1], module.Hyper(), 2)
        on_two = training.data_parallel(make(module, name, settings, "data")[1], mesh(2), "data")
        state, _ = run(on_two, module.Hyper(), 2)
        close(state.envs, expected.envs, module.__name__, rtol=1e-4, atol=1e-5)
        close(state.agent.normalizer, expected.agent.normalizer, module.__name__, rtol=1e-4, atol=1e-5)


def learning():
    """Agents learn from their parts of the buffer, and what is replicated stays the same on each device.

    This is what JAX's check proves; without the check, the values are compared.
    """
    settings = OFF_POLICY | {"replay": "prioritized", "n_step": 3, "store_obs_once": True}
    results = []
    for check_vma in (True, False):
        pair = training.data_parallel(
            make(dqn, "CartPole-v1", settings, "data")[1], mesh(2), "data", check_vma=check_vma
        )
        state, metrics = run(pair, dqn.Hyper(), 3)
        assert metrics[-1]["grad_norm"] > 0
        assert 0.8 * 3 * 8 * N < metrics[-1]["buffer_size"] < 3 * 8 * N
        assert state.agent.replay.num_steps == 3 * 8 * N  # of all devices
        results.append(state.agent.params)
        for x in jax.tree.leaves(state.agent.replace(replay=state.agent.replay.replace(buffer=()))):
            first, second = (np.asarray(shard.data) for shard in x.addressable_shards)
            np.testing.assert_array_equal(first, second)
    close(*results, "with and without the check", rtol=0, atol=1e-6)


def more_learning():
    """The same of sequences, and of a policy that learns at every second step, under JAX's check."""
    for module, name, settings in (
        (r2d2, "CartPole-v1", {"burn_in": 1, "unroll_len": 3, "n_step": 2, "memory_size": 4}),
        (td3, "Pendulum-v1", {"policy_delay": 2}),
        (tqc, "Pendulum-v1", {"recurrent": "mingru", "burn_in": 1, "unroll_len": 4, "n_step": 2, "memory_size": 4}),
    ):
        pair = training.data_parallel(make(module, name, OFF_POLICY | settings, "data")[1], mesh(2), "data")
        state, metrics = run(pair, module.Hyper(), 3)
        assert metrics[-1]["grad_norm"] > 0, module.__name__
        assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(state.agent.params)), module.__name__


def offline():
    """Replay buffers of two devices are filled with the streams of a dataset, and learned from; empty ones are not."""
    rollout = probe_rollout(num_steps=16)
    settings = OFF_POLICY | {"normalize_obs": True}

    def pair_of(axis_name):
        agent, _ = make(iql, "Probe-Continuous", settings, axis_name)
        return agent, training.offline(agent, *envs.make("Probe-Continuous"), num_envs=N, num_steps=64)

    def learned(pair, add, with_data):
        state = jax.jit(pair.init)(iql.Hyper(), jax.random.key(0))
        state = jax.jit(add)(state, rollout) if with_data else state
        return state, *jax.jit(pair.step)(state)

    one, single = pair_of(None)
    expected = learned(single, lambda s, rollout: s.replace(agent=one.add(s.agent, rollout)), True)
    for check_vma in (True, False):
        agent, pair = pair_of("data")
        parallel = training.data_parallel(pair, mesh(2), "data", check_vma=check_vma)
        add = training.data_parallel_add(agent, mesh(2), "data", check_vma=check_vma)
        filled, after, metrics = learned(parallel, add, True)
        close(filled.agent.normalizer, expected[0].agent.normalizer, "statistics", rtol=1e-5, atol=1e-6)
        assert metrics["buffer_size"] == expected[2]["buffer_size"] == 16 * N
        assert metrics["grad_norm"] > 0
        assert any((a != b).any() for a, b in zip(*map(jax.tree.leaves, (filled, after)), strict=True))
        empty = learned(parallel, add, False)[2]
        assert empty["buffer_size"] == 0
        assert jnp.isnan(empty["grad_norm"])


def probe_rollout(num_steps):
    """Steps of N streams of Probe-Continuous by random actions."""
    env, params = envs.make("Probe-Continuous")
    obs, action = env.observation_space(params), env.action_space(params)
    keys = jax.random.split(jax.random.key(1), (3, num_steps, N))
    draw = lambda space, keys: jax.vmap(jax.vmap(space.sample))(keys)  # noqa: E731
    flags = jnp.zeros((num_steps, N), bool)
    reward = jax.random.normal(jax.random.key(2), (num_steps, N))
    return Transition(draw(obs, keys[0]), draw(action, keys[1]), reward, ~flags, flags, draw(obs, keys[2]))


if __name__ == "__main__":
    main(globals())
