"""Atari games by `atari:` and by `ale:`: the same preprocessing under the same keys, where ale-py is installed."""

import numpy as np
import pytest

from rlkit import hosts
from rlkit.hosts.worker.atari import constructor
from rlkit.types import ConfigError

pytest.importorskip("ale_py")
pytestmark = pytest.mark.thorough
KINDS = ("atari", "ale")
RAW = {"terminal_on_life_loss": False, "clip_reward": False}


def play(name, num_steps, seed=0, actions=None, **kwargs):
    """The steps of one environment under random actions, or under always the same one."""
    options = {"backend": "serial"} if name.startswith("atari:") else {}
    with hosts.make(name, num_envs=1, seed=seed, **options, **kwargs) as pool:
        pool.reset()
        drawn = np.random.default_rng(seed).integers(0, pool.action_space.n, (num_steps, 1))
        return [pool.step(drawn[i] if actions is None else np.array([actions])) for i in range(num_steps)]


def games(steps):
    """The scores of whole games, in order."""
    return [(step.returns.item(), step.lengths.item()) for step in steps if step.lengths[0]]


def test_atari_has_stacks_of_gray_images():
    """Four gray images, the newest last; each step is four frames, and the same seed gives the same game."""
    actions = np.random.default_rng(0).integers(0, 4, (40, 2))

    def frames(seed):
        with hosts.make("atari:Breakout", num_envs=2, num_workers=2, seed=seed, terminal_on_life_loss=False) as pool:
            assert pool.observation_space.shape == (84, 84, 4)
            assert pool.observation_space.dtype == np.uint8
            assert pool.action_space.n == 4
            return [pool.reset(), *(pool.step(action).next_obs for action in actions)]

    one, same, other = np.stack(frames(0)), np.stack(frames(0)), np.stack(frames(1))
    np.testing.assert_array_equal(one, same)
    assert np.any(one != other)
    np.testing.assert_array_equal(one[1:, ..., :3], one[:-1, ..., 1:])
    assert np.any(one[1:, ..., 3] != one[:-1, ..., 3])


@pytest.mark.parametrize("scale", [False, True])
def test_atari_is_that_of_gymnasiums_wrappers(scale):
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    ours = constructor("Breakout", {"scale_obs": scale, "stack": 3, **RAW})()
    theirs = gymnasium.make("ALE/Breakout-v5", frameskip=1, repeat_action_probability=0.0)
    theirs = gymnasium.wrappers.AtariPreprocessing(theirs, scale_obs=scale)
    theirs = gymnasium.wrappers.FrameStackObservation(theirs, 3)
    assert ours.observation_space.dtype == theirs.observation_space.dtype
    kept = [ours.reset(seed=3)[0]]
    expected = [theirs.reset(seed=3)[0]]
    for action in np.random.default_rng(0).integers(0, 4, 300):
        (obs, *found), (other, *step) = ours.step(action), theirs.step(action)
        assert found[:3] == step[:3]
        if found[1] or found[2]:
            obs, other = ours.reset()[0], theirs.reset()[0]
        kept.append(obs)
        expected.append(other)
    np.testing.assert_array_equal(np.stack(kept), np.moveaxis(np.stack(expected), 1, -1))
    assert all(ours.observation_space.contains(obs) for obs in kept[:3])


def test_the_vector_environment_of_ale_py():
    one, same, other = (play("ale:SpaceInvaders", 300, seed, num_workers=2) for seed in (0, 0, 1))
    assert one[0].next_obs.shape == (1, 84, 84, 4)
    for a, b in zip(one, same, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)
    assert any(np.any(a.next_obs != b.next_obs) for a, b in zip(one, other, strict=True))
    with pytest.raises(ConfigError, match="cannot be made"):
        hosts.make("ale:Nonsense", num_envs=2)
    with pytest.raises(ConfigError, match="autoreset_mode"):
        hosts.make("ale:Breakout", num_envs=2, autoreset_mode="SameStep")


