"""What processes that train together must have in common: the first difference is named, with both values."""

import sys

import optax
import pytest

from rlkit.runs.config.load import load_config
from rlkit.runs.programs import same_run


def entries(**overrides):
    return same_run.entries(load_config("ppo/cartpole", overrides))


def difference(first, other):
    """The line on two kinds of processes, of which the other one is the last of three."""
    return same_run.first_difference([first, first, other])


@pytest.mark.parametrize(
    ("key", "value", "other"),
    [
        ("seed", 0, 7),
        ("env", "CartPole-v1", "gymnasium:CartPole-v1"),
        ("env_kwargs", {"max_steps_in_episode": 20}, {"max_steps_in_episode": 21}),
        ("checkpoint_every", None, 640),
    ],
)
def test_another_value_of_a_key_is_named_with_both_values_and_processes(key, value, other):
    line = difference(entries(**{key: value}), entries(**{key: other}))
    name, shown, otherwise = key, repr(value), repr(other)
    if key == "env_kwargs":
        name, shown, otherwise = "env_kwargs.max_steps_in_episode", "20", "21"
    assert line is not None
    assert line.startswith(f"{name}={shown}")
    assert "process 0" in line
    assert f"process 2 has {otherwise}" in line
    assert "\n" not in line


def test_equal_processes_have_no_difference():
    assert difference(entries(seed=3), entries(seed=3)) is None


def test_long_values_that_differ_at_their_end_are_shown_otherwise():
    line = difference({"x": "a" * 500 + "b"}, {"x": "a" * 500 + "c"})
    assert line is not None
    first, _, other = line.partition("process 2 has ")
    assert first.partition("=")[2].split()[0] != other.split(";")[0]


@pytest.mark.parametrize("package", ["jax", "gymnax", "gymnasium"])
def test_another_version_is_named(monkeypatch, package):
    env = "gymnasium:CartPole-v1" if package == "gymnasium" else "CartPole-v1"
    first = entries(env=env)
    version = same_run.installed_version
    monkeypatch.setattr(same_run, "installed_version", lambda name: "9.9" if name == package else version(name))
    line = difference(first, entries(env=env))
    assert line is not None
    assert line.startswith(f"{package} version={version(package)} of process 0")
    assert "process 2 has 9.9" in line


def test_another_version_of_rlkit_is_named(monkeypatch):
    first = entries()
    monkeypatch.setattr(same_run, "__version__", "9.9")
    assert "rlkit version=" in (difference(first, entries()) or "")


def test_another_file_of_own_code_is_named_by_the_key_that_names_it(tmp_path, monkeypatch):
    file = tmp_path / "file_of_mine.py"
    text = "import optax\n\ndef make(rate): return optax.adam(rate)\n"
    monkeypatch.syspath_prepend(tmp_path)
    file.write_text(text)
    first = entries(optimizer="file_of_mine:make")
    file.write_text(text + "# changed\n")
    line = difference(first, entries(optimizer="file_of_mine:make"))
    sys.modules.pop("file_of_mine", None)
    assert line is not None
    assert line.startswith("optimizer='file_of_mine:make' must be the same code")
    assert first["optimizer='file_of_mine:make' in code"] in line


def test_an_object_of_own_code_has_the_hash_of_its_file():
    def make(rate):
        return optax.adam(rate)

    found = entries(optimizer=make)
    (name,) = [name for name in found if name.endswith("in code")]
    assert found[name] not in ("none", "")
