"""Checkpoints and configs are data from strangers: nothing in them runs, writes or reads elsewhere."""

import json
import os
import subprocess
import sys
import textwrap

CHILD = r'''
import hashlib, json, os, pickle, shutil, sys, warnings
from pathlib import Path

import jax, jax.numpy as jnp, numpy as np

from rlkit.runs import files, metrics, run_directory
from rlkit.runs.checkpoints import checkpoint
from rlkit.runs.config.load import load_config
from rlkit.runs.config.parse import parse
from rlkit.runs.policy import load
from rlkit.types import ConfigError

home = Path(sys.argv[1]).resolve()
secret = home / "secret"
secret.write_text("agent: ppo\n")
inside = home / "inside"
inside.mkdir()
template = {"a": jnp.arange(6.0), "key": jax.random.key(0)}
GOOD = "agent: ppo\nenv: Probe-ConstantValue\nnum_envs: 2\nnum_steps: 4\ntotal_steps: 8\n"


class Evil:
    def __reduce__(self):
        return os.system, (f"touch {home}/pwned",)


def fresh(name):
    run = inside / name
    (run / run_directory.CHECKPOINTS).mkdir(parents=True)
    (run / run_directory.CONFIG).write_text(GOOD)
    return run, checkpoint.save(run, 10, template, {"metrics_length": 0, "seconds": 0.0})


def seal(target):
    """Make the manifest agree with whatever the other files hold now."""
    entries = {"step": 10}
    for name in ("tree.json", "leaves.bin"):
        data = (target / name).read_bytes()
        entries[name] = [len(data), hashlib.sha256(data).hexdigest()]
    (target / "manifest.json").write_bytes(files.to_json(entries))


def tree(target, **changes):
    found = json.loads((target / "tree.json").read_bytes())
    leaf = changes.pop("leaf", {})
    found["leaves"][0].update(leaf)
    (target / "tree.json").write_text(json.dumps(found | changes))
    seal(target)


def put(target, name, data):
    (target / name).write_bytes(data)
    seal(target)


def link(target, name):
    (target / name).unlink()
    (target / name).symlink_to(secret)


def fifo(target, name):
    (target / name).unlink()
    os.mkfifo(target / name)


def move_out(target):
    shutil.move(target, home / "moved")
    target.symlink_to(home / "moved")


def object_array():
    import io
    data = io.BytesIO()
    np.save(data, np.array([Evil()], object), allow_pickle=True)
    return data.getvalue()


def traversal(target):
    manifest = json.loads((target / "manifest.json").read_text())
    manifest["../../../secret"] = [1, "x"]
    (target / "manifest.json").write_bytes(files.to_json(manifest))


CHECKPOINTS = {
    "pickle for leaves": lambda t: put(t, "leaves.bin", pickle.dumps(Evil())),
    "pickle for tree": lambda t: put(t, "tree.json", pickle.dumps(Evil())),
    "pickle for manifest": lambda t: (t / "manifest.json").write_bytes(pickle.dumps(Evil())),
    "object array": lambda t: put(t, "leaves.bin", object_array()),
    "huge shape": lambda t: tree(t, leaf={"shape": [2**40, 2**20]}),
    "negative shape": lambda t: tree(t, leaf={"shape": [-1]}),
    "offset outside": lambda t: tree(t, leaf={"offset": -4096}),
    "object dtype": lambda t: tree(t, leaf={"dtype": "object"}),
    "evil path": lambda t: tree(t, leaf={"path": "../../secret"}),
    "leaves no list": lambda t: tree(t, leaves={"a": 1}),
    "leaves of numbers": lambda t: tree(t, leaves=[1, 2]),
    "extra no mapping": lambda t: tree(t, extra=[1]),
    "deep json": lambda t: put(t, "tree.json", b"[" * 100_000),
    "deep manifest": lambda t: (t / "manifest.json").write_bytes(b"[" * 100_000),
    "long number": lambda t: (t / "manifest.json").write_bytes(b"1" * 100_000),
    "manifest of nulls": lambda t: (t / "manifest.json").write_bytes(b"\0" * 1000),
    "traversal in manifest": traversal,
    "symlinked leaves": lambda t: link(t, "leaves.bin"),
    "symlinked tree": lambda t: link(t, "tree.json"),
    "symlinked manifest": lambda t: link(t, "manifest.json"),
    "symlinked step": move_out,
    "pipe for leaves": lambda t: fifo(t, "leaves.bin"),
    "pipe for manifest": lambda t: fifo(t, "manifest.json"),
    "directory for leaves": lambda t: ((t / "leaves.bin").unlink(), (t / "leaves.bin").mkdir()),
}
CONFIGS = {
    "apply": "agent: !!python/object/apply:os.system ['touch %s/pwned']" % home,
    "new": "!!python/object/new:os.system ['touch %s/pwned']" % home,
    "name": "agent: !!python/name:os.system",
    "module": "agent: !!python/module:subprocess",
    "bomb": "\n".join(["a0: &a0 [x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)]),
    "merge": "a: &a {agent: ppo}\nb: {<<: *a}",
    "deep": "agent: " + "[" * 50_000,
    "attribute as env": GOOD.replace("Probe-ConstantValue", "os:system"),
    "module as agent": GOOD.replace("ppo", "os"),
    "path as agent": GOOD.replace("ppo", "../../os"),
    "binary": "agent: !!binary aGVsbG8=",
    "wide": "agent: [" + "1," * 100_000 + "1]",
}

for name, spoil in CHECKPOINTS.items():
    spoil(fresh(name)[1])
for name, text in CONFIGS.items():
    (inside / f"{name}.yaml").write_text(text)
    run = fresh("config " + name)[0]
    (run / run_directory.CONFIG).write_text(text)
linked = fresh("linked config")[0]
(linked / run_directory.CONFIG).unlink()
(linked / run_directory.CONFIG).symlink_to(secret)
whole = fresh("whole")[0]
(whole / run_directory.METRICS).write_text("[" * 100_000 + "\n")
(inside / "good.yaml").write_text(GOOD)

# Once without the hook, so that whatever is imported on first use is there.
checkpoint.restore(whole, template)
parse(load_config(inside / "good.yaml").flat())
for attempt in (lambda: load(whole), lambda: parse({"agent": "ppo", "env": "none"}), lambda: parse({"agent": "none"})):
    try:
        attempt()
    except ConfigError:
        pass
from rlkit import envs
envs.names()

broken = []
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
FORBIDDEN = tuple(
    "exec compile os.system os.exec os.fork os.posix_spawn os.spawn subprocess. socket. pickle. marshal. ctypes.dlopen "
    "code. os.remove os.rename os.rmdir os.mkdir os.link os.symlink os.chmod shutil.".split()
)


def hook(event, arguments):
    if not armed:
        return
    if event == "open":
        path, mode, flags = arguments
        writes = (isinstance(flags, int) and flags & WRITES) or (isinstance(mode, str) and set(mode) & set("wax+"))
        follows = not (isinstance(flags, int) and flags & os.O_NOFOLLOW)
        if writes or (follows and os.path.realpath(str(path)) == str(secret)):
            broken.append((event, str(path)))
    elif event.startswith(FORBIDDEN):
        broken.append((event, ascii(arguments)[:200]))


armed = False
sys.addaudithook(hook)
armed = True
seen = {}
for name in CHECKPOINTS:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            checkpoint.restore(inside / name, template)
        seen[name] = "loaded"
    except ConfigError as error:
        seen[name] = str(error)
for name in CONFIGS:
    try:
        load_config(inside / f"{name}.yaml")
        seen[name] = "loaded"
    except ConfigError as error:
        seen[name] = str(error)
    try:
        load(inside / f"config {name}")
        seen["run: " + name] = "loaded"
    except ConfigError as error:
        seen["run: " + name] = str(error)
for name, function in {"linked config": lambda: load(linked), "deep lines": lambda: metrics.read(whole)}.items():
    try:
        function()
        seen[name] = "loaded"
    except ConfigError as error:
        seen[name] = str(error)
armed = False
found = {"seen": seen, "broken": list(broken), "count": len(CHECKPOINTS) + 2 * len(CONFIGS) + 2}
found["pwned"] = (home / "pwned").exists()

# A planted hole: the hook sees what it is there for.
broken.clear()
armed = True
pickle.loads((inside / "pickle for leaves" / run_directory.CHECKPOINTS / "000000000010" / "leaves.bin").read_bytes())
armed = False
print(json.dumps(found | {"planted": broken}))
'''


def test_a_corpus_of_malicious_files_is_refused_and_runs_nothing(tmp_path):
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", textwrap.dedent(CHILD), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["broken"] == []
    assert len(found["seen"]) == found["count"]
    assert [name for name, said in found["seen"].items() if said == "loaded"] == []
    for name, said in found["seen"].items():
        assert len(said.splitlines()) == 1, (name, said)
        assert len(said) < 1000, name
    assert "huge shape" in found["seen"]
    assert not found["pwned"]
    assert {"pickle.find_class", "os.system"} <= {event for event, _ in found["planted"]}
    assert (tmp_path / "pwned").exists()
