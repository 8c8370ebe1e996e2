"""Functions and modules of other libraries as `Network` records."""

import functools
import inspect
import math
import sys
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rlkit.networks.initializers import stacked_init
from rlkit.networks.norms.noisy import STREAM
from rlkit.types import Array, Key, Network, Parts, PyTree

_TRAINING = ("train", "training", "is_training")  # arguments of a module's call that are true in training
_ACTING = ("deterministic", "use_running_average")  # and that are false


def as_network(definition: Any, *inputs: PyTree, memory: PyTree = ()) -> Network:
    """Return a `Network` from a definition in one of these forms.

        as_network(MyModule(width=64))                             # flax linen
        as_network(lambda rngs: MyModule(64, rngs=rngs))           # flax NNX
        as_network(lambda key: MyModule(64, key=key), obs)         # equinox
        as_network((init, apply))                                  # init(key, obs) -> params, apply(params, obs)
        Network(init, apply)                                       # with statistics: returned as it is

    A module's collections other than its parameters (`batch_stats`, `BatchStat`, the state of equinox) are the
    statistics. An argument `train`, `training`, `deterministic` or `use_running_average` of its call is set by the
    `train` of `Network.apply`, and dropout draws from its `key`. An NNX or equinox module that exists already has its
    weights, the same for all seeds; a function of `rngs` or of `key` that makes a module draws them anew.

    Args:
      definition: any of the above. `init` and `apply` may be attributes of an object as well.
      inputs: one example of each input, arrays or `jax.ShapeDtypeStruct`; equinox modules, which are functions of one
        observation, need them to find the batch axes.
      memory: initial carry of a recurrent module, for one environment. Its call takes the memory last, and returns a
        tuple whose last entry is the next one. A linen module with the methods `encode`, `advance` and `decode` of
        `types.Parts` runs only the second one along time, or its method `unroll` if it has one.

    Raises:
      TypeError: the definition has none of these forms.
    """
    if isinstance(definition, Network):
        return definition._replace(parts=definition.parts and Parts(*definition.parts))
    if isinstance(definition, nn.Module):
        return _linen(definition, memory)
    if isinstance(definition, tuple):
        return _pair(*definition, **({} if len(definition) > 2 else {"memory": memory}))
    if hasattr(definition, "init") and hasattr(definition, "apply") and not isinstance(definition, type):
        return _pair(definition.init, definition.apply, getattr(definition, "memory", memory))
    if callable(definition) and not _is_made(definition):
        return _made_by(definition, inputs, memory)
    raise TypeError(
        f"{definition!r} is no network; give a flax linen module, a function of `rngs` that makes an NNX module, a "
        "function of `key` that makes an equinox module, or a pair (init, apply)"
    )


def _pair(init: Callable, apply: Callable, memory: PyTree = ()) -> Network:
    """A network from two functions of parameters alone."""

    def init_both(key: Key, *inputs: PyTree) -> tuple[PyTree, PyTree]:
        return init(key, *inputs), ()

    def apply_both(params: PyTree, stats: PyTree, *inputs: PyTree, train=False, key=None) -> tuple[Any, PyTree]:
        return apply(params, *inputs), stats

    return Network(init_both, apply_both, memory)


