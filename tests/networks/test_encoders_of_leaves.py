"""`encoders`: an encoder of its own for a leaf of an observation, by the leaf's name; where an image's channels are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mistakes import mistake

from rlkit import agents, spaces
from rlkit.agents import dqn, ppo
from rlkit.networks.encoders.combine import Encoder, choose
from rlkit.networks.features import leaves
from rlkit.runs.config.load import with_overrides
from rlkit.runs.config.parse import parse
from rlkit.spaces import Box, Dict, Discrete, Tuple
from rlkit.types import ConfigError, Transition

CAMERA = Box(0, 255, (12, 12, 3), np.uint8)
ROBOT = Dict(
    {"action_mask": Box(0, 1, (2,), np.int8), "camera": CAMERA, "joints": Box(-1, 1, (5,)), "speed": Box(-1, 1, (2,))}
)
NESTED = Dict({"arms": Dict({"left": Box(-1, 1, (2,)), "right": Box(-1, 1, (3,))}), "views": Tuple((CAMERA, CAMERA))})
RUN = {"agent": "dqn", "env": "CartPole-v1", "num_envs": 4, "num_steps": 8, "total_steps": 64}


def encoder(space, encoders, **settings):
    described = {"encoder": "auto", "hidden_sizes": (32,), "channels": (4,), "activation": "relu", "layer_norm": False}
    return Encoder(space, **described | {"compute_dtype": "float32", "encoders": encoders} | settings)


def sizes(space, encoders, **settings):
    """The shapes of an encoder's weights."""
    params = jax.eval_shape(encoder(space, encoders, **settings).init, jax.random.key(0), spaces.zeros(space))
    return sorted(x.shape for x in jax.tree.leaves(params) if x.ndim > 1)


def test_leaves_have_encoders_of_their_own():
    """Beside the camera's 32 features are those of the joints and the speed as it is."""
    filters = [(3, 3, 3, 16), *[(3, 3, 16, 16)] * 4, (3, 3, 16, 32), *[(3, 3, 32, 32)] * 9]
    dense = [(2 * 2 * 32, 32), (5, 32), (32 + 32 + 2, 32)]
    assert sizes(ROBOT, {"camera": "impala", "joints": "mlp"}) == sorted(filters + dense)


@pytest.mark.parametrize(
    ("encoders", "expected"),
    [
        ({"camera": "none"}, [(12 * 12 * 3 + 5 + 2, 32)]),
        ({"camera": "mlp", "speed": "none"}, [(12 * 12 * 3, 32), (32 + 5 + 2, 32)]),
        ({"camera": "minatar"}, [(3, 3, 3, 16), (10 * 10 * 16, 32), (32 + 5 + 2, 32)]),
        ({"joints": "auto", "speed": "mlp"}, [(3, 3, 3, 4), (10 * 10 * 4, 32), (2, 32), (32 + 5 + 32, 32)]),
    ],
)
def test_other_leaves_follow_encoder(encoders, expected):
    assert sizes(ROBOT, encoders) == sorted(expected)


def test_one_leaf_overrides_mlp():
    assert choose(ROBOT, dqn.Config(encoder="mlp", encoders={"camera": "auto"})) == ["conv", "none", "none"]
    assert choose(ROBOT, dqn.Config(encoder="mlp")) == ["none"] * 3
    board = Dict({"board": Box(0, 1, (3, 3, 2)), "turn": Discrete(2)})
    assert choose(board, dqn.Config(encoders={"board": "conv"})) == ["conv", "none"]  # too small to be one by itself


def test_names_of_leaves():
    assert [leaf.name for leaf in leaves(NESTED)] == ["arms/left", "arms/right", "views/0", "views/1"]
    config = dqn.Config(encoder="impala", encoders={"arms/right": "mlp", "views/1": "minatar"})
    assert choose(NESTED, config) == ["none", "mlp", "impala", "minatar"]


def test_features_by_hand():
    """Each leaf's numbers go into its own weights, whatever the order."""
    space = Dict({"a": Box(-1, 1, (2,)), "b": Box(-1, 1, (3,)), "c": Box(-1, 1, (4,))})
    module, obs = encoder(space, {"b": "mlp"}), space.sample(jax.random.key(0))
    action = jnp.float32([0.5])
    params = module.init(jax.random.key(1), obs, action)
    of_leaf, of_all = (params["params"][f"MLP_{i}"]["Dense_0"]["kernel"] for i in range(2))
    joined = jnp.concatenate([jax.nn.relu(obs["b"] @ of_leaf), obs["a"], obs["c"], action])
    np.testing.assert_allclose(module.apply(params, obs, action), jax.nn.relu(joined @ of_all), rtol=1e-5)


