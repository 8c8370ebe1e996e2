"""The order in which a save changes the disk, on which a power cut relies: contents before names, old ones last."""

import jax.numpy as jnp
import pytest

from rlkit.runs import files, run_directory
from rlkit.runs.checkpoints import checkpoint


def test_every_byte_and_name_of_a_save_is_flushed_before_what_relies_on_it(tmp_path, monkeypatch):
    folder = tmp_path / run_directory.CHECKPOINTS
    folder.mkdir()
    checkpoint.save(tmp_path, 10, {"x": jnp.zeros(3)}, {})
    seen = []
    monkeypatch.setattr(files, "before_operation", lambda name, path: seen.append((name, path.name)))
    new = checkpoint.save(tmp_path, 20, {"x": jnp.ones(3)}, {}, keep=1)
    temporary = files.TEMPORARY + new.name
    assert seen == [
        ("mkdir", temporary),
        ("open", "tree.json"),
        ("write", "tree.json"),
        ("open", "leaves.bin"),
        ("write", "leaves.bin"),
        ("fsync", "tree.json"),
        ("fsync", "leaves.bin"),
        ("open", "manifest.json"),  # which states that the other two are whole
        ("write", "manifest.json"),
        ("fsync", "manifest.json"),
        ("fsync", temporary),
        ("rename", new.name),
        ("fsync", folder.name),  # from here on the new one survives a power cut
        ("remove", "000000000010"),
    ]


@pytest.mark.parametrize(
    "write", [files.replace, lambda path, data: files.write(path, [data])], ids=["replace", "write"]
)
def test_a_file_is_flushed(tmp_path, monkeypatch, write):
    """Also its name, where it takes the place of another one."""
    seen = []
    monkeypatch.setattr(files, "before_operation", lambda name, path: seen.append((name, path.name)))
    write(tmp_path / "x", b"data")
    in_place = write is not files.replace
    name = "x" if in_place else files.TEMPORARY + "x"
    written = [("open", name), ("write", name), ("fsync", name)]
    assert seen == written + ([] if in_place else [("rename", "x"), ("fsync", tmp_path.name)])
