"""`rlkit doctor`: one line a finding, and the faults that it has to find."""

import os
import re
import sys
from importlib.metadata import PackageNotFoundError

import jax
import pytest
from command_line import compilations_of_commands
from packaging.requirements import Requirement

from rlkit import cli
from rlkit.runs import doctor

LINE = re.compile(r"(ok   |note |fault) [a-zA-Z ]+ {1,}\S.*")


@pytest.fixture(autouse=True)
def _cache_of_the_tests():
    with compilations_of_commands():
        yield


def examined(capsys):
    """The exit code, and the lines by subject."""
    code = cli.main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    assert all(map(LINE.fullmatch, lines)), lines
    by_subject: dict[str, list[str]] = {}
    for line in lines:
        by_subject.setdefault(line[6:18].strip(), []).append(line)
    return code, by_subject


def test_every_subject_has_a_line(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, lines = examined(capsys)
    assert code == int(any(line.startswith("fault") for of in lines.values() for line in of))
    assert {"versions", "packages", "cache", "runs", "devices", "jaxlib"} == set(lines)
    assert jax.__version__ in lines["versions"][0]
    assert jax.default_backend() in lines["devices"][0]
    assert os.environ["RLKIT_CACHE"] in lines["cache"][0]
    assert list(tmp_path.iterdir()) == [], "something was written"


def test_a_fault_is_exit_code_1(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").write_text("a file")
    code, lines = examined(capsys)
    assert code == 1
    assert lines["runs"][0].startswith("fault")
    (tmp_path / "runs").unlink()
    assert examined(capsys)[1]["runs"][0].startswith("ok")


def test_no_devices_is_a_fault_and_ends_what_needs_them(capsys, monkeypatch):
    def none():
        raise RuntimeError("Unable to initialize backend 'cuda'\nmore")

    monkeypatch.setattr(jax, "devices", none)
    code, lines = examined(capsys)
    assert code == 1
    assert "Unable to initialize backend 'cuda'" in lines["devices"][0]
    assert "jaxlib" not in lines


def test_a_jax_that_cannot_be_imported_is_a_fault(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    code, lines = examined(capsys)
    assert code == 1
    assert lines["jax"][0].startswith("fault")
    assert "devices" not in lines


@pytest.mark.parametrize(
    ("jaxlib", "level"),
    [
        ("0.9.2", "ok"),
        ("0.10.0", "note"),
        ("0.10.2", "note"),
        ("0.11.0", "ok"),
        ("0.11.1", "fault"),
        ("0.10.2.dev20260101", "note"),
    ],
)
def test_known_faults_go_by_the_version_on_a_cpu(jaxlib, level):
    assert doctor.known_fault(jaxlib, "cpu").level == level
    assert doctor.known_fault(jaxlib, "gpu").level == "ok"


def test_packages_outside_of_their_ranges():
    fault = doctor.packages([Requirement("numpy>=2.0"), Requirement("jax<0.1"), Requirement("no-such-thing")])
    assert fault.level == "fault"
    assert f"jax {jax.__version__} is not <0.1; no-such-thing is not installed" in fault.line()
    assert doctor.packages([Requirement("numpy>=2.0")]).level == "ok"


def test_a_package_without_metadata_is_a_note(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "requires", missing)
    assert [finding.level for finding in doctor.installation()] == ["ok", "note"]


def test_a_cache_that_others_may_use_is_a_note(capsys, tmp_path, monkeypatch):
    tmp_path.chmod(0o777)
    monkeypatch.setenv("RLKIT_CACHE", str(tmp_path))
    assert "chmod 700" in examined(capsys)[1]["cache"][0]
    monkeypatch.setenv("RLKIT_CACHE", "off")
    assert "off by RLKIT_CACHE" in examined(capsys)[1]["cache"][0]
