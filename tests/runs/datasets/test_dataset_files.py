"""A dataset is whole or absent: a writer that fails leaves nothing."""

import errno

import jax
import numpy as np
import pytest
from mistakes import mistake
from tiny_datasets import EXAMPLE, rollout, write

from rlkit.runs import datasets, files
from rlkit.runs.datasets import storage
from rlkit.types import ConfigError

pytestmark = pytest.mark.thorough


def write_and(folder, act):
    """Write a dataset; `act` comes after its first rollout."""
    with datasets.writer(folder, EXAMPLE, 2) as w:
        w.add(rollout())
        act(w)


def test_nothing_stays_of_a_writer_that_failed(tmp_path):
    def fail(w):
        assert [path.name for path in tmp_path.iterdir()] == [".tmp-a"]
        raise KeyError

    with pytest.raises(KeyError):
        write_and(tmp_path / "a", fail)
    with pytest.raises(ConfigError, match="none was added"), datasets.writer(tmp_path / "a", EXAMPLE, 2):
        pass
    assert not list(tmp_path.iterdir())


def test_what_a_killed_writer_left_is_deleted(tmp_path):
    (tmp_path / ".tmp-a").mkdir()
    (tmp_path / ".tmp-a" / "000.bin").write_bytes(b"old")
    write(tmp_path / "a")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert datasets.load(tmp_path / "a", verify=True).num_rows == 18


def test_nothing_is_overwritten(tmp_path):
    write(tmp_path / "a")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("a", "file", "empty", "link"):
        with pytest.raises(ConfigError, match="must not exist, as nothing is overwritten"):
            write(tmp_path / name)
    with pytest.raises(ConfigError, match="must not exist"):
        write_and(tmp_path / "b", lambda w: (tmp_path / "b").mkdir())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "empty", "file", "link"]
    for name, said in [("..", "letters, digits"), (".a", "letters"), ("a b", "letters"), ("file/a", "writable")]:
        with pytest.raises(ConfigError, match=f"folder=.*{said}"):
            write(tmp_path / name)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: r._replace(extras=(r.reward,)), "rollout has the structure"),
        (lambda r: r._replace(reward=r.reward.astype(np.float64)), "reward is float64"),
        (lambda r: r._replace(action=r.action[:-1]), "action is int32 of shape (5, 2)"),
        (lambda r: jax.tree.map(lambda x: x[:, :1], r), "obs.a is float32 of shape (6, 1, 2)"),
        (lambda r: jax.tree.map(lambda x: x[:0], r), "obs.a is"),
        (lambda r: jax.tree.map(lambda x: x[0, 0], r), "obs.a is"),
    ],
)
def test_a_rollout_that_does_not_fit_is_named_and_leaves_the_writer_usable(tmp_path, change, said):
    with datasets.writer(tmp_path / "a", EXAMPLE, 2) as w:
        with mistake(said, kind=ValueError):
            w.add(change(rollout()))
        w.add(rollout())
    assert datasets.load(tmp_path / "a", verify=True).num_rows == 6


class Point(dict):
    """A kind of node that a manifest does not describe."""


jax.tree_util.register_pytree_node(
    Point, lambda p: (list(p.values()), tuple(p)), lambda k, v: Point(zip(k, v, strict=True))
)


@pytest.mark.parametrize(
    ("example", "num_envs", "extra", "said"),
    [
        (EXAMPLE, 0, {}, "num_envs=0"),
        (tuple(EXAMPLE), 2, {}, "example is a tuple"),
        (EXAMPLE._replace(obs={"p": [Point(x=1.0)]}), 2, {}, "obs.p.0 is a Point"),
        (EXAMPLE._replace(obs={1: np.float32(0)}), 2, {}, "obs is a dict .* with text for keys"),
        (EXAMPLE._replace(action=jax.random.key(0)), 2, {}, "action is key<fry>"),
        (EXAMPLE._replace(reward=np.zeros(3)), 2, {}, "reward must be a number"),
        (EXAMPLE._replace(terminated=np.float32(0)), 2, {}, "terminated must be a bool"),
        (EXAMPLE._replace(truncated=()), 2, {}, "truncated must be a bool"),
        (EXAMPLE, 2, {"a": float("nan")}, "extra must be"),
        (EXAMPLE, 2, {"a": object()}, "extra must be"),
        (EXAMPLE, 2, [1], "extra must be"),
    ],
)
def test_what_cannot_be_kept_is_named_before_anything_is_written(tmp_path, example, num_envs, extra, said):
    with pytest.raises(ConfigError, match=said), datasets.writer(tmp_path / "a", example, num_envs, extra=extra):
        pytest.fail("the block must not begin")
    assert not list(tmp_path.iterdir())


