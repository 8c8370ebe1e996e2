"""Keys that a part of the user's own replaces: named where a run starts, and refused in sweeps."""

import re
from pathlib import Path

import flax.linen as nn
import jax.numpy as jnp
import optax
import pytest

from rlkit import agents, envs, replay
from rlkit.agents.base.keys import Unused, facts
from rlkit.networks.encoders import combine
from rlkit.networks.heads import actor_critic, implicit_quantiles, q_network
from rlkit.runs.config import changes
from rlkit.runs.config.parse import parse
from rlkit.runs.sweeps import trials
from rlkit.runs.sweeps.config import load_sweep
from rlkit.runs.sweeps.stages import check
from rlkit.runs.sweeps.trials import Trial
from rlkit.types import ConfigError

BASE = {"num_envs": 4, "num_steps": 8, "total_steps": 320, "env_check": False}
ENVS = {"ppo": "CartPole-v1", "dqn": "CartPole-v1"}
finished = optax.adam(1e-3)
of_rate = optax.adam
buffer = replay.uniform(64, 4)


def prioritized(config):
    return replay.prioritized(config.capacity, 4, alpha=config.alpha)


def fails(config):
    raise RuntimeError("boom")


def dense(obs_space, action_space):
    return nn.Dense(action_space.n)


class Policy(nn.Module):
    @nn.compact
    def __call__(self, obs):
        return nn.Dense(1)(obs), nn.Dense(1)(obs)


class Critics(nn.Module):
    @nn.compact
    def __call__(self, obs, action):
        return jnp.moveaxis(nn.Dense(2)(jnp.concatenate([obs, action], -1)), -1, 0)


def policy(obs_space, action_space):
    return {"policy": Policy()}


def critics(obs_space, action_space):
    return {"critics": Critics()}


def both(obs_space, action_space):
    return {"policy": Policy(), "critics": Critics()}


def warm(steps):
    return 1e-3


PPO_RATES = {"learning_rate": 0.1, "warmup_steps": 64.0}
RATES = PPO_RATES | dict.fromkeys(["actor_learning_rate", "critic_learning_rate", "temperature_learning_rate"], 0.1)
REPLACED = {  # by agent and part: what it replaces, with other values than the defaults
    ("ppo", "optimizer"): PPO_RATES | {"learning_rate_schedule": "linear", "adam_eps": 1e-3, "schedule_steps": 64.0},
    ("sac", "optimizer"): RATES | {"learning_rate_schedule": "cosine", "adam_eps": 1e-3, "schedule_steps": 64.0},
    ("crossq", "optimizer"): {"adam_b1": 0.1, "temperature_learning_rate": 0.1},
    ("ppo", "learning_rate_schedule"): PPO_RATES | {"schedule_steps": 64.0},
    ("sac", "learning_rate_schedule"): RATES | {"schedule_steps": 64.0},
    ("dqn", "network"): {"encoder": "mlp", "activation": "tanh", "layer_norm": True, "dueling": True},
    ("sac", "network"): {"hidden_sizes": [8], "activation": "tanh", "log_std_init": -1.0, "critic_dropout": 0.1},
    ("dqn", "replay"): {
        "batch_size": 8,
        "alpha": 0.1,
        "beta": 0.1,
        "beta_end": 0.1,
        "store_obs_once": True,
        "replay_stack": 2,
    },
}
PARTS = {"optimizer": "finished", "learning_rate_schedule": "warm", "replay": "buffer"}
NETWORKS = {"dqn": "dense", "sac": "both"}
EACH = [(agent, part, key, value) for (agent, part), keys in REPLACED.items() for key, value in keys.items()]


def named(part, agent="ppo"):
    return {part: f"{__name__}:{NETWORKS[agent] if part == 'network' else PARTS[part]}"}


def spaces(agent):
    env, params = envs.make(ENVS.get(agent, "Pendulum-v1"))
    return env.action_space(params), env.observation_space(params)


def config_of(agent, **values):
    return parse(BASE | {"agent": agent, "env": ENVS.get(agent, "Pendulum-v1")} | values)


