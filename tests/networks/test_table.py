"""The table of an agent's layers, by hand."""

import flax.linen as nn
import numpy as np

from rlkit import agents
from rlkit.networks.table import table
from rlkit.spaces import Box, Dict, Discrete


def rows(name, obs_space, action_space, networks=None, **settings):
    """The cells of each row but the header."""
    module = agents.get(name)
    agent = module.make(module.Config(**settings), obs_space, action_space, networks)
    lines = table(agent, module.Hyper(), obs_space, action_space, 4).splitlines()
    return [line.split() for line in lines[1:]]


def test_dense_layers():
    """3 inputs, 8 and 2 units, twice: weights and biases; two operations for each weight."""
    table = rows("ppo", Box(-1, 1, (3,)), Discrete(2), hidden_sizes=(8,))
    assert [row[1:] for row in table[:2]] == [["3", "8", "32", "48"]] * 2
    assert table[-1] == ["all", str(2 * 32 + 18 + 9), str(2 * 48 + 32 + 16)]


def test_convolutions_count_every_place():
    """36 x 36 to 8 x 8 with 32 filters of 8 x 8 x 1, beside a vector."""
    space = Dict({"camera": Box(0, 255, (36, 36, 1), np.uint8), "joints": Box(-1, 1, (2,))})
    table = rows("dqn", space, Discrete(2), capacity=8, batch_size=2)
    first = next(row for row in table if "Convolution_0" in row[0])
    assert first[1:] == ["1x36x36x1", "1x8x8x32", f"{8 * 8 * 32 + 32:,}", f"{2 * 8 * 8 * 8 * 8 * 32:,}"]


def test_a_recurrent_cell_has_the_weights_of_its_memory():
    table = rows("r2d2", Box(-1, 1, (3,)), Discrete(2), hidden_sizes=(8,), memory_size=4, recurrent="gru", capacity=96)
    assert next(row for row in table if row[0].endswith("cell"))[-2:] == [str(4 * 12 + 4), str(2 * 4 * 12)]


def test_networks_of_the_user_have_rows_where_they_are_of_flax():
    class Q(nn.Module):
        @nn.compact
        def __call__(self, obs):
            return nn.Dense(2)(obs)

    assert rows("dqn", Box(-1, 1, (3,)), Discrete(2), Q()) == [
        ["Q/Dense_0", "3", "2", "8", "12"],
        ["all", "8", "12"],
    ]
    functions = (lambda key, obs: np.zeros((3, 2), np.float32)), (lambda params, obs: obs @ params)
    assert rows("dqn", Box(-1, 1, (3,)), Discrete(2), functions) == []
