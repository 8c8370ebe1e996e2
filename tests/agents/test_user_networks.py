"""Networks of the user's own that do not fit are refused when an agent is made, in one line."""

import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlkit import agents
from rlkit.agents import ppo
from rlkit.spaces import Box, Discrete, MultiDiscrete
from rlkit.types import ConfigError, Network

OBS = Box(-1, 1, (4,))
MEMORY = np.zeros(3, np.float32)


def make(name, network, action_space=None):
    """An agent for two actions; the message of its ConfigError, which is one line, or None."""
    module = agents.get(name)
    try:
        module.make(module.Config(), OBS, action_space or Discrete(2), networks=network)
    except ConfigError as error:
        message = str(error)
    else:
        return None
    assert "\n" not in message
    return message


def returning(*shapes, memory=()):
    """Functions of a network whose outputs have these shapes for one observation, whatever its inputs."""

    def apply(params, obs, *inputs):
        outputs = tuple(jnp.zeros((*obs.shape[:-1], *shape)) for shape in shapes)
        outputs = (*outputs, inputs[0]) if len(memory) else outputs
        return outputs if len(outputs) > 1 else outputs[0]

    return (lambda key, obs, *inputs: {}), apply, memory


class Module(nn.Module):
    """Two logits and a value, after a layer of the test's choice."""

    layer: nn.Module

    @nn.compact
    def __call__(self, obs):
        hidden = self.layer(nn.Dense(8)(obs))
        return nn.Dense(2)(hidden), nn.Dense(1)(hidden)[..., 0]


@pytest.mark.parametrize(("name", "right", "wrong"), [
    ("ppo", returning((2,), ()), returning((5,), ())),
    ("ppo", returning((2,), (), memory=MEMORY), returning((5,), (), memory=MEMORY)),
    ("dqn", returning((2,)), returning((5,))),
    ("pqn", returning((2,)), returning((5,))),
    ("c51", returning((2, 51)), returning((2, 50))),
    ("qrdqn", returning((2, 51)), returning((5, 51))),
    ("iqn", returning((32, 2)), returning((32, 5))),
    ("r2d2", returning((2,), memory=MEMORY), returning((5,), memory=MEMORY)),
])  # fmt: skip
def test_outputs_of_another_width_are_refused(name, right, wrong):
    assert make(name, right) is None
    assert re.match(r"networks must return .* of shapes .*\[.* for one observation, and it returned", make(name, wrong))


@pytest.mark.parametrize(("space", "right", "expected"), [
    (MultiDiscrete((2, 3)), returning((5,), ()), "(logits, value) of shapes ([5], [])"),
    (Box(-1, 1, (2, 3)), (lambda *_: {}, lambda p, obs: ((obs[..., jnp.arange(6) % 4],) * 2, obs[..., 0])),
     "((loc, log_std), value) of shapes (([6], [6]), [])"),
])  # fmt: skip
def test_the_policy_has_an_output_for_each_part_of_an_action(space, right, expected):
    assert make("ppo", right, space) is None
    assert expected in make("ppo", returning((7,), ()), space)


class Low(nn.Module):
    """Q of two critics, computed in less precision."""

    param_dtype: type = jnp.float32

    @nn.compact
    def __call__(self, obs, action):
        x = nn.relu(nn.Dense(8, dtype=jnp.bfloat16, param_dtype=self.param_dtype)(jnp.concatenate([obs, action], -1)))
        return jnp.stack([nn.Dense(1, dtype=jnp.bfloat16)(x)[..., 0] for _ in range(2)])


@pytest.mark.parametrize("name", ["td3", "sac", "iql"])
def test_outputs_of_less_precision_are_used_in_float32(name):
    module, actions = agents.get(name), Box(-1, 1, (3,))
    agent = module.make(module.Config(), OBS, actions, {"critics": Low()})
    variables = agent.static.networks.critics.init(jax.random.key(0), jnp.zeros(4), jnp.zeros(3))
    q, _ = agent.static.networks.critics.apply(*variables, jnp.zeros(4), jnp.zeros(3))
    assert (q.shape, q.dtype) == ((2,), jnp.float32)


def test_parameters_and_memories_keep_their_dtypes():
    critics = {"critics": Low(jnp.bfloat16)}
    assert "critics must have float32 parameters, and it has some of bfloat16" in make("sac", critics, Box(-1, 1, (3,)))

    def apply(params, obs, memory):
        return jnp.zeros((*obs.shape[:-1], 2)), memory.astype(float)

    init = returning((2,), memory=MEMORY)[0]
    assert make("r2d2", (init, apply, MEMORY)) is None
    assert "must return a memory of int32" in make("r2d2", (init, apply, np.zeros(3, np.int32)))


def test_a_batch_keeps_its_axis():
    """A network that flattens all of its input fits one observation alone."""
    network = (lambda key, obs: {}, lambda p, obs: (jnp.zeros(2), jnp.zeros(())))
    assert "([3, 2], [3]) for a batch of 3 observations, and it returned ([2], [])" in make("ppo", network)


def test_memories_belong_to_recurrent_agents():
    assert "must have a memory" in make("r2d2", returning((2,)))
    assert "must have no memory" in make("dqn", returning((2,), memory=MEMORY))


@pytest.mark.parametrize("layer", [nn.BatchNorm(use_running_average=False), nn.BatchNorm(), nn.Dropout(0.5)])
def test_layers_that_do_not_know_whether_they_train_are_refused(layer):
    assert "let its call take `train`" in make("ppo", Module(layer))


def test_a_layer_that_never_draws_is_taken():
    assert make("ppo", Module(nn.Dropout(0.5, deterministic=True))) is None


@pytest.mark.parametrize(("network", "words"), [
    (Network(lambda key, obs: {}, lambda params, stats, obs: (obs, stats)), "that returns (params, stats)"),
    (Network(lambda key, obs: ({}, jnp.zeros(3)), lambda params, stats, obs, **_: ((obs[..., :2], obs[..., 0]), ())),
     "statistics of the shapes of init's"),
    (nn.Dense, "takes `rngs`"),
    (7, "7 is no network"),
])  # fmt: skip
def test_a_network_of_another_form_is_refused(network, words):
    assert words in make("ppo", network)


@pytest.mark.parametrize(("networks", "words"), [
    ({"critic": returning((2,))}, "no 'critic' for this agent; it takes critics, policy"),
    ((lambda key, obs: {}, lambda p, obs: obs), "networks must be a dict with some of critics, policy"),
    ({"critics": returning((2,), ())}, "critics must return Q of shapes [2, 2]"),
    ({"policy": returning((5,))}, "policy must return logits of shapes [2] for one observation"),
])  # fmt: skip
def test_networks_of_an_actor_critic_agent_are_named(networks, words):
    assert words in make("sac", networks)


def test_a_network_that_cannot_be_traced_is_named_with_its_error():
    def fail(key, obs):
        raise KeyError("camera")

    with pytest.raises(ConfigError, match=re.escape("init(key, obs) that JAX can trace, and it raised KeyError")):
        ppo.make(ppo.Config(), OBS, Discrete(2), networks=(fail, fail))