@pytest.mark.parametrize(("agent", "part", "key", "value"), EACH)
def test_a_run_names_the_key_and_a_sweep_refuses_it(agent, part, key, value, tmp_path):
    own = named(part, agent)
    (line,) = config_of(agent, **own, **{key: value}).without_effect(*spaces(agent))
    assert line.startswith(f"{key}=")
    assert re.search(rf"as {part}(\.\w+)?=", line)
    base = {**BASE, "agent": agent, "env": ENVS.get(agent, "Pendulum-v1"), "num_minibatches": 1, "num_epochs": 1}
    base = {key: value for key, value in base.items() if agent == "ppo" or key not in ("num_minibatches", "num_epochs")}
    (tmp_path / "base.yaml").write_text("".join(f"{key}: {value}\n" for key, value in base.items()))
    values = f"[{config_of(agent).flat()[key]}, {value}]".replace("None", "null").lower()
    (tmp_path / "sweep.yaml").write_text(f"config: base.yaml\nsampler: grid\n{key}: {{values: {values}}}\n")
    swept = load_sweep(tmp_path / "sweep.yaml", own)
    with pytest.raises(ConfigError, match=rf"^{key}=.* changes nothing in any trial, as {part}(\.\w+)?="):
        check([Trial(0, values, swept.trial_config(values)) for values in trials.ends(swept)])


def test_an_optimizer_with_a_rate_of_its_own_replaces_the_end_of_a_schedule():
    settings = {"learning_rate_schedule": "linear", "learning_rate_end": 0.1}
    unused = config_of("ppo", **named("optimizer"), **settings).unused()
    assert {"learning_rate_schedule", "learning_rate_end"} <= unused.keys()


@pytest.mark.parametrize("agent", ["ppo", "sac"])
def test_a_function_of_the_learning_rate_reads_it(agent):
    unused = config_of(agent, optimizer=f"{__name__}:of_rate", learning_rate_schedule="linear").unused()
    assert not {*RATES, "learning_rate_schedule", "schedule_steps", "learning_rate_end"} & unused.keys()
    assert "adam_eps" in unused


@pytest.mark.parametrize("part", ["optimizer", "learning_rate_schedule"])
def test_a_resumed_run_refuses_it(part):
    stored = {"config": config_of("ppo", **named(part)).resolved()}
    with pytest.raises(ConfigError, match=rf"^learning_rate=0.5 would change nothing .*as {part}="):
        changes.find(stored, config_of("ppo", **named(part), learning_rate=0.5), Path("run"))


def test_networks_of_which_the_config_describes_some_read_its_keys():
    keys = {"hidden_sizes", "log_std_init", "critic_dropout"}
    of_policy, of_critics = (
        config_of("sac", network=f"{__name__}:{name}").unused(*spaces("sac")).keys() & keys
        for name in ("policy", "critics")
    )
    assert (of_policy, of_critics) == ({"log_std_init"}, {"critic_dropout"})


@pytest.mark.parametrize(
    "agent", [name for name in agents.names() if "encoder" in agents.get(name).Config.model_fields]
)
def test_every_key_of_the_networks_is_declared(agent):
    """Those that the heads of `networks` take from a Config, but for the ones that are refused beside a network."""
    fields = agents.get(agent).Config.model_fields
    settings = {*combine.SETTINGS, *q_network.SETTINGS, *actor_critic.SETTINGS, *implicit_quantiles.SETTINGS}
    left = {"noisy", "gsde", "squash", "image_axes", "recurrent"}
    declared = {key for key, found in facts(agents.get(agent).Config).items() for x in found if reads_network(x)}
    assert (settings & fields.keys()) - left - declared == set()


def reads_network(fact):
    return isinstance(fact, Unused) and "network" in fact.settings


@pytest.mark.parametrize(("function", "unread"), [
    ("prioritized", {"batch_size", "store_obs_once", "replay_stack"}),
    ("fails", set()),
])  # fmt: skip
def test_what_a_function_of_the_config_reads_for_its_buffer_has_an_effect(function, unread):
    keys = {"capacity", "batch_size", "alpha", "beta", "beta_end", "store_obs_once", "replay_stack", "schedule_steps"}
    assert config_of("dqn", replay=f"{__name__}:{function}").unused().keys() & keys == unread
