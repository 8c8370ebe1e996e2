"""Gradient steps that are not due are not computed: before learning starts, and of a delayed policy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sac_batches import example as example_of

from rlkit import agents, runs
from rlkit.agents import dqn, td3
from rlkit.runs.programs.make import make_program
from rlkit.spaces import Box, Discrete
from rlkit.types import Transition

SMALL = {"hidden_sizes": (4,), "capacity": 64, "batch_size": 4}
RUN = SMALL | {"agent": "dqn", "num_envs": 2, "num_steps": 4, "total_steps": 64, "learning_starts": 32}
RUN |= {"hidden_sizes": [4], "eval_episodes": 2, "backend": "serial"}
T, N = 5, 2


@pytest.fixture
def computed(monkeypatch):
    """Names of the losses that were computed; `count(module, name)` starts the counting of one."""
    calls = []

    def count(module, name):
        loss = getattr(module, name)

        def counted(*args):
            jax.debug.callback(lambda: calls.append(name))
            return loss(*args)

        monkeypatch.setattr(module, name, counted)
        return calls

    return count


@pytest.mark.parametrize("env", ["Probe-ActionReward", "host_envs:Target"])
def test_no_gradient_step_is_computed_before_learning_starts(env, computed):
    """In a run whose environment is in JAX, and in one whose environment is outside of it."""
    losses = computed(dqn, "mean_gradient")
    program = make_program(runs.parse(RUN | {"env": env}))
    program.compile()
    counts, state = [], program.start()
    for _ in range(5):
        chunk = program.advance(state, np.int32(1))
        jax.effects_barrier()
        counts.append(len(losses))
        state = chunk.state
        assert (chunk.metrics["loss"] == 0).all() == (counts[-1] == 0)
    program.close()
    assert counts == [0, 0, 0, 8, 16]


def test_the_delayed_policy_is_computed_when_it_is_due(computed):
    policy, critics = computed(td3, "policy_loss"), computed(td3, "critic_loss")
    config = td3.Config(**SMALL, learning_starts=0, policy_delay=3)
    losses = td3.Losses(critic=td3.critic_loss, policy=td3.policy_loss)
    agent = td3.make(config, Box(-1, 1, (3,)), Box(-1, 1, (1,)), losses=losses)
    state, metrics = jax.jit(agent.update)(start(td3, agent, Box(-1, 1, (1,))), rollout((1,)), jax.random.key(0))
    jax.block_until_ready(state)
    jax.effects_barrier()
    assert (policy.count("policy_loss"), critics.count("critic_loss")) == (3, 10)
    assert float(metrics["q"]) != 0


def start(module, agent, action_space):
    """The agent's first state, for N environments with observations [3]."""
    example = example_of(Box(-1, 1, (3,)), action_space)
    return jax.jit(agent.init, static_argnums=3)(module.Hyper(), jax.random.key(0), example, N)


def with_memories(agent, name, steps):
    """The rollout with the memories that R2D2 stores; that of other agents is unchanged."""
    if name != "r2d2":
        return steps
    return steps._replace(extras=jax.tree.map(lambda x: np.zeros((T, N, *np.shape(x)), np.float32), agent.memory.core))


