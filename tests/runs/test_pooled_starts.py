"""Runs whose episodes begin in a pool of starts: resumed to the bit, evaluated from resets of their own."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mistakes import mistake
from tiny_runs import SMALL, digest

from rlkit.runs import hints, loop
from rlkit.runs.config.parse import parse
from rlkit.runs.programs.make import make_program

pytestmark = pytest.mark.usefixtures("compiled_once")
POOL = SMALL | {"reset_pool": 20, "num_seeds": 2, "total_steps": 192, "wrappers": ["time_limit:9", "frame_stack:2"]}


@pytest.mark.thorough
def test_a_resumed_run_and_one_without_a_stop_have_the_same_pools(tmp_path):
    whole = loop.train(POOL, out=tmp_path / "whole", show=False)
    assert whole.state.starts[0].shape == (2, 20, 4)
    half = loop.train(POOL, lambda line, state: line["step"] == 96, out=tmp_path / "half", show=False)
    assert digest(half.state.starts) != digest(whole.state.starts)
    resumed = loop.resume(half.run, show=False)
    assert digest(resumed.state) == digest(whole.state)
    assert resumed.evaluation["returns"] == whole.evaluation["returns"]


def test_an_evaluation_begins_with_resets_whatever_the_pool_holds():
    program = make_program(parse(POOL | {"num_seeds": 1}))
    state = program.start()
    program.compile_evaluation()
    spoilt = state.replace(starts=jax.tree.map(np.zeros_like, state.starts))
    one, other = program.evaluate(state), program.evaluate(spoilt)
    jax.tree.map(np.testing.assert_array_equal, one, other)
    assert len(np.unique(one.returns)) > 1


def test_what_is_not_finite_is_found_in_the_rollout_that_begins_in_the_pool():
    program = make_program(parse(POOL | {"num_seeds": 1, "wrappers": ["time_limit:5"]}))
    before = program.start()
    spoil = lambda x: jnp.full_like(x, jnp.nan) if jnp.issubdtype(x.dtype, jnp.floating) else x  # noqa: E731
    before = before.replace(starts=jax.tree.map(spoil, before.starts))
    program.compile()
    chunk = program.advance(before, np.int32(1))
    assert not bool(chunk.finite)
    assert program.name_non_finite(before, chunk).startswith("obs of environment")


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"reset_pool": 0}, ("reset_pool=0",)),
        ({"reset_pool": "many"}, ("reset_pool='many'",)),
        (
            {"env": "gymnasium:CartPole-v1", "env_kwargs": {}},
            ("reset_pool=20", "gymnasium:CartPole-v1", "leave it out"),
        ),
    ],
)
def test_a_pool_that_cannot_be(change, parts):
    with mistake(*parts):
        parse(POOL | {"num_seeds": 1, "wrappers": []} | change)


class Costly:
    """CartPole whose reset is a product of large matrices."""

    def __init__(self, env):
        self.env, self.step_with = env, env.step_with
        self.observation_space, self.action_space = env.observation_space, env.action_space

    def reset(self, key, params):
        obs, state = self.env.reset(key, params)
        noise = jax.random.normal(key, (64, 64))
        return obs, state.replace(time=state.time + (noise @ noise @ noise).max().astype(jnp.int32) * 0)

    def step(self, key, *arguments):
        return self.step_with(lambda key: self.reset(key, arguments[-1]), key, *arguments)


def test_a_hint_proposes_a_pool_where_resets_are_costly():
    program = make_program(parse(SMALL))
    assert hints.costly_resets(program) is None
    costly = {"env": Costly(program.env), "params": program.params, "template": program.template}
    made = SimpleNamespace(config=program.config, **costly)
    assert "reset_pool: 1024" in hints.costly_resets(made)
    assert hints.costly_resets(SimpleNamespace(config=parse(SMALL | {"reset_pool": 20}), **costly)) is None
    costly["env"] = SimpleNamespace(**vars(costly["env"]) | {"step_with": None})
    assert hints.costly_resets(SimpleNamespace(config=program.config, **costly)) is None