FEW = {"obs": (), "next_obs": (), "action": ()}


class Killed(BaseException):
    """Stands for a kill: nothing after it runs."""


@pytest.mark.thorough
@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EIO, "kill"])
def test_a_fault_before_any_operation_leaves_all_or_nothing(tmp_path, monkeypatch, fault):
    """A full disk, a failing one and a kill, before each operation of one writer."""
    monkeypatch.setattr(storage, "_PIECE", 24)
    seen = []
    with monkeypatch.context() as patch:
        patch.setattr(files, "before_operation", lambda name, path: seen.append(name))
        write(tmp_path / "count", times=2, **FEW)
    assert set(seen) == {"mkdir", "append", "open", "write", "fsync", "rename"}
    assert len(seen) == 19
    for number in range(len(seen)):
        target = tmp_path / str(number) / "a"
        left = iter(range(number, -2, -1))

        def strike(operation, path, left=left):
            if next(left, -1) == 0:
                raise Killed if fault == "kill" else OSError(fault, "struck")

        with monkeypatch.context() as patch:
            patch.setattr(files, "before_operation", strike)
            if fault == "kill":
                patch.setattr(storage, "_discard", lambda temporary: None)
            with pytest.raises((OSError, Killed)) as caught:
                write(target, times=2, **FEW)
        if fault != "kill":
            assert str(target.parent) in str(caught.value)
            assert not list(target.parent.glob(files.TEMPORARY + "*")), "a temporary was left"
        assert target.exists() == (number == len(seen) - 1), "only the last operation comes after the rename"
        if not target.exists():
            write(target, times=2, **FEW)  # the next writer finds its way
        assert datasets.load(target, verify=True).num_rows == 12
        assert [path.name for path in target.parent.iterdir()] == ["a"]


def test_an_error_that_the_block_swallows_does_not_make_a_dataset(tmp_path, monkeypatch):
    calls = iter(range(100))
    append = files.append

    def fails_at_the_third(path, data, **options):
        if next(calls) == 2:
            raise OSError(errno.EIO, "struck")
        return append(path, data, **options)

    def swallow(w):
        monkeypatch.setattr(files, "append", fails_at_the_third)
        with pytest.raises(OSError, match="struck"):
            w.add(rollout())

    with pytest.raises(OSError, match=r"not as long .*\d\d\d.bin"):
        write_and(tmp_path / "a", swallow)
    assert not list(tmp_path.iterdir())


def test_short_writes_are_continued_and_a_second_process_is_noticed(tmp_path, monkeypatch):
    append = files.append
    monkeypatch.setattr(files, "append", lambda path, data, **o: append(path, data[: max(len(data) // 2, 1)], **o))
    write(tmp_path / "a")
    found = datasets.load(tmp_path / "a", verify=True).steps
    for leaf, expected in zip(jax.tree.leaves(found), jax.tree.leaves(rollout()), strict=True):
        np.testing.assert_array_equal(leaf, np.concatenate([expected] * 3))
    monkeypatch.undo()

    def interfere(w):
        with (tmp_path / ".tmp-b" / "004.bin").open("ab") as file:
            file.write(b"another")

    def interfere_and_go_on(w):
        interfere(w)
        with pytest.raises(OSError, match=r"not as long .*004.bin"):
            w.add(rollout())

    for act in (interfere, interfere_and_go_on):
        with pytest.raises(OSError, match=r"not as long .*\d\d\d.bin"):
            write_and(tmp_path / "b", act)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
