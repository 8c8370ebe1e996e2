"""Gradient steps, priorities and statistics on devices over which a batch is divided: the numbers of one device.

Run in a process of its own, as the number of devices is set before JAX starts:
python data_parallel_steps.py PROGRAM ...
"""

from functools import partial
from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from devices import OFF_POLICY, N, close, main, make, mesh, run
from jax.sharding import PartitionSpec as P

from rlkit import replay
from rlkit.agents import dqn, r2d2, sac, td3_bc
from rlkit.agents.common import minibatches, off_policy, soft_critic
from rlkit.agents.common.off_policy import Schedules
from rlkit.agents.common.recurrent import sequences
from rlkit.networks import BatchRenorm
from rlkit.ops.losses import normalize_advantage
from rlkit.ops.statistics import explained_variance, running_init, running_update
from rlkit.replay import segment_tree
from rlkit.types import Transition


def gradient_step_of_dqn():
    """A gradient step on the same global batch, clipped, gives the same parameters on 1 and 2 devices."""
    hyper = dqn.Hyper(max_grad_norm=0.1)
    compare_gradient_steps(dqn, "CartPole-v1", {"replay": "prioritized", "n_step": 3}, hyper, (2,))


def gradient_step_of_sac():
    """The same of SAC in a discrete space, on 8 devices too, where its loss draws no noise."""
    hyper = sac.Hyper(actor_max_grad_norm=0.1, critic_max_grad_norm=0.1)
    compare_gradient_steps(sac, "CartPole-v1", {"replay": "prioritized"}, hyper)


def gradient_step_of_td3_bc():
    """The same of TD3+BC, whose loss is scaled by a mean over the batch."""
    compare_gradient_steps(td3_bc, "Pendulum-v1", {}, td3_bc.Hyper(target_noise=0.0, max_grad_norm=0.1))


def gradient_step_of_r2d2():
    """The same of R2D2, on sequences and on 2 devices."""
    settings = {"burn_in": 1, "unroll_len": 3, "n_step": 2, "memory_size": 4}
    compare_gradient_steps(r2d2, "CartPole-v1", settings, r2d2.Hyper(max_grad_norm=0.1), (2,))


def gradient_step_of_sac_with_a_memory():
    """The same of sequences, on 2 devices."""
    settings = {"recurrent": "gru", "burn_in": 1, "unroll_len": 4, "n_step": 2, "memory_size": 4}
    losses = {
        "critic_loss": partial(sequences.critic_loss, sac.critic_loss),
        "policy_loss": partial(sequences.policy_loss, sac.policy_loss),
    }
    step = partial(soft_critic.gradient_step, **losses, make_batch=sequences.rows)
    module = SimpleNamespace(__name__="sac with a memory", Config=sac.Config, make=sac.make, gradient_step=step)
    compare_gradient_steps(module, "CartPole-v1", settings | {"replay": "prioritized"}, sac.Hyper(), (2,))


def gradient_steps_with_noise():
    """Where a loss draws noise, the step is that on the mean of the devices' losses, each with noise of its own."""

    def mean_loss(loss, name, index, static, params, state, batch, _):
        parts = jax.tree.map(lambda x: x.reshape(2, -1, *x.shape[1:]), batch)
        keys = jax.vmap(lambda key: jax.random.split(key)[index])(jax.random.split(jax.random.key(2), 2))
        total, (_, *others) = jax.vmap(lambda batch, key: loss(static, params, state, batch, key))(parts, keys)
        *priority, metrics = others
        return total.mean(), (
            state.stats[name],
            *(x.reshape(-1) for x in priority),
            jax.tree.map(jnp.mean, metrics),
        )

    def on_one(static, state, sample, schedules, keys):
        losses = {
            "critic_loss": partial(mean_loss, sac.critic_loss, "critics", 0),
            "policy_loss": partial(mean_loss, sac.policy_loss, "policy", 1),
        }
        return sac.gradient_step(static, state, sample, schedules, keys[0], **losses)

    hyper = sac.Hyper(max_grad_norm=0.1)
    compare_gradient_steps(sac, "Pendulum-v1", {"replay": "prioritized"}, hyper, (2,), on_one)