def _linen(module: nn.Module, memory: PyTree) -> Network:
    """A network from a flax linen module."""
    init_variables = stacked_init(module)

    def init(key: Key, *inputs: PyTree) -> tuple[PyTree, PyTree]:
        variables = dict(init_variables(key, *inputs, **training_flags(type(module).__call__, train=False)))
        return {"params": variables.pop("params", {})}, variables or ()

    def method(name: str) -> Callable[..., tuple[Any, PyTree]]:
        function = getattr(type(module), name)

        def call(params: PyTree, stats: PyTree, *inputs: PyTree, train=False, key=None) -> tuple[Any, PyTree]:
            rngs = None if key is None else {STREAM: key} | {s: jax.random.clone(key) for s in ("dropout", "params")}
            settings: dict[str, Any] = {"rngs": rngs, "method": function, **training_flags(function, train)}
            if not (train and stats):
                return module.apply({**params, **dict(stats)}, *inputs, **settings), stats
            return module.apply({**params, **stats}, *inputs, **settings, mutable=list(stats))

        return call

    if not (jax.tree.leaves(memory) and all(hasattr(module, name) for name in ("encode", "advance", "decode"))):
        return Network(init, method("__call__"), memory)

    def along_time(name: str) -> Callable[..., Any]:
        call = method(name)
        return lambda *arguments: call(*arguments)[0]

    unroll = along_time("unroll") if hasattr(module, "unroll") else None
    parts = Parts(method("encode"), along_time("advance"), method("decode"), unroll)
    return Network(init, method("__call__"), memory, parts)


def training_flags(function: Callable, train: bool) -> dict[str, bool]:
    """Return the arguments of a module's function that distinguish training from acting, with their values."""
    names = inspect.signature(function).parameters
    return {name: train for name in _TRAINING if name in names} | {name: not train for name in _ACTING if name in names}


def _is_made(definition: Any) -> bool:
    """True for a module of NNX or equinox whose weights have been drawn already."""
    return isinstance(definition, _classes("flax.nnx") + _classes("equinox"))


def _classes(library: str) -> tuple[type, ...]:
    """The class of a library's modules; () where the library is not imported, so that no module can be of it."""
    return (sys.modules[library].Module,) if library in sys.modules else ()


def _made_by(make: Callable, inputs: tuple, memory: PyTree) -> Network:
    """A network from a function of `rngs` that makes an NNX module, or of `key` that makes an equinox module."""
    function = make.func if isinstance(make, functools.partial) else make
    names = inspect.signature(function.__init__ if isinstance(function, type) else function).parameters
    if "rngs" in names:
        return _nnx(make, memory)
    if "key" in names and _classes("equinox"):
        return _equinox(make, inputs, memory)
    raise TypeError(
        f"{make!r} is no network: a function that makes an NNX module takes `rngs`, one that makes an equinox module "
        f"takes `key`, and this one takes {', '.join(names) or 'nothing'}"
    )


def _nnx(make: Callable, memory: PyTree) -> Network:
    """A network from a function that makes an NNX module."""
    from flax import nnx  # here, as it takes a while to import

    def split(module: Any) -> Any:
        return nnx.split(module, nnx.Param, nnx.RngState, ...)

    graph, *kinds = split(nnx.eval_shape(lambda: make(rngs=nnx.Rngs(0))))

    def init(key: Key, *_: PyTree) -> tuple[PyTree, PyTree]:
        _, params, _, stats = split(make(rngs=nnx.Rngs(key)))
        return _named(params), _named(stats) or ()

    def apply(params: PyTree, stats: PyTree, *inputs: PyTree, train=False, key=None) -> tuple[Any, PyTree]:
        random = _streams(kinds[1], key)
        module = nnx.merge(graph, _restored(kinds[0], params), random, _restored(kinds[2], stats))
        module.train() if train else module.eval()
        outputs = module(*inputs, **training_flags(type(module).__call__, train))
        return outputs, (_named(split(module)[3]) or ()) if train else stats

    return Network(init, apply, memory)


def _streams(kinds: PyTree, key: Key | None) -> PyTree:
    """The states of an NNX module's random streams, each with a key of its own and a count of 0.

    Without a key nothing is drawn, and theirs are of zeros.
    """
    base = jax.random.wrap_key_data(jnp.zeros((2,), jnp.uint32), impl="threefry2x32") if key is None else key

    def new(place: int, x: Any) -> Array:
        is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        return jax.random.fold_in(base, place) if is_key else jnp.zeros(x.shape, x.dtype)

    leaves, structure = jax.tree.flatten(kinds)
    return structure.unflatten([new(place, x) for place, x in enumerate(leaves)])


