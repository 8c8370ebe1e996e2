"""Files of configs: where they are found, what overrides change, and what is no config."""

from pathlib import Path

import pytest
from mistakes import mistake

from rlkit.runs.config.load import find, load_config, names
from rlkit.types import ConfigError


@pytest.mark.parametrize("name", names())
def test_every_config_that_comes_with_rlkit_is_valid_and_its_resolved_form_too(name, tmp_path):
    try:
        config = load_config(name)
    except ConfigError as error:  # by then every key has been checked
        if "pip install" not in str(error):
            raise
        pytest.skip(str(error))
    path = tmp_path / "config.yaml"
    path.write_text(config.resolved())
    again = load_config(path)
    dataset = config.run.dataset
    if dataset and not dataset.startswith("minari:"):
        dataset = str(Path(dataset).absolute())  # found from everywhere
    run = config.run.model_copy(update={"dataset": dataset})
    assert (again.run, again.agent, again.hyper) == (run, config.agent, config.hyper)
    assert again.resolved() == config.resolved()


def test_configs_are_found_by_path_by_name_and_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # first: in a checkout, ./configs comes before those that an installed package carries
    shipped = find("ppo/cartpole").resolve()
    assert find("ppo/cartpole").samefile(shipped)
    assert find("configs/ppo/cartpole.yaml").samefile(shipped)
    own = tmp_path / "configs" / "ppo" / "cartpole.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("agent: ppo\n")
    assert find("ppo/cartpole").samefile(own)
    assert find(str(own)) == own
    for source in ("ppo/cartpol", "nothing", "../../etc/passwd", "x" * 5000, "a\0b", ""):
        with mistake("config=", "did you mean 'ppo/cartpole'" if source == "ppo/cartpol" else ""):
            find(source)


def test_overrides_replace_keys_and_entries(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("agent: ppo\nenv: CartPole-v1\nnum_envs: 4\nnum_steps: 8\ntotal_steps: 1e3\nenv_kwargs: {a: 1}\n")
    config = load_config(path, {"num_envs": 8, "env_kwargs.b": 2, "learning_rate": 0.5})
    assert (config.run.num_envs, config.run.env_kwargs, config.hyper["learning_rate"]) == (8, {"a": 1, "b": 2}, 0.5)


def test_a_population_is_in_python(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(load_config("ppo/cartpole").resolved() + "population: 4\n")
    with pytest.raises(ConfigError, match=r"population is not a key of a ppo config; .*rlkit\.training\.population"):
        load_config(path)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a: \x80", b"", b"- 1", b"just words", b"a: 1\nb", b"%" * 300_000])
def test_a_file_that_is_no_config(content, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    for source in (path, tmp_path, "/dev/zero"):
        with mistake("config="):
            load_config(source)
