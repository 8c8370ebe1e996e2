"""Policies that are an MLP as NumPy arrays, for `numpy_policy`."""

import io
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from rlkit.agents.iqn import midpoints
from rlkit.hosts.placeholder import HostEnv
from rlkit.names import OWN_CODE
from rlkit.networks import features
from rlkit.networks.encoders.combine import choose
from rlkit.networks.heads.implicit_quantiles import cosines
from rlkit.networks.norms.batch_renorm import BatchRenorm
from rlkit.ops.statistics import running_std
from rlkit.runs.exporting import numpy_policy
from rlkit.runs.exporting.policy_function import ACTION, Arrays, PolicyFunction
from rlkit.runs.policy import Policy
from rlkit.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from rlkit.types import ConfigError

_ENCODERS = ("encoders_actor", "encoders_shared", "encoder", "Encoder_0")  # of a policy, by the heads that have them


def to_bytes(function: PolicyFunction) -> bytes:
    """Return an archive of arrays, and of a string `about`, JSON.

    Raises:
      ConfigError: the policy is more than an MLP of one vector.
    """
    _require_mlp(function)
    policy, config = function.policy, function.policy.config.agent.for_observations(function.obs_space)
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), policy.actor.params)["params"]
    arrays, about = _inputs(function)
    encoder = next((name for name in _ENCODERS if name in params), None)
    layers = params.get(encoder, {}).get("MLP_0", {})
    moments = policy.actor.stats["batch_stats"][encoder]["MLP_0"] if "BatchRenorm_0" in layers else None
    count = sum(name.startswith("Dense") for name in layers)
    for i in range(count):
        arrays |= {f"{name}_{i}": x for name, x in _behind_norm(layers, moments, i, layers[f"Dense_{i}"]).items()}
        if config.layer_norm:
            arrays |= {f"norm_{name}_{i}": x for name, x in layers[f"LayerNorm_{i}"].items()}
    head, about_head = _head(policy, params)
    head = _behind_norm(layers, moments, count, head)
    about |= {"num_layers": count, "layer_norm": config.layer_norm, "activation": config.activation, **about_head}
    for name, values in (("inputs", function.inputs), ("outputs", function.outputs)):
        about[name] = [{"name": v.name, "shape": list(v.shape), "dtype": v.dtype.name} for v in values]
    arrays = {name: np.asarray(x, np.float32) for name, x in (arrays | head).items()}
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, about=np.array(json.dumps(function.about | about)), **arrays)
    return file.getvalue()


