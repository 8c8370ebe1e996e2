"""Programs on 1, 2 and 8 devices, over which environments and batches are divided; they must agree with one device.

Run in a process of its own, as the number of devices is set before JAX starts: python data_parallel.py PROGRAM ...
"""

import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from rlkit import envs, replay, training
from rlkit.agents import dqn, ppo, pqn, r2d2, sac, td3, td3_bc
from rlkit.agents.common.off_policy import Schedules
from rlkit.ops.losses import normalize_advantage
from rlkit.ops.statistics import explained_variance, running_init, running_update
from rlkit.replay import segment_tree
from rlkit.types import Transition

N = 8  # environments
TARGET_KL = 1e-4
SGD = {"hidden_sizes": (8,), "optimizer": "sgd"}
OFF_POLICY = SGD | {"capacity": 512, "batch_size": 16, "learning_starts": 16, "replay_ratio": 0.0625}


def mesh(devices):
    return Mesh(np.array(jax.devices()[:devices]), ("data",), axis_types=(AxisType.Auto,))


def close(a, b, name, **tolerance):
    """Compare two trees, with keys as numbers."""
    paths, structure = jax.tree_util.tree_flatten_with_path(b)
    assert jax.tree.structure(a) == structure, name
    for x, (path, y) in zip(jax.tree.leaves(a), paths, strict=True):
        if jnp.issubdtype(y.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        message = f"{name} {jax.tree_util.keystr(path)}"
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), err_msg=message, **tolerance)


def make(module, name, settings, axis_name=None):
    env, params = envs.make(name)
    config = module.Config(**settings)
    agent = module.make(config, env.observation_space(params), env.action_space(params), axis_name=axis_name)
    return agent, training.make(agent, env, params, num_envs=N, num_steps=8)


def run(pair, hyper, steps):
    state, all_metrics = jax.jit(pair.init)(hyper, jax.random.key(0)), []
    step = jax.jit(pair.step, donate_argnums=0)
    for _ in range(steps):
        state, metrics = step(state)
        all_metrics.append(metrics)
    return state, all_metrics


def compare_runs(module, name, settings, hyper):
    expected, expected_metrics = run(make(module, name, settings)[1], hyper, 3)
    for devices, check_vma in ((1, True), (2, True), (8, True), (2, False)):
        pair = make(module, name, settings, "data")[1]
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


def whole_pqn():
    """The same of PQN, with its minibatch in chunks of rows."""
    settings = SGD | {"num_minibatches": 1, "normalize_obs": True, "chunk_size": 4}
    compare_runs(pqn, "CartPole-v1", settings, pqn.Hyper(learning_rate=0.1))


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
    ):
        pair = training.data_parallel(make(module, name, OFF_POLICY | settings, "data")[1], mesh(2), "data")
        state, metrics = run(pair, module.Hyper(), 3)
        assert metrics[-1]["grad_norm"] > 0, module.__name__
        assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(state.agent.params)), module.__name__


def gradient_steps():
    """Gradient steps on the same global batch, clipped, give the same parameters on 1, 2 and 8 devices."""
    cases = {
        dqn: ("CartPole-v1", {"replay": "prioritized", "n_step": 3}, dqn.Hyper(max_grad_norm=0.1)),
        sac: ("CartPole-v1", {"replay": "prioritized"}, sac.Hyper(actor_max_grad_norm=0.1, critic_max_grad_norm=0.1)),
        td3_bc: ("Pendulum-v1", {"policy_delay": 1}, td3_bc.Hyper(target_noise=0.0, max_grad_norm=0.1)),
        r2d2: ("CartPole-v1", {"burn_in": 1, "unroll_len": 3, "n_step": 2, "memory_size": 4}, r2d2.Hyper()),
    }
    for module, (name, settings, hyper) in cases.items():
        compare_gradient_steps(module, name, settings, hyper)


def gradient_steps_with_noise():
    """Where a loss draws noise, the step is that on the mean of the devices' losses, each with noise of its own."""
    loss = sac.loss
    for devices in (2, 8):

        def mean_loss(static, params, state, batch, keys):
            parts = jax.tree.map(lambda x: x.reshape(len(keys), -1, *x.shape[1:]), batch)
            loss_of = jax.vmap(lambda batch, key: loss(static, params, state, batch, key))
            total, (priority, metrics) = loss_of(parts, keys)
            return total.mean(), (priority.reshape(-1), jax.tree.map(jnp.mean, metrics))

        def on_one(*arguments):
            sac.loss = mean_loss
            try:
                return sac.gradient_step(*arguments)
            finally:
                sac.loss = loss

        hyper = sac.Hyper(max_grad_norm=0.1)
        compare_gradient_steps(sac, "Pendulum-v1", {"replay": "prioritized"}, hyper, (devices,), on_one)