def rollout(action_shape=(), dtype=np.float32):
    rng = np.random.default_rng(0)
    return Transition(
        obs=rng.standard_normal((T, N, 3)).astype(np.float32),
        action=np.zeros((T, N, *action_shape), dtype),
        reward=rng.standard_normal((T, N)).astype(np.float32),
        terminated=rng.random((T, N)) < 0.2,
        truncated=rng.random((T, N)) < 0.2,
        next_obs=rng.standard_normal((T, N, 3)).astype(np.float32),
    )


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("dqn", {"replay": "prioritized", "n_step": 2, "target_every": 7, "normalize_obs": True}),
        pytest.param("sac", {"replay": "prioritized"}, marks=pytest.mark.thorough),
        pytest.param("td3", {"normalize_obs": True}, marks=pytest.mark.thorough),
    ],
)
def test_updates_before_learning_starts_only_store(name, settings):
    """A state that learns later is, until then, what `Agent.add` makes, but for its counts; also of vmapped seeds."""
    module = agents.get(name)
    action_space = Box(-1, 1, (1,)) if name == "td3" else Discrete(2)
    agent = module.make(module.Config(**SMALL | settings | {"learning_starts": 100}), Box(-1, 1, (3,)), action_space)
    state, steps = start(module, agent, action_space), rollout(action_space.shape, action_space.dtype)
    added = jax.jit(agent.add)(state, steps)
    updated, _ = jax.jit(agent.update)(state, steps, jax.random.key(1))
    update = jax.vmap(agent.update, (0, None, 0))
    twice = jax.jit(lambda state, *given: update(jax.tree.map(lambda x: jnp.stack([x, x]), state), *given)[0])
    of_seeds = twice(state, steps, jax.random.split(jax.random.key(1), 2))
    assert int(updated.replay.num_steps) == T * N
    for found in (updated, jax.jit(lambda tree: jax.tree.map(lambda x: x[0], tree))(of_seeds)):
        found = found.replace(replay=found.replay.replace(num_steps=added.replay.num_steps))
        found = found.replace(replay=found.replay.replace(since_target=added.replay.since_target))
        if hasattr(added.replay.buffer, "beta"):
            assert float(found.replay.buffer.beta) > 0
        jax.tree.map(np.testing.assert_array_equal, *map(plain, (found, added)))


@pytest.mark.thorough
@pytest.mark.parametrize("name", [
    name if name in ("dqn", "sac", "r2d2", "bc") else pytest.param(name, marks=pytest.mark.slow)
    for name in agents.names() if name not in ("alphazero", "ppo", "pqn")
])  # fmt: skip
def test_waiting_is_an_update_before_learning_starts(name):
    """`Agent.wait` makes of the state, with one call for several rollouts, what updates one by one make of it."""
    module = agents.get(name)
    discrete = name not in ("crossq", "td3", "ddpg", "td3_bc", "rebrac", "tqc", "iql")
    action_space = Discrete(2) if discrete else Box(-1, 1, (1,))
    settings = SMALL | {"learning_starts": 100, "replay": "prioritized", "target_every": 7, "normalize_obs": True}
    if name == "r2d2":
        settings |= {"burn_in": 1, "unroll_len": 2, "n_step": 1}
    agent = module.make(module.Config(**settings), Box(-1, 1, (3,)), action_space)
    state, steps = start(module, agent, action_space), rollout(action_space.shape, action_space.dtype)
    steps = with_memories(agent, name, steps)
    waited, metrics = jax.jit(agent.wait)(state, jax.tree.map(lambda x: np.concatenate([x, x]), steps))
    update = jax.jit(agent.update)
    for _ in range(2):
        state, of_update = update(state, steps, jax.random.key(1))
    assert int(waited.replay.num_steps) == 2 * T * N
    assert {key: float(of_update[key]) for key in metrics} == {key: float(metrics[key]) for key in metrics}
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), *map(plain, (waited, state)))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", ["dqn", "sac", *(pytest.param(x, marks=pytest.mark.slow) for x in ("iql", "r2d2", "td3"))]
)
def test_a_target_network_stays_until_it_is_due(name):
    module, action_space = agents.get(name), Discrete(2) if name in ("dqn", "r2d2") else Box(-1, 1, (1,))
    settings = SMALL | {"learning_starts": 0, "target_every": 2 * T * N, "replay_ratio": 0.5}
    settings |= {"burn_in": 1, "unroll_len": 2, "n_step": 1} if name == "r2d2" else {}
    agent = module.make(module.Config(**settings), Box(-1, 1, (3,)), action_space)
    before, steps = start(module, agent, action_space), rollout(action_space.shape, action_space.dtype)
    steps = with_memories(agent, name, steps)
    update = jax.jit(agent.update)
    first, metrics = update(before, steps, jax.random.key(0))
    second, _ = update(first, steps, jax.random.key(1))
    assert metrics["grad_norm"] > 0
    jax.tree.map(np.testing.assert_array_equal, first.target_params, before.target_params)
    changed = jax.tree.map(lambda x, y: (x != y).any(), second.target_params, before.target_params)
    assert any(jax.tree.leaves(changed))


def plain(tree):
    """Keys as arrays of their bits."""
    return jax.tree.map(lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x, tree)
