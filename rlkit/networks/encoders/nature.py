"""The convolutions of DQN for Atari."""

from rlkit.networks.encoders.conv import ConvLayer

LAYERS = (ConvLayer(32, 8, 4), ConvLayer(64, 4, 2), ConvLayer(64, 3, 1))  # of Mnih et al. 2015
SMALLEST = 36  # pixels a side, of which these layers leave one
