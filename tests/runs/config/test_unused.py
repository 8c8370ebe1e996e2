"""Keys of Hyper that change nothing with the other settings: refused where a run would record or search them."""

from pathlib import Path

import pytest

from rlkit.hosts import registry
from rlkit.runs import loop
from rlkit.runs.config import changes
from rlkit.runs.config.load import load_config, names
from rlkit.runs.config.parse import parse
from rlkit.runs.describe import describe
from rlkit.runs.hints import on_settings
from rlkit.runs.programs.make import make_program
from rlkit.runs.sweeps import trials
from rlkit.runs.sweeps.config import load_sweep
from rlkit.runs.sweeps.stages import check
from rlkit.runs.sweeps.trials import Trial
from rlkit.spaces import Box, Discrete
from rlkit.types import ConfigError

BASE = {"num_envs": 4, "num_steps": 8, "total_steps": 320}
NOISY = ["epsilon_start", "epsilon_end", "epsilon_steps", "epsilon_fraction"]
SHARE, TARGETS = "target_entropy_share", ["target_entropy", "target_entropy_share"]
TEMPERATURE = [*TARGETS, "target_entropy_total", "temperature_learning_rate"]


def config_of(agent, **values):
    env = (
        "Pendulum-v1" if agent in ("sac", "tqc", "crossq", "td3", "ddpg", "td3_bc", "rebrac", "iql") else "CartPole-v1"
    )
    return parse(BASE | {"agent": agent, "env": env} | values)


@pytest.mark.parametrize(
    ("agent", "settings", "unused", "other"),
    [
        *[(agent, {"noisy": True}, NOISY, {"noisy": False}) for agent in ("dqn", "c51", "qrdqn")],
        *[
            (agent, {"epsilon_fraction": 0.5}, ["epsilon_steps"], {"epsilon_fraction": None})
            for agent in ("dqn", "c51", "qrdqn", "iqn", "pqn", "r2d2")
        ],
        *[
            (agent, {"replay": "uniform"}, ["beta", "beta_end", "schedule_steps"], {"replay": "prioritized"})
            for agent in ("dqn", "c51", "qrdqn", "iqn", "r2d2", "sac", "tqc", "crossq", "td3", "ddpg", "td3_bc", "iql")
        ],
        (
            "iqn",
            {"munchausen": False},
            ["munchausen_alpha", "munchausen_clip", "temperature"],
            {"munchausen": True},
        ),
        *[(agent, {"behavior_cloning": False}, ["bc_alpha"], {"behavior_cloning": True}) for agent in ("td3", "ddpg")],
        ("td3_bc", {"behavior_cloning": False}, ["bc_alpha"], {}),
        ("sac", {"learn_temperature": False}, TEMPERATURE, {"learn_temperature": True}),
        ("sac", {"target_entropy_total": -1.0}, TARGETS, {"target_entropy_total": None}),
        ("ppo", {"kl_penalty": False}, ["kl_coef"], {"kl_penalty": True}),
        ("ppo", {"clip_schedule": "constant"}, ["schedule_steps"], {"clip_schedule": "linear"}),
        ("pqn", {"epsilon_fraction": None}, ["schedule_steps"], {"epsilon_fraction": 0.5}),
        ("r2d2", {"num_envs": 1}, ["epsilon_ladder"], {"num_envs": 2}),
        ("r2d2", {"replay": "uniform"}, ["priority_max", "alpha"], {"replay": "prioritized"}),
        ("td3", {"actor_learning_rate": 1e-3, "critic_learning_rate": 1e-3}, ["learning_rate"], {}),
        ("td3", {"actor_learning_rate": 1e-3}, [], {}),
        ("td3", {"target_noise": 0.0}, ["target_noise_clip"], {}),
        ("ddpg", {"exploration_noise": 0.0}, ["noise_correlation"], {}),
        ("ppo", {"num_epochs": 1}, ["memory_size", "memory_layers", "recompute_advantage"], {"recurrent": "gru"}),
        ("sac", {"recurrent": "none"}, ["memory_size", "memory_layers", "burn_in", "unroll_len"], {"recurrent": "gru"}),
        ("tqc", {"recurrent": "none"}, ["memory_size", "memory_layers", "burn_in", "unroll_len"], {"recurrent": "gru"}),
        ("sac", {"gsde": False}, ["gsde_steps"], {"gsde": True}),
        ("crossq", {"optimizer": "rmsprop"}, ["adam_b1"], {}),
        *[(agent, {"optimizer": "sgd"}, ["adam_eps"], {"optimizer": "rmsprop"}) for agent in ("ppo", "sac")],
    ],
)
def test_a_setting_makes_fields_unused(agent, settings, unused, other):
    assert set(unused) <= config_of(agent, **settings).unused().keys()
    assert not set(unused) & config_of(agent, **other).unused().keys()


