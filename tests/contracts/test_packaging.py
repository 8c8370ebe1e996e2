"""Contents, requirements and metadata of the wheel, and that it works without the checkout, extras or a network."""

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import rlkit

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DEPENDENCIES = [Requirement(text) for text in PROJECT["dependencies"]]
EXTRAS = [Requirement(text) for extra in PROJECT["optional-dependencies"].values() for text in extra]
INFO = f"rlkit_jax-{rlkit.__version__}.dist-info"

MODULES = {  # that an extra is for
    "tensorboard": "tensorboardX",
    "wandb": "wandb",
    "minari": "minari",
    "sweep": "optuna",
    "report": "plotly.offline",
    "video": "imageio_ffmpeg",
    "onnx": "jax2onnx, onnxruntime",
    "mctx": "mctx",
    "notebook": "IPython, jupyterlab",
    "docs": "sphinx, furo, myst_nb",
    "host": "gymnasium, cloudpickle",
    "mujoco": "gymnasium, mujoco, imageio",
    "atari": "ale_py, cv2",
    "envpool": "envpool",
    "brax": "brax.envs",
    "craftax": "craftax.craftax_env",
    "jaxmarl": "jaxmarl",
    "jumanji": "jumanji",
    "pettingzoo": "pettingzoo",
    "pgx": "pgx",
    "playground": "mujoco_playground",
    "xland": "xminigrid",
    "dev": "pytest, nbclient, mctx, pgx, optuna, plotly",
}

IMPORT_ALL = (
    "import importlib, pkgutil, rlkit\n"
    "for module in pkgutil.walk_packages(rlkit.__path__, 'rlkit.'):\n"
    "    if not module.name.endswith('__main__'): importlib.import_module(module.name)\n"
    "print(rlkit.__file__)"
)


