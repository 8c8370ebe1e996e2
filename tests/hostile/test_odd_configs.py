"""Configs as a hostile or clumsy user writes them: refused in one line that names the key, or a run that means it."""

import pytest

from rlkit import agents, cli
from rlkit.runs.config.schema import schema
from rlkit.runs.devices import memory

pytestmark = pytest.mark.thorough
DISCRETE = {"c51", "dqn", "iqn", "pqn", "qrdqn", "r2d2"}
HUGE = str(10**30)


@pytest.fixture(autouse=True)
def _memory_of_16_gib(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda num_devices=1: 2**34)


def text(agent, change=""):
    """A small config of an agent, with some lines replaced."""
    env = "CartPole-v1" if agent in DISCRETE else "Pendulum-v1"
    values = {"agent": agent, "env": env, "num_envs": "4", "num_steps": "8", "total_steps": "320"}
    changed = {line.split(":")[0] for line in change.splitlines()}
    return "\n".join([*(f"{key}: {value}" for key, value in values.items() if key not in changed), change, ""])


def check(capsys, tmp_path, content, *flags):
    """Exit code and both outputs of `rlkit check`."""
    file = tmp_path / "c.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    code = cli.main(["check", str(file), *flags])
    out, err = capsys.readouterr()
    return code, out, err.replace(str(tmp_path), "")


def refused(capsys, tmp_path, content, *words, flags=()):
    code, out, err = check(capsys, tmp_path, content, *flags)
    assert (code, out) == (2, "")
    assert err.startswith("rlkit: ")
    assert err.count("\n") == 1
    assert err[:-1].isprintable()
    assert len(err) < 300, err
    for word in words:
        assert word in err


# Values that no key of a kind accepts, and the words of the rule.
NO_COUNTS = [
    "0",
    "-1",
    "0.5",
    ".nan",
    ".inf",
    "1e30",
    HUGE,
    "many",
    "null",
    "[1, 2]",
    "{a: 1}",
    "true",
    "'3'",
    "''",
    "é",
]
NO_NUMBERS = ["-1e-3", ".nan", "fast", "null", "[]", "[0.1]", "{a: 1}", "true", "'3'", "1,5", "0x10", "1e-60", "1e60"]
NO_FLAGS = ["0", "1", "yes", "'true'", "null", "[true]"]


@pytest.mark.parametrize("value", NO_COUNTS)
@pytest.mark.parametrize("key", ["num_envs", "total_steps", "num_minibatches", "num_seeds"])
def test_counts(capsys, tmp_path, key, value):
    refused(
        capsys,
        tmp_path,
        text("ppo", f"{key}: {value}"),
        f"c.yaml, line {5 if key in ('num_envs', 'total_steps') else 6}: {key}=",
        "must ",
    )


@pytest.mark.parametrize("value", NO_NUMBERS)
@pytest.mark.parametrize("key", ["learning_rate", "gamma"])
def test_numbers(capsys, tmp_path, key, value):
    refused(capsys, tmp_path, text("dqn", f"{key}: {value}"), f"c.yaml, line 6: {key}=", "must ", "; the default is ")


@pytest.mark.parametrize("value", NO_FLAGS)
def test_flags(capsys, tmp_path, value):
    refused(capsys, tmp_path, text("ppo", f"normalize_obs: {value}"), "normalize_obs=", "must be true or false")


@pytest.mark.parametrize("agent", agents.names())
def test_no_whole_number_of_an_agent_is_endless(capsys, tmp_path, agent):
    """A number beyond int32 would overflow while a program is traced, far from the key."""
    checked = 0
    for key, field in schema(agent).models[1].model_fields.items():
        annotation = str(field.annotation)
        if "int" not in annotation.replace("Interval", "").replace("Point", ""):
            continue
        value = f"[{HUGE}]" if "tuple" in annotation else HUGE
        refused(capsys, tmp_path, text(agent, f"{key}: {value}"), f"line 6: {key}", f"={HUGE} must be")
        checked += 1
    assert checked >= 4