@pytest.mark.parametrize(
    ("agent", "settings", "line"),
    [
        ("ppo", {"kl_coef": 5.0}, "kl_coef=5.0 has no effect, as kl_penalty=false"),
        ("ppo", {"num_workers": 3}, "num_workers=3 has no effect, as env='CartPole-v1' is in JAX"),
        ("ppo", {"env": "gymnasium:CartPole-v1", "backend": "serial", "env_timeout": 9.0}, "env_timeout=9.0 has no"),
        ("ppo", {"log_std_init": -1.0}, "log_std_init=-1.0 has no effect, as action_space=Discrete"),
    ],
)
def test_a_key_that_was_set_without_effect_is_named(agent, settings, line):
    (found,) = config_of(agent, **settings).without_effect(Discrete(2))
    assert line in found
    others = {"kl_penalty": True, "replay": "prioritized", "env": "gymnasium:CartPole-v1"}
    fields = config_of(agent).flat()
    assert config_of(agent, **{key: value for key, value in others.items() if key in fields}).without_effect() == []


NOT_IN_DEV = ("brax", "craftax", "mpe_", "smax_", "overcooked")  # libraries of environments that the tests do without


@pytest.mark.parametrize("name", [name for name in names() if not any(suite in name for suite in NOT_IN_DEV)])
def test_no_key_of_a_bundled_config_is_without_effect(name):
    assert load_config(name).without_effect() == []


@pytest.mark.parametrize(
    ("agent", "settings", "line"),
    [
        ("dqn", {"learning_starts": 5000}, "learning_starts=5,000 is beyond the run of 320 steps"),
        ("dqn", {"learning_starts": 32, "target_every": 5000}, "target_every=5,000 is beyond the run of 320 steps"),
        ("r2d2", {"n_step": 17, "learning_starts": 32}, "n_step=17 is above unroll_len=16: a target ends with its"),
        ("sac", {"n_step": 17, "learning_starts": 32}, None),
        ("ppo", {"eval_every": 1000}, "eval_every=1,000 is beyond the run of 320 steps"),
        ("ppo", {"eval_every": 32, "log_every": 320}, "eval_every=32 is rounded to whole metric lines, 320 steps"),
        ("ppo", {"wrappers": ["time_limit:900"]}, "wrapper time_limit:900 has no effect, as episodes end after 500"),
        ("ppo", {"wrappers": ["time_limit:400"]}, None),
        ("ppo", {"eval_every": 64}, None),
    ],
)
def test_settings_that_a_run_is_too_short_for_are_named(agent, settings, line, capsys):
    config = config_of(agent, **settings)
    program = make_program(config)
    found = on_settings(program)
    assert [line in text for text in found] == [True] * (line is not None)
    assert all(f"warning:        {text}" in describe(config) for text in found)


@pytest.mark.parametrize(
    ("agent", "settings", "message"),
    [
        ("ppo", {"norm": "layer"}, "norm='layer' has no effect, .* observations hold no image; use layer_norm=True"),
        ("ppo", {"keep_best": True, "eval_every": 320}, "keep_best=true needs evaluations before the end"),
    ],
)
def test_a_setting_that_cannot_have_its_effect_is_refused(agent, settings, message):
    with pytest.raises(ConfigError, match=message):
        make_program(config_of(agent, **settings))


def test_a_library_that_steps_environments_takes_no_options_of_workers(monkeypatch):
    monkeypatch.setattr(registry, "_check_installed", lambda *arguments: None)
    with pytest.raises(ConfigError, match="backend='bogus' does not go with env='envpool:Pong-v5', which its library"):
        registry.pool("envpool:Pong-v5", {}, num_envs=1, backend="bogus")


def test_the_space_of_actions_decides_between_two_target_entropies():
    config = config_of("sac")
    assert not {*TARGETS} & config.unused().keys()
    assert {*TARGETS} & config.unused(Box(-1.0, 1.0, (2,))).keys() == {"target_entropy_share"}
    assert {*TARGETS} & config.unused(Discrete(3)).keys() == {"target_entropy"}


def resumed(stored, config, action_space=None):
    return changes.find({"config": stored.resolved()}, config, Path("run"), action_space)


