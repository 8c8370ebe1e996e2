"""`rlkit doctor`: one line a finding, and the faults that it has to find."""

import os
import re
import sys
from importlib.metadata import PackageNotFoundError

import jax
import pytest
from command_line import compilations_in
from packaging.requirements import Requirement

from rlkit import _cpu, cli
from rlkit._cpu import primitives
from rlkit.runs.doctor import installation, machine, platforms

LINE = re.compile(r"(ok   |note |fault) [a-zA-Z ]+ {1,}\S.*")


@pytest.fixture(autouse=True)
def _cache_of_the_tests(tmp_path_factory):
    with compilations_in(tmp_path_factory.mktemp("cache") / "xla"):
        yield


def doctor(capsys):
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
    monkeypatch.setattr(platforms, "seconds_of_writes", lambda num_bytes: 1e-8)
    code, lines = doctor(capsys)
    assert code == int(any(line.startswith("fault") for of in lines.values() for line in of))
    assert {"versions", "packages", "extras", "cache", "cores", "memory", "runs", "devices", "CPU tricks"} <= set(lines)
    assert jax.__version__ in lines["versions"][0]
    assert jax.default_backend() in lines["devices"][0]
    assert os.environ["RLKIT_CACHE"] in lines["cache"][0]
    assert list(tmp_path.iterdir()) == [], "something was written"


@pytest.mark.thorough
def test_the_measurements_of_this_backend_finish():
    found = list(platforms.examine())
    assert {finding.subject for finding in found} == (
        {"small writes", "batched QR"} if jax.default_backend() == "cpu" else set()
    )


def test_a_fault_is_exit_code_1(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(platforms, "examine", lambda: iter(()))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").write_text("a file")
    code, lines = doctor(capsys)
    assert code == 1
    assert lines["runs"][0].startswith("fault")
    (tmp_path / "runs").unlink()
    assert doctor(capsys)[1]["runs"][0].startswith("ok")


def test_no_devices_is_a_fault_and_ends_what_needs_them(capsys, monkeypatch):
    def none():
        raise RuntimeError("Unable to initialize backend 'cuda'\nmore")

    monkeypatch.setattr(jax, "devices", none)
    code, lines = doctor(capsys)
    assert code == 1
    assert "Unable to initialize backend 'cuda'" in lines["devices"][0]
    assert "small writes" not in lines


def test_a_jax_that_cannot_be_imported_is_a_fault(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    code, lines = doctor(capsys)
    assert code == 1
    assert lines["jax"][0].startswith("fault")
    assert "devices" not in lines


def test_small_writes_that_take_as_long_as_the_buffer_are_a_fault():
    assert platforms.small_writes(lambda num_bytes: 1e-8).level == "ok"
    assert platforms.small_writes(lambda num_bytes: 5e-6).level == "ok"  # a slow machine, in place
    assert platforms.small_writes(lambda num_bytes: num_bytes * 1e-13).level == "ok"  # caches
    fault = platforms.small_writes(lambda num_bytes: num_bytes * 8e-11)  # as jaxlib 0.11.1
    assert fault.level == "fault"
    assert "0.11.1" in fault.line()


@pytest.mark.parametrize(
    ("jaxlib", "level"),
    [("0.9.2", "ok"), ("0.10.0", "note"), ("0.10.2", "note"), ("0.11.0", "ok"), ("0.10.2.dev20260101", "note")],
)
def test_batched_qr_goes_by_the_version(jaxlib, level):
    assert platforms.batched_qr(jaxlib).level == level


def test_packages_outside_of_their_ranges():
    fault = installation.packages([Requirement("numpy>=2.0"), Requirement("jax<0.1"), Requirement("no-such-thing")])
    assert fault.level == "fault"
    assert f"jax {jax.__version__} is not <0.1; no-such-thing is not installed" in fault.line()
    assert installation.packages([Requirement("numpy>=2.0")]).level == "ok"


def test_extras():
    extras = {
        "whole": [Requirement("numpy>=2.0")],
        "absent": [Requirement("numpy>=2.0"), Requirement("no-such-thing>=1")],
        "old": [Requirement("numpy>=99")],
    }
    whole, absent, old = installation.examine_extras(extras)
    assert whole.text == "installed: whole"
    assert absent.text == "not installed: absent"
    assert old.level == "note"
    assert re.fullmatch(r"old: numpy \S+ is not >=99", old.text)


def test_a_package_without_metadata_is_a_note(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(installation, "requires", missing)
    assert [finding.level for finding in installation.examine()] == ["ok", "note"]


def test_the_extras_are_those_of_the_package():
    texts = [finding.text for finding in installation.examine() if finding.subject == "extras"]
    names = {name for text in texts for name in re.findall(r"[a-z]+", text.partition(": ")[2])}
    assert {"host", "mujoco", "atari", "brax", "pgx", "envpool", "wandb", "tensorboard", "minari"} <= names


def test_tricks_off_or_without_apis(monkeypatch):
    assert machine.tricks(()).level == "ok"
    assert "primitives" in machine.tricks(("primitives",)).line()
    monkeypatch.setenv("RLKIT_CPU_TRICKS", "0")
    assert "RLKIT_CPU_TRICKS" in machine.tricks(()).line()


def test_missing_apis_are_named(monkeypatch):
    assert _cpu.missing() == ()
    monkeypatch.setattr(primitives, "_once", primitives._plain)
    assert _cpu.missing() == ("primitives",)
    with jax.threefry_partitionable(False):
        assert _cpu.missing() == ("primitives", "random_bits")


def test_a_quota_below_the_cores_is_a_note():
    assert machine.cores(None).level == machine.cores(1e6).level == "ok"
    note = machine.cores(0.5)
    assert note.level == "note"
    assert "taskset -c 0-0" in note.line()


def test_a_cache_that_others_may_use_is_a_note(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(platforms, "examine", lambda: iter(()))
    tmp_path.chmod(0o777)
    monkeypatch.setenv("RLKIT_CACHE", str(tmp_path))
    assert "chmod 700" in doctor(capsys)[1]["cache"][0]
    monkeypatch.setenv("RLKIT_CACHE", "off")
    assert doctor(capsys)[1]["cache"][0].startswith("note")
