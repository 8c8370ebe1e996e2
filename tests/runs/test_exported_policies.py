"""Exported policies of every agent and encoder act as the policies themselves, on 1,000 observations."""

import collections
import contextlib
import functools

import jax
import numpy as np
import pytest
from small_policies import random_policy

from rlkit import agents
from rlkit.networks.encoders.registry import IMAGES, VECTORS
from rlkit.runs.exporting import onnx_graph, stablehlo
from rlkit.runs.exporting.comparison import compare, draw
from rlkit.runs.exporting.policy_function import policy_function
from rlkit.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from rlkit.types import ConfigError

FORMATS = {"stablehlo": stablehlo, "onnx": onnx_graph}
VECTOR, ONE_OF_THREE = Box(-2, 2, (3,)), Discrete(3)
ARM = Box(np.array([[-1.0, 0.0], [2.0, -3.0]]), np.array([[1.0, 5.0], [2.5, 3.0]]), dtype=np.float32)
CAMERA, SCREEN, BOARD = Box(0, 255, (12, 12, 3), np.uint8), Box(0, 255, (4, 36, 36), np.uint8), Box(0, 1, (10, 10, 4))
MASKED = Dict({"action_mask": Box(0, 1, (3,), np.int8), "state": VECTOR})
GAME = Dict({"action_mask": Box(0, 1, (3,), np.int8), "game_state": VECTOR, "state": VECTOR})
ROBOT = Dict(
    {
        "camera": CAMERA,
        "gear": MultiDiscrete((2, 3)),
        "joints": VECTOR,
        "mode": Discrete(4),
        "privileged": Box(-1, 1, (5,)),
        "touch": Tuple((Box(0, 255, (2,), np.uint8), Box(-np.inf, np.inf, (2, 2)))),
    }
)
JOINTS = Dict({name: space for name, space in ROBOT.spaces.items() if name != "camera"})
NORM = {"normalize_obs": True}
SMALL_IMAGE = ("ppo", CAMERA, ONE_OF_THREE, {"encoder": "conv", "hidden_sizes": [128]})