def test_a_run_refuses_a_change_without_effect():
    stored = config_of("dqn", noisy=True, epsilon_start=0.3)
    with pytest.raises(ConfigError, match=r"^epsilon_start=0.5 .*noisy=true.* 0.3"):
        resumed(stored, config_of("dqn", noisy=True, epsilon_start=0.5))
    assert resumed(stored, config_of("dqn", noisy=True, epsilon_start=0.3, gamma=0.5)).now == {"gamma": 0.5}
    longer = config_of("dqn", noisy=True, epsilon_start=0.3, total_steps=640)
    assert resumed(stored, longer).now == {"total_steps": 640}


def test_a_run_refuses_a_change_without_effect_on_its_actions():
    stored, config = config_of("sac"), config_of("sac", target_entropy_share=0.5)
    assert resumed(stored, config, Discrete(3)).now == {SHARE: 0.5}
    with pytest.raises(ConfigError, match=r"^target_entropy_share=0.5 "):
        resumed(stored, config, Box(-1.0, 1.0, (2,)))


@pytest.mark.thorough
def test_a_resumed_run_refuses_a_change_without_effect_on_its_actions(tmp_path):
    sizes = {"hidden_sizes": [4], "batch_size": 8, "capacity": 64, "replay_ratio": 1 / 32, "total_steps": 32}
    config = BASE | {"agent": "sac", "env": "Pendulum-v1", "eval_episodes": 0} | sizes
    run = loop.train(config, out=tmp_path / "run", show=False).run
    for keys in ({SHARE: 0.5}, {SHARE: 0.5, "total_steps": 64}):
        with pytest.raises(ConfigError, match=r"^target_entropy_share=0.5 .*Box"):
            loop.resume(run, overrides=keys, show=False)
    assert not (run / changes.FILE).exists()


def test_a_run_may_change_what_a_change_gives_an_effect():
    stored, steps = config_of("dqn", epsilon_fraction=0.5), {"epsilon_fraction": None, "epsilon_steps": 64.0}
    assert resumed(stored, config_of("dqn", **steps)).now == steps


@pytest.mark.parametrize(
    ("earlier", "now"),
    [
        ({"epsilon_steps": 32.0}, {"epsilon_steps": 64.0, "epsilon_fraction": 0.5}),
        ({"schedule_steps": 32.0, "epsilon_fraction": 0.5}, {"schedule_steps": 64.0, "epsilon_fraction": None}),
    ],
)
def test_an_earlier_checkpoint_may_have_used_what_has_no_effect_now(earlier, now):
    """Both keys were changed, one after the other: the first change had an effect, and the checkpoint is older."""
    assert resumed(config_of("dqn", **earlier), config_of("dqn", **now)).now == now


def check_sweep(tmp_path, agent, space):
    env = "Pendulum-v1" if agent == "sac" else "CartPole-v1"
    lines = {"config": f"{tmp_path}/base.yaml", "trials": 2, **space}
    (tmp_path / "base.yaml").write_text("".join(f"{k}: {v}\n" for k, v in {**BASE, "agent": agent, "env": env}.items()))
    (tmp_path / "sweep.yaml").write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))
    swept = load_sweep(tmp_path / "sweep.yaml")
    check([Trial(0, values, swept.trial_config(values)) for values in trials.ends(swept)])


@pytest.mark.parametrize(
    ("agent", "space", "text"),
    [
        ("dqn", {"beta": "{uniform: [0.1, 0.9]}"}, "beta=.*replay='uniform'"),
        ("ppo", {"kl_coef": "{uniform: [0.1, 0.9]}"}, "kl_coef=.*kl_penalty=false"),
        ("sac", {SHARE: "{uniform: [0.1, 0.9]}"}, "target_entropy_share=.*action_space=Box"),
    ],
)
def test_a_sweep_refuses_a_key_without_effect(tmp_path, agent, space, text):
    with pytest.raises(ConfigError, match=f"^{text}"):
        check_sweep(tmp_path, agent, {**space, "learning_rate": "{values: [0.1, 0.2]}"})


@pytest.mark.parametrize(
    "space",
    [
        {"replay": "{values: [uniform, prioritized]}", "beta": "{uniform: [0.1, 0.9]}"},
        {"learning_rate_schedule": "{values: [constant, linear]}", "schedule_steps": "{values: [100, 200]}"},
        {  # no end of one key alone gives the last one an effect
            "noisy": "{values: [true, false]}",
            "epsilon_fraction": "{values: [0.5, null]}",
            "epsilon_steps": "{uniform: [10, 100]}",
        },
    ],
)
def test_a_sweep_keeps_a_key_that_some_trials_use(tmp_path, space):
    check_sweep(tmp_path, "dqn", space)
