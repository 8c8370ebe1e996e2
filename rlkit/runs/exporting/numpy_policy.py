"""A reader of `rlkit export --format npz`, which needs NumPy alone, so that this file can be copied."""

import json

import numpy as np

ACTIVATIONS = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x * (1 + np.tanh(x / 2)) / 2,
    "gelu": lambda x: x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2,
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
}


def load(path):
    """Return the arrays of a file, with the entries of its JSON `about`."""
    with np.load(path) as arrays:
        return {**arrays, **json.loads(arrays["about"].item())}


def act(p, inputs):
    """Return the actions [B, ...] for a dict of inputs [B, ...], by the names in p["inputs"]."""
    columns = []
    for leaf in p["leaves"]:  # integers are one-hot
        x = np.asarray(inputs[leaf["name"]]).reshape(-1, leaf["size"])
        columns += [np.eye(n)[x[:, i]] for i, n in enumerate(leaf["one_hot"])] or [x]
    x = np.concatenate(columns, 1).astype(np.float32)
    x = np.clip((x - p["mean"]) / p["scale"], -p["clip"], p["clip"])
    for i in range(p["num_layers"]):
        x = x @ p[f"kernel_{i}"] + p[f"bias_{i}"]
        if p["layer_norm"]:
            x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-6)
            x = x * p[f"norm_scale_{i}"] + p[f"norm_bias_{i}"]
        x = ACTIVATIONS[p["activation"]](x)
    x = (x @ p["kernel"] + p["bias"]).astype(np.float32)
    if p["head"] == "box":
        below, above = (np.abs(p[bound]) < np.finfo(np.float32).max for bound in ("low", "high"))  # finite
        both, origin = below & above, np.where(below, p["low"] + 1, np.where(above, p["high"] - 1, 0))
        low, high = np.where(both, p["low"], -1), np.where(both, p["high"], 1)
        unit = np.tanh(x) if p["squash"] else np.clip(x, -1, 1)
        x = np.where(both, low + (high - low) * (unit + 1) / 2, x + origin)
        x = np.clip(x, p["low"], p["high"])
    else:
        if p["head"] == "distribution":  # of returns: their means
            x = x.reshape(len(x), -1, len(p["atoms"]))
            x = np.exp(x - x.max(2, keepdims=True))
            x = x @ p["atoms"] / x.sum(2)
        if "obs/action_mask" in inputs:
            x = np.where(inputs["obs/action_mask"], x, -np.inf)
        x = np.stack([part.argmax(1) for part in np.split(x, np.cumsum(p["nvec"])[:-1], 1)], 1)
    action = p["outputs"][0]
    return x.reshape(-1, *action["shape"]).astype(action["dtype"])