@pytest.mark.parametrize("name", ["dqn", "iqn", "ppo", "r2d2", "sac"])
def test_agents_take_encoders(name):
    module, space = agents.get(name), Dict({k: v for k, v in ROBOT.spaces.items() if k != "action_mask"})
    counts = []
    for encoders in ({}, {"joints": "mlp"}):
        agent = module.make(module.Config(encoders=encoders, hidden_sizes=(7,)), space, Discrete(2))
        obs, zero = spaces.zeros(space), jnp.zeros(())
        example = Transition(obs, jnp.zeros((), jnp.int32), zero, zero > 0, zero > 0, obs, extras=agent.memory)
        state = jax.eval_shape(lambda agent=agent, e=example: agent.init(module.Hyper(), jax.random.key(0), e, 4))
        counts.append(sum(x.shape == (5, 7) for x in jax.tree.leaves(state.params)))
    assert counts == [0, {"ppo": 2, "sac": 3}.get(name, 1)]  # one for each network


def test_encoders_in_a_config():
    config = parse({**RUN, "encoders": {"camera": "impala", 0: "mlp"}})
    assert config.agent.encoders == {"camera": "impala", "0": "mlp"}
    assert parse(config.flat()).agent == config.agent
    assert hash(config.agent) == hash(dqn.Config(encoders={"0": "mlp", "camera": "impala"}))
    overridden = with_overrides({**RUN, "encoders": {"camera": "conv"}}, {"encoders.joints": "mlp"})
    assert parse(overridden).agent.encoders == {"camera": "conv", "joints": "mlp"}
    with pytest.raises(ConfigError, match=r"encoders\.camera='cnn' must be 'auto', 'none', 'mlp'"):
        parse({**RUN, "encoders": {"camera": "cnn"}})


@pytest.mark.parametrize(
    ("space", "encoders", "words"),
    [
        (ROBOT, {"camra": "conv"}, ["encoders.camra='conv' must", "did you mean 'camera'"]),
        (ROBOT, {"action_mask": "mlp"}, ["encoders.action_mask='mlp' must", "leave it out"]),
        (NESTED, {"views": "conv"}, ["one of arms/left, arms/right, views/0, views/1"]),
        (CAMERA, {"camera": "conv"}, ["encoders.camera='conv' needs", "use encoder='conv'"]),
        (ROBOT, {"joints": "impala"}, ["encoders.joints='impala' needs an image", "use 'mlp' or 'none'"]),
        (ROBOT, {"camera": "nature"}, ["encoders.camera='nature'", "(12, 12, 3)"]),
    ],
)
def test_encoders_that_do_not_fit_are_one_line(space, encoders, words):
    with mistake(*words):
        ppo.make(ppo.Config(encoders=encoders), space, Discrete(2))


def test_a_policy_may_have_an_image_alone():
    """A small board is an image only for the policy, which does without `privileged`."""
    space = Dict({"board": Box(0, 1, (2, 2, 1)), "privileged": Box(-1, 1, (2,))})
    with pytest.raises(ConfigError, match=r"images of \(2, 2, 1\) to nothing"):
        ppo.make(ppo.Config(), space, Discrete(2))
    ppo.make(ppo.Config(kernels=2, encoders={"privileged": "mlp"}), space, Discrete(2))


def test_where_the_channels_are_must_be_known():
    strip = Dict({"strip": Box(0, 255, (3, 64, 3), np.uint8), "x": Box(-1, 1, (2,))})
    with mistake("image_axes='auto'", "strip has the shape (3, 64, 3)", "use 'first' or 'last'"):
        dqn.make(dqn.Config(padding="same"), strip, Discrete(2))
    for axes in ("first", "last"):
        dqn.make(dqn.Config(padding="same", image_axes=axes), strip, Discrete(2))
    dqn.make(dqn.Config(encoder="mlp"), strip, Discrete(2))
    for shape in ((10, 10, 10), (3, 3, 3), (4, 10, 10), (10, 10, 4), (20, 64, 20)):
        dqn.make(dqn.Config(), Box(0, 255, shape, np.uint8), Discrete(2))


@pytest.mark.parametrize("obs", [np.zeros(3), np.zeros(5), np.zeros((4, 2)), np.float32(1)])
def test_an_observation_of_another_shape_is_named(obs):
    agent = dqn.make(dqn.Config(), Box(-1, 1, (4,)), Discrete(2))
    params, stats = agent.static.network.init(jax.random.key(0), np.zeros(4, np.float32))
    with mistake("the observation", "[4]"):
        agent.static.network.apply(params, stats, obs)
