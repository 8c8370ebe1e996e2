"""rlkit.runs.save and restore: any state comes back bit for bit, and whatever follows is as it would have been."""

import errno
from contextlib import suppress

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from buffer_invariants import check_buffer
from flax import struct
from mistakes import mistake
from replay_model import FEW, HEART, KINDS, B, N, R, Stream, example

from rlkit import runs
from rlkit.runs import files, run_directory
from rlkit.runs.checkpoints import checkpoint
from rlkit.types import ConfigError


class Ring(struct.PyTreeNode):
    steps: dict[str, jax.Array]  # leaves [8, ...]
    head: jax.Array  # [] uint32


class Buffer(struct.PyTreeNode):
    """A small replay buffer with everything that a state may hold."""

    ring: Ring
    key: jax.Array  # [] typed
    keys: jax.Array  # [3] typed
    name: str = struct.field(pytree_node=False, default="ring")


def init(seed=0, size=8):
    return Buffer(
        ring=Ring({"obs": jnp.zeros((size, 3), jnp.bfloat16), "reward": jnp.zeros(size)}, jnp.uint32(2**32 - 3)),
        key=jax.random.key(seed),
        keys=jax.random.split(jax.random.key(seed + 1, impl="rbg"), 3),
    )


def step(state, _):
    """Add a row, draw one."""
    key, add_key, draw_key = jax.random.split(state.key, 3)
    slot = state.ring.head % jnp.uint32(8)
    obs = state.ring.steps["obs"].at[slot].set(jax.random.normal(add_key, (3,), jnp.bfloat16))
    reward = state.ring.steps["reward"].at[slot].set(jax.random.normal(add_key))
    state = state.replace(key=key, ring=Ring({"obs": obs, "reward": reward}, state.ring.head + jnp.uint32(1)))
    return state, obs[jax.random.randint(draw_key, (), 0, 8)]


def raw(state):
    keys = [jnp.issubdtype(x.dtype, jax.dtypes.prng_key) for x in jax.tree.leaves(state)]
    plain = [jax.random.key_data(x) if key else x for x, key in zip(jax.tree.leaves(state), keys, strict=True)]
    return [(str(x.dtype), x.shape, np.asarray(x).tobytes()) for x in plain]


@jax.jit
def draws(state):
    return jax.lax.scan(step, state, length=100)


def test_what_was_restored_goes_on_as_the_original(tmp_path):
    state, _ = draws(init())
    assert runs.save(tmp_path / "b", state) == tmp_path / "b"
    for like in (init(7), jax.eval_shape(init), state):
        found = runs.restore(tmp_path / "b", like)
        assert raw(found) == raw(state)
        assert jax.tree.structure(found) == jax.tree.structure(state)
        assert [x.dtype for x in jax.tree.leaves(found)] == [x.dtype for x in jax.tree.leaves(state)]
        (after, drawn), (expected, wanted) = draws(found), draws(state)
        assert raw(drawn) == raw(wanted)
        assert len(np.unique(np.asarray(drawn, np.float32), axis=0)) > 30
        assert raw(after) == raw(expected)
    assert raw(init(7)) != raw(state)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [k if k in HEART else pytest.param(k, marks=pytest.mark.slow) for k in FEW])
def test_a_restored_replay_buffer_goes_on_as_the_original(tmp_path, kind):
    """A hundred adds, draws and updates later both are the same, bit for bit."""
    buffer, _ = KINDS[kind]
    rows = jax.tree.map(jnp.asarray, Stream(N, 3).rollout(100))

    @jax.jit
    def goes_on(state):
        def cycle(state, inputs):
            row, key = inputs
            state = buffer.add(state, jax.tree.map(lambda x: x[None], row))
            sample = buffer.sample(state, key)
            return buffer.update(state, sample.index, sample.item.reward.reshape(B, -1)[:, 0]), sample.item.obs

        return jax.lax.scan(cycle, state, (rows, jax.random.split(jax.random.key(1), 100)))

    state = jax.jit(buffer.add)(buffer.init(example(), N), Stream(N, 0).rollout(R))
    state, _ = goes_on(state)
    runs.save(tmp_path / "b", state)
    found = runs.restore(tmp_path / "b", jax.eval_shape(lambda: buffer.init(example(), N)))
    check_buffer(found)
    assert raw(found) == raw(state)
    assert raw(goes_on(found)) == raw(goes_on(state))


