"""Damage to a dataset is named, and a forged one is refused."""

import json
import os
import pickle
import random
import shutil

import pytest
from mistakes import mistake
from tiny_datasets import NAMES, write

from rlkit.runs import datasets
from rlkit.runs.datasets import storage

pytestmark = pytest.mark.thorough


@pytest.mark.thorough
def test_two_hundred_damages_are_detected_and_named(tmp_path):
    chance = random.Random(0)
    folder = write(tmp_path / "a")
    shutil.copytree(folder, tmp_path / "safe")
    for _ in range(200):
        path = folder / chance.choice([*NAMES, "manifest.json"])
        data = bytearray(path.read_bytes())
        kind = chance.choice(["flip", "flip", "cut", "lose", "lengthen", "swap"])
        if kind == "flip":
            bit = chance.randrange(len(data) * 8)
            data[bit // 8] ^= 1 << bit % 8
        elif kind == "cut":
            del data[chance.randrange(len(data)) :]
        elif kind == "lengthen":
            data += b"\n"
        elif kind == "swap":
            data = bytearray((folder / chance.choice([n for n in NAMES if n != path.name])).read_bytes())
            if data == path.read_bytes():
                continue
        path.unlink()
        if kind != "lose":
            path.write_bytes(data)
        with mistake(str(path), kind=datasets.DatasetError):
            datasets.load(folder, verify=True)
        if path.name == "manifest.json" or kind in ("cut", "lose", "lengthen"):  # seen without reading the files
            with pytest.raises(datasets.DatasetError, match=path.name):
                datasets.load(folder)
        shutil.copy(tmp_path / "safe" / path.name, path)
    datasets.load(folder, verify=True)


def forge(folder, number=0, **changes):
    """A manifest that says what it likes, of leaf `number` too, and is sealed as if that were true."""
    about = storage._manifest(folder)
    about["leaves"][number] |= changes.pop("leaf", {})
    about["tree"] |= changes.pop("tree", {})
    (folder / "manifest.json").write_bytes(storage._sealed(about | changes))


class Evil:
    def __reduce__(self):
        return os.mkdir, ("pwned",)


def deep(depth):
    node = 0
    for _ in range(depth):
        node = {"tuple": [node]}
    return node


def replace(folder, name, make):
    (folder / name).unlink()
    make(folder / name)


def put(folder, name, data):
    (folder / name).write_bytes(data)


MALICE = {
    "pickle for manifest": lambda f: put(f, "manifest.json", pickle.dumps(Evil())),
    "deep manifest": lambda f: put(f, "manifest.json", b"[" * 100_000),
    "list for manifest": lambda f: put(f, "manifest.json", b"[]"),
    "long number": lambda f: put(f, "manifest.json", b"1" * 100_000),
    "large manifest": lambda f: put(f, "manifest.json", b" " * (2**24 + 1)),
    "other format": lambda f: forge(f, format="rlkit dataset 99"),
    "huge shape": lambda f: forge(f, leaf={"shape": [2**40, 2**30]}),
    "huge rows": lambda f: forge(f, num_rows=2**47),
    "endless rows": lambda f: forge(f, num_rows=10**30),
    "huge empty shape": lambda f: (forge(f, leaf={"shape": [0, *[2**40] * 9]}), put(f, "000.bin", b"")),
    "negative shape": lambda f: forge(f, leaf={"shape": [-2, -1]}),
    "negative rows": lambda f: forge(f, num_rows=-18, num_envs=-2),
    "no rows": lambda f: (forge(f, num_rows=0), [put(f, name, b"") for name in NAMES]),
    "shape of text": lambda f: forge(f, leaf={"shape": "2"}),
    "shape of bools": lambda f: forge(f, leaf={"shape": [True, 2]}),
    "rows of text": lambda f: forge(f, num_rows="18"),
    "object dtype": lambda f: forge(f, leaf={"dtype": "object", "shape": [1]}),
    "dtype of fields": lambda f: forge(f, leaf={"dtype": "f4,f4", "shape": [1]}),
    "dtype is a list": lambda f: forge(f, leaf={"dtype": ["float32"]}),
    "path for a leaf": lambda f: forge(f, tree={"action": "../../secret"}),
    "leaf outside": lambda f: forge(f, tree={"action": 99}),
    "leaf below": lambda f: forge(f, tree={"action": -1}),
    "leaf twice": lambda f: forge(f, tree={"action": 0}),
    "unknown node": lambda f: forge(f, tree={"action": {"os.system": [2]}}),
    "two kinds of node": lambda f: forge(f, tree={"action": {"tuple": [2], "list": []}}),
    "deep tree": lambda f: forge(f, tree={"action": deep(300)}),
    "unknown field": lambda f: forge(f, tree={"__class__": 2}),
    "tree no mapping": lambda f: forge(f, leaves=[]),
    "leaves no list": lambda f: forge(f, leaves=7),
    "extra no mapping": lambda f: forge(f, extra=[1]),
    "flags of numbers": lambda f: forge(f, 4, leaf={"dtype": "uint8"}),
    "flags in a tuple": lambda f: forge(f, tree={"truncated": {"tuple": [5]}}),
    "no reward": lambda f: forge(f, 3, leaf={"shape": [1]}),
    "leaves in disorder": lambda f: forge(f, tree={"terminated": 5, "truncated": 4}),
    "symlinked leaf": lambda f: replace(f, "003.bin", lambda p: p.symlink_to(f.parent / "secret")),
    "symlinked manifest": lambda f: replace(f, "manifest.json", lambda p: p.symlink_to(f.parent / "secret")),
    "pipe for a leaf": lambda f: replace(f, "003.bin", os.mkfifo),
    "pipe for manifest": lambda f: replace(f, "manifest.json", os.mkfifo),
    "directory for a leaf": lambda f: replace(f, "003.bin", os.mkdir),
}


@pytest.mark.parametrize("name", MALICE)
def test_a_forged_dataset_is_refused_in_one_line(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    folder = write(tmp_path / "a")
    (tmp_path / "secret").write_bytes(json.dumps({"secret": 1}).encode())
    MALICE[name](folder)
    with mistake(str(folder), kind=datasets.DatasetError):
        datasets.load(folder)
    assert not (tmp_path / "pwned").exists()


def test_a_folder_that_is_no_dataset_is_named(tmp_path):
    write(tmp_path / "a")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "empty").mkdir()
    for name, said in [("link", "symlink"), ("none", "there is none"), ("empty", "manifest.json: No such file")]:
        with pytest.raises(datasets.DatasetError, match=said):
            datasets.load(tmp_path / name)