def _behind_norm(
    layers: Mapping[str, Any], moments: Mapping[str, Any] | None, i: int, dense: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the arrays of a dense layer, which compute the batch renormalization before it as well if there is one."""
    if moments is None:
        return dict(dense)
    norm, running = layers[f"BatchRenorm_{i}"], moments[f"BatchRenorm_{i}"]
    factor = norm["scale"] / np.sqrt(np.asarray(running["var"], np.float64) + BatchRenorm.epsilon)
    shift = norm["bias"] - factor * np.asarray(running["mean"], np.float64)
    kernel, bias = dense["kernel"], dense["bias"]
    return {**dense, "kernel": factor[:, None] * kernel, "bias": bias + shift @ kernel}


def reader(data: bytes) -> Callable[[Arrays], Arrays]:
    """Return a function from inputs to outputs, NumPy arrays, that is computed by `numpy_policy`."""
    policy = numpy_policy.load(io.BytesIO(data))
    return lambda inputs: {ACTION: numpy_policy.act(policy, inputs)}


def _require_mlp(function: PolicyFunction) -> None:
    """Raise a ConfigError unless the policy is an MLP of one vector."""
    config, run = function.policy.config.agent, function.policy.config.run
    action_space, reason = function.policy.env.action_space(function.policy.params), None
    if OWN_CODE.fullmatch(run.agent):
        reason = f"agent={run.agent!r}"
    elif run.network is not None:
        reason = f"network={run.network!r}"
    elif isinstance(action_space, Dict | Tuple):
        reason = f"actions of a {type(action_space).__name__}"
    elif len(function.outputs) > 1:
        reason = f"a memory, {function.outputs[1].name}"
    elif found := [kind for kind in choose(function.obs_space, config) if kind != "none"]:
        reason = f"the encoder {found[0]}"
    elif config.compute_dtype != "float32":
        reason = f"compute_dtype={config.compute_dtype!r}"
    elif isinstance(env := function.policy.env, HostEnv) and not env.counts_from_0:
        reason = "integers that do not count from 0"
    if reason is not None:
        raise ConfigError(
            f"format='npz' needs a policy that is an MLP, and this one has {reason}; take stablehlo or onnx"
        )


def _inputs(function: PolicyFunction) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return mean, scale and clip [D] of the columns of the joined vector, and a description of its leaves."""
    space, stats, names = function.obs_space, function.policy.actor.obs_stats, function.obs_names
    moments = {}
    if not isinstance(stats, tuple):
        std = running_std(stats)
        moments = {
            name: (np.asarray(stats.mean[path]), np.asarray(std[path]))
            for path, name in features.by_path(names).items()
            if path in stats.mean
        }
    columns, described = [], []
    for leaf in features.leaves(space, names):
        size, one_hot, mean, scale, clip = math.prod(leaf.space.shape), (), 0.0, 1.0, np.inf
        if isinstance(leaf.space, Discrete | MultiDiscrete):
            one_hot = (leaf.space.n,) if isinstance(leaf.space, Discrete) else leaf.space.nvec
        elif leaf.value in moments:
            mean, std = moments[leaf.value]
            mean, scale, clip = mean.reshape(-1), np.sqrt(np.square(std) + np.float32(1e-8)).reshape(-1), 10.0
        elif leaf.space.dtype == np.uint8:
            mean, scale = (part.reshape(-1) for part in features.byte_range(leaf.space))
        described.append({"name": leaf.value, "size": size, "one_hot": [int(n) for n in one_hot]})
        columns.append([np.broadcast_to(x, sum(one_hot) or size) for x in (mean, scale, clip)])
    mean, scale, clip = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    return {"mean": mean, "scale": scale, "clip": clip}, {"leaves": described}


def _head(policy: Policy, params: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays of the last layer and of the action's scaling, and a description."""
    space, config = policy.env.action_space(policy.params), policy.config.agent
    if isinstance(space, Box):
        arrays = dict(params["policy" if "policy" in params else "loc"])
        arrays |= {"low": space.low.reshape(-1), "high": space.high.reshape(-1)}
        return arrays, {"head": "box", "squash": getattr(config, "squash", True)}
    assert isinstance(space, Discrete | MultiDiscrete)
    nvec = [space.n] if isinstance(space, Discrete) else [int(n) for n in space.nvec]
    if "advantage" not in params:
        return dict(params["policy" if "policy" in params else "loc"]), {"head": "values", "nvec": nvec}
    kernel, bias = _values(params, sum(nvec))
    if "embedding" in params:  # iqn: a linear head, of features times the mean of the embeddings of all fractions
        cosine = np.asarray(cosines(midpoints(config.num_value_quantiles), config.num_cosines), np.float64)
        phi = np.maximum(cosine @ params["embedding"]["kernel"] + params["embedding"]["bias"], 0.0)
        kernel = phi.mean(0)[:, None, None] * kernel
    if hasattr(config, "atoms"):
        arrays = {"kernel": kernel.reshape(len(kernel), -1), "bias": bias.reshape(-1), "atoms": config.atoms}
        return arrays, {"head": "distribution", "nvec": nvec}
    return {"kernel": kernel.mean(-1), "bias": bias.mean(-1)}, {"head": "values", "nvec": nvec}


def _values(params: Mapping[str, Any], num_actions: int) -> tuple[np.ndarray, np.ndarray]:
    """Return kernel [F, A, outputs] and bias [A, outputs] of a Q-network's head, the sum of both parts if dueling."""

    def part(name: str, actions: int) -> tuple[np.ndarray, np.ndarray]:
        dense = params[name].get("Dense_0", params[name])  # that of a noisy layer acts without noise
        return dense["kernel"].reshape(len(dense["kernel"]), actions, -1), dense["bias"].reshape(actions, -1)

    kernel, bias = part("advantage", num_actions)
    if "value" not in params:
        return kernel, bias
    of_value = part("value", 1)
    return kernel - kernel.mean(1, keepdims=True) + of_value[0], bias - bias.mean(0, keepdims=True) + of_value[1]