RULES = {  # agent and lines of a config, and words of the refusal
    # environments
    ("dqn", "env: Pendulum-v1"): ["agent='dqn' needs", "use "],
    ("td3", "env: CartPole-v1"): ["agent='td3' needs", "use "],
    ("ppo", "env: ''"): ["line 5: env='' is not known"],
    ("ppo", "env: ../../etc/passwd"): ["line 5: env='../../etc/passwd' is not known"],
    ("ppo", "env: cartpole"): ["did you mean 'CartPole-v1'"],
    ("ppo", "env: ':'"): ["env=':' does not start with the name of a suite"],
    ("ppo", "env: gym:CartPole-v1"): ["did you mean 'gymnasium:CartPole-v1'"],
    ("ppo", "env: os:system"): ["env='os:system' is code"],
    ("ppo", "env: 'gymnasium:os:system'"): ["must name one environment after the colon"],
    ("ppo", "env: 'atari:" + "x" * 9999 + "'"): ["line 5: env='atari:xxx", "at most 120 characters"],
    ("ppo", "env: 'gymnasium:" + "x" * 9999 + "'"): ["line 5: env=", "at most 120 characters"],
    ("ppo", 'env: "a\\nb\\e[31m"'): ["line 5: env='a\\nb\\x1b[31m' is not known"],
    ("ppo", "eval_env: nothing"): ["line 6: eval_env='nothing' is not known"],
    ("ppo", "eval_env: 'gymnasium:'"): ["line 6: eval_env='gymnasium:' must name"],
    ("ppo", "eval_env: gymnasium:CartPole-v1"): ["eval_env='gymnasium:CartPole-v1' must be in JAX"],
    ("ppo", "eval_env: 3"): ["eval_env=3 must be a word"],
    ("ppo", "env_kwargs: {max_steps_in_episode: 0}"): ["max_steps_in_episode=0 must be at least 1"],
    ("ppo", "env_kwargs: {max_steps_in_episode: -5}"): ["max_steps_in_episode=-5 must be at least 1"],
    ("ppo", "env_kwargs: {max_steps_in_episode: 3000000000}"): ["max_steps_in_episode=3000000000", "int32"],
    ("c51", "env_kwargs: {max_steps_in_episode: 0}"): ["max_steps_in_episode=0 must be at least 1"],
    ("ppo", "env_kwargs: {max_speed: 1e39}"): ["max_speed=1e+39 must be within the range of float32"],
    ("ppo", "env_kwargs: {max_speed: .nan}"): ["env_kwargs.max_speed=.nan must not be NaN"],
    ("ppo", "env_kwargs: {max_speed: fast}"): ["max_speed='fast' must be a number"],
    ("ppo", "env_kwargs: {max_speed: null}"): ["env_kwargs.max_speed=null must be a number"],
    ("ppo", "env_kwargs: {name: x}"): ["name='x' is not a parameter of env 'Pendulum-v1'"],
    ("ppo", "env_kwargs: {__class__: x}"): ["__class__='x' is not a parameter"],
    ("ppo", "env_kwargs: {1: 2}"): ["env_kwargs.1: a key must be a word"],
    ("ppo", "env_kwargs:\n  " + "x" * 900 + ": 2"): ["xxx...=2 is not a parameter"],
    ("ppo", "env_kwargs: 3"): ["env_kwargs=3 must be a mapping"],
    # wrappers
    ("ppo", "wrappers: [frame_stack:999999999]"): ["frame_stack: n=999999999 must be at most 1024"],
    ("ppo", "wrappers: [action_repeat:0]"): ["action_repeat: n=0 must be at least 1"],
    ("ppo", "wrappers: [time_limit:-1]"): ["time_limit: n=-1 must be at least 1"],
    ("ppo", "wrappers: [frame_stack]"): ["wrapper='frame_stack' needs an integer"],
    ("ppo", f"wrappers: ['frame_stack:{'9' * 5000}']"): ["wrapper='frame_stack:999", "needs an integer"],
    ("ppo", f"wrappers: ['{'x' * 5000}']"): ["wrapper='xxx", "is not known"],
    ("ppo", "wrappers: [frame_stack:1024, frame_stack:1024, frame_stack:99]"): ["frame_stack: n=99 makes", "fewer"],
    ("ppo", "wrappers: [sticky_action:nan]"): ["sticky_action: p=nan must be a probability"],
    ("ppo", "wrappers: [sticky_action:2]"): ["sticky_action: p=2.0 must be a probability"],
    ("ppo", "wrappers: [flatten:a]"): ["wrapper='flatten:a' takes no argument"],
    ("ppo", "wrappers: [os:system]"): ["wrapper='os:system' is code"],
    ("ppo", "wrappers: {frame_stack: 4}"): ["wrappers={'frame_stack': 4} must be a list"],
    ("ppo", "wrappers: [[flatten]]"): ["wrappers.0=['flatten'] must be a word"],
    ("dqn", "wrappers: [clip_action]"): ["clip_action needs continuous actions"],
    # sizes that do not go together
    ("ppo", "num_minibatches: 7"): ["num_minibatches=7 must divide num_envs * num_steps = 32; try 4 or 8"],
    ("ppo", "num_envs: 32768\nnum_steps: 32768\ntotal_steps: 1e12\nnum_minibatches: 11"): ["try 8 or 16"],
    ("ppo", "total_steps: 31"): ["line 5: total_steps=31 must be at least", "try 32"],
    ("dqn", "batch_size: 200\ncapacity: 100"): ["batch_size=200 must be at most capacity=100"],
    ("dqn", "replay_ratio: 0.3"): ["replay_ratio=0.3", "must be a whole number", "5/16"],
    ("dqn", "replay_ratio: 0"): ["replay_ratio=0 must be"],
    ("dqn", "n_step: 100000000"): ["capacity=100000 must be at least"],
    ("dqn", "target_every: 0"): ["target_every=0 must be"],
    ("dqn", "tau: 0"): ["tau=0 must be"],
    ("ppo", "keep_best: true"): ["keep_best=true needs evaluations"],
    ("ppo", "eval_episodes: 0\neval_every: 64"): ["eval_episodes=0 does not go with eval_every=64"],
    ("ppo", "keep_checkpoints: 0"): ["keep_checkpoints=0 must be"],
    ("ppo", "hidden_sizes: 1,000"): ["hidden_sizes.1=0 must be"],
    ("ppo", "hidden_sizes: [64, -1]"): ["hidden_sizes.1=-1 must be"],
    ("ppo", "hidden_sizes: null"): ["hidden_sizes=null must be a list"],
    ("ppo", "hidden_sizes: [1048576, 1048576]"): ["hidden_sizes=[1048576, 1048576] with num_seeds=1 needs about"],
    ("ppo", "num_envs: 16777216\nnum_steps: 64\ntotal_steps: 1e10"): ["num_envs=16777216", "GiB"],
    ("sac", "num_critics: 65"): ["num_critics=65 must be"],
    ("c51", "v_min: -.inf"): ["v_min=-.inf must be"],
    ("c51", "v_max: 1e39"): ["v_max=1e+39 must be"],
    ("c51", "v_min: 10\nv_max: -10"): ["v_min=10 must be below v_max=-10"],
    # seeds
    ("ppo", "seed: -1"): ["line 6: seed=-1 must be"],
    ("ppo", "seed: 4294967296"): ["seed=4294967296 must be"],
    ("ppo", "seed: [1, 2]"): ["seed=[1, 2] must be a whole number"],
    ("ppo", "seed: 2147483647\nnum_seeds: 2"): ["seed=2147483647 must leave room for num_seeds=2"],
    ("ppo", "num_seeds: 0"): ["num_seeds=0 must be"],
    # keys
    ("ppo", "lr: 1e-3"): ["lr is not a key of a ppo config; did you mean 'learning_rate'?"],
    ("ppo", "buffer_size: 9"): ["buffer_size is not a key of a ppo config"],
    ("ppo", "agent: {learning_rate: 1}"): ["agent={", "must be the name of an agent"],
    ("ppo", "agent: ../../os"): ["agent='../../os' must be one of"],
    ("ppo", "agent: Ppo"): ["agent='Ppo' must be one of", "did you mean 'ppo'"],
    ("ppo", "x" * 900 + ": 1"): ["xxx", "is not a key"],
    ("ppo", "é: 1"): ["is not a key"],
    ("ppo", "3: 4"): ["3 is not a key"],
    ("ppo", "optimizer: {name: adam}"): ["optimizer={'name': 'adam'} must be"],
    ("ppo", "optimizer: no"): ["optimizer='no' must be"],
    # YAML
    ("ppo", "gamma: 0.9\ngamma: 0.8"): ["'gamma' is given twice"],
    ("ppo", "\tgamma: 0.9"): ["must be flat YAML", "line 6"],
    ("ppo", "gamma: &g 0.9"): ["anchors and aliases are not allowed"],
    ("ppo", "gamma: !!python/object/apply:os.system [true]"): ["tags are not allowed"],
    ("ppo", "gamma: !!float 0.9"): ["tags are not allowed"],
    ("ppo", "gamma 0.9"): ["must be flat YAML"],
    ("ppo", "<<: {gamma: 1}"): ["is not a key"],
    ("ppo", "gamma: [" + "[" * 5000): ["must be flat YAML"],
}


