"""The convolution of DQN for MinAtar."""

from rlkit.networks.encoders.conv import ConvLayer

LAYERS = (ConvLayer(16, 3, 1),)  # of Young and Tian 2019
SMALLEST = 3  # pixels a side, of which it leaves one
