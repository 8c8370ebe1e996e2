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


# Values that no key of a kind accepts.
NO_COUNTS = ["0", "-1", "0.5", ".nan", ".inf", HUGE, "many", "null", "[1, 2]", "{a: 1}", "true", "'3'", "''", "é"]
NO_NUMBERS = ["-1e-3", ".nan", "fast", "null", "[]", "[0.1]", "{a: 1}", "true", "'3'", "1,5", "0x10", "1e-60", "1e60"]
NO_FLAGS = ["0", "1", "yes", "'true'", "null", "[true]"]

# The field that must be named, and lines of a config of an agent (by default ppo) that are refused.
REFUSED: dict[str, list[str | tuple[str, str]]] = {
    "agent": [
        ("dqn", "env: Pendulum-v1"),
        ("td3", "env: CartPole-v1"),
        "agent: {learning_rate: 1}",
        "agent: ../../os",
        "agent: Ppo",
    ],
    "env": [
        "env: ''",
        "env: ../../etc/passwd",
        "env: cartpole",
        "env: ':'",
        "env: gym:CartPole-v1",
        "env: os:system",
        "env: 'gymnasium:os:system'",
        f"env: 'atari:{'x' * 9999}'",
        'env: "a\\nb\\e[31m"',
    ],
    "eval_env": ["eval_env: nothing", "eval_env: 'gymnasium:'", "eval_env: gymnasium:CartPole-v1", "eval_env: 3"],
    "max_steps_in_episode": [
        *(f"env_kwargs: {{max_steps_in_episode: {value}}}" for value in (0, -5, 3000000000)),
        ("c51", "env_kwargs: {max_steps_in_episode: 0}"),
    ],
    "max_speed": [f"env_kwargs: {{max_speed: {value}}}" for value in ("1e39", ".nan", "fast", "null")],
    "name": ["env_kwargs: {name: x}"],
    "__class__": ["env_kwargs: {__class__: x}"],
    "env_kwargs": ["env_kwargs: {1: 2}", "env_kwargs: 3"],
    "xxx": ["env_kwargs:\n  " + "x" * 900 + ": 2", "x" * 900 + ": 1"],
    "wrapper": [
        "wrappers: [frame_stack]",
        f"wrappers: ['frame_stack:{'9' * 5000}']",
        f"wrappers: ['{'x' * 5000}']",
        "wrappers: [flatten:a]",
        "wrappers: [os:system]",
        "wrappers: {frame_stack: 4}",
        "wrappers: [[flatten]]",
    ],
    "frame_stack": [
        "wrappers: [frame_stack:999999999]",
        "wrappers: [frame_stack:1024, frame_stack:1024, frame_stack:99]",
    ],
    "action_repeat": ["wrappers: [action_repeat:0]"],
    "time_limit": ["wrappers: [time_limit:-1]"],
    "sticky_action": ["wrappers: [sticky_action:nan]", "wrappers: [sticky_action:2]"],
    "clip_action": [("dqn", "wrappers: [clip_action]")],
    "num_minibatches": [
        "num_minibatches: 7",
        "num_envs: 32768\nnum_steps: 32768\ntotal_steps: 1e12\nnum_minibatches: 11",
        *(f"num_minibatches: {value}" for value in NO_COUNTS),
    ],
    "num_envs": ["num_envs: 16777216\nnum_steps: 64\ntotal_steps: 1e10"],
    "replay_ratio": [("dqn", "replay_ratio: 0.3"), ("dqn", "replay_ratio: 0")],
    "capacity": [("dqn", "n_step: 100000000")],
    "learning_rate": [("dqn", f"learning_rate: {value}") for value in NO_NUMBERS],
    "normalize_obs": [f"normalize_obs: {value}" for value in NO_FLAGS],
    "hidden_sizes": [
        *(f"hidden_sizes: {value}" for value in ("1,000", "[64, -1]", "[1048576, 1048576]")),
        ("sac", "hidden_sizes: null"),
    ],
    "v_min": [("c51", "v_min: -.inf"), ("c51", "v_min: 10\nv_max: -10")],
    "v_max": [("c51", "v_max: 1e39")],
    "seed": ["seed: -1", "seed: 4294967296", "seed: [1, 2]", "seed: 2147483647\nnum_seeds: 2"],
    "optimizer": ["optimizer: {name: adam}", "optimizer: no"],
    "not a key": ["lr: 1e-3", "buffer_size: 9", "é: 1", "3: 4", "<<: {gamma: 1}"],
    "gamma": ["gamma: 0.9\ngamma: 0.8", "gamma: 7"],
    "line 6": [
        "\tgamma: 0.9",
        "gamma: &g 0.9",
        "gamma: !!python/object/apply:os.system [true]",
        "gamma: !!float 0.9",
        "gamma: [" + "[" * 5000,
    ],
    "YAML": ["gamma 0.9"],
}


@pytest.mark.parametrize("field", REFUSED)
def test_what_does_not_fit_is_refused(capsys, tmp_path, field):
    for case in REFUSED[field]:
        agent, change = case if isinstance(case, tuple) else ("ppo", case)
        refused(capsys, tmp_path, text(agent, change), field)


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


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\x00", b"- 1", b"env: CartPole-v1", b"agent: ppo", b"\0", b"{", b"..."]
)
def test_files_that_are_no_config(capsys, tmp_path, content):
    refused(capsys, tmp_path, content)


@pytest.mark.parametrize(
    ("agent", "change", "line"),
    [
        ("ppo", "learning_rate: 1e-30\nseed: -0.0\ntotal_steps: 1_000", "1,024 (1,000 rounded up to 32 updates)"),
        ("dqn", "target_every: 2147483647\nlearning_starts: 320", "a sample of 128\n"),
        ("dqn", "learning_starts: 321", "learning_starts=321 is beyond the run of 320 steps, which learns nothing"),
    ],
)
def test_odd_settings_with_a_meaning_are_described(capsys, tmp_path, agent, change, line):
    code, out, err = check(capsys, tmp_path, text(agent, change))
    assert (code, err) == (0, "")
    assert line in out