def run(*command: str | Path, cwd: Path, timeout: float = 240, **env: str) -> str:
    """Run a command without this process's Python settings; fail if it fails, else return its output."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    process = subprocess.run(
        command, cwd=cwd, env=inherited | env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def build(kind: str, source: Path, target: Path) -> Path:
    """Build the `wheel` or the `sdist` of the project at `source`; return its path."""
    run(sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", target, cwd=source)
    (path,) = target.iterdir()
    return path


def contents(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory) -> Path:
    return build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))


@pytest.fixture
def source(sdist, tmp_path) -> Path:
    """The unpacked source distribution."""
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / f"rlkit_jax-{rlkit.__version__}"


def test_the_wheel_contains_the_package_and_nothing_else(wheel):
    code = {
        path.relative_to(ROOT).as_posix()
        for kind in ("py", "css", "js")
        for path in (ROOT / "rlkit").rglob(f"*.{kind}")
    }
    configs = {f"rlkit/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "configs").rglob("*.yaml")}
    names = contents(wheel)
    assert configs
    assert {name for name in names if not name.startswith(INFO)} == code | configs | {"rlkit/py.typed"}
    assert f"{INFO}/licenses/LICENSE" in names


def test_the_metadata_of_the_wheel(wheel):
    """Each field is valid, which is what `twine check` reads before an upload."""
    with zipfile.ZipFile(wheel) as archive:
        metadata = Metadata.from_email(archive.read(f"{INFO}/METADATA"))
        entry_points = archive.read(f"{INFO}/entry_points.txt").decode()
    assert (metadata.name, str(metadata.version)) == ("rlkit-jax", rlkit.__version__)
    assert metadata.license_expression == "Apache-2.0"
    assert metadata.description == (ROOT / "README.md").read_text()
    assert metadata.description_content_type == "text/markdown"
    assert "rlkit = rlkit.cli:main" in entry_points


def test_the_citation_is_of_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (cited["version"], cited["license"]) == (PROJECT["version"], PROJECT["license"])


@pytest.mark.thorough
def test_a_wheel_from_the_source_distribution_is_the_same(wheel, source, tmp_path):
    assert contents(build("wheel", source, tmp_path / "wheel")) == contents(wheel)
    with zipfile.ZipFile(wheel) as archive:
        assert (source / "PKG-INFO").read_bytes() == archive.read(f"{INFO}/METADATA")
    links = re.findall(r'(?:\]\(|src=")(?!http)([^)#"]+)', (source / "README.md").read_text())
    assert [name for name in {*links, "CITATION.cff"} if not (source / name).exists()] == []


@pytest.mark.thorough
def test_every_module_imports_from_the_wheel(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    (tmp_path / "empty").mkdir()
    printed = run(sys.executable, "-c", IMPORT_ALL, cwd=tmp_path / "empty", PYTHONPATH=str(tmp_path / "site"))
    assert Path(printed.strip()) == tmp_path / "site" / "rlkit" / "__init__.py"


def third_party(tree: ast.Module, everywhere: bool) -> set[str]:
    """Top-level names of the libraries that a module imports at its top level, or `everywhere` in it."""
    names = set()
    for node in ast.walk(tree) if everywhere else tree.body:
        if isinstance(node, ast.Import):
            names |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(str(node.module).split(".")[0])
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "library":  # of rlkit.envs.adapter
            names.add(ast.literal_eval(node.args[0]).split(".")[0])
    return names - set(sys.stdlib_module_names) - {"rlkit"}


def test_every_import_is_a_declared_dependency():
    """Imports at the top level of a module are required dependencies; imports in a function may be extras."""
    trees = [ast.parse(path.read_text()) for path in (ROOT / "rlkit").rglob("*.py")]
    providers = {"mujoco_playground": ["playground"], "cv2": ["opencv-python"]}  # where they are not installed
    providers |= importlib.metadata.packages_distributions()
    for everywhere, requirements in ((False, DEPENDENCIES), (True, DEPENDENCIES + EXTRAS)):
        declared = {canonicalize_name(requirement.name) for requirement in requirements}
        for name in set().union(*(third_party(tree, everywhere) for tree in trees)):
            assert declared & {canonicalize_name(dist) for dist in providers.get(name, [name])}, (
                f"{name} is not declared"
            )


def test_the_lock_is_inside_the_declared_ranges():
    """CI installs constraints.txt; run .ci/lock after a change of the dependencies."""
    lock = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    dev = [Requirement(text) for text in PROJECT["optional-dependencies"]["dev"]]
    for requirement in DEPENDENCIES + dev:
        assert requirement.specifier.contains(lock[canonicalize_name(requirement.name)]), str(requirement)


def test_the_lowest_classified_python_is_the_required_and_the_locked_one():
    prefix = "Programming Language :: Python :: 3."
    minors = [int(text.removeprefix(prefix)) for text in PROJECT["classifiers"] if text.startswith(prefix)]
    assert minors == [11, 13]  # all tests were run with these
    assert PROJECT["requires-python"] == f">=3.{minors[0]}"
    assert f"--python-version 3.{minors[0]} " in (ROOT / ".ci" / "lock").read_text()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_clean_install_trains(wheel, tmp_path):
    """A fresh virtual environment, no extras, an empty directory: every module imports and one update runs."""
    bin = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin")
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    run(bin / "python", "-m", "pip", "install", "-q", wheel, cwd=tmp_path, timeout=1200)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert str(tmp_path / "venv") in run(bin / "python", "-c", IMPORT_ALL, cwd=empty)

    config = (ROOT / "configs" / "ppo" / "cartpole.yaml").read_text()
    num_envs, num_steps = (int(re.search(rf"^{key}: *([\d_]+)", config, re.M)[1]) for key in ("num_envs", "num_steps"))
    one_update = str(num_envs * num_steps)
    run(bin / "rlkit", "train", "ppo/cartpole", "--total_steps", one_update, "--out", "run", cwd=empty, timeout=300)
    assert (empty / "run" / "metrics.jsonl").read_text().count("\n") >= 1


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["sdist", *(f"wheel[{extra}]" for extra in PROJECT["optional-dependencies"])])
def test_a_clean_install_of_each_extra(kind, request, tmp_path):
    """The newest versions that the ranges allow go together, and modules of the extra are imported beside rlkit."""
    name, _, extra = kind.rstrip("]").partition("[")
    path = request.getfixturevalue(name)
    package = f"rlkit-jax[{extra}] @ {path.as_uri()}" if extra else path
    uv, python = (sys.executable, "-m", "uv"), tmp_path / "venv" / "bin" / "python"
    run(*uv, "venv", "-q", "--python", sys.executable, tmp_path / "venv", cwd=tmp_path)
    run(*uv, "pip", "install", "-q", "--python", python, package, cwd=tmp_path, timeout=1500)
    run(python, "-c", f"import jax, rlkit, rlkit.runs, {MODULES.get(extra, 'rlkit.cli')}", cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_tests_of_files_pass_in_a_source_distribution(source):
    folders = ("tests/benchmarks", "tests/cli/test_export.py", "tests/contracts", "tests/docs")
    pytest_here = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *folders)
    run(*pytest_here, cwd=source, timeout=900, PYTHONPATH=str(source))


@pytest.mark.slow
def test_an_upload_would_be_accepted(wheel, sdist, tmp_path):
    run(sys.executable, "-m", "uv", "tool", "run", "twine", "check", "--strict", wheel, sdist, cwd=tmp_path)