class _State(struct.PyTreeNode):
    """The state of equinox's layers, for a module that runs on one of several devices.

    equinox refuses a new value of another type than the old one, and there a constant is of another type than what is
    computed from an argument. A new value is therefore one that depends on the old one.
    """

    state: Any  # eqx.nn.State

    def get(self, item: Any) -> Any:
        return self.state.get(item)

    def set(self, item: Any, value: PyTree) -> "_State":
        def like(new: Any, old: Array) -> Any:
            same = np.shape(new) == old.shape and jnp.result_type(new) == old.dtype
            return jnp.where(True, new, old) if same else new  # another shape or dtype is refused by `set`

        return _State(self.state.set(item, jax.tree.map(like, value, self.state.get(item))))

    def substate(self, tree: PyTree) -> "_State":
        return _State(self.state.substate(tree))

    def update(self, other: "_State") -> "_State":
        return _State(self.state.update(other.state))


def _equinox(make: Callable, inputs: tuple, memory: PyTree) -> Network:
    """A network from a function that makes an equinox module, which is vectorized over batch axes."""
    import equinox as eqx

    def made(key: Key) -> tuple[Any, Any]:
        """The module, and the state of its layers."""
        return eqx.nn.make_with_state(make)(key=key)

    kinds = eqx.filter_eval_shape(made, jax.eval_shape(jax.random.key, 0))
    takes = inspect.signature(type(kinds[0]).__call__).parameters
    ranks = [jnp.ndim(jax.tree.leaves(x)[0]) for x in (*inputs, *([memory] if jax.tree.leaves(memory) else []))]

    def init(key: Key, *_: PyTree) -> tuple[PyTree, PyTree]:
        module, state = made(key)
        trained, fixed = eqx.partition(module, eqx.is_inexact_array)
        return _named((trained,)), _named((eqx.filter(fixed, eqx.is_array), state)) or ()

    def apply(params: PyTree, stats: PyTree, *inputs: PyTree, train=False, key=None) -> tuple[Any, PyTree]:
        module, state = _restored(kinds, {**params, **dict(stats)})
        module = eqx.nn.inference_mode(module, not train)
        leading = [jnp.ndim(jax.tree.leaves(x)[0]) - rank for x, rank in zip(inputs, ranks, strict=True)]
        batch = jax.tree.leaves(inputs[0])[0].shape[: leading[0]]
        count = math.prod(batch)

        def one(key: Key | None, *inputs: PyTree) -> tuple[Any, PyTree]:
            settings = {"key": key} if "key" in takes else {}
            if "state" not in takes:
                return module(*inputs, **settings), state
            outputs, after = module(*inputs, _State(state), **settings)
            return outputs, after.state

        flat = [
            jax.tree.map(lambda x, n=n: x.reshape(count, *x.shape[n:]), x) if n else x
            for x, n in zip(inputs, leading, strict=True)
        ]
        keys = None if key is None else jax.random.split(key, count)
        mapped = (None if keys is None else 0, *(0 if n or not batch else None for n in leading))
        if not batch:
            flat = [jax.tree.map(lambda x: x[None], x) for x in flat]
        outputs, state = jax.vmap(one, mapped, (0, None), axis_name="batch")(keys, *flat)
        outputs = jax.tree.map(lambda x: x.reshape(*batch, *x.shape[1:]), outputs)
        return outputs, {**stats, **_named((None, state))} if train and stats else stats

    return Network(init, apply, memory)


def _named(tree: PyTree) -> dict[str, Array]:
    """The leaves of a tree by their paths."""
    return {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _restored(tree: PyTree, named: Any) -> PyTree:
    """A tree like `tree` with the leaves of `_named`; a leaf without a name in them stays."""
    known = dict(named)
    return jax.tree_util.tree_map_with_path(lambda path, x: known.get(_name(path), x), tree)


def _name(path: tuple) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
