"""The pages of environments: one form, tables of what the libraries have, and examples that make what they name."""

import importlib
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from importlib import metadata

import jax
import pytest
import yaml
from doc_pages import ROOT, blocks, run
from suite_stand_ins import LIBRARIES

from rlkit import cli, envs
from rlkit.envs import registry
from rlkit.runs.config.schema import schema

DOCS = ROOT / "docs"
SUITES = ["gymnax", *registry.SUITES]
PAGES = {name: DOCS / f"suites/{name}.md" for name in SUITES} | {"host": DOCS / "host-environments.md"}
FORM = ["Install", "Names", "Environments", "Configs", "Differences", "Known problems"]
MODULES = LIBRARIES | {"gymnax": "gymnax", "mujoco": "mujoco", "atari": "ale_py"}  # by library: what importing it needs
pytestmark = [
    pytest.mark.skipif(not DOCS.exists(), reason="a source distribution has no docs/"),
    pytest.mark.filterwarnings("default"),  # warnings of the libraries cannot be fixed here
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@pytest.fixture
def environments(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    return importlib.import_module("environments")


def require(name: str) -> None:
    if importlib.util.find_spec(MODULES[name]) is None:
        pytest.skip(f"pip install 'rlkit-jax[{name}]' runs this")


def test_every_suite_has_a_page_of_the_same_form():
    assert {path.stem for path in (DOCS / "suites").glob("*.md")} == set(SUITES)
    for path in PAGES.values():
        headings = re.findall(r"^## (.*)$", path.read_text(), re.MULTILINE)
        assert [heading for heading in headings if heading in FORM] == FORM, path
        if path.parent.name == "suites":
            assert headings in (FORM, [*FORM, "Speed"]), path


def test_the_tables_are_filled_in(environments):
    assert set(environments.PACKAGES) == set(registry.SUITES) | {"mujoco", "atari"}
    for name, path in (PAGES | {"suites": DOCS / "suites.md"}).items():
        text = environments.fill(path.read_text())
        assert "<!--" not in text, name
        assert len(re.findall(r"^\| --- ", text, re.MULTILINE)) >= 1, name
    brax = environments.fill(PAGES["brax"].read_text())
    assert "| `ant` | `[27] float32` | `[8] in [-1, 1]` | 1,000 |" in brax
    assert "`rlkit train ppo/brax_ant`" in brax
    assert "`rlkit train ppo/cartpole`" in environments.fill(PAGES["gymnax"].read_text())
    host = environments.fill(PAGES["host"].read_text())
    assert "| `rlkit train sac/mujoco` | `gymnasium:HalfCheetah-v5` | [sac](algorithms/sac.rst) |" in host
    assert "rlkit train ppo/cartpole --env xland:MiniGrid-EmptyRandom-6x6" in environments.fill(
        PAGES["xland"].read_text()
    )


def test_every_config_is_on_one_page(environments):
    commands = [
        command
        for path in (*PAGES.values(), DOCS / "atari.md")
        for command in re.findall(r"`rlkit train (\w+/\w+)`", environments.fill(path.read_text()))
    ]
    configs = [path.relative_to(ROOT / "configs").with_suffix("") for path in (ROOT / "configs").glob("*/*.yaml")]
    assert sorted(commands) == sorted(path.as_posix() for path in configs if path.parts[0] != "sweeps")


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [*registry.SUITES, "mujoco", "atari"])
def test_the_recorded_tasks_are_those_of_the_library(environments, name):
    require(name)
    versions, tasks = environments.recorded(name)
    installed = {package: metadata.version(package) for package in versions}
    if installed != versions:
        pytest.skip(f"recorded of {versions}, installed is {installed}: python docs/environments.py {name}")
    assert environments.tasks(name) == tasks


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SUITES)
def test_the_examples_make_an_environment_of_the_table(environments, name):
    require(name)
    (python,), (config,) = (blocks(PAGES[name], language) for language in ("python", "yaml"))
    made: dict = {}
    exec(compile(python, str(PAGES[name]), "exec"), made)
    envs.check(made["env"], made["params"], jax.random.key(0))
    keys = yaml.safe_load(config)
    assert set(keys) <= set(schema("ppo").fields)
    env, params = envs.make(keys["env"], **keys.get("env_kwargs", {}))
    env = envs.wrap(env, keys.get("wrappers", []))
    row = next(task for task in environments.known(name)[1] if task.name == keys["env"].rpartition(":")[2])
    assert environments.observation_text(env.observation_space(params)) == row.observation
    assert environments.action_text(env.action_space(params)) == row.action
    assert cli.main(["check", "ppo/cartpole", "--env", keys["env"]]) == 0


@pytest.mark.thorough
def test_the_scripts_of_the_page_of_host_environments_run(tmp_path):
    others = ("self", "MyEnv", "AddRenderObservation")
    pool, settings = (text for text in blocks(PAGES["host"], "python") if not any(name in text for name in others))
    assert run(sys.executable, "-c", f"{settings}\n{pool}", cwd=tmp_path).startswith("(16, 4) [1. 1.")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_camera_of_the_page_trains(tmp_path, monkeypatch):
    require("mujoco")
    monkeypatch.setenv("MUJOCO_GL", "egl")
    draws = "import gymnasium as g; e = g.make('InvertedPendulum-v5', render_mode='rgb_array'); e.reset(); e.render()"
    if subprocess.run([sys.executable, "-c", draws], capture_output=True, check=False).returncode:
        pytest.skip("MuJoCo cannot draw here")
    (camera,) = (text for text in blocks(PAGES["host"], "python") if "AddRenderObservation" in text)
    (tmp_path / "camera.py").write_text(camera)
    command = re.search(
        r"    (rlkit train [^\n]*camera:make.*?--out runs/camera)\n", PAGES["host"].read_text(), re.DOTALL
    )
    assert command is not None
    words = shlex.split(command[1].replace("\\\n", " "))
    words[words.index("--total_steps") + 1] = "2048"
    run(*words, "--eval_episodes", "0", cwd=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "runs/camera/metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == 2048
    assert all(line["entropy"] > 0 and line["episodes"] > 0 for line in lines)