@pytest.mark.parametrize(("agent", "change"), RULES, ids=[f"{a}-{c[:40]!a}" for a, c in RULES])
def test_what_does_not_fit_is_refused(capsys, tmp_path, agent, change):
    refused(capsys, tmp_path, text(agent, change), *RULES[agent, change])


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\x00", b"- 1", b"env: CartPole-v1", b"agent: ppo", b"\0", b"{", b"..."]
)
def test_files_that_are_no_config(capsys, tmp_path, content):
    refused(capsys, tmp_path, content)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--gamma"], ["--gamma needs a value"]),
        (["--gamma", "7"], ["gamma=7 must be"]),
        (["--gamma", "0.5", "--gamma", "0.6"], ["--gamma is given twice"]),
        (["gamma=0.5"], ["write --gamma 0.5"]),
        (["--gamma", "[" * 4000], ["--gamma="]),
        (["--agent.learning_rate", "1"], ["agent.learning_rate is not a key"]),
        (["--" + "x" * 5000, "1"], ["is not a key"]),
    ],
)
def test_flags_that_do_not_fit_are_refused(capsys, tmp_path, flags, words):
    refused(capsys, tmp_path, text("ppo"), *words, flags=flags)


@pytest.mark.parametrize(
    ("agent", "change", "line"),
    [
        ("ppo", "learning_rate: 1e-30\nseed: -0.0\ntotal_steps: 1_000", "1,024 (1,000 rounded up to 32 updates)"),
        ("dqn", "target_every: 2147483647\nlearning_starts: 320", "a sample of 128\n"),
        ("dqn", "learning_starts: 321", "warning: learning_starts=321 is beyond the run, which learns nothing"),
    ],
)
def test_odd_settings_with_a_meaning_are_described(capsys, tmp_path, agent, change, line):
    code, out, err = check(capsys, tmp_path, text(agent, change))
    assert (code, err) == (0, "")
    assert line in out
