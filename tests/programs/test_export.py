"""The main programs are exported for GPUs and TPUs on this machine, and hold nothing that exists for CPUs only."""

import re

import jax
import jax.export
import pytest
from replay_model import ONE, steps

from rlkit import agents, envs, replay, training

pytestmark = pytest.mark.thorough


# Custom calls that XLA implements on every platform, and those that it or JAX implements on this one.
PORTABLE = "Sharding|SPMDFullToShardShape|SPMDShardToFullShape|annotate_device_placement|mhlo.topk"
OWN = {"cuda": r"cu[a-z]*_\w+|__gpu\$.*|__cu.*", "tpu": r"tpu_\w+"}
SMALL = {"hidden_sizes": (8,)}
REPLAY = SMALL | {"capacity": 64, "batch_size": 4}
AGENTS = {
    "ppo": ("Probe-ObservationAction", SMALL | {"num_minibatches": 2, "num_epochs": 2}),
    "dqn": ("Probe-ObservationAction", REPLAY | {"replay": "prioritized", "n_step": 3}),
    "sac": ("Probe-Continuous", REPLAY),
}


def foreign_calls(program: jax.export.Exported, platform: str) -> list[str]:
    """Targets of the program's custom calls that are not known to exist on a platform."""
    text = program.mlir_module()
    targets = re.findall(r"custom_call @([\w.$]+)", text) + re.findall(r'call_target_name = "([^"]+)"', text)
    return [target for target in targets if not re.fullmatch(f"{PORTABLE}|{OWN[platform]}", target)]


def train_step(name: str):
    """A train step of an agent, and the shapes of its state."""
    module, (env_name, settings) = agents.get(name), AGENTS[name]
    env, params = envs.make(env_name)
    agent = module.make(module.Config(**settings), env.observation_space(params), env.action_space(params))
    pair = training.make(agent, env, params, num_envs=2, num_steps=4)
    return pair.step, (jax.eval_shape(pair.init, module.Hyper(), jax.eval_shape(lambda: jax.random.key(0))),)


def slice_buffer():
    """Add rows to a buffer of slices and sample from it, and the shapes of the buffer's state and of a key."""
    buffer = replay.slices(64, 8, 4)

    def add_and_sample(state, key):
        state = buffer.add(state, steps(2, 2))
        return state, buffer.sample(state, key)

    return add_and_sample, jax.eval_shape(lambda: (buffer.init(ONE, 2), jax.random.key(0)))


PROGRAMS = {name: lambda name=name: train_step(name) for name in AGENTS} | {"slices": slice_buffer}


@pytest.mark.parametrize(
    ("name", "platform"),
    [
        pytest.param(name, platform, marks=pytest.mark.slow if platform == "tpu" and name != "ppo" else ())
        for name in PROGRAMS
        for platform in OWN
    ],
)
def test_a_program_is_exported_without_calls_of_another_platform(name, platform):
    program, shapes = PROGRAMS[name]()
    exported = jax.export.export(jax.jit(program), platforms=[platform])(*shapes)
    assert exported.platforms == (platform,)
    assert foreign_calls(exported, platform) == []


@pytest.mark.parametrize("platform", OWN)
def test_a_custom_call_of_the_cpu_is_reported(platform):
    """A QR factorization is a call of LAPACK on a CPU."""
    shape = jax.ShapeDtypeStruct((4, 4), "float32")
    exported = jax.export.export(jax.jit(jax.numpy.linalg.qr), platforms=["cpu"])(shape)
    assert foreign_calls(exported, platform) != []
