"""rlkit.runs.datasets.archives: transitions from flat arrays by hand, and untrusted archives."""

import gc
import io
import os
import sys
import zipfile
from types import ModuleType, SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from mistakes import mistake

from rlkit import replay
from rlkit.runs import datasets
from rlkit.types import ConfigError

pytestmark = pytest.mark.thorough


# Three episodes: 0 1 2 ends in the world, 3 4 5 is cut by the clock, 6 7 goes on beyond the array.
TERMINALS = np.array([0, 0, 1, 0, 0, 0, 0, 0], bool)
TIMEOUTS = np.array([0, 0, 0, 0, 0, 1, 0, 0], bool)
OBS = np.array([[10.0], [11.0], [12.0], [20.0], [21.0], [22.0], [30.0], [31.0]])
NEXT = np.array([[11.0], [12.0], [13.0], [21.0], [22.0], [23.0], [31.0], [32.0]])
ARRAYS = {
    "observations": OBS,
    "actions": np.arange(8),
    "rewards": np.arange(8) / 2,
    "terminals": TERMINALS,
    "timeouts": TIMEOUTS,
    "next_observations": NEXT,
}


def without(*names):
    return {name: array for name, array in ARRAYS.items() if name not in names}


def column(leaf):
    assert leaf.shape[1] == 1
    return leaf[:, 0].reshape(len(leaf)).tolist()


@pytest.mark.parametrize("arrays", [ARRAYS, without("timeouts")])
def test_with_next_observations_every_step_is_kept(arrays):
    """Where timeouts are missing, the jump from 23 to 30 shows the cut; that from 13 to 20 is a world's end."""
    steps = datasets.from_arrays(**arrays)
    assert column(steps.obs) == OBS[:, 0].tolist()
    assert column(steps.next_obs) == NEXT[:, 0].tolist()
    assert column(steps.action) == list(range(8))
    assert column(steps.reward) == [0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5]
    assert column(steps.terminated) == TERMINALS.tolist()
    assert column(steps.truncated) == [False] * 5 + [True, False, True]
    assert [str(x.dtype) for x in steps[:6]] == ["float32", "int32", "float32", "bool", "bool", "float32"]


def test_without_next_observations_the_last_steps_of_cut_episodes_are_left_out():
    steps = datasets.from_arrays(**without("next_observations"))
    assert column(steps.obs) == [10, 11, 12, 20, 21, 30]
    assert column(steps.next_obs) == [11, 12, 12, 21, 22, 31]
    assert column(steps.action) == [0, 1, 2, 3, 4, 6]
    assert column(steps.terminated) == [False, False, True, False, False, False]
    assert column(steps.truncated) == [False, False, False, False, True, True]


def test_an_episode_of_one_cut_step_vanishes_and_the_one_before_it_stays_as_it_was():
    flags = {"terminals": [1, 0, 0, 1], "timeouts": [0, 1, 0, 0]}
    steps = datasets.from_arrays(observations=np.arange(4.0), actions=np.zeros((4, 2)), rewards=np.zeros(4), **flags)
    assert column(steps.obs) == [0, 2, 3]
    assert column(steps.next_obs) == [0, 3, 3]
    assert column(steps.terminated) == [True, False, True]
    assert column(steps.truncated) == [False, False, False]
    assert steps.action.shape == (3, 1, 2)


def test_where_both_flags_are_set_the_world_ended():
    for arrays, cut in ((ARRAYS, [5, 7]), (without("next_observations"), [6])):
        steps = datasets.from_arrays(**arrays | {"timeouts": TERMINALS})
        assert np.flatnonzero(steps.truncated).tolist() == cut
        assert not (steps.truncated & steps.terminated).any()


