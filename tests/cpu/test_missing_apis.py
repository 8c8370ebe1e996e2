"""A version of JAX without an API that a trick needs costs speed and nothing else."""

import importlib.util
import os
import subprocess
import sys

import jax
import jax.extend.core
import jax.extend.random
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import ad, batching, mlir

from rlkit import _cpu
from rlkit._cpu import primitives, random_bits

pytestmark = pytest.mark.thorough
OF_PRIMITIVES = [
    (jax.extend.core, "Primitive"),
    (mlir, "register_lowering"),
    (mlir, "lower_fun"),
    (batching, "primitive_batchers"),
    (ad, "primitive_jvps"),
    (ad, "primitive_transposes"),
    (ad, "is_undefined_primal"),
    (ad, "Zero"),
]


def again(module):
    """A second copy of a module, imported now."""
    spec = importlib.util.spec_from_file_location(f"second_{module.__name__.rpartition('.')[2]}", module.__file__)
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy


def operations(module):
    """The names of the operations in a program that uses all of a copy of `primitives`."""

    def program(x, words):
        return module.keep_layout(module.materialize(x)), module.sequence(lambda x: x, [x, x]), module.once(words)

    closed = jax.make_jaxpr(program)(jnp.ones(3), jnp.ones(3, jnp.uint32))
    return sorted(equation.primitive.name for equation in closed.jaxpr.eqns)


@pytest.mark.parametrize(("module", "name"), OF_PRIMITIVES, ids=[name for _, name in OF_PRIMITIVES])
def test_primitives_are_plain_without(module, name, monkeypatch):
    assert operations(again(primitives)) == ["after", "keep_layout", "materialize", "once"]
    monkeypatch.delattr(module, name)
    assert operations(again(primitives)) == []


@pytest.mark.parametrize("name", ["jax.extend.core", "jax.interpreters", "jax.interpreters.mlir"])
def test_primitives_are_plain_without_the_module(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    parent, _, child = name.rpartition(".")
    if child in vars(sys.modules[parent]):
        monkeypatch.delattr(sys.modules[parent], child)
    assert operations(again(primitives)) == []


def dtype_inside(straight_line_keys):
    dtypes = []
    straight_line_keys(lambda key: dtypes.append(key.dtype))(jax.random.key(0))
    return dtypes[0]


def test_random_bits_are_plain_without(monkeypatch):
    assert dtype_inside(_cpu.straight_line_keys) != jax.random.key(0).dtype
    with monkeypatch.context() as patch:
        patch.delattr(jax.extend.random, "define_prng_impl")
        assert dtype_inside(again(random_bits).straight_line_keys) == jax.random.key(0).dtype
    with monkeypatch.context() as patch:
        patch.setattr(jax.extend.random, "define_prng_impl", lambda shape: None)  # other arguments
        assert dtype_inside(again(random_bits).straight_line_keys) == jax.random.key(0).dtype
    with monkeypatch.context() as patch:
        patch.delattr(jax, "threefry_partitionable")
        assert dtype_inside(_cpu.straight_line_keys) == jax.random.key(0).dtype


PROGRAM = """
import flax, optax, jax, numpy as np, jax.extend.core, jax.extend.random
from jax.interpreters import ad, batching, mlir
if {remove}:
    del jax.extend.core.Primitive, jax.extend.random.define_prng_impl, jax.threefry_partitionable
    del mlir.register_lowering, mlir.lower_fun, batching.primitive_batchers, ad.primitive_transposes
from rlkit import envs, training
from rlkit.agents import ppo
env, params = envs.make("CartPole-v1")
agent = ppo.make(ppo.Config(hidden_sizes=(8,)), env.observation_space(params), env.action_space(params))
init, step = training.make(agent, env, params, num_envs=4, num_steps=16)
state, _ = jax.jit(step)(jax.jit(init)(ppo.Hyper(), jax.random.key(0)))
print(*np.concatenate([np.ravel(x) for x in jax.tree.leaves(state.agent.params)]).tolist())
"""


@pytest.mark.slow
def test_an_agent_learns_without_any_of_them():
    def numbers(remove):
        command = [sys.executable, "-c", PROGRAM.format(remove=remove)]
        env = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
        return np.array(done.stdout.split(), np.float64)

    np.testing.assert_allclose(numbers(True), numbers(False), rtol=1e-5, atol=1e-5)