class Critics(nn.Module):
    """Two critics whose features have the moments of the whole batch."""

    axis_name: str | None

    @nn.compact
    def __call__(self, obs, train=False):
        hidden = BatchRenorm(axis_name=self.axis_name, warmup_steps=1)(nn.relu(nn.Dense(8)(obs)), train)
        return jnp.stack([nn.Dense(2)(hidden), nn.Dense(2)(hidden)])


def statistics_of_critics():
    """SAC with batch renormalization in its critics has the same statistics on 1, 2 and 8 devices."""

    def networks(axis_name):
        return {"critics": Critics(axis_name)}

    compare_gradient_steps(sac, "CartPole-v1", {}, sac.Hyper(), networks=networks)


def compare_gradient_steps(module, name, settings, hyper, numbers=(2, 8), on_one=None, networks=lambda axis_name: None):
    agent, pair = make(module, name, OFF_POLICY | settings, networks=networks(None))
    before, _ = run(pair, hyper, 2)
    sample = jax.jit(agent.static.buffer.sample)(before.agent.replay.buffer, jax.random.key(1))
    state = before.agent.replace(replay=())
    schedules = Schedules(jnp.float32(0.1), jnp.array(True), {"temperature_learning_rate": jnp.float32(0.1)})
    for devices in numbers:
        keys = jax.random.split(jax.random.key(2), devices)
        step_of = jax.jit(partial(on_one or module.gradient_step, agent.static))
        expected = step_of(state, sample, schedules, keys if on_one else keys[0])
        static = make(module, name, OFF_POLICY | settings, "data", networks("data"))[0].static

        def step(state, sample, keys, static=static):
            return module.gradient_step(static, state, sample, schedules, keys[0])

        specs = {"in_specs": (P(), P("data"), P("data")), "out_specs": (P(), P("data"), P())}
        on_devices = jax.shard_map(step, mesh=mesh(devices), check_vma=devices == 2, **specs)
        result = jax.jit(on_devices)(state, sample, keys)
        label = f"{module.__name__} on {devices}"
        close(result[0].params, expected[0].params, label, rtol=0, atol=1e-6)
        close(result, expected, label, rtol=1e-4, atol=1e-5)
        for part in ("params", "stats"):
            both = getattr(result[0], part), getattr(state, part)
            moved = jax.tree.map(lambda x, y: jnp.abs(x - y).max(), *both)
            assert max(jax.tree.leaves(moved), default=1.0) > 1e-4, label


def keys():
    """Devices draw minibatches, samples and noise by different keys."""
    agent, pair = make(dqn, "CartPole-v1", OFF_POLICY, "data")

    def draw(static, state, sample, schedules, key):
        return state, sample.item.reward, {"noise": jax.random.uniform(key)}

    def own(key):
        state, _ = pair.step(pair.init(dqn.Hyper(), key))
        _, metrics = off_policy.learn(agent.static, draw, state.agent, key, 8 * N)
        return minibatches.shuffled(key, 1, 2, 16, "data"), metrics["noise"][None]

    on_two = jax.shard_map(own, mesh=mesh(2), in_specs=P(), out_specs=P("data"), check_vma=False)
    orders, noise = jax.jit(on_two)(jax.random.key(0))
    first, second = np.asarray(orders).reshape(2, 16)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(np.sort(first), np.arange(16))
    np.testing.assert_array_equal(np.sort(second), np.arange(16))
    assert noise[0] != noise[1]


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
                explained_variance(x, x + mask.astype(x.dtype), axis_name="data"),
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
        np.testing.assert_allclose(explained, explained_variance(x, x + mask.astype(x.dtype)), rtol=1e-4)
        np.testing.assert_allclose(normalized[0], normalize_advantage(x), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(normalized[1], normalize_advantage(x, mask), rtol=1e-3, atol=1e-4)
        np.testing.assert_array_equal(normalized[2], 0.0)


if __name__ == "__main__":
    main(globals())
