"""Checkpoints are whole or absent, verified before use, and bit-equal to what was saved."""

import errno
import random
import resource
import shutil
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mistakes import mistake

from rlkit.runs import files, run_directory
from rlkit.runs.checkpoints import checkpoint
from rlkit.types import ConfigError


@pytest.fixture
def run(tmp_path):
    (tmp_path / run_directory.CHECKPOINTS).mkdir()
    return tmp_path


def tree(scale=1.0):
    return {
        "params": {"kernel": scale * jnp.arange(12.0).reshape(3, 4), "half": jnp.ones((3,), jnp.bfloat16)},
        "counts": (jnp.int32(7), jnp.array([True, False])),
        "empty": jnp.zeros((0, 3)),
        "odd": jnp.array([jnp.nan, -jnp.inf, -0.0, 1e-45]),
        "key": jax.random.key(3),
        "keys": jax.random.split(jax.random.key(4, impl="rbg"), 2),
    }


def raw(state):
    plain = [
        jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in jax.tree.leaves(state)
    ]
    return [(str(x.dtype), x.shape, np.asarray(x).tobytes()) for x in plain]


def test_restores_every_bit_every_dtype_and_typed_keys(run):
    state = tree()
    checkpoint.save(run, 10, state, {"note": [1, "x"]})
    for template in (state, jax.eval_shape(tree)):
        found, step, extra = checkpoint.restore(run, template)
        assert raw(found) == raw(state)
        assert jax.tree.structure(found) == jax.tree.structure(state)
        assert [x.dtype for x in jax.tree.leaves(found)] == [x.dtype for x in jax.tree.leaves(state)]
        assert (step, extra) == (10, {"note": [1, "x"]})
    np.testing.assert_array_equal(jax.random.bits(found["key"]), jax.random.bits(state["key"]))


def test_what_was_restored_can_be_donated_and_outlives_its_file(run):
    checkpoint.save(run, 1, {"x": jnp.arange(1000.0)}, {})
    found, *_ = checkpoint.restore(run, {"x": jnp.zeros(1000)})
    shutil.rmtree(run / run_directory.CHECKPOINTS)
    doubled = jax.jit(lambda s: {"x": s["x"] * 2}, donate_argnums=0)(found)
    np.testing.assert_array_equal(doubled["x"], 2 * np.arange(1000.0))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t | {"odd": jnp.zeros(5)}, "odd must be float32[5], and it is float32[4]"),
        (lambda t: t | {"odd": jnp.zeros(4, jnp.int32)}, "odd must be int32[4]"),
        (lambda t: t | {"key": jax.random.key(3, impl="rbg")}, "key must be key<rbg>"),
        (lambda t: t | {"more": jnp.zeros(4), "other": jnp.zeros(2)}, "must have the fields more, other"),
        (lambda t: {k: v for k, v in t.items() if k != "odd"} | {"more": jnp.zeros(4)}, "the leaf more must be"),
        (lambda t: {k: v for k, v in t.items() if k != "odd"}, "the leaf odd must not be there"),
        (lambda t: t | {"params": {"kernel": jnp.zeros((4, 3)), "half": t["params"]["half"]}}, "params/kernel must be"),
    ],
)
def test_a_leaf_that_does_not_fit_is_named(run, change, said):
    checkpoint.save(run, 10, tree(), {})
    with mistake(said):
        checkpoint.restore(run, change(tree()))


def test_there_is_no_checkpoint(run):
    with pytest.raises(checkpoint.CheckpointError, match="there is none"):
        checkpoint.restore(run, tree())
    checkpoint.save(run, 10, tree(), {})
    with pytest.raises(checkpoint.CheckpointError, match="step 11"):
        checkpoint.restore(run, tree(), 11)


def test_the_newest_stay_and_a_step_is_never_overwritten(run):
    for step in (5, 10, 15, 20):
        checkpoint.save(run, step, tree(step), {}, keep=2)
    assert checkpoint.steps(run) == [15, 20]
    before = (run / run_directory.CHECKPOINTS / "000000000020" / "leaves.bin").stat().st_mtime_ns
    checkpoint.save(run, 20, tree(0), {}, keep=2)
    assert (run / run_directory.CHECKPOINTS / "000000000020" / "leaves.bin").stat().st_mtime_ns == before