POLICIES = {
    "ppo": ("ppo", VECTOR, ONE_OF_THREE, NORM | {"layer_norm": True}),
    "ppo-shared": ("ppo", MASKED, ONE_OF_THREE, {"shared_torso": True, "activation": "relu"}),
    "ppo-multi-discrete": ("ppo", JOINTS, MultiDiscrete((2, 3, 4)), NORM | {"activation": "gelu"}),
    "ppo-box": ("ppo", VECTOR, ARM, NORM | {"activation": "elu"}),
    "ppo-squash": ("ppo", VECTOR, ARM, {"squash": True}),
    "ppo-unbounded": ("ppo", VECTOR, Box(-np.inf, np.inf, (2,)), {"gsde": True}),
    "ppo-half-open": ("ppo", VECTOR, Box(np.float32([0, 5, -np.inf]), np.float32([9, np.inf, 3])), {}),
    "pqn": ("pqn", MASKED, ONE_OF_THREE, NORM | {"layer_norm": True}),
    "alphazero": ("alphazero", GAME, ONE_OF_THREE, NORM),
    "dqn": ("dqn", VECTOR, ONE_OF_THREE, {"dueling": True, "noisy": True, "hidden_sizes": [16]}),
    "dqn-image": ("dqn", CAMERA, ONE_OF_THREE, {"encoder": "mlp"}),
    "c51": ("c51", MASKED, ONE_OF_THREE, NORM | {"dueling": True, "num_atoms": 11}),
    "qrdqn": ("qrdqn", VECTOR, ONE_OF_THREE, {"dueling": True, "num_quantiles": 5}),
    "iqn": ("iqn", VECTOR, ONE_OF_THREE, NORM | {"dueling": True, "num_value_quantiles": 4, "num_cosines": 6}),
    "sac": ("sac", JOINTS, ARM, NORM | {"activation": "silu"}),
    "sac-gsde": ("sac", VECTOR, ARM, {"gsde": True}),
    "sac-discrete": ("sac", MASKED, ONE_OF_THREE, {}),
    "tqc": ("tqc", VECTOR, ARM, NORM | {"num_quantiles": 5}),
    "crossq": ("crossq", VECTOR, ARM, NORM),
    "td3": ("td3", VECTOR, ARM, NORM),
    "ddpg": ("ddpg", VECTOR, ARM, {}),
    "td3_bc": ("td3_bc", VECTOR, ARM, NORM),
    "iql": ("iql", VECTOR, ARM, NORM),
    "iql-discrete": ("iql", MASKED, ONE_OF_THREE, {}),
    "bc": ("bc", VECTOR, ARM, NORM),
    "rebrac": ("rebrac", VECTOR, ARM, NORM),
    "hybrid": ("ppo", VECTOR, Dict({"arm": ARM, "more": Tuple((ONE_OF_THREE, MultiDiscrete((2, 3))))}), NORM),
    "conv": ("dqn", CAMERA, ONE_OF_THREE, {"encoder": "conv", "channels": [4, 6], "norm": "layer", "padding": "same"}),
    "nature": ("ppo", SCREEN, ONE_OF_THREE, {"encoder": "nature", "layer_norm": True}),
    "impala": ("ppo", CAMERA, ARM, {"encoder": "impala"}),
    "minatar": ("pqn", BOARD, ONE_OF_THREE, {"encoder": "minatar"}),
    "resnet": ("pqn", BOARD, ONE_OF_THREE, {"encoder": "resnet", "channels": [4, 6]}),
    "camera and vectors": ("sac", ROBOT, ARM, NORM | {"encoders": {"camera": "impala", "joints": "mlp"}}),
    "ppo-gru": ("ppo", JOINTS, ONE_OF_THREE, NORM | {"recurrent": "gru"}),
    "ppo-lstm": ("ppo", MASKED, ONE_OF_THREE, {"recurrent": "lstm", "shared_torso": True}),
    "ppo-mingru": ("ppo", VECTOR, ONE_OF_THREE, NORM | {"recurrent": "mingru", "memory_layers": 2}),
    "ppo-lru": ("ppo", VECTOR, ONE_OF_THREE, {"recurrent": "lru"}),
    "ppo-s5": ("ppo", VECTOR, ONE_OF_THREE, {"recurrent": "s5"}),
    "ppo-gsde-gru": ("ppo", ROBOT, ARM, {"recurrent": "gru", "gsde": True}),
    "r2d2": ("r2d2", VECTOR, ONE_OF_THREE, NORM | {"recurrent": "lstm", "dueling": True}),
    "sac-lru": ("sac", VECTOR, ARM, NORM | {"recurrent": "lru"}),
    "tqc-gru": ("tqc", VECTOR, ARM, NORM | {"recurrent": "gru"}),
    "r2d2-conv": ("r2d2", CAMERA, ONE_OF_THREE, {"recurrent": "gru", "channels": [4, 6]}),
}
HEART = "ppo-box"
KINDS = ("sac", "conv", "ppo-gru", "ppo-mingru", "ppo-lru", "hybrid")


def marks(name):
    if name == HEART:
        return ()
    return pytest.mark.thorough if name in KINDS else pytest.mark.slow


CASES = [pytest.param(name, format, marks=marks(name)) for name in POLICIES for format in FORMATS]


def function(case):
    name, obs_space, action_space, settings = case
    with jax.numpy_dtype_promotion("standard"):
        return policy_function(random_policy(name, obs_space, action_space, **settings))


@functools.lru_cache(maxsize=1)
def function_of(name):
    """The formats of a case follow each other and share its policy."""
    return function(POLICIES[name])


def test_every_agent_and_every_encoder_is_here():
    names, _, _, settings = zip(*POLICIES.values(), strict=True)
    assert set(names) == set(agents.names())
    encoders = {name for x in settings for name in (x.get("encoder"), *x.get("encoders", {}).values())}
    assert encoders - {None} == {*IMAGES, *VECTORS}


@pytest.mark.parametrize(("name", "format"), CASES)
def test_it_acts_as_the_policy(name, format):
    if format == "onnx":
        pytest.importorskip("jax2onnx")
        pytest.importorskip("onnxruntime")
    policy = function_of(name)
    data = FORMATS[format].to_bytes(policy)
    compare(format, policy, FORMATS[format].reader(data))