def compare_gradient_steps(module, name, settings, hyper, numbers=(1, 2, 8), on_one=None):
    agent, pair = make(module, name, OFF_POLICY | settings)
    before, _ = run(pair, hyper, 2)
    sample = jax.jit(agent.static.buffer.sample)(before.agent.replay.buffer, jax.random.key(1))
    state = before.agent.replace(replay=())
    schedules = Schedules(jnp.float32(0.1), jnp.array(True), {"temperature_learning_rate": jnp.float32(0.1)})
    for devices in numbers:
        keys = jax.random.split(jax.random.key(2), devices)
        step_of = jax.jit(partial(on_one or module.gradient_step, agent.static))
        expected = step_of(state, sample, schedules, keys if on_one else keys[0])
        static = make(module, name, OFF_POLICY | settings, "data")[0].static

        def step(state, sample, keys, static=static):
            return module.gradient_step(static, state, sample, schedules, keys[0])

        for check_vma in (True, False) if devices == 2 else (True,):
            specs = {"in_specs": (P(), P("data"), P("data")), "out_specs": (P(), P("data"), P())}
            on_devices = jax.shard_map(step, mesh=mesh(devices), check_vma=check_vma, **specs)
            result = jax.jit(on_devices)(state, sample, keys)
            label = f"{module.__name__} on {devices}, {check_vma}"
            close(result[0].params, expected[0].params, label, rtol=0, atol=1e-6)
            close(result, expected, label, rtol=1e-4, atol=1e-5)
            moved = jax.tree.map(lambda x, y: jnp.abs(x - y).max(), result[0].params, state.params)
            assert max(jax.tree.leaves(moved)) > 1e-4, label


def priorities():
    """Importance weights, and the priorities of new items, by NumPy from the masses of all devices."""
    shards, rows, beta = 2, 4, 0.7
    buffer = replay.prioritized(64, 16, alpha=1.0, beta=beta, eps=0.0, axis_name="data")
    steps = jnp.arange(rows * N, dtype=jnp.float32).reshape(rows, N)
    rollout = Transition(steps, steps, steps, steps < 0, steps < 0, steps)

    def fill(rollout, priority, keys):
        state = buffer.init(jax.tree.map(lambda x: jnp.zeros((), x.dtype), rollout), N)
        state = buffer.add(state, rollout)
        every = buffer.batch_of_pass(state, jax.random.key(0), 0), buffer.batch_of_pass(state, jax.random.key(0), 1)
        for sample in every:
            state = buffer.update(state, sample.index, priority[sample.item.reward.astype(jnp.int32)])
        sample = buffer.sample(state, keys[0])
        mass = segment_tree.values(state.priorities.mass)
        after = segment_tree.values(buffer.add(state, rollout).priorities.mass)
        return sample.item.reward, sample.weight, mass[None], after[None]

    priority = jax.random.uniform(jax.random.key(3), (rows * N,), minval=0.1, maxval=3.0)
    specs = {"in_specs": (P(None, "data"), P(), P("data")), "out_specs": P("data")}
    keys = jax.random.split(jax.random.key(4), shards)
    item, weight, mass, after = map(
        np.asarray, jax.jit(jax.shard_map(fill, mesh=mesh(shards), **specs))(rollout, priority, keys)
    )
    assert item.shape == (16,)
    assert mass.shape == (2, 32)
    stored = mass[:, : rows * N // shards]
    probability = stored / (shards * stored.sum(1, keepdims=True))
    np.testing.assert_allclose(probability.sum(), 1.0, rtol=1e-6)
    unscaled = (rows * N * probability) ** -beta
    of_item = np.zeros(rows * N)
    of_item[np.asarray(steps).reshape(rows, shards, -1).swapaxes(0, 1).reshape(shards, -1).astype(int)] = unscaled
    np.testing.assert_allclose(weight, of_item[item.astype(int)] / unscaled.max(), rtol=1e-5)
    assert len(np.unique(item)) > 6
    np.testing.assert_allclose(after[:, rows * N // shards :][:, : rows * N // shards], priority.max(), rtol=1e-6)


def statistics():
    """Moments over devices are those of the whole, and exact where all numbers are equal."""
    x = 1e3 + jax.random.normal(jax.random.key(0), (4, 24, 3))
    mask = jax.random.bernoulli(jax.random.key(1), 0.5, x.shape).at[:, :3].set(False)
    constant = jnp.full_like(x, 12345.678)
    for devices in (2, 3, 8):

        def own(x, mask, constant):
            stats = running_update(running_init(x[0, 0]), x, axis_name="data")
            stats = running_update(stats, x + 1.0, axis_name="data")
            return (
                (stats, running_update(running_init(x[0, 0]), constant, axis_name="data")),
                explained_variance(x / 2, x, axis_name="data"),
                normalize_advantage(x, axis_name="data"),
                normalize_advantage(x, mask, axis_name="data"),
                normalize_advantage(constant, axis_name="data"),
            )

        out_specs = (P(), P(), *(P(None, "data"),) * 3)
        both, explained, *normalized = jax.jit(
            jax.shard_map(own, mesh=mesh(devices), in_specs=P(None, "data"), out_specs=out_specs)
        )(x, mask, constant)
        expected = running_update(running_update(running_init(x[0, 0]), x), x + 1.0)
        close(both[0], expected, "moments", rtol=1e-5)
        assert both[1].count == 96
        np.testing.assert_array_equal(both[1].mean, constant[0, 0])
        np.testing.assert_array_equal(both[1].m2, 0.0)
        np.testing.assert_allclose(explained, explained_variance(x / 2, x), rtol=1e-4)
        np.testing.assert_allclose(normalized[0], normalize_advantage(x), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(normalized[1], normalize_advantage(x, mask), rtol=1e-3, atol=1e-4)
        np.testing.assert_array_equal(normalized[2], 0.0)


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_disable_most_optimizations", True)
    assert jax.device_count() == 8, jax.devices()
    for name in sys.argv[1:]:
        globals()[name]()
        print("agrees:", name, flush=True)
