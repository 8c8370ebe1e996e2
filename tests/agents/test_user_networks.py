"""Networks of the user's own that do not fit are refused when an agent is made, in one line."""

import re

import flax.linen as nn
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
        module.make(module.Config(), OBS, action_space or Discrete(2), network=network)
    except ConfigError as error:
        message = str(error)
    else:
        return None
    assert "\n" not in message
    return message


def returning(*shapes, memory=()):
    """A network whose outputs have these shapes for one observation, whatever its inputs."""

    def apply(params, obs, *inputs):
        outputs = tuple(jnp.zeros((*obs.shape[:-1], *shape)) for shape in shapes)
        outputs = (*outputs, inputs[0]) if len(memory) else outputs
        return outputs if len(outputs) > 1 else outputs[0]

    return Network(lambda key, obs, *inputs: {}, apply, memory)


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
    assert re.match(r"network must return .* of shapes .*\[.* for one observation, and it returned", make(name, wrong))


@pytest.mark.parametrize(("space", "right", "expected"), [
    (MultiDiscrete((2, 3)), returning((5,), ()), "(logits, value) of shapes ([5], [])"),
    (Box(-1, 1, (2, 3)), Network(lambda *_: {}, lambda p, obs: ((obs[..., jnp.arange(6) % 4],) * 2, obs[..., 0])),
     "((loc, log_std), value) of shapes (([6], [6]), [])"),
])  # fmt: skip
def test_the_policy_has_an_output_for_each_part_of_an_action(space, right, expected):
    assert make("ppo", right, space) is None
    assert expected in make("ppo", returning((7,), ()), space)


def test_a_batch_keeps_its_axis():
    """A network that flattens all of its input fits one observation alone."""
    network = (lambda key, obs: {}, lambda p, obs: (jnp.zeros(2), jnp.zeros(())))
    assert "([3, 2], [3]) for a batch of 3 observations, and it returned ([2], [])" in make("ppo", network)


def test_memories_belong_to_recurrent_agents():
    assert "must have a memory" in make("r2d2", returning((2,)))
    assert "must have no memory" in make("dqn", returning((2,), memory=MEMORY))


@pytest.mark.parametrize(("layer", "words"), [
    (nn.BatchNorm(use_running_average=False), "batch_stats too; use LayerNorm or GroupNorm"),
    (nn.BatchNorm(use_running_average=True), "batch_stats too; use LayerNorm or GroupNorm"),
    (nn.BatchNorm(), "use LayerNorm or GroupNorm in place of BatchNorm, whose batch_stats are not kept"),
    (nn.Dropout(0.5, deterministic=False), '"dropout"); use a Dropout with deterministic=True'),
    (nn.Dropout(0.5), "use a Dropout with deterministic=True"),
])  # fmt: skip
def test_statistics_of_batches_and_random_layers_are_refused(layer, words):
    assert words in make("ppo", Module(layer))


@pytest.mark.parametrize("layer", [nn.LayerNorm(), nn.GroupNorm(2), nn.Dropout(0.5, deterministic=True)])
def test_layers_without_either_are_taken(layer):
    assert make("ppo", Module(layer)) is None


def test_a_network_that_cannot_be_traced_is_named_with_its_error():
    def fail(key, obs):
        raise KeyError("camera")

    with pytest.raises(ConfigError, match=re.escape("init(key, obs) that JAX can trace, and it raised KeyError")):
        ppo.make(ppo.Config(), OBS, Discrete(2), network=(fail, fail))
