"""Parts of an agent that may be the user's own: fields of `Config` that hold a word, or else an object or its name."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import optax
from pydantic import WrapValidator

from rlkit.names import OWN_CODE, UnknownName, find_object, place, raised
from rlkit.types import Array, Buffer, ConfigError, PyTree, Scalar, Transition

_OPTIMIZER = "a transformation of optax, or a function of the learning rate that makes one"


def is_own(value: Any) -> bool:
    """Return true for an object, such as a function, and for the name `module:attribute` of one."""
    return bool(OWN_CODE.fullmatch(value)) if isinstance(value, str) else value is not None


def has_own_rate(optimizer: Any) -> bool:
    """Return true for a value of `optimizer` that holds or names a transformation of optax, not a function of a rate.

    False also where there is no such object: whoever makes the agent gets the error.
    """
    try:
        return is_own(optimizer) and isinstance(find("optimizer", optimizer), optax.GradientTransformation)
    except Exception:  # whatever the user's module raises
        return False


def find(key: str, value: Any) -> Any:
    """Return the object that a field of a Config holds or names. Raises ConfigError where there is none to import."""
    if not isinstance(value, str):
        return value
    try:
        return find_object(value)
    except UnknownName as error:
        raise ConfigError(f"{key}={value!r}: {error}") from None
    except Exception as error:
        raise ConfigError(f"{key}={value!r}: its module raised {raised(error)}") from error


@contextmanager
def call(key: str, value: Any, form: str, remedy: str) -> Iterator[None]:
    """Convert what the user's own function raises in this context to a ConfigError of one line, with its place.

    Args:
      key, value: the field of a Config, and what it holds.
      form: what the function must be.
      remedy: how it becomes that.
    """
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        end = "" if place(error) else f"; {remedy}"  # what is raised in the user's own code is mended there
        raise ConfigError(f"{key}={value!r:.80} must be {form}, and it raised {raised(error)}{end}") from error


class _Reads:
    """A Config that keeps the names of the attributes that are read."""

    def __init__(self, config: Any):
        self._config, self._names = config, set()

    def __getattr__(self, name: str) -> Any:
        self._names.add(name)
        return getattr(self._config, name)


def read_by_replay(config: Any) -> set[str]:
    """Return the keys that the user's own buffer reads: fields of the Config, and of the Hyper beta and beta_end.

    The user's function is called. Where it fails, or reads something else than fields, all keys count.
    """
    fields, betas, reads = set(type(config).model_fields), {"beta", "beta_end"}, _Reads(config)
    try:
        made = find("replay", config.replay)
        made = made if isinstance(made, Buffer) else made(reads)
        zero = jnp.zeros(())
        state = jax.eval_shape(lambda: made.init(Transition(*[zero] * len(Transition._fields)), 1))
    except Exception:  # whoever makes the agent gets the error
        return fields | betas
    found = fields if reads._names - fields else reads._names
    return found | (betas if hasattr(state, "beta") else set())


def scheduled(key: str, value: Any, steps: Array) -> Array:
    """The value [] float32 of the user's own schedule at a number of environment steps [].

    Raises:
      ConfigError: it is no function, or does not return one number.
    """
    form = "a function of the environment steps so far, a float32 [], that returns one number"
    function = find(key, value)
    if not callable(function):
        raise ConfigError(f"{key}={value!r:.80} must be {form}, and it is {function!r:.60}; give a function")
    with call(key, value, form, "it is traced by JAX"):
        made: Any = function(steps)
    is_number = isinstance(made, int | float) or (hasattr(made, "dtype") and jnp.shape(made) == ())
    if not is_number:
        of = f"an array {list(jnp.shape(made))}" if hasattr(made, "shape") else f"{made!r:.60}"
        raise ConfigError(f"{key}={value!r:.80} must be {form}, and it returned {of}; return one number")
    return jnp.asarray(made, jnp.float32)


def make_optimizer(optimizer: Any, learning_rate: Scalar) -> optax.GradientTransformation:
    """The transformation at a learning rate []. Raises ConfigError where there is none."""
    made = find("optimizer", optimizer)
    if not isinstance(made, optax.GradientTransformation):
        with call("optimizer", optimizer, _OPTIMIZER, "let it take the learning rate alone"):
            made = made(learning_rate)
    if not isinstance(made, optax.GradientTransformation):
        raise ConfigError(f"optimizer={optimizer!r:.80} must be {_OPTIMIZER}, and it returned {made!r:.60}")
    return made


def init_optimizer(optimizer: Any, learning_rate: Scalar, params: PyTree) -> PyTree:
    """The state of the optimizer, whose functions are traced before without computing anything.

    Raises:
      ConfigError: one of the two functions cannot be traced; or the updates have not the shapes of the parameters, or
        the state does not keep its own.
    """
    arrays = (jnp.asarray(learning_rate), params)
    rate, shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arrays)
    form = "a transformation with {} that JAX can trace"
    with call("optimizer", optimizer, form.format("init(params)"), "it gets the parameters alone"):
        state = jax.eval_shape(lambda rate, params: make_optimizer(optimizer, rate).init(params), rate, shapes)
    remedy = "it gets gradients, its state and the parameters, and no loss; choose one that needs no more"
    with call("optimizer", optimizer, form.format("update(grads, state, params)"), remedy):
        result = jax.eval_shape(
            lambda rate, *rest: update_optimizer(optimizer, rate, *rest), rate, shapes, state, shapes
        )
    if not (isinstance(result, tuple) and len(result) == 2):
        raise ConfigError(f"optimizer={optimizer!r:.80} must have update that returns (updates, state); return both")
    updates, after = result
    if difference := _difference(shapes, updates, dtypes=False):
        raise ConfigError(
            f"optimizer={optimizer!r:.80} must return updates of the parameters' shapes, and {difference}; return one "
            "update for each parameter"
        )
    if difference := _difference(state, after, dtypes=True):
        raise ConfigError(
            f"optimizer={optimizer!r:.80} must keep the shapes and dtypes of its state, and {difference}; let update "
            "return the state in the form of init's"
        )
    return make_optimizer(optimizer, learning_rate).init(params)


def update_optimizer(
    optimizer: Any, learning_rate: Scalar, grads: PyTree, state: PyTree, params: PyTree
) -> tuple[PyTree, PyTree]:
    """The updates of parameters and the next state, in the promotion of optax's own code."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return make_optimizer(optimizer, learning_rate).update(grads, state, params)  # type: ignore[return-value]


def _difference(expected: PyTree, got: PyTree, *, dtypes: bool) -> str:
    """The first place where two trees of arrays differ in shape, or in dtype, as a part of a sentence; else nothing."""
    (leaves, structure), (others, other) = (jax.tree_util.tree_flatten_with_path(tree) for tree in (expected, got))
    if structure != other:
        return f"update returned another structure, with {len(others)} arrays for {len(leaves)}"
    for (path, x), (_, y) in zip(leaves, others, strict=True):
        if x.shape != y.shape or (dtypes and x.dtype != y.dtype):
            kinds = [f"{a.dtype.name if dtypes else ''}{list(a.shape)}" for a in (y, x)]
            return f"update returned {kinds[0]} for {kinds[1]} at {jax.tree_util.keystr(path) or 'its only array'}"
    return ""


def _own_or(value: Any, validate: Any) -> Any:
    """The value itself where it is a function, a record of functions, or a name; otherwise what the field allows."""
    own = callable(value) or hasattr(value, "_fields") or (isinstance(value, str) and is_own(value))
    return value if own else validate(value)


OrOwn = WrapValidator(_own_or)  # beside the words of a field
