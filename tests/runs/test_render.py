"""Pictures show the state: colors are looked up where geometry says they must be."""

import subprocess
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from PIL import Image, ImageColor

from rlkit import envs
from rlkit.runs.pictures import frames as pictures
from rlkit.runs.pictures import rendering
from rlkit.types import ConfigError

pytestmark = pytest.mark.thorough
CLASSIC = ["CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1"]
MINATAR = ["Breakout-MinAtar", "Asterix-MinAtar", "Freeway-MinAtar", "Seaquest-MinAtar", "SpaceInvaders-MinAtar"]


def is_color(pixel, color):
    return np.allclose(pixel, ImageColor.getrgb(color), atol=8)


def where(frame, color):
    """The mean (row, column) of the pixels of a color."""
    return np.argwhere(np.all(np.abs(frame.astype(int) - ImageColor.getrgb(color)) <= 8, axis=-1)).mean(0)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", [*CLASSIC, *MINATAR, "Pong-misc", "Catch-bsuite", "FrozenLake-misc", "Probe-MaskedAction"]
)
def test_every_kind_of_task_has_a_picture(name):
    env, params = envs.make(name)
    obs, state = jax.jit(env.reset)(jax.random.key(0), params)
    frame = pictures.frame(name, state, obs)
    assert frame.dtype == np.uint8
    assert frame.ndim == 3
    assert frame.shape[2] == 3
    assert min(frame.shape[:2]) >= 100
    assert len(np.unique(frame.reshape(-1, 3), axis=0)) > 3


def test_cart_pole():
    def frame(x, theta):
        return pictures.frame("CartPole-v1", SimpleNamespace(x=x, theta=theta), None)

    upright, right, leaning = frame(0.0, 0.0), frame(1.0, 0.0), frame(0.0, 0.2)
    np.testing.assert_allclose(where(upright, pictures._BLUE)[1], 299.5, atol=1)
    np.testing.assert_allclose(where(right, pictures._BLUE)[1], 299.5 + 110, atol=1)  # 110 pixels are 1
    assert where(leaning, pictures._GOLD)[1] > where(upright, pictures._GOLD)[1] + 5  # a positive angle leans right


def test_pendulum_and_acrobot():
    def pendulum(theta):
        frame = pictures.frame("Pendulum-v1", SimpleNamespace(theta=theta, last_u=0.0), None)
        return where(frame, pictures._BLUE)

    assert pendulum(0.0)[0] < 150  # up
    assert pendulum(np.pi)[0] > 250
    assert pendulum(np.pi / 2)[1] < 150  # counterclockwise: left
    hanging = pictures.frame("Acrobot-v1", SimpleNamespace(joint_angle1=0.0, joint_angle2=0.0), None)
    raised = pictures.frame("Acrobot-v1", SimpleNamespace(joint_angle1=np.pi, joint_angle2=0.0), None)
    np.testing.assert_allclose(where(hanging, pictures._GOLD), (199.5 + 170, 199.5), atol=1)
    np.testing.assert_allclose(where(raised, pictures._GOLD), (199.5 - 170, 199.5), atol=1)


def test_the_pendulums_arrow_turns_with_the_torque():
    def arrow(torque):
        frame = pictures.frame("Pendulum-v1", SimpleNamespace(theta=np.pi, last_u=torque), None)
        return where(frame, pictures._GOLD)[1] - 199.5

    # The head is the heavier end: on the left where the torque is counterclockwise.
    assert arrow(1.5) < -1
    assert arrow(-1.5) > 1


@pytest.mark.parametrize("name", ["MountainCar-v0", "MountainCarContinuous-v0"])
def test_the_car_stands_on_the_hill(name):
    for position in (-1.1, -0.5, 0.3):
        frame = pictures.frame(name, SimpleNamespace(position=position), None)
        row, column = where(frame, pictures._BLUE)
        hill = 200 - (0.45 * np.sin(3 * position) + 0.55 - 0.6) * 300
        assert abs(column - (300 + (position + 0.3) * 300)) < 25
        assert 5 < hill - row < 30


@pytest.mark.parametrize("name", MINATAR)
def test_each_channel_of_a_game_is_drawn_where_it_is(name):
    channels = 1 + max(channel for channel, *_ in pictures._MINATAR[name])
    env, params = envs.make(name)
    assert env.observation_space(params).shape == (10, 10, channels)
    for channel, color, shape in pictures._MINATAR[name]:
        obs = np.zeros((10, 10, channels), np.float32)
        obs[2, 7, channel] = 1
        frame = pictures.frame(name, None, obs)
        at = (106 if shape == "bar" else 100, 300)
        assert is_color(frame[at], color), (channel, color)
        assert is_color(frame[300, 100], pictures._TILE)


@pytest.mark.thorough
def test_channels_mean_what_the_games_say():
    obs, state = jax.jit(envs.make("Breakout-MinAtar")[0].reset)(jax.random.key(0), envs.make("Breakout-MinAtar")[1])
    frame = pictures.frame("Breakout-MinAtar", state, obs)
    center = lambda row, column: frame[row * 40 + 20, column * 40 + 20]  # noqa: E731
    assert is_color(center(9, 4), pictures._SKY)  # the paddle
    assert is_color(center(int(state.ball_y), int(state.ball_x)), pictures._YELLOW)
    assert all(is_color(center(row, 5), pictures._CORAL) for row in (1, 2))  # bricks