def test_flags_may_be_numbers_and_small_types_stay():
    steps = datasets.from_arrays(
        **ARRAYS
        | {"terminals": TERMINALS.astype(np.float64), "observations": np.ones((8, 2), np.uint8)}
        | {"next_observations": np.ones((8, 2), np.uint8), "actions": np.arange(8, dtype=">i8")}
    )
    assert (steps.obs.dtype, steps.action.dtype) == (np.uint8, np.int32)
    assert steps.action.dtype.isnative


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        (without("timeouts", "next_observations"), "timeouts or next_observations must be given"),
        (ARRAYS | {"rewards": np.zeros((8, 1))}, r"rewards has shape \(8, 1\) and must have \(8,\)"),
        (ARRAYS | {"terminals": np.full(8, 2)}, "terminals is int64 and must be bool"),
        (ARRAYS | {"timeouts": np.zeros(9, bool)}, "timeouts has shape"),
        (ARRAYS | {"next_observations": np.zeros((8, 2))}, "next_observations has shape"),
        (ARRAYS | {"next_observations": np.zeros((8, 1), int)}, "next_observations is int32 and must be float32"),
        (ARRAYS | {"observations": np.array(["a"] * 8)}, "observations .*<U1 .*must .*numbers"),
        (ARRAYS | {"observations": np.zeros((0, 3))}, "observations has shape"),
        (ARRAYS | {"actions": np.full(8, 2**40)}, "actions is int64 and must fit 32 bits"),
        (without("next_observations") | {"terminals": np.zeros(8), "timeouts": np.ones(8)}, "timeouts leaves no step"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, arrays, said):
    with pytest.raises(ConfigError, match=said):
        datasets.from_arrays(**arrays)
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(ConfigError, match=f"x.npz: {said}"):
        datasets.read_npz(tmp_path / "x.npz")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_archive_becomes_a_dataset(tmp_path, save):
    save(tmp_path / "x.npz", infos=np.array([None]), **without("timeouts") | {"observations": np.asfortranarray(OBS)})
    steps = datasets.read_npz(tmp_path / "x.npz")
    for leaf, expected in zip(steps[:6], datasets.from_arrays(**ARRAYS)[:6], strict=True):
        np.testing.assert_array_equal(leaf, expected)
    with datasets.writer(tmp_path / "a", jax.tree.map(lambda x: x[0, 0], steps), num_envs=1) as w:
        w.add(steps)
    assert datasets.load(tmp_path / "a").num_slices(3) == 2


def test_arrays_by_columns_are_read_in_order(tmp_path):
    obs = np.asfortranarray(np.arange(24.0).reshape(8, 3))
    np.savez(tmp_path / "x.npz", **without("next_observations") | {"observations": obs, "terminals": np.ones(8)})
    np.testing.assert_array_equal(datasets.read_npz(tmp_path / "x.npz").obs[:, 0], obs)


def member(array=None, header=None):
    data = io.BytesIO()
    np.save(data, np.zeros(8) if array is None else array, allow_pickle=True)
    data = data.getvalue()
    if header is None:
        return data
    text = repr(header).encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(64)


def archive(path, **members):
    with zipfile.ZipFile(path, "w") as file:
        for name, array in without("rewards").items():
            file.writestr(f"{name}.npy", member(array))
        for name, data in members.items():
            file.writestr(f"{name}.npy", data)


class Evil:
    def __reduce__(self):
        return os.mkdir, ("pwned",)


HEADER = {"descr": "<f8", "fortran_order": False, "shape": (8,)}
MALICE = {
    "object array": (member(np.array([Evil()] * 8, object)), "object where there must be numbers"),
    "huge shape": (member(header=HEADER | {"shape": (2**40, 2**20)}), ""),
    "negative shape": (member(header=HEADER | {"shape": (-8, -1, 2)}), ""),
    "huge empty shape": (member(header=HEADER | {"shape": (0, 2**62)}), "bytes where there must be"),
    "fields": (member(header=HEADER | {"descr": [("a", "<f8")]}), "where there must be numbers"),
    "expression": (member(header=HEADER)[:10] + b"__import__('os').mkdir('pwned')".ljust(117) + b"\n", ""),
    "deep header": (member()[:10] + b"(" * 117 + b"\n", ""),
    "no header": (b"\x93NUMPY\x01\x00\xff\xff", ""),
    "version": (b"\x93NUMPY\x03\x00" + member()[8:], ""),
    "empty": (b"", ""),
    "pickle": (b"\x80\x04cos\nsystem\n.", ""),
}


