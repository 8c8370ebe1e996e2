"""Updates with rollouts of environments outside of JAX, before learning starts and after."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_runs import digest

from rlkit import agents, runs
from rlkit.runs.programs import host_program
from rlkit.runs.programs.host_update import HostUpdate
from rlkit.runs.programs.replay_state import split
from rlkit.spaces import Box, Discrete
from rlkit.training import TrainState
from rlkit.types import Transition

SMALL = {"hidden_sizes": (4,), "capacity": 64, "batch_size": 4, "learning_starts": 100}
DQN = {
    "agent": "dqn",
    "env": "host_envs:Target",
    "num_envs": 2,
    "num_steps": 4,
    "total_steps": 64,
    "hidden_sizes": [4],
    "capacity": 64,
    "batch_size": 4,
    "learning_starts": 32,
    "eval_episodes": 2,
    "backend": "serial",
}
T, N = 5, 2


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("dqn", {"replay": "prioritized", "n_step": 2, "target_every": 7, "normalize_obs": True}),
        *[
            pytest.param(name, settings, marks=pytest.mark.thorough)
            for name, settings in {
                "dqn": {},
                "c51": {"num_atoms": 5},
                "qrdqn": {"num_quantiles": 3},
                "iqn": {},
                "r2d2": {"memory_size": 4, "burn_in": 1, "unroll_len": 2, "target_every": 7},
                "sac": {"replay": "prioritized"},
                "td3": {"normalize_obs": True},
                "iql": {},
            }.items()
        ],
    ],
)
def test_an_update_before_learning_starts_is_the_same_without_gradient_steps(name, settings):
    """Bit for bit: the state, with its counts and its buffer, and the metrics."""
    module = agents.get(name)
    config = module.Config(**SMALL | settings)
    action_space = Box(-1, 1, (1,)) if name in ("td3", "iql") else Discrete(2)
    agent = module.make(config, Box(-1, 1, (3,)), action_space)
    obs, flag = jnp.zeros((3,)), jnp.zeros((), bool)
    action = jnp.zeros(action_space.shape, action_space.dtype)
    state = agent.init(module.Hyper(), jax.random.key(0), Transition(obs, action, jnp.zeros(()), flag, flag, obs), N)
    rng = np.random.default_rng(0)
    rollout = Transition(
        obs=rng.standard_normal((T, N, 3)).astype(np.float32),
        action=np.zeros((T, N, *action.shape), action.dtype),
        reward=rng.standard_normal((T, N)).astype(np.float32),
        terminated=rng.random((T, N)) < 0.2,
        truncated=rng.random((T, N)) < 0.2,
        next_obs=rng.standard_normal((T, N, 3)).astype(np.float32),
        extras=jax.tree.map(lambda x: np.zeros((T, N, *np.shape(x)), np.float32), agent.memory.core)
        if name == "r2d2"
        else (),
    )
    train_state = TrainState(state, (), jax.random.key(1), jnp.int32(0))
    update = HostUpdate(agent, *jax.eval_shape(lambda: (train_state, rollout)), config.learning_starts)
    whole = waiting = state
    for key in jax.random.split(jax.random.key(2), 3):
        whole, metrics, finite = update._update(*reversed(split(jax.tree.map(jnp.array, whole))), rollout, key)
        waiting, counted, also_finite = update._store_only(
            *reversed(split(jax.tree.map(jnp.array, waiting))), rollout, key
        )
        assert digest(whole) == digest(waiting)
        assert list(metrics) == list(counted)
        for one, other in zip(metrics.values(), counted.values(), strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)
        assert bool(finite)
        assert bool(also_finite)


def test_no_gradient_step_is_computed_before_learning_starts():
    """The first update after which the buffer holds `learning_starts` steps learns."""
    program = host_program.HostProgram(runs.parse(DQN))
    program.compile()
    update, called = program._compiled, []
    for name in ("_update", "_store_only"):
        compiled = getattr(update, name)
        setattr(update, name, lambda *args, name=name, compiled=compiled: (called.append(name), compiled(*args))[1])
    chunk = program.advance(program.start(), np.int32(5))
    program.close()
    assert called == ["_store_only"] * 3 + ["_update"] * 2
    assert int(chunk.state.agent.replay.num_steps) == 40
    assert (chunk.metrics["loss"][:3] == 0).all()
    assert (chunk.metrics["loss"][3:] != 0).all()