def test_a_damaged_step_is_moved_aside_and_written_again(run):
    for times in range(3):
        target = checkpoint.save(run, 20, tree(float(times)), {})
        assert raw(checkpoint.restore(run, tree())[0]) == raw(tree(float(times)))
        (target / "leaves.bin").write_bytes(bytes([times]))
    checkpoint.save(run, 20, tree(3.0), {})
    aside = sorted((run / run_directory.CHECKPOINTS).glob(".damaged-000000000020-*/leaves.bin"))
    assert [path.read_bytes() for path in aside] == [b"\0", b"\1", b"\2"]


def damage(rng, newest, older):
    """Change one thing about a checkpoint's files; returns the name of the file."""
    name = rng.choice(["tree.json", "leaves.bin", "manifest.json"])
    path = newest / name
    data = bytearray(path.read_bytes())
    match rng.randrange(5):
        case 0 | 1:
            bit = rng.randrange(len(data) * 8)
            data[bit // 8] ^= 1 << bit % 8
            path.write_bytes(data)
        case 2:
            path.write_bytes(data[: rng.randrange(len(data))])
        case 3:
            path.unlink()
        case 4:
            if rng.random() < 0.5:
                path.write_bytes(data + b"\n")
            else:
                shutil.copy(older / name, path)
    return name


@pytest.mark.thorough
def test_a_thousand_damages_are_detected_and_named_and_the_one_before_is_used(run):
    rng = random.Random(0)
    older = checkpoint.save(run, 10, tree(1.0), {})
    newest = checkpoint.save(run, 20, tree(2.0), {})
    safe = run / "safe"
    shutil.copytree(newest, safe)
    assert raw(checkpoint.restore(run, tree())[0]) == raw(tree(2.0))
    for trial in range(1000):
        name = damage(rng, newest, older)
        problem = checkpoint.find_damage(newest)
        assert problem is not None, f"trial {trial}: {name}"
        assert str(newest / name) in problem or "manifest.json" in problem or name == "manifest.json"
        if trial % 50 == 0:
            with pytest.warns(UserWarning, match="damaged.*using the one before"):
                found, step, _ = checkpoint.restore(run, tree())
            assert step == 10
            assert raw(found) == raw(tree(1.0))
            with pytest.raises(checkpoint.CheckpointError, match="whole checkpoint"):
                checkpoint.restore(run, tree(), 20)
        shutil.rmtree(newest)
        shutil.copytree(safe, newest)
    older.rename(run / run_directory.CHECKPOINTS / "000000000030")  # swapped between steps
    with pytest.warns(UserWarning, match="belongs to step 10"):
        assert checkpoint.restore(run, tree())[1] == 20


class Killed(BaseException):
    """Stands for a kill: nothing after it runs."""


def operations(run, step):
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "before_operation", lambda name, path: seen.append(name))
        checkpoint.save(run, step, tree(2.0), {}, keep=1)
    return seen


@pytest.mark.thorough
@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EIO, "kill"])
def test_a_fault_before_any_operation_of_a_save_loses_nothing(tmp_path, monkeypatch, fault):
    """A full disk, a failing one and a kill, before each operation of one save."""
    count = len(operations(_fresh(tmp_path / "count"), 20))
    assert count > 12
    for number in range(count):
        run = _fresh(tmp_path / str(number))
        left = iter(range(number, -2, -1))

        def strike(operation, path, left=left):
            if next(left, -1) == 0:
                raise Killed if fault == "kill" else OSError(fault, "struck")

        with monkeypatch.context() as patch:
            patch.setattr(files, "before_operation", strike)
            if fault == "kill":
                patch.setattr(checkpoint, "clean", lambda run, quietly=False: None)
            with pytest.raises((OSError, Killed)) as caught:
                checkpoint.save(run, 20, tree(2.0), {}, keep=1)
        folder = run / run_directory.CHECKPOINTS
        if fault != "kill":
            assert str(folder) in str(caught.value)
            assert not list(folder.glob(files.TEMPORARY + "*")), "a temporary was left"
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a step that is there is whole
            found, step, _ = checkpoint.restore(run, tree())
        assert raw(found) == raw(tree(1.0 if step == 10 else 2.0))
        checkpoint.save(run, 20, tree(2.0), {}, keep=1)  # the next save finds its way
        assert raw(checkpoint.restore(run, tree(), 20)[0]) == raw(tree(2.0))
        assert not list(folder.glob(files.TEMPORARY + "*"))