@pytest.mark.thorough
def test_wrapped_states_and_stacked_or_flat_observations():
    env, params = envs.make("Breakout-MinAtar")
    obs, state = jax.jit(env.reset)(jax.random.key(0), params)
    plain = pictures.frame("Breakout-MinAtar", state, obs)
    for wrappers in (["frame_stack:3", "time_limit:9"], ["flatten"], ["previous_action_reward"]):
        wrapped = envs.wrap(env, wrappers)
        obs, state = jax.jit(wrapped.reset)(jax.random.key(0), params)
        np.testing.assert_array_equal(pictures.frame("Breakout-MinAtar", state, obs), plain)
    obs, state = jax.jit(envs.wrap(env, ["previous_action_reward", "flatten"]).reset)(jax.random.key(0), params)
    assert pictures.frame("Breakout-MinAtar", state, obs).ndim == 3, "the numbers"
    old, new = (np.eye(10, dtype=np.float32)[..., None] * channels for channels in ([1, 0, 0, 0], [0, 1, 0, 0]))
    np.testing.assert_array_equal(
        pictures.frame("Breakout-MinAtar", None, np.concatenate([old, new], -1)),
        pictures.frame("Breakout-MinAtar", None, new),
    )
    env, params = envs.make("CartPole-v1")
    wrapped = envs.wrap(env, ["hide_velocity", "frame_stack:3", "sticky_action:0.5"])
    _, inner = env.reset(jax.random.key(0), params)
    obs, state = wrapped.reset(jax.random.key(0), params)
    np.testing.assert_array_equal(pictures.frame("CartPole-v1", state, obs), pictures.frame("CartPole-v1", inner, None))


@pytest.mark.parametrize(
    ("wrappers", "steps"), [([], None), (["action_repeat:2", "frame_stack:3"], None), (["time_limit:4"], 4)]
)
def test_the_last_frame_shows_the_state_in_which_an_episode_ends(monkeypatch, wrappers, steps):
    env, params = envs.make("CartPole-v1")
    run = SimpleNamespace(seed=0, env="CartPole-v1")
    policy = SimpleNamespace(env=envs.wrap(env, wrappers), params=params, memory=(), config=SimpleNamespace(run=run))
    policy.act = lambda obs, key, memory: (1, memory)  # always to the right, so that the pole falls to the left
    states = []
    monkeypatch.setattr(rendering, "frame", lambda name, state, obs: states.append(state))
    frames, fps = rendering._record_jax(policy, 100)
    assert (len(frames), fps) == (len(states), 30)
    angles = [float(getattr(state, "env_state", state).theta) for state in states[1:]]
    assert angles == sorted(angles, reverse=True)
    if steps is None:
        assert angles[-1] < -12 * np.pi / 180 < angles[-2]
    else:
        assert len(angles) == steps
        assert angles[-1] < -0.05, "no start, which is within 0.05"
    assert len(rendering._record_jax(policy, 2)[0]) == 3


def test_the_rate_of_frames_is_the_declared_one():
    class Declared:
        metadata = {"render_fps": 50}  # noqa: RUF012

    class Around:
        metadata = {}  # noqa: RUF012

        def __init__(self, env):
            self.env = env

    assert rendering.frame_rate(Declared()) == rendering.frame_rate(Around(Around(Declared()))) == 50
    for fps in (None, 0, -1, np.inf, "fast"):
        Declared.metadata = {"render_fps": fps}
        assert rendering.frame_rate(Around(Declared())) == 30
    assert rendering.frame_rate(object()) == 30


def test_a_gif_holds_the_frames(tmp_path):
    frames = [pictures.frame("CartPole-v1", SimpleNamespace(x=x, theta=0.0), None) for x in np.linspace(-2, 2, 12)]
    path = tmp_path / "cart.gif"
    pictures.save_gif(frames, path, fps=25)
    with Image.open(path) as gif:
        assert gif.n_frames == 12
        assert gif.info["duration"] == 40
        assert gif.info["loop"] == 0
        for i in (0, 11):
            gif.seek(i)
            shown = np.asarray(gif.convert("RGB"))
            np.testing.assert_allclose(where(shown, pictures._BLUE), where(frames[i], pictures._BLUE), atol=1)
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(ValueError, match="at least one frame"):
        pictures.save_gif([], path)


@pytest.mark.parametrize("height", [32, 33])
def test_a_video_holds_the_frames(tmp_path, height):
    program = pytest.importorskip("imageio_ffmpeg").get_ffmpeg_exe()
    frames = [np.full((height, 48, 3), 20 * i, np.uint8) for i in range(12)]
    path = tmp_path / "gray.mp4"
    pictures.save_mp4(frames, path, fps=25)
    read = subprocess.run([program, "-i", path, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"], capture_output=True)
    assert b" 25 fps" in read.stderr
    shown = np.frombuffer(read.stdout, np.uint8).reshape(12, height + height % 2, 48, 3)
    np.testing.assert_allclose(shown, np.broadcast_to(20 * np.arange(12).reshape(12, 1, 1, 1), shown.shape), atol=3)
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(ValueError, match="at least one frame"):
        pictures.save_mp4([], path)


def test_an_ffmpeg_that_fails_is_one_line(tmp_path, monkeypatch):
    pytest.importorskip("imageio_ffmpeg")
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", "false")
    with pytest.raises(ConfigError, match=r"x\.mp4' needs an ffmpeg .* code 1; take a GIF$"):
        pictures.save_mp4([np.zeros((480, 640, 3), np.uint8)] * 3, tmp_path / "x.mp4")
    assert list(tmp_path.iterdir()) == []
