"""Environments in the interfaces of other libraries, as small as they can be, and play in any environment."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rlkit import envs
from rlkit.envs.suites.brax import PhysicsEnv
from rlkit.envs.suites.jumanji import JumanjiEnv
from rlkit.envs.suites.pgx import PgxEnv
from rlkit.spaces import Box, Discrete

KEY = jax.random.key(0)

LIBRARIES = {
    "brax": "brax",
    "craftax": "craftax",
    "jaxmarl": "jaxmarl",
    "jumanji": "jumanji",
    "pgx": "pgx",
    "playground": "mujoco_playground",
    "xland": "xminigrid",
}


def play(env, params, key, num_steps, act=None):
    """Play one stream at random: -> first obs; obs, state, action, reward, flags and final observations [T, ...]."""

    def step(carry, key):
        obs, state = carry
        act_key, step_key = jax.random.split(key)
        action = env.action_space(params).sample(act_key) if act is None else act(obs, act_key)
        obs, next_state, reward, terminated, truncated, info = env.step(step_key, state, action, params)
        out = (obs, state, action, reward, terminated, truncated, info["final_observation"])
        return (obs, next_state), out

    reset_key, play_key = jax.random.split(key)
    first = env.reset(reset_key, params)
    return first[0], jax.lax.scan(step, first, jax.random.split(play_key, num_steps))[1]


def play_numpy(env, params, num_steps, act=None):
    """Play as `play` does, compiled, with NumPy arrays as results."""
    return jax.device_get(key_data(jax.jit(lambda key: play(env, params, key, num_steps, act))(KEY)))


def key_data(tree):
    """Replace the keys in a tree by their data."""
    return jax.tree.map(lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x, tree)


def legal(obs, key):
    """Draw a random legal action."""
    return jax.random.categorical(key, jnp.where(obs["action_mask"], 0.0, -jnp.inf)).astype(jnp.int32)


def starts(first, obs, done):
    """Return the first observations of episodes, as rows."""
    leaves = zip(jax.tree.leaves(first), jax.tree.leaves(obs), strict=True)
    rows = [np.concatenate([np.ravel(a)[None], np.reshape(b[done], (done.sum(), -1))]) for a, b in leaves]
    return np.concatenate([row.astype(np.float64) for row in rows], axis=1)


# Stand-ins, each with the interface of its library.


class WalkParams(struct.PyTreeNode):
    max_steps_in_episode: int = 6


class Walk:
    """A walk that starts at random and terminates at 3; its step returns five values, as in gymnax before 1.0."""

    default_params = WalkParams()

    def reset_env(self, key, params):
        state = {"x": jax.random.uniform(key), "time": 0}
        return self.observe(state), state

    def step_env(self, key, state, action, params):
        state = {"x": state["x"] + action, "time": state["time"] + 1}
        return self.observe(state), state, 1, self.is_terminal(state, params), {"discount": 0.0}

    def observe(self, state):
        return jnp.stack([state["x"], 0.5])

    def is_terminal(self, state, params):
        return (state["x"] >= 3) | (state["time"] >= params.max_steps_in_episode)

    def observation_space(self, params):
        return Box(0, 10, (2,))

    def action_space(self, params):
        return Discrete(2)


class PhysicsState(struct.PyTreeNode):
    pipeline_state: jax.Array
    obs: jax.Array
    reward: jax.Array
    done: jax.Array
    metrics: dict
    info: dict


class Slide:
    """A body of Brax that starts at random and terminates at 2; the step modifies the dictionaries of its state."""

    action_size = 1

    def __init__(self, speed=1.0):
        self.speed = speed

    def reset(self, rng):
        rng, start = jax.random.split(rng)
        x = jax.random.uniform(start)
        return PhysicsState(x, jnp.stack([x, 0.0]), jnp.zeros(()), jnp.zeros(()), {"x": 0.0}, {"rng": rng, "n": 0})

    def step(self, state, action):
        x = state.pipeline_state + self.speed * action[0]
        state.metrics.update(x=x)
        state.info["n"] += 1
        done = jnp.where(x > 2, 1.0, 0.0)
        return state.replace(pipeline_state=x, obs=jnp.stack([x, 1.0]), reward=1.0 * (x > 1), done=done)


class RaceState(struct.PyTreeNode):
    current_player: jax.Array
    observation: jax.Array
    rewards: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    legal_action_mask: jax.Array
    score: jax.Array  # [2]
    moves: jax.Array


class Race:
    """A game of pgx: two players add 1 or 2 to their scores, and the first at 4 wins; action 0 is never legal.

    A player who has added 1 moves again. Observations begin with the player's own score.
    """

    num_players = 2

    def init(self, key):
        player = jax.random.bernoulli(key).astype(jnp.int32)
        false, mask = jnp.array(False), jnp.array([False, True, True])
        state = RaceState(player, jnp.zeros(2), jnp.zeros(2), false, false, mask, jnp.zeros(2, jnp.int32), jnp.int32(0))
        return state.replace(observation=self._observe(state, player))

    def step(self, state, action, key=None):
        del key
        player = state.current_player
        score = state.score.at[player].add(action)
        over = score[player] >= 4
        rewards = jnp.where(over, jnp.float32([-1, -1]).at[player].set(1), 0.0)
        state = state.replace(
            current_player=jnp.where(action == 1, player, 1 - player), rewards=rewards, terminated=over, score=score,
            moves=state.moves + 1,
        )  # fmt: skip
        return state.replace(observation=self._observe(state, state.current_player))

    def _observe(self, state, player_id):
        return jnp.stack([state.score[player_id], state.score[1 - player_id]]).astype(jnp.float32)


class DiscreteArray:
    shape, dtype = (), np.dtype(np.int32)

    def __init__(self, num_values):
        self.num_values = num_values


class BoundedArray:
    def __init__(self, shape, dtype, minimum, maximum):
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.minimum, self.maximum = np.full(shape, minimum, dtype), np.full(shape, maximum, dtype)


class Spec:
    def __init__(self, **specs):
        self._specs = specs
        self.__dict__.update(specs)


class Cell(NamedTuple):
    row: jax.Array
    column: jax.Array


class Digging(NamedTuple):
    cell: Cell
    action_mask: jax.Array
    step_count: jax.Array


class TimeStep(NamedTuple):
    reward: jax.Array
    discount: jax.Array
    observation: Digging
    ends: jax.Array

    def last(self):
        return self.ends


class Dig:
    """A task of Jumanji: dig cells of a 2 x 3 field; the treasure terminates, the third step truncates."""

    def __init__(self, joint_mask=True):
        self.mask = (2, 3) if joint_mask else (2, 4)
        size = np.array([1, 2]) if joint_mask else np.array([4, 4])  # too wide by one, as in MultiCVRP
        self.action_spec = BoundedArray((2,), np.int16, 0, size)
        number = BoundedArray((), np.int32, 0, 2)
        self.observation_spec = Spec(
            cell=Spec(row=number, column=number),
            action_mask=BoundedArray(self.mask, bool, False, True),
            step_count=DiscreteArray(3),
        )

    def reset(self, key):
        key, hide = jax.random.split(key)
        state = {"treasure": jax.random.randint(hide, (), 0, 6), "time": jnp.int32(0), "key": key}
        return state, TimeStep(0.0, 1.0, self.observe(state, jnp.zeros(2, jnp.int16)), jnp.array(False))

    def step(self, state, action):
        assert action.shape == (2,)
        assert action.dtype == jnp.int16
        state = state | {"time": state["time"] + 1}
        success = action[0] * 3 + action[1] == state["treasure"]
        discount = jnp.where(success, 0.0, 1.0)
        return state, TimeStep(
            jnp.stack([success, success]), discount, self.observe(state, action), success | (state["time"] >= 3)
        )

    def observe(self, state, action):
        mask = jnp.ones(self.mask, bool).at[0, 0].set(False)
        return Digging(Cell(*action.astype(jnp.int32)), mask, state["time"])


def five_values():
    return envs.adapt(Walk(), name="Walk")


def physics():
    from rlkit.envs.adapter import TimeLimitParams

    return PhysicsEnv("brax:slide", Slide()), TimeLimitParams(4)


TINY = {
    "five values": (five_values, None),
    "brax": (physics, None),
    "pgx": (lambda: (PgxEnv("pgx:race", Race()), ()), legal),
    "jumanji": (lambda: (JumanjiEnv("jumanji:dig", Dig()), ()), legal),
}
