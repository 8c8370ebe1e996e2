"""Transfer between runs: every field that an agent declares, under any name."""

import jax.numpy as jnp
import numpy as np
import pytest
from tiny_runs import SMALL

from rlkit.agents import ppo
from rlkit.runs import loop
from rlkit.types import Array, ConfigError


class State(ppo.State):
    """PPO's state with another network."""

    second_critic: dict[str, Array]


@pytest.mark.parametrize("declared", [True, False])
def test_a_network_of_another_name_is_transferred_where_it_is_declared(monkeypatch, tmp_path, declared):
    make = ppo.make

    def with_second_critic(*arguments, **settings):
        agent = make(*arguments, **settings)

        def init(*arguments):
            return State(**vars(agent.init(*arguments)), second_critic={"w": jnp.zeros(3)})

        def update(state, rollout, key):
            state, metrics = agent.update(state, rollout, key)
            return state.replace(second_critic={"w": state.second_critic["w"] + 1.0}), metrics

        trained = (*agent.trained, "second_critic") if declared else agent.trained
        return agent._replace(init=init, update=update, trained=trained)

    monkeypatch.setattr(ppo, "make", with_second_critic)
    source = loop.train(SMALL, out=tmp_path / "a", show=False)
    config = SMALL | {"total_steps": 32, "seed": 9}
    started = loop.train(config, out=tmp_path / "b", init_from=source.run, show=False).state.agent
    updates = 11.0 if declared else 1.0  # ten of the source, and one
    np.testing.assert_array_equal(started.second_critic["w"], np.full(3, updates))


def test_another_agent_is_named(tmp_path):
    source = loop.train(SMALL | {"total_steps": 32}, out=tmp_path / "a", show=False)
    other = {name: SMALL[name] for name in ("env", "num_envs", "num_steps", "total_steps", "hidden_sizes")}
    other |= {"agent": "dqn", "capacity": 512, "batch_size": 8}
    with pytest.raises(ConfigError, match="; use the agent, ppo, of that run, and "):
        loop.train(other, out=tmp_path / "b", init_from=source.run, show=False)


def test_another_activation_is_refused(tmp_path):
    """The arrays have the same shapes, but the policy would be another one from the first step on."""
    source = loop.train(SMALL | {"total_steps": 32}, out=tmp_path / "a", show=False)
    with pytest.raises(ConfigError, match=r"activation='relu' must be that of init_from=.*'tanh'"):
        loop.train(SMALL | {"activation": "relu"}, out=tmp_path / "b", init_from=source.run, show=False)
    assert not (tmp_path / "b").exists()


def test_other_atoms_are_refused(tmp_path):
    """A distribution of returns means another one on other atoms."""
    small = {"agent": "c51", "env": "CartPole-v1", "total_steps": 64, "num_envs": 4, "num_steps": 4, "capacity": 64}
    small |= {"hidden_sizes": [8], "batch_size": 4, "learning_starts": 16, "eval_episodes": 1}
    source = loop.train(small, out=tmp_path / "a", show=False)
    with pytest.raises(ConfigError, match=r"v_max=20.0 must be that of init_from=.*10"):
        loop.train(small | {"v_max": 20.0}, out=tmp_path / "b", init_from=source.run, show=False)


def test_code_of_another_environment_is_named_as_that_of_the_other_run(tmp_path):
    """The remedy of other commands, to name the environment, would change that of this run."""
    config = SMALL | {"total_steps": 32, "num_envs": 4, "hidden_sizes": [8], "env_kwargs": {}}
    source = loop.train(config | {"env": "jax_envs:Reach"}, out=tmp_path / "a", show=False)
    with pytest.raises(ConfigError, match=r"init_from=.* has env='jax_envs:Reach', .* this one has 'Pendulum-v1'"):
        loop.train(config | {"env": "Pendulum-v1"}, out=tmp_path / "b", init_from=source.run, show=False)