def test_integers_count_from_where_those_of_the_environment_do():
    """In observations and in actions, as Gymnasium's spaces with a `start` have them, also without an export."""
    obs_space = Dict({"mode": Discrete(4), "privileged": Discrete(2), "state": VECTOR})
    with jax.numpy_dtype_promotion("standard"):
        policy = random_policy("ppo", obs_space, ONE_OF_THREE)
        native = policy._replace(
            env=policy.env._replace(obs_starts={"mode": -2, "privileged": 1, "state": 0}, action_starts=5)
        )
        acted, expected = policy_function(native), policy_function(policy)
    exported = stablehlo.reader(stablehlo.to_bytes(acted))
    compare("stablehlo", acted, exported)
    inputs = draw(expected, jax.random.key(1), 20)
    actions = np.asarray(jax.vmap(expected.apply, in_axes=(None, 0))(policy.actor, inputs)["action"])
    assert len(set(actions.tolist())) > 1
    inputs |= {"obs/mode": inputs["obs/mode"] - 2}
    np.testing.assert_array_equal(exported(inputs)["action"], actions + 5)
    for i in range(3):
        obs = {"mode": inputs["obs/mode"][i], "state": inputs["obs/state"][i]}
        assert native.act(obs, jax.random.key(0))[0] == actions[i] + 5


def test_another_policy_is_refused():
    """An action that is off by 2e-5."""
    box = function_of(HEART)
    act, off = stablehlo.reader(stablehlo.to_bytes(box)), np.float32(2e-5)
    with pytest.raises(ConfigError, match="differs by"):
        compare("stablehlo", box, lambda inputs: {"action": act(inputs)["action"] * (1 + off) + off})


def test_either_of_two_equal_values_may_be_chosen():
    policy = function(("dqn", VECTOR, ONE_OF_THREE, {}))
    choose = stablehlo.reader(stablehlo.to_bytes(policy))
    with pytest.raises(ConfigError, match="1 of 1 rows differ"):  # the second best of three
        compare("stablehlo", policy, lambda inputs: {"action": (choose(inputs)["action"] + 1) % 3})
    head = policy.policy.actor.params["params"]["advantage"]
    head["kernel"], head["bias"] = (x.at[..., 1].set(x[..., 0]) for x in (head["kernel"], head["bias"]))
    choose = stablehlo.reader(stablehlo.to_bytes(policy))
    other = np.array([1, 0, 2], np.int32)  # of the two
    compare("stablehlo", policy, lambda inputs: {"action": other[choose(inputs)["action"]]})
    with pytest.raises(ConfigError, match="rows differ"):
        compare("stablehlo", policy, lambda inputs: {"action": np.full_like(choose(inputs)["action"], 1)})


def check_size(policy, data):
    """Only the actor's parameters are in the file."""
    params = policy.policy.actor.params["params"]
    size = {name: sum(x.size for x in jax.tree.leaves(params[name])) for name in ("encoders_actor", "encoders_critic")}
    assert 4 * size["encoders_actor"] < len(data) < 4 * sum(size.values())


def test_stablehlo_is_plain_and_without_the_critic(monkeypatch):
    """Without `_cpu.plain`, a small image would be patches times a matrix, which is one product more."""

    def products(data):
        text = jax.export.deserialize(bytearray(data)).mlir_module()
        assert "stablehlo.convolution" in text
        return text.count("stablehlo.dot_general")

    policy = function(SMALL_IMAGE)
    data = stablehlo.to_bytes(policy)
    with monkeypatch.context() as patch:
        patch.setattr(stablehlo._cpu, "plain", contextlib.nullcontext)
        assert products(data) < products(stablehlo.to_bytes(function(SMALL_IMAGE)))
    check_size(policy, data)


@pytest.mark.thorough
def test_onnx_is_plain_and_without_the_critic():
    """A convolution and two products, where the CPU's own program would be patches times a matrix."""
    pytest.importorskip("jax2onnx")
    onnx = pytest.importorskip("onnx")
    policy = function(SMALL_IMAGE)
    data = onnx_graph.to_bytes(policy)
    counts = collections.Counter(node.op_type for node in onnx.load_from_string(data).graph.node)
    assert (counts["Conv"], counts["Gemm"] + counts["MatMul"]) == (1, 2)
    check_size(policy, data)
