"""One library's convolutional networks in a process of its own, for run.py: `python worker.py rlkit|torch`.

{"prepare": [name, way, network, batch, kind, passes]} makes a program, {"run": [name]} returns the seconds of one of
its passes. A pass is a forward pass of one batch, whose features are kept ("forward"), or the gradient of a loss and a
step of gradient descent ("gradient"). Passes follow each other as in learning: in a `lax.scan`, or in a loop of Python
in PyTorch.
"""

import itertools
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common.workers import serve

PACKAGES = ("rlkit-jax", "jax", "jaxlib", "flax", "torch", "stable-baselines3", "numpy")
LEARNING_RATE = 1e-3
NETWORKS = {  # images [H, W, C], units of the dense layer
    "nature": ((84, 84, 4), 512),
    "impala": ((84, 84, 4), 256),
    "minatar": ((10, 10, 4), 128),
}
THREADS = 2  # of PyTorch


def images(network: str, batch: int, passes: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (passes, batch, *NETWORKS[network][0]), np.uint8)


def patches(x: Any, kernel: Any, stride: int, padding: str) -> Any:
    """The convolution as rlkit computed it before: patches, joined along the channels, times a matrix."""
    import jax.numpy as jnp

    from rlkit import _cpu

    size, channels = kernel.shape[0], kernel.shape[-1]
    if padding == "SAME":
        assert stride == 1
        x = jnp.pad(x, ((0, 0), *[((size - 1) // 2, size // 2)] * 2, (0, 0)))
    rows, columns = (side - size + 1 for side in x.shape[1:3])
    offsets = itertools.product(range(size), repeat=2)
    joined = jnp.concatenate([x[:, i : i + rows : stride, j : j + columns : stride] for i, j in offsets], axis=-1)
    flat = joined.reshape(-1, joined.shape[-1])
    product = _cpu.affine(flat, kernel.reshape(-1, channels), jnp.zeros(channels, x.dtype))
    return product.reshape(*joined.shape[:-1], channels)


class Programs:
    """Programs by name, each a function that makes some passes."""

    def __init__(self) -> None:
        self.programs: dict[str, tuple[Callable[[], Any], int]] = {}

    def run(self, name: str) -> float:
        program, passes = self.programs[name]
        begin = time.perf_counter()
        program()
        return (time.perf_counter() - begin) / passes


class Rlkit(Programs):
    """rlkit's encoders, with their convolutions computed in one of three ways, or the batch divided over devices."""

    def __init__(self) -> None:
        from rlkit import _cpu

        super().__init__()
        self.convolution = _cpu.convolution

    def prepare(self, name: str, way: str, network: str, batch: int, kind: str, passes: int) -> None:
        """`way` is "rlkit", "rlkit, two devices", "lax.conv" or "patches"."""
        import jax
        import jax.numpy as jnp
        from jax.sharding import NamedSharding, PartitionSpec

        from rlkit import _cpu
        from rlkit.networks.encoders.conv import Conv
        from rlkit.networks.encoders.impala import Impala
        from rlkit.networks.encoders.registry import MINATAR, NATURE

        divided = way == "rlkit, two devices"
        os.environ["RLKIT_CPU_TRICKS"] = str(int(way != "lax.conv"))
        _cpu.convolution = patches if way == "patches" else self.convolution
        shape, units = NETWORKS[network]
        layers = {"nature": NATURE, "minatar": MINATAR}
        encoder = Impala((units,)) if network == "impala" else Conv(layers[network], (units,))
        params = encoder.init(jax.random.key(0), jnp.zeros(shape))
        data = jnp.asarray(images(network, batch, passes))

        def features(params: Any, frames: Any) -> Any:
            return encoder.apply(params, frames.astype(jnp.float32) / 255)

        def loss(params: Any, frames: Any) -> Any:
            return jnp.mean(jnp.square(features(params, frames) - 1))

        def learn(params: Any, frames: Any) -> Any:
            value, grad = jax.value_and_grad(loss)(params, frames)
            if divided:
                value, grad = jax.lax.pmean((value, grad), "data")
            return jax.tree.map(lambda w, g: w - LEARNING_RATE * g, params, grad), value

        def forward(params: Any, frames: Any) -> Any:
            return params, features(params, frames)

        step = learn if kind == "gradient" else forward
        program = partial(jax.lax.scan, step)
        if divided:  # as by `training.data_parallel`
            mesh = jax.make_mesh((2,), ("data",))
            specs = (PartitionSpec(), PartitionSpec(None, "data"))
            out_specs = (PartitionSpec(), PartitionSpec() if kind == "gradient" else specs[1])
            program = jax.shard_map(program, mesh=mesh, in_specs=specs, out_specs=out_specs, check_vma=False)
            data = jax.device_put(data, NamedSharding(mesh, specs[1]))
        compiled = jax.jit(program).lower(params, data).compile()
        self.programs[name] = (lambda: jax.block_until_ready(compiled(params, data))), passes


class Torch(Programs):
    """Stable-Baselines3's NatureCNN with its settings: channels first, bytes divided by 255."""

    def __init__(self) -> None:
        import torch

        super().__init__()
        torch.set_num_threads(THREADS)

    def prepare(self, name: str, way: str, network: str, batch: int, kind: str, passes: int) -> None:
        """`way` is "torch", or "torch, channels last", which stores images and weights in that order."""
        import torch
        from gymnasium.spaces import Box
        from stable_baselines3.common.torch_layers import NatureCNN

        assert network == "nature"
        memory_format = torch.channels_last if "last" in way else torch.contiguous_format
        shape, units = NETWORKS[network]
        torso = NatureCNN(Box(0, 255, (shape[2], *shape[:2]), np.uint8), units).to(memory_format=memory_format)
        optimizer = torch.optim.SGD(torso.parameters(), LEARNING_RATE)
        stored = torch.as_tensor(images(network, batch, passes)).permute(0, 1, 4, 2, 3)
        data = [frames.contiguous(memory_format=memory_format) for frames in stored]

        def features(frames: Any) -> Any:
            return torso(frames.float() / 255)

        def learn() -> None:
            for frames in data:
                optimizer.zero_grad()
                torch.mean(torch.square(features(frames) - 1)).backward()
                optimizer.step()

        def forward() -> None:
            with torch.no_grad():
                [features(frames) for frames in data]

        self.programs[name] = (learn if kind == "gradient" else forward), passes


if __name__ == "__main__":
    serve({"rlkit": Rlkit, "torch": Torch}[sys.argv[1]](), PACKAGES)
