"""Networks: flax modules and their initializers, as `Network` pairs of functions."""

from rlkit.networks.actor_critic import ActorCritic
from rlkit.networks.initializers import orthogonal
from rlkit.networks.network import as_network
from rlkit.networks.torsos import ACTIVATIONS, MLP, Conv
from rlkit.types import Network

__all__ = ["ACTIVATIONS", "MLP", "ActorCritic", "Conv", "Network", "as_network", "orthogonal"]