def test_saving_again_replaces_and_leaves_one(tmp_path):
    for count in range(3):
        state = init(count)
        runs.save(str(tmp_path / "b"), state)
        assert raw(runs.restore(str(tmp_path / "b"), init())) == raw(state)
    assert len(checkpoint.steps(tmp_path / "b")) == 1


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    first, second = init(1), init(2)
    runs.save(tmp_path / "b", first)
    seen = []
    for number in range(30):
        left = iter(range(number, -2, -1))

        def strike(operation, path, left=left):
            if next(left, -1) == 0:
                raise OSError(errno.ENOSPC, "full")

        with monkeypatch.context() as patch:
            patch.setattr(files, "before_operation", strike)
            with suppress(OSError):
                runs.save(tmp_path / "b", second)
        seen.append(raw(runs.restore(tmp_path / "b", init())))
    assert seen[0] == raw(first)
    assert seen[-1] == raw(second)
    assert all(found in (raw(first), raw(second)) for found in seen)
    assert sorted(seen, key=lambda found: found == raw(second)) == seen, "the second state never gives way to the first"


def test_a_state_that_does_not_fit_is_named_in_one_line(tmp_path):
    runs.save(tmp_path / "b", init())
    for like, said in [
        (init(size=9), "leaf ring/steps/obs must be bfloat16[9, 3], and it is bfloat16[8, 3]; make `like`"),
        (init().replace(key=init().keys), "leaf key must be key<rbg>"),
        ({"a": jnp.zeros(3)}, "the leaf a must be"),
    ]:
        with mistake(said):
            runs.restore(tmp_path / "b", like)


@pytest.mark.parametrize("leaf", [1.0, np.zeros(2), np.int64(3), np.array("text"), np.array(None), "text"])
def test_what_jax_would_change_is_refused(tmp_path, leaf):
    with pytest.raises(ConfigError, match=r"the leaf a/1 is .* and must be an array of a dtype that JAX keeps"):
        runs.save(tmp_path / "b", {"a": [jnp.zeros(2), leaf]})
    with pytest.raises(ConfigError, match="the leaf itself is"):
        runs.restore(tmp_path / "b", leaf)
    assert not list(tmp_path.iterdir())


def test_only_a_folder_of_its_own_is_written_to(tmp_path):
    (tmp_path / "run" / run_directory.CHECKPOINTS).mkdir(parents=True)
    (tmp_path / "run" / run_directory.CONFIG).write_text("agent: ppo\n")
    (tmp_path / "link").symlink_to(tmp_path / "run")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / run_directory.CHECKPOINTS).symlink_to(tmp_path / "run" / run_directory.CHECKPOINTS)
    (tmp_path / "empty").mkdir()
    for name, said in [("run", "must not exist yet"), ("link", "symlink"), ("inner", "must not exist"), ("..", "name")]:
        with pytest.raises(ConfigError, match=f"out=.*{said}"):
            runs.save(tmp_path / name, init())
    assert not list((tmp_path / "run" / run_directory.CHECKPOINTS).iterdir())
    runs.save(tmp_path / "empty", init())


def test_a_missing_or_damaged_state_is_named(tmp_path):
    with pytest.raises(checkpoint.CheckpointError, match=r"none' must hold a checkpoint, .*; save it anew"):
        runs.restore(tmp_path / "none", init())
    runs.save(tmp_path / "b", init())
    (leaves,) = (tmp_path / "b").rglob("leaves.bin")
    leaves.write_bytes(leaves.read_bytes()[:-1])
    with (
        pytest.warns(UserWarning, match="damaged"),
        pytest.raises(checkpoint.CheckpointError, match=r"leaves\.bin has .*; save it anew"),
    ):
        runs.restore(tmp_path / "b", init())