def _fresh(run):
    (run / run_directory.CHECKPOINTS).mkdir(parents=True)
    checkpoint.save(run, 10, tree(1.0), {})
    return run


@pytest.mark.parametrize("name", ["tree.json", "leaves.bin", "manifest.json"])
def test_what_reads_back_differently_is_reported_and_nothing_is_pruned(run, monkeypatch, name):
    checkpoint.save(run, 10, tree(), {})
    rename = files.rename

    def flip_a_bit(source, target):
        rename(source, target)
        data = bytearray((target / name).read_bytes())
        data[len(data) // 2] ^= 1
        (target / name).write_bytes(data)

    monkeypatch.setattr(files, "rename", flip_a_bit)
    with pytest.raises(OSError, match=rf"differs from what was written: \S+{name} has other bytes"):
        checkpoint.save(run, 20, tree(), {}, keep=1)
    assert checkpoint.steps(run) == [10, 20]


@pytest.mark.thorough
def test_a_file_replaced_under_fault_is_the_old_one_or_the_new_one(tmp_path, monkeypatch):
    path, seen = tmp_path / "x", []
    files.replace(path, b"old")
    monkeypatch.setattr(files, "before_operation", lambda name, where: seen.append(name))
    files.replace(path, b"old")
    for number in range(len(seen)):
        left = iter(range(number, -2, -1))

        def strike(operation, where, left=left):
            if next(left, -1) == 0:
                raise OSError(errno.ENOSPC, "full")

        monkeypatch.setattr(files, "before_operation", strike)
        with pytest.raises(OSError, match="full"):
            files.replace(path, b"new")
        assert path.read_bytes() in (b"old", b"new")
        assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_data_are_appended_whole_or_not_at_all(tmp_path):
    """A disk that fills up takes a part of the data; here it is a file that may not grow further."""
    path, unlimited = tmp_path / "x", resource.getrlimit(resource.RLIMIT_FSIZE)
    assert files.append(path, b"a" * 100) == 100
    resource.setrlimit(resource.RLIMIT_FSIZE, (150, unlimited[1]))
    try:
        with pytest.raises(OSError, match="large"):
            files.append(path, b"b" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert files.append(path, b"c") == 101
    assert path.read_bytes() == b"a" * 100 + b"c"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (".hidden", "begins with '.'"),
        ("a b", "it has ' '"),
        ("x" * 101, "101 characters"),
        ("-x", "begins with '-'"),
        ("a\nb", r"it has '\n'"),
    ],
)
def test_run_names_are_plain(tmp_path, name, found):
    with pytest.raises(ConfigError, match="out=") as error:
        run_directory.create(f"{tmp_path}/{name}")
    assert found in str(error.value)


def test_a_run_directory_is_new_real_and_writable(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "x").write_text("")
    (tmp_path / "file").write_text("")
    for out, said in [("link", "symlink"), ("used", "empty"), ("file", "empty"), ("file/below", "writable")]:
        with pytest.raises(ConfigError, match=said):
            run_directory.create(tmp_path / out)
    for run, said in [
        ("link", "must hold a config.yaml"),
        ("none", "there is none"),
        ("used", "must hold a config.yaml"),
    ]:
        with pytest.raises(ConfigError, match=said):
            run_directory.existing(tmp_path / run)
    with pytest.raises(ConfigError, match="writable"):
        run_directory.create("/proc/run")
    assert run_directory.create(tmp_path / "a" / "b" / "first").is_dir()
    assert run_directory.create(tmp_path / "Läufe-東京").is_dir()
    assert run_directory.next_free("ppo/x y", tmp_path).name == "ppo-x-y"
    assert run_directory.next_free("used", tmp_path).name == "used-2"