@pytest.mark.parametrize("name", MALICE)
def test_a_forged_array_is_refused_in_one_line_that_names_it(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    data, said = MALICE[name]
    archive(tmp_path / "x.npz", rewards=data)
    with pytest.raises(ConfigError, match=rf"x.npz: rewards cannot be read from .*{said}") as caught:
        datasets.read_npz("x.npz")
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 500
    assert [path.name for path in tmp_path.iterdir()] == ["x.npz"]


def test_damaged_archives_are_named(tmp_path):
    path = tmp_path / "x.npz"
    archive(path, rewards=member())
    whole = path.read_bytes()
    assert datasets.read_npz(path).reward.shape == (8, 1)
    middle = whole.index(b"rewards.npy") + 150
    for data in (whole[:-30], whole[: len(whole) // 2], b"", whole[:middle] + b"\xff" + whole[middle + 1 :]):
        path.write_bytes(data)
        with pytest.raises(ConfigError, match=r"x\.npz: .*cannot be read"):
            datasets.read_npz(path)


def test_files_that_are_no_archives_are_named(tmp_path):
    np.save(tmp_path / "one.npy", OBS)
    archive(tmp_path / "some.npz")
    (tmp_path / "link.npz").symlink_to(tmp_path / "some.npz")
    os.mkfifo(tmp_path / "pipe.npz")
    for name, said in {
        "none.npz": "No such file",
        "one.npy": "",
        "pipe.npz": "not a regular file",
        "link.npz": "symbolic links",
        "some.npz": "must hold rewards, and it holds actions, next_observations, observations, terminals, timeouts",
    }.items():
        with pytest.raises(ConfigError, match=f"{name}.*{said}"):
            datasets.read_npz(tmp_path / name)


@pytest.mark.filterwarnings("default:::minari", "ignore:Implicitly cleaning up:ResourceWarning")
def test_a_dataset_that_minari_wrote(tmp_path, monkeypatch):
    """Three random episodes of CartPole by Minari's own collector, compared with its own reading."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    minari = pytest.importorskip("minari")
    gymnasium = pytest.importorskip("gymnasium")
    env = minari.DataCollector(gymnasium.make("CartPole-v1", max_episode_steps=12))
    env.action_space.seed(0)
    for seed in range(3):
        env.reset(seed=seed)
        ended = False
        while not ended:
            *_, terminated, truncated, _ = env.step(env.action_space.sample())
            ended = terminated or truncated
    written = env.create_dataset("rlkit/cartpole-v0", author="a", author_email="a@b.c", code_permalink="none")
    env.close()
    del env
    gc.collect()  # it leaves a temporary folder behind
    read, start = datasets.minari("rlkit/cartpole-v0"), 0
    for episode in written.iterate_episodes():
        rows = slice(start, start := start + len(episode.rewards))
        np.testing.assert_array_equal(read.obs[rows, 0], episode.observations[:-1])
        np.testing.assert_array_equal(read.next_obs[rows, 0], episode.observations[1:])
        np.testing.assert_array_equal(read.action[rows, 0], episode.actions)
        np.testing.assert_array_equal(read.reward[rows, 0], episode.rewards)
        np.testing.assert_array_equal(read.terminated[rows, 0], episode.terminations)
        np.testing.assert_array_equal(read.truncated[rows, 0], episode.truncations & ~episode.terminations)
    assert start == read.reward.size


def minari_episodes(monkeypatch, observation_space=None, action_space=None, **changes):
    """Two episodes of a stand-in for Minari; the first ends without a flag."""
    library, episodes = ModuleType("minari"), []
    for first, terminations in ((10.0, [False, False]), (20.0, [False, True])):
        arrays = {"observations": first + np.arange(3.0)[:, None], "actions": np.zeros(2), "rewards": np.ones(2)}
        flags = {"terminations": np.array(terminations), "truncations": np.zeros(2, bool)}
        episodes.append(SimpleNamespace(**arrays | flags | changes))
    dataset = SimpleNamespace(
        iterate_episodes=lambda: iter(episodes),
        observation_space=observation_space or spaces.Box(-np.inf, np.inf, (1,)),
        action_space=action_space or spaces.Box(-1, 1, ()),
    )
    monkeypatch.setattr(library, "load_dataset", lambda name, download: dataset, raising=False)
    monkeypatch.setitem(sys.modules, "minari", library)


def test_an_episode_of_minari_ends_without_a_flag(monkeypatch):
    """A stopped recording has no flag at its end; returns and slices must not run on into the next episode."""
    minari_episodes(monkeypatch)
    read = datasets.minari("some/name-v0")
    assert column(read.terminated) == [False, False, False, True]
    assert column(read.truncated) == [False, True, False, False]
    assert column(read.next_obs) == [11, 12, 21, 22]


# Observations of two steps and the last one, and actions of two steps, with their spaces; then what is stored.
OF_INTEGERS = {
    "discrete": (
        (spaces.Discrete(5, start=-2), np.array([-2, 0, 2])),
        (spaces.Discrete(3, start=1), np.array([1, 2])),
        ([0, 2, 2, 4], [0, 1]),
    ),
    "multi-discrete": (
        (spaces.MultiDiscrete([3, 4], start=[1, 10]), np.array([[1, 10], [2, 11], [3, 13]])),
        (spaces.MultiDiscrete([2, 2], start=[0, 5]), np.array([[0, 5], [1, 6]])),
        ([[0, 0], [1, 1], [1, 1], [2, 3]], [[0, 0], [1, 1]]),
    ),
    "multi-binary": (
        (spaces.MultiBinary(2), np.array([[0, 1], [1, 1], [0, 0]], np.int8)),
        (spaces.MultiBinary(1), np.array([[0], [1]], np.int8)),
        ([[0, 1], [1, 1], [1, 1], [0, 0]], [[0], [1]]),
    ),
}


@pytest.mark.parametrize("kind", OF_INTEGERS)
@pytest.mark.parametrize("nested", [False, True])
def test_integers_of_minari_start_where_its_own_spaces_do(monkeypatch, kind, nested):
    """Discrete(3, start=1) with the actions 1 and 2 alone fits 0 to 2 as well: the first two actions, not the others.

    In a Dict and a Tuple too, beside a box, which keeps its numbers.
    """
    (obs_space, obs), (action_space, action), (stored_obs, stored_action) = OF_INTEGERS[kind]
    box, numbers = spaces.Box(-9, 9, (1,), np.float64), np.array([[1.5], [2.5], [3.5]])
    if nested:
        obs_space, obs = spaces.Dict({"z": obs_space, "a": box}), {"z": obs, "a": numbers}
        action_space, action = spaces.Tuple((box, action_space)), (numbers[:2], action)
    minari_episodes(monkeypatch, obs_space, action_space, observations=obs, actions=action)
    read = datasets.minari("some/name-v0")
    if nested:
        assert read.obs["a"].dtype == read.action[0].dtype == np.float32
        assert read.obs["a"][:, 0, 0].tolist() == [1.5, 2.5] * 2
        assert read.action[0][:, 0, 0].tolist() == [1.5, 2.5] * 2
        read = read._replace(obs=read.obs["z"], next_obs=read.next_obs["z"], action=read.action[1])
    assert read.obs.dtype == read.action.dtype == np.int32
    assert read.obs[:, 0].tolist() == stored_obs[:2] * 2
    assert read.next_obs[:, 0].tolist() == stored_obs[2:] * 2
    assert read.action[:, 0].tolist() == stored_action * 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"observations": {"a": np.zeros((3, 1))}, "observation_space": spaces.Box(-1, 1, (2,))}, "own space, float32"),
        ({"actions": np.array([0, 3]), "action_space": spaces.Discrete(3, start=1)}, "actions must lie from 1 to 3"),
        ({"action_space": spaces.Discrete(3)}, "own space, int64[], got float64[]"),
        ({"observation_space": spaces.Text(5)}, "MultiBinary, Dict or Tuple, got Text"),
    ],
)
def test_values_of_minari_outside_of_its_own_spaces_are_refused_in_a_line(monkeypatch, changes, message):
    minari_episodes(monkeypatch, **changes)
    with mistake(message):
        datasets.minari("some/name-v0")


def test_integers_of_arrays_start_where_they_say():
    steps = datasets.from_arrays(
        **ARRAYS
        | {"observations": np.array([[3, 7]] * 8), "next_observations": np.array([[4, 9]] * 8)}
        | {"observation_start": np.array([3, 7]), "actions": 1 + np.arange(8), "action_start": 1}
    )
    assert (steps.obs[0, 0].tolist(), steps.next_obs[0, 0].tolist()) == ([0, 0], [1, 2])
    assert column(steps.action) == list(range(8))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"action_start": 0.5}, "action_start is for integers"),
        ({"observation_start": 1}, "observation_start is for integers, and observations are float64"),
        ({"action_start": [1, 1]}, r"action_start has shape \(2,\)"),
    ],
)
def test_a_start_that_does_not_fit_is_named(changes, message):
    with pytest.raises(ConfigError, match=message):
        datasets.from_arrays(**ARRAYS | changes)


UNITS = {"one": (1.0, 0.0), "micro": (1e-6, 0.0), "nano": (1e-9, 0.0), "offset": (1.0, 1e6)}


@pytest.mark.parametrize("dtypes", [("f4", "f4"), ("f8", "f8"), ("f8", "f4"), ("f4", "f8")])
@pytest.mark.parametrize("unit", UNITS)
def test_ends_of_episodes_do_not_depend_on_units(unit, dtypes):
    """Observations in float64 and next observations in float32 of the same numbers follow each other as well."""
    factor, offset = UNITS[unit]
    obs, next_obs = offset + factor * OBS, offset + factor * NEXT
    changed = {"observations": obs.astype(dtypes[0]), "next_observations": next_obs.astype(dtypes[1])}
    steps = datasets.from_arrays(**without("timeouts") | changed)
    assert column(steps.truncated) == [False] * 5 + [True, False, True]


@pytest.mark.parametrize("dtype", ["u1", "i1", "i8", "?"])
def test_ends_of_episodes_of_integers_and_booleans(dtype):
    obs, next_obs = np.array([[0, 1], [1, 1], [0, 0]], dtype), np.array([[1, 1], [1, 0], [0, 1]], dtype)
    flags = {"rewards": np.zeros(3), "actions": np.zeros(3), "terminals": np.zeros(3)}
    steps = datasets.from_arrays(observations=obs, next_observations=next_obs, **flags)
    assert column(steps.truncated) == [False, True, True]


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("length", [1, 3])
def test_rows_that_do_not_follow_each_other_are_cut(once, length):
    """A shuffled archive with `timeouts`: every next observation is true, and windows keep to one episode.

    Observation 100 e + t is step t of episode e, whose rewards are e.
    """
    episode, time = np.divmod(np.arange(60), 10)
    arrays = {"observations": 100.0 * episode + time, "next_observations": 100.0 * episode + time + 1}
    arrays |= {"actions": np.zeros(60), "rewards": episode.astype(float), "terminals": np.zeros(60)}
    arrays |= {"timeouts": time == 9}
    order = np.random.default_rng(0).permutation(60)
    steps = datasets.from_arrays(**{name: x[order] for name, x in arrays.items()})
    buffer = replay.uniform(60, 256, length=length, store_obs_once=once)
    state = buffer.add(buffer.init(jax.tree.map(lambda x: x[0, 0], steps), 1), jax.tree.map(jnp.asarray, steps))
    sample = buffer.sample(state, jax.random.key(0))
    item, mask = jax.tree.map(np.asarray, (sample.item, sample.mask))
    np.testing.assert_array_equal(item.next_obs[mask], item.obs[mask] + 1)
    if length > 1:
        np.testing.assert_array_equal(np.where(mask, item.reward - item.reward[:, :1], 0), 0)


def test_rows_left_out_of_an_archive_are_cut():
    """Without every second row nothing follows; next observations stay the true ones."""
    steps = datasets.from_arrays(**{name: array[::2] for name, array in ARRAYS.items()})
    assert column(steps.truncated) == [True, False, True, True]
    assert column(steps.next_obs) == NEXT[::2, 0].tolist()
