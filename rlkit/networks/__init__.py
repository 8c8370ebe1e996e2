"""Networks: flax modules and their initializers, as `Network` pairs of functions."""

from rlkit.networks.encoders.conv import Conv
from rlkit.networks.encoders.mlp import ACTIVATIONS, MLP
from rlkit.networks.heads.actor_critic import ActorCritic
from rlkit.networks.initializers import orthogonal
from rlkit.networks.network import as_network
from rlkit.networks.norms.batch_renorm import BatchRenorm
from rlkit.types import Network

__all__ = ["ACTIVATIONS", "MLP", "ActorCritic", "BatchRenorm", "Conv", "Network", "as_network", "orthogonal"]