@pytest.mark.parametrize("kind", KINDS)
def test_rewards_are_clipped_for_learning_and_scores_are_raw(kind):
    learned = play(f"{kind}:SpaceInvaders", 1500)
    raw = play(f"{kind}:SpaceInvaders", 1500, **RAW)
    assert set(np.unique([step.reward for step in learned])) == {0.0, 1.0}
    assert max(step.reward.item() for step in raw) >= 5
    assert min(score for score, _ in games(learned)) >= 5
    if kind == "ale":  # a life's end changes nothing of the game there
        assert games(learned) == games(raw)
        assert sum(step.reward.item() for step in raw if step.real[0]) >= sum(score for score, _ in games(raw))


@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_life_ends_an_episode_and_not_the_game(kind):
    """Breakout has five lives; a game counts where all of them are lost."""
    learned, raw = play(f"{kind}:Breakout", 1500), play(f"{kind}:Breakout", 1500, **RAW)
    for steps, lives in ((learned, 5), (raw, 1)):
        assert len(games(steps)) >= 3
        assert sum(step.terminated.item() for step in steps) // lives == len(games(steps))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kwargs", [{}, RAW])
def test_fire_is_pressed_where_an_episode_begins(kind, kwargs):
    """Without FIRE Breakout waits for ever, and with it a policy that does nothing loses its balls."""
    still = play(f"{kind}:Breakout", 300, actions=0, **kwargs)
    assert not any(step.terminated[0] for step in still)
    steps = play(f"{kind}:Breakout", 600, actions=0, fire_reset=True, **kwargs)
    ends = [i for i, step in enumerate(steps) if step.terminated[0]]
    assert len(ends) >= 5 if not kwargs else len(ends) == 0  # after the first ball it waits, with one end a game
    assert len(games(steps)) == len(ends) // 5
    assert all(length > 100 for _, length in games(steps))


@pytest.mark.parametrize("kind", KINDS)
def test_fire_has_no_effect_in_a_game_without_it(kind):
    one, other = (play(f"{kind}:Freeway", 30, fire_reset=fire) for fire in (False, True))
    np.testing.assert_array_equal([step.next_obs for step in one], [step.next_obs for step in other])


@pytest.mark.parametrize("kind", KINDS)
def test_a_game_is_cut_at_its_limit_of_frames(kind):
    steps = play(f"{kind}:Pong", 120, actions=0, max_num_frames_per_episode=400, noop_max=0)
    assert [i for i, step in enumerate(steps) if step.truncated[0]] == [99]
    assert games(steps)[0][1] == 100


@pytest.mark.parametrize("kind", KINDS)
def test_sticky_actions_are_a_key(kind):
    def same(**kwargs):
        one, other = (play(f"{kind}:Pong", 60, **kwargs, seed=0) for _ in range(2))
        return all(np.array_equal(a.next_obs, b.next_obs) for a, b in zip(one, other, strict=True)), one

    (repeats, plain), (sticky_repeats, sticky) = same(), same(repeat_action_probability=0.9)
    assert repeats
    assert sticky_repeats  # the emulator draws from the seed
    assert any(np.any(a.next_obs != b.next_obs) for a, b in zip(plain, sticky, strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"clip_reward": "no"}, "clip_reward='no' must be true or false"),
        ({"repeat_action_probability": 25}, "repeat_action_probability=25 must be a number from 0 to 1"),
        ({"frame_skip": 0}, "frame_skip=0 must be an integer >= 1"),
        ({"episodic_life": True}, "episodic_life=True has another name here; use terminal_on_life_loss"),
    ],
)
def test_mistakes_in_the_keys_are_one_line(kind, kwargs, said):
    with pytest.raises(ConfigError, match=f"env='{kind}:Pong': env_kwargs.{said}"):
        hosts.make(f"{kind}:Pong", num_envs=1, **kwargs)


@pytest.mark.parametrize("kind", KINDS)
def test_the_full_action_space_and_other_sizes(kind):
    kwargs = {"full_action_space": True, "screen_size": 42, "stack": 2, "frame_skip": 2}
    with hosts.make(f"{kind}:Pong", num_envs=1, **kwargs) as pool:
        assert pool.action_space.n == 18
        assert pool.reset().shape == (1, 42, 42, 2)
