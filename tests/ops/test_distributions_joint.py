"""The product of independent distributions, against its parts."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_distributions import KEY, example

from rlkit.ops.distributions import Categorical, DiagNormal, Joint

NAMES = ("Categorical", "TanhNormal", "DiagNormal", "MultiDiscrete")
close = partial(np.testing.assert_allclose, rtol=1e-5)


def parts_of(seed=0, **settings):
    return [example(name, seed=seed + i, **settings) for i, name in enumerate(NAMES)]


def tree(a, b, c, d):
    return {"z": a, "a": (b, {"y": c}), "m": d}


def joint(*args, **settings):
    return Joint(tree(*parts_of(*args, **settings)))


def test_sums_by_hand():
    """A fair coin and a standard normal: log p = -log 2 - x^2 / 2 - log(2 pi) / 2."""
    d = Joint({"coin": Categorical(jnp.zeros((1, 2))), "x": DiagNormal(jnp.zeros((1, 1)), jnp.ones((1, 1)))})
    action = {"coin": jnp.array([1]), "x": jnp.float32([[2.0]])}
    close(d.log_prob(action), [-np.log(2) - 2 - np.log(2 * np.pi) / 2])
    close(d.entropy(), [np.log(2) + np.log(2 * np.pi * np.e) / 2])


def test_log_prob_entropy_and_kl_are_sums_and_actions_those_of_the_parts():
    d, other, parts, others = joint(), joint(seed=9), parts_of(), parts_of(seed=9)
    draw = d.sample(KEY)
    draws = [draw["z"], draw["a"][0], draw["a"][1]["y"], draw["m"]]
    close(d.log_prob(draw), sum(np.asarray(p.log_prob(x)) for p, x in zip(parts, draws, strict=True)))
    close(d.entropy(), sum(np.asarray(p.entropy()) for p in parts))
    close(d.kl(other), sum(np.asarray(p.kl(q)) for p, q in zip(parts, others, strict=True)))
    jax.tree.map(np.testing.assert_array_equal, d.mode(), tree(*(p.mode() for p in parts)))
    jax.tree.map(np.testing.assert_array_equal, draw, d.map(lambda p, key: p.sample(key), d.split(KEY)))


def test_parts_are_drawn_independently():
    normal = DiagNormal(jnp.zeros(1), jnp.ones(1))
    draws = jax.vmap(Joint((normal, normal)).sample)(jax.random.split(KEY, 20_000))
    assert abs(np.corrcoef(draws[0][:, 0], draws[1][:, 0])[0, 1]) < 0.03
    close([x.std() for x in draws], [1, 1], rtol=0.03)


def test_jit_vmap_and_grad_agree():
    d, rows = joint(), [joint(batch=(3,)).map(lambda p, i=i: jax.tree.map(lambda x: x[i], p)) for i in range(3)]
    draw = d.sample(KEY)
    expected = d.log_prob(draw), d.entropy(), d.kl(joint(seed=9))

    def numbers(d, x, other):
        return d.log_prob(x), d.entropy(), d.kl(other)

    for function in (jax.jit(numbers), jax.jit(jax.vmap(numbers))):
        jax.tree.map(close, function(d, draw, joint(seed=9)), expected)
    log_prob = jax.jit(lambda d, x: d.log_prob(x))
    for i, row in enumerate(rows):
        close(log_prob(Joint(row), jax.tree.map(lambda x, i=i: x[i], draw)), expected[0][i])
    gradient = jax.jit(jax.grad(lambda d: d.log_prob(draw).sum(), allow_int=True))(d)
    of_part = jax.jit(jax.grad(lambda part: part.log_prob(draw["z"]).sum()))(d.parts["z"])
    close(gradient.parts["z"].logits, of_part.logits)


def test_other_structures_and_batches_are_refused():
    d = joint()
    with pytest.raises(ValueError, match="key"):
        d.log_prob({"z": d.mode()["z"]})
    with pytest.raises(ValueError, match="parts has shape"):
        Joint((Categorical(jnp.zeros((3, 2))), Categorical(jnp.zeros((1, 2))))).entropy()
