"""Faulty environments are reported before training, with environment, field, expected and actual value."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mistakes import mistake

from rlkit import envs
from rlkit.spaces import Box, Dict, Discrete, MultiDiscrete
from rlkit.types import ConfigError

KEY = jax.random.key(0)


class Good:
    """A correct environment: obs [2] float32 in [0, 1], two actions, episodes of three steps."""

    name = "Good"

    def reset(self, key, params):
        state = {"time": jnp.zeros((), jnp.int32), "x": jax.random.uniform(key)}
        return self.obs(state), state

    def step(self, key, state, action, params):
        state = {"time": state["time"] + 1, "x": state["x"]}
        final, done = self.obs(state), state["time"] >= 3
        new = self.reset(key, params)
        obs, state = jax.tree.map(lambda new, old: jnp.where(done, new, old), new, (final, state))
        return obs, state, jnp.float32(1), done, jnp.zeros((), bool), {"final_observation": final}

    def obs(self, state):
        return jnp.stack([state["x"], state["time"].astype(jnp.float32) / 3])

    def observation_space(self, params):
        return Box(0, 1, (2,))

    def action_space(self, params):
        return Discrete(2)


def changed(**results):
    """Return a Good environment with some results of `step` passed through functions."""

    class Changed(Good):
        def step(self, key, state, action, params):
            names = ("obs", "state", "reward", "terminated", "truncated", "info")
            step = dict(zip(names, super().step(key, state, action, params), strict=True))
            return tuple(results.get(name, lambda x: x)(value) for name, value in step.items())

    return Changed()


def observing(fn):
    class Observing(Good):
        def obs(self, state):
            return fn(super().obs(state), state)

    return Observing()


class WeakState(Good):
    def reset(self, key, params):
        obs, state = super().reset(key, params)
        return obs, state | {"time": 0}

    def step(self, key, state, action, params):
        obs, state, *rest = super().step(key, state, action, params)
        return obs, state, *rest


class ForeignSpace(Good):
    def action_space(self, params):
        return 2


class Untraceable(Good):
    def step(self, key, state, action, params):
        return super().step(key, state, 0 if action > 0 else 1, params)


class OldApi(Good):
    def step(self, key, state, action, params):
        obs, state, reward, terminated, _, info = super().step(key, state, action, params)
        return obs, state, reward, terminated, info


def late(value, at=2):
    """Return a wrong observation from the second step on, after a correct reset."""
    return lambda obs, state: jnp.where(state["time"] >= at, jnp.asarray(value, obs.dtype), obs)


FAULTS = {
    "obs shape": (observing(lambda o, s: o[:1]), "obs of reset", "float32[2]", "float32[1]"),
    "obs with a batch axis": (observing(lambda o, s: o[None]), "obs of reset", "float32[2]", "float32[1, 2]"),
    "obs dtype": (observing(lambda o, s: o.astype(jnp.int32)), "obs of reset", "float32[2]", "int32[2]"),
    "obs structure": (observing(lambda o, s: {"o": o}), "obs of reset", "float32[2]", "{'o': 'float32[2]'}"),
    "obs dtype changes": (changed(obs=lambda o: o.astype(jnp.float16)), "obs of step", "float32[2]", "float16[2]"),
    "obs structure changes": (
        changed(obs=lambda o: (o, o)),
        "obs of step",
        "float32[2]",
        "('float32[2]', 'float32[2]')",
    ),
    "obs is weak": (observing(lambda o, s: jnp.stack([1.0, 1.0])), "obs of reset", "strong", "weak float32"),
    "obs out of bounds": (observing(lambda o, s: o + 0.5), "obs of reset[0]", "[0.0, 1.0]", "1."),
    "obs out of bounds late": (observing(late([0.5, -3.0])), "obs of step[1]", "[0.0, 1.0]", "-3.0"),
    "obs NaN late": (observing(late(np.nan)), "obs of step", "numbers", "NaN"),
    "reward shape": (changed(reward=lambda r: r[None]), "reward", "float32[]", "float32[1]"),
    "reward dtype": (changed(reward=lambda r: r.astype(jnp.int32)), "reward", "float32[]", "int32[]"),
    "reward is weak": (changed(reward=lambda r: 1.0), "reward", "strong", "weak float32"),
    "reward NaN": (changed(reward=lambda r: r * jnp.nan), "reward", "finite", "nan"),
    "terminated dtype": (changed(terminated=lambda t: t.astype(jnp.float32)), "terminated", "bool[]", "float32[]"),
    "truncated shape": (changed(truncated=lambda t: t[None]), "truncated", "bool[]", "bool[1]"),
    "no final observation": (
        changed(info=lambda i: {"x": i["final_observation"]}),
        "info",
        "final_observation",
        "['x']",
    ),
    "final observation of another step": (
        changed(info=lambda i: {"final_observation": i["final_observation"] * 0}),
        "final_observation",
        "the same as obs",
        "another value",
    ),
    "final observation NaN": (
        changed(info=lambda i: {"final_observation": i["final_observation"] * jnp.nan}),
        "final_observation",
        "numbers",
        "NaN",
    ),
    "state shape": (changed(state=lambda s: s | {"x": s["x"][None]}), "state of step['x']", "float32[]", "float32[1]"),
    "state structure": (changed(state=lambda s: s | {"y": s["x"]}), "state of step", "reset's state", "'y'"),
    "state is weak": (WeakState(), "state of reset['time']", "strong", "weak int32"),
    "foreign space": (ForeignSpace(), "action_space", "a space of rlkit.spaces", "int"),
    "not traceable": (Untraceable(), "step", "a function JAX can trace", "TracerBoolConversionError"),
    "five results": (OldApi(), "step", "terminated, truncated", "5 values"),
}


def test_a_good_environment_passes():
    envs.check(Good(), (), KEY)
    envs.check(observing(lambda o, s: o - 1e-7), (), KEY)  # rounding


ALIKE = (  # found by the same comparison as one of the others
    *("obs with a batch axis", "obs structure changes", "obs out of bounds", "reward dtype", "terminated dtype"),
    *("truncated shape", "final observation NaN", "state structure"),
)


@pytest.mark.parametrize("fault", [pytest.param(x, marks=pytest.mark.slow) if x in ALIKE else x for x in FAULTS])
def test_faults_are_named(fault):
    env, field, expected, got = FAULTS[fault]
    with mistake(f"env='Faulty': {field}: expected ") as error:
        envs.check(env, (), KEY, name="Faulty")
    before, after = str(error.value).split(", got ", 1)
    assert expected in before
    assert got in after


def test_bounds_within_dictionaries_are_named():
    class Nested(Good):
        def obs(self, state):
            return {"a": super().obs(state), "n": state["time"]}

        def observation_space(self, params):
            return Dict({"a": Box(0, 1, (2,)), "n": Discrete(3)})

    with pytest.raises(ConfigError, match=r"final_observation\['n'\]: expected a value in \[0.0, 2.0\].*got 3"):
        envs.check(Nested(), (), KEY)


class Endless(Good):
    """Never resets itself; `obs` and `end` choose what it shows of that."""

    def __init__(self, obs=Good.obs, length=3):
        self.shown, self.length = obs, length

    def obs(self, state):
        return self.shown(self, state)

    def step(self, key, state, action, params):
        state = {"time": state["time"] + 1, "x": state["x"]}
        obs, done = self.obs(state), state["time"] >= self.length
        return obs, state, jnp.float32(1), done, jnp.zeros((), bool), {"final_observation": obs}

    def observation_space(self, params):
        return Box(0, jnp.inf, (2,))


def constant(self, state):
    return jnp.ones(2)


@pytest.mark.parametrize("env", [Endless(), Endless(constant), Endless(length=30)])
def test_an_environment_that_never_resets_itself_is_found(env):
    with pytest.raises(ConfigError, match="step: expected the observation and state of a new episode where one ended"):
        envs.check(env, (), KEY)


def test_environments_whose_observations_do_not_change_at_a_reset_pass():
    class Bandit(Good):
        """Episodes of one step, without a clock."""

        def reset(self, key, params):
            return jnp.zeros(2), {"key": key}

        def step(self, key, state, action, params):
            obs, done = jnp.zeros(2), jnp.ones((), bool)
            return obs, {"key": key}, jnp.float32(1), done, ~done, {"final_observation": obs}

    class Chance(Bandit):
        """Episodes that end by chance."""

        def step(self, key, state, action, params):
            obs, state, reward, _, truncated, info = super().step(key, state, action, params)
            return obs, state, reward, jax.random.bernoulli(key, 0.2), truncated, info

    class Turns(Bandit):
        """Episodes of one step, whose observation is 0 and 1 by turns."""

        def reset(self, key, params):
            obs = jnp.full(2, jax.random.bernoulli(key), jnp.float32)
            return obs, {"obs": obs}

        def step(self, key, state, action, params):
            obs, done = 1 - state["obs"], jnp.ones((), bool)
            return obs, {"obs": obs}, jnp.float32(1), done, ~done, {"final_observation": obs}

    for env in (observing(lambda obs, state: jnp.ones(2)), Bandit(), Chance(), Turns()):
        envs.check(env, (), KEY)


@pytest.mark.parametrize(("space", "late"), [(Discrete(5), False), (MultiDiscrete((2, 3)), True)])
def test_a_mask_without_a_legal_action_is_found(space, late):
    """In a MultiDiscrete space each part needs a legal action of its own."""
    legal = jnp.array([False, False, True, True, True]) & isinstance(space, MultiDiscrete)

    class Masked(Good):
        def obs(self, state):
            return {"action_mask": legal | (late & (state["time"] < 2)), "obs": super().obs(state)}

        def observation_space(self, params):
            return Dict({"action_mask": Box(False, True, (5,), np.bool_), "obs": super().observation_space(params)})

        def action_space(self, params):
            return space

    where = r"obs of step 2\['action_mask'\] of" if late else r"obs of reset\['action_mask'\] of"
    with pytest.raises(ConfigError, match=rf"{where} environment 0: expected a legal action in every .* got none"):
        envs.check(Masked(), (), KEY)


@pytest.mark.parametrize("space", [pytest.param(Discrete(5), marks=pytest.mark.slow), MultiDiscrete((2, 3))])
def test_the_actions_of_the_check_are_legal(space):
    """An illegal action gives a reward that is not finite, which the check reports."""
    legal = jnp.array([False, True, True, False, True])

    class Masked(Good):
        def obs(self, state):
            return {"action_mask": legal, "obs": super().obs(state)}

        def observation_space(self, params):
            return Dict({"action_mask": Box(False, True, (5,), np.bool_), "obs": super().observation_space(params)})

        def action_space(self, params):
            return space

        def step(self, key, state, action, params):
            obs, state, _, *rest = super().step(key, state, action, params)
            taken = action if isinstance(space, Discrete) else action + jnp.array([0, 2], action.dtype)
            return obs, state, jnp.where(legal[taken].all(), jnp.float32(1), jnp.float32(jnp.nan)), *rest

    envs.check(Masked(), (), KEY)
    short = Dict({"action_mask": Box(False, True, (4,), np.bool_), "obs": Box(0, 1, (2,))})
    legal = legal[:4]
    with pytest.raises(
        ConfigError, match=r"obs\['action_mask'\]: expected one entry for each action, \[5\], got \[4\]"
    ):
        envs.check(type("Short", (Masked,), {"observation_space": lambda self, params: short})(), (), KEY)
