"""Files of strangers open no connection: services, databases and downloads come from the command line or Python."""

import socket
import sys
from types import ModuleType

import pytest
from mistakes import mistake
from small_sweeps import a_sweep
from tiny_runs import SMALL

from rlkit import ConfigError, runs
from rlkit.runs import datasets, loop
from rlkit.runs.config import strict_yaml
from rlkit.runs.config.load import load_config
from rlkit.runs.policy import load
from rlkit.runs.sweeps.sweep import sweep


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*arguments, **keywords):
        raise AssertionError("a file has opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


class Session:
    """A stand-in for a run of Weights & Biases."""

    projects = ()

    def __init__(self, **arguments):
        Session.projects += (arguments["project"],)

    def log(self, scalars, step):
        pass

    def finish(self):
        pass


@pytest.fixture
def wandb(monkeypatch):
    module = ModuleType("wandb")
    module.__dict__["init"] = Session
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.setattr(Session, "projects", ())


def test_a_project_is_named_where_the_run_is_started(tmp_path, wandb):
    path = tmp_path / "mine.yaml"
    path.write_text(strict_yaml.dump(SMALL | {"wandb": "theirs", "total_steps": 64}))
    with pytest.raises(ConfigError, match=r"wandb='theirs' connects to a service.*--wandb theirs, or --wandb null"):
        loop.train(path, out=tmp_path / "run", show=False)
    assert not (tmp_path / "run").exists()
    config = load_config(path, {"wandb": "mine"})
    run = loop.train(config, lambda line, state: line["step"] == 32, out=tmp_path / "run", show=False).run
    assert Session.projects == ("mine",)
    with pytest.raises(ConfigError, match="wandb='mine' connects to a service"):
        loop.resume(run, show=False)
    assert load(run).step == 32, "which connects to nothing"
    loop.resume(run, overrides={"wandb": "mine"}, show=False)
    assert Session.projects == ("mine", "mine")


def test_a_resume_may_do_without_a_project(tmp_path, wandb):
    config = SMALL | {"wandb": "mine", "total_steps": 64}
    run = loop.train(config, lambda line, state: line["step"] == 32, out=tmp_path / "run", show=False).run
    loop.resume(run, overrides={"wandb": None}, show=False)
    assert Session.projects == ("mine",)
    loop.resume(run, overrides={"total_steps": 96}, show=False)  # which no longer names one
    assert Session.projects == ("mine",)


def test_a_config_downloads_no_dataset(monkeypatch):
    library = ModuleType("minari")

    def load_dataset(name, download):
        assert not download
        raise FileNotFoundError(name)

    library.__dict__["load_dataset"] = load_dataset
    monkeypatch.setitem(sys.modules, "minari", library)
    with pytest.raises(ConfigError, match=r"must be in Minari's local store.*: minari download D4RL/door/human-v2"):
        datasets.find("minari:D4RL/door/human-v2")


def test_minari_itself_opens_no_connection(tmp_path, monkeypatch):
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="minari download D4RL/door/human-v2"):
        datasets.find("minari:D4RL/door/human-v2")


KEYS = {"sampler": "optuna", "total_steps": 64, "log_every": None, "trials": 1, "seeds_per_trial": 1}


def test_a_database_is_named_where_the_sweep_is_started(tmp_path):
    """Also where it goes on: sweep.yaml is a file too."""
    pytest.importorskip("optuna")
    storage = f"sqlite:///{tmp_path}/shared.db"
    with pytest.raises(ConfigError, match=r"storage='sqlite:.* opens a database.*add --storage URL"):
        sweep(a_sweep(tmp_path, **KEYS, storage=storage), out=tmp_path / "sweep", show=False)
    assert not (tmp_path / "sweep").exists()
    assert not (tmp_path / "shared.db").exists()
    folder = sweep(a_sweep(tmp_path, **KEYS), {"storage": storage}, out=tmp_path / "sweep", show=False).folder
    with pytest.raises(ConfigError, match="opens a database"):
        sweep(folder, show=False)
    assert len(sweep(folder, {"storage": storage}, show=False).results) == 1


@pytest.mark.parametrize("url", ["sqlite:////proc/none.db", "nonsense", "nodialect://host/x"])
def test_a_database_that_cannot_be_used_leaves_nothing(tmp_path, url):
    pytest.importorskip("optuna")
    with mistake("storage=", "must be a database"):
        sweep(a_sweep(tmp_path, **KEYS), {"storage": url}, out=tmp_path / "sweep", show=False)
    assert not (tmp_path / "sweep").exists()


def test_reports_of_stored_files_connect_to_nothing(tmp_path, wandb):
    pytest.importorskip("plotly")
    config = SMALL | {"wandb": "mine", "total_steps": 64}
    run = loop.train(config, lambda line, state: True, out=tmp_path / "run", show=False).run
    runs.report(run)
    assert Session.projects == ("mine",)
