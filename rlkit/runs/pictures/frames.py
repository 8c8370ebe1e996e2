"""Frames of environments, drawn from their states and observations; GIFs and videos of frames; drawings of games."""

import contextlib
import io
import math
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from rlkit.envs.adapter import library, standard_promotion
from rlkit.names import GAME_STATE
from rlkit.runs import files
from rlkit.runs.versions import require
from rlkit.types import ConfigError

Color = str | tuple[int, int, int]
Point = tuple[float, float]

_SHARPNESS = 3  # factor by which frames are drawn larger and then reduced, for smooth edges

_PAPER, _INK, _FAINT = "#f7f7f5", "#2b2d42", "#c9cbd3"
_BLUE, _RED, _GOLD, _GREEN = "#3a6ea5", "#d1495b", "#edae49", "#66a182"

_NIGHT, _TILE = "#12151f", "#1a1f2c"
_WHITE, _YELLOW, _ORANGE, _CORAL = "#f1f4f9", "#ffd166", "#f4a261", "#ef476f"
_MINT, _SKY, _VIOLET, _SLATE = "#06d6a0", "#4cc9f0", "#9d7bff", "#465069"

# By game: the layers from the bottom up, as (channel of the observation [10, 10, C], color, shape).
_MINATAR: dict[str, list[tuple[int, Color, str]]] = {
    "Breakout-MinAtar": [(3, _CORAL, "block"), (2, _SLATE, "small"), (0, _SKY, "block"), (1, _YELLOW, "ball")],
    "Asterix-MinAtar": [(2, _SLATE, "small"), (1, _CORAL, "block"), (3, _YELLOW, "ball"), (0, _SKY, "block")],
    "Freeway-MinAtar": [
        *(
            (channel, color, "small")
            for channel, color in enumerate(("#3c4763", "#53567c", "#74608f", "#98689a", "#bd6f9c"), 2)
        ),
        (1, _CORAL, "block"),
        (0, _YELLOW, "ball"),
    ],
    "Seaquest-MinAtar": [
        (3, _SLATE, "small"),  # gauge of when fish, submarines and divers appear
        (7, _MINT, "bar"),  # oxygen
        (8, _ORANGE, "bar"),  # divers aboard
        (9, _ORANGE, "ball"),  # divers
        (5, _VIOLET, "block"),  # fish
        (6, _CORAL, "block"),  # enemy submarines
        (4, _CORAL, "small"),  # their bullets
        (1, "#2f8fb3", "block"),  # the player's stern
        (0, _SKY, "block"),  # and bow
        (2, _YELLOW, "small"),  # the player's bullets
    ],
    "SpaceInvaders-MinAtar": [
        (1, _MINT, "block"),  # the aliens; channels 2 and 3 repeat them by direction
        (5, _CORAL, "small"),
        (4, _YELLOW, "small"),
        (0, _SKY, "block"),
    ],
}


def frame(name: str, env_state: Any, obs: Any) -> np.ndarray:
    """Draw one environment: [height, width, 3] uint8.

    Classic-control tasks are drawn from the state, MinAtar games from the observation (stacked or flattened ones too),
    other tasks as the grid of their observation, or as its numbers.

    Args:
      name: the environment's name, as `rlkit.envs.make` takes it.
      env_state: the state of one environment, with or without those of wrappers around it.
      obs: its observation.
    """
    env_state = inner_state(env_state)
    if name in _CLASSIC:
        return _CLASSIC[name](env_state)
    if name in _MINATAR:
        channels = 1 + max(channel for channel, *_ in _MINATAR[name])
        cells = obs.get("obs") if isinstance(obs, dict) else obs  # a wrapper may have put leaves beside it
        if not isinstance(cells, dict | tuple) and (cells := np.asarray(cells)).size % 100 == 0:
            grid = cells.reshape(10, 10, -1)[..., -channels:]  # the newest, where several are stacked
            return _grid(grid, _MINATAR[name])
    return _other(name, obs)


def inner_state(env_state: Any) -> Any:
    """Return the state of an environment without those of wrappers around it."""
    while hasattr(env_state, "env_state"):
        env_state = env_state.env_state
    return env_state


def save_gif(frames: Sequence[np.ndarray], path: str | Path, fps: float = 30) -> None:
    """Write frames [height, width, 3] uint8 as a GIF that repeats; the file appears whole or not at all.

    A GIF counts time in hundredths of a second, so `fps` is approximate.
    """
    if not len(frames):
        raise ValueError("frames=[] must hold at least one frame")
    palette = _palette([frames[i] for i in np.linspace(0, len(frames) - 1, min(len(frames), 64)).astype(int)])
    images = [Image.fromarray(f).quantize(palette=palette, dither=Image.Dither.NONE) for f in frames]
    data = io.BytesIO()
    duration = max(20, 10 * round(100 / fps))
    images[0].save(data, "GIF", save_all=True, append_images=images[1:], duration=duration, loop=0, optimize=False)
    files.replace(Path(path), data.getvalue())


def save_mp4(frames: Sequence[np.ndarray], path: str | Path, fps: float = 30) -> None:
    """Write frames [height, width, 3] uint8 as an MP4 (H.264); the file appears whole or not at all.

    An odd height or width grows by one pixel, which repeats the edge, since H.264 halves the resolution of colors.

    Raises:
      ConfigError: the package imageio-ffmpeg is not installed, or ffmpeg fails.
    """
    if not len(frames):
        raise ValueError("frames=[] must hold at least one frame")
    subject = f"out={str(path)!r}"
    ffmpeg = require("imageio_ffmpeg", subject, "video").get_ffmpeg_exe()
    height, width, _ = frames[0].shape
    odd = ((0, height % 2), (0, width % 2), (0, 0))
    size = f"{width + width % 2}x{height + height % 2}"
    with tempfile.TemporaryDirectory() as folder:  # in this format ffmpeg goes back in the file, as in no pipe
        video = Path(folder) / "video.mp4"
        raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", size, "-r", str(fps), "-i", "-"]
        command = [ffmpeg, "-v", "error", *raw, "-c:v", "libx264", "-pix_fmt", "yuv420p", str(video)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            with contextlib.suppress(BrokenPipeError):  # of an ffmpeg that has stopped with an error
                for frame in frames:
                    process.stdin.write(np.pad(frame, odd, mode="edge").tobytes())  # type: ignore[union-attr]
            _, errors = process.communicate()
        if process.returncode:
            text = (errors.decode(errors="replace").strip().splitlines() or [f"code {process.returncode}"])[-1]
            raise ConfigError(f"{subject} needs an ffmpeg that encodes H.264, and {ffmpeg} failed: {text}; take a GIF")
        files.replace(Path(path), video.read_bytes())


def save_svg(states: Sequence[Any], path: str | Path) -> None:
    """Write states of a game of pgx as an SVG that repeats; the file appears whole or not at all.

    Each state is shown for half a second, and the last one for a second more.
    """
    if not len(states):
        raise ValueError("states=[] must hold at least one state")
    with tempfile.TemporaryDirectory() as folder, standard_promotion():  # pgx writes to a name
        drawing = Path(folder) / "game.svg"
        shown = [*states, states[-1], states[-1]]
        library("pgx", "pgx").save_svg_animation(shown, drawing, frame_duration_seconds=0.5)
        files.replace(Path(path), drawing.read_bytes())


def _palette(frames: Sequence[np.ndarray]) -> Image.Image:
    """The 256 most frequent colors; one palette for all frames, since different palettes would flicker."""
    pixels = np.concatenate([f.reshape(-1, 3) for f in frames]).astype(np.uint32)
    colors, counts = np.unique(pixels @ np.array([1 << 16, 1 << 8, 1], np.uint32), return_counts=True)
    most = colors[np.argsort(-counts, kind="stable")][:256]
    palette = Image.new("P", (1, 1))
    palette.putpalette(np.stack([most >> 16, most >> 8 & 255, most & 255], 1).astype(np.uint8).tobytes())
    return palette


class _Canvas:
    """A picture in world coordinates, y upwards, around `center`; `unit` pixels are a length of 1."""

    def __init__(self, width: int, height: int, center: Point = (0, 0), unit: float = 1, color: Color = _PAPER):
        self.image = Image.new("RGB", (width * _SHARPNESS, height * _SHARPNESS), color)
        self.draw = ImageDraw.Draw(self.image)
        self.center, self.unit = center, unit * _SHARPNESS

    def at(self, x: float, y: float) -> Point:
        """The pixel of a point."""
        (width, height), (cx, cy) = self.image.size, self.center
        return width / 2 + (x - cx) * self.unit, height / 2 - (y - cy) * self.unit

    def polygon(self, points: Sequence[Point], color: Color) -> None:
        self.draw.polygon([self.at(*point) for point in points], fill=color)

    def disc(self, x: float, y: float, radius: float, color: Color) -> None:
        (px, py), r = self.at(x, y), radius * self.unit
        self.draw.ellipse((px - r, py - r, px + r, py + r), fill=color)

    def line(self, points: Sequence[Point], width: float, color: Color) -> None:
        """Draw a line with round ends and joints, `width` in world units."""
        pixels = [self.at(*point) for point in points]
        self.draw.line(pixels, fill=color, width=max(1, round(width * self.unit)), joint="curve")
        for point in (points[0], points[-1]):
            self.disc(*point, width / 2, color)

    def box(self, x: float, y: float, width: float, height: float, radius: float, color: Color) -> None:
        """Fill a rectangle around (x, y) with round corners."""
        left, top = self.at(x - width / 2, y + height / 2)
        right, bottom = self.at(x + width / 2, y - height / 2)
        self.draw.rounded_rectangle((left, top, right, bottom), radius * self.unit, fill=color)

    def array(self) -> np.ndarray:
        """The picture, [height, width, 3] uint8."""
        return np.asarray(self.image.reduce(_SHARPNESS))


def _cart_pole(state: Any) -> np.ndarray:
    x, theta = float(state.x), float(state.theta)
    canvas = _Canvas(600, 360, center=(0, 0.75), unit=110)
    canvas.line([(-3, 0), (3, 0)], 0.02, _INK)
    for limit in (-2.4, 2.4):
        canvas.line([(limit, -0.12), (limit, 0.12)], 0.03, _RED)
    for wheel in (-0.16, 0.16):
        canvas.disc(x + wheel, 0.08, 0.08, _INK)
    canvas.box(x, 0.24, 0.6, 0.24, 0.05, _BLUE)
    pivot = (x, 0.34)
    canvas.line([pivot, (x + math.sin(theta), pivot[1] + math.cos(theta))], 0.09, _GOLD)
    canvas.disc(*pivot, 0.035, _INK)
    return canvas.array()


def _mountain_car(state: Any, goal: float) -> np.ndarray:
    def height(x: float) -> float:
        return 0.45 * math.sin(3 * x) + 0.55

    canvas = _Canvas(600, 400, center=(-0.3, 0.6), unit=300)
    xs = np.linspace(-1.4, 0.8, 200)
    hill = [(float(x), height(x)) for x in xs]
    canvas.polygon([*hill, (0.8, -1), (-1.4, -1)], "#e2e6dd")
    canvas.line(hill, 0.012, _INK)
    foot = height(goal)
    canvas.line([(goal, foot), (goal, foot + 0.2)], 0.012, _INK)
    canvas.polygon([(goal, foot + 0.2), (goal + 0.11, foot + 0.165), (goal, foot + 0.13)], _RED)

    x = float(state.position)
    slope = math.atan(1.35 * math.cos(3 * x))  # of the hill, 3 * 0.45 cos(3x)

    def on_slope(along: float, above: float) -> Point:
        """The world coordinates of a point of the car, which stands on the slope."""
        sin, cos = math.sin(slope), math.cos(slope)
        return x + along * cos - above * sin, height(x) + along * sin + above * cos

    canvas.line([on_slope(-0.045, 0.06), on_slope(0.045, 0.06)], 0.05, _BLUE)
    canvas.line([on_slope(-0.022, 0.085), on_slope(0.022, 0.085)], 0.04, _BLUE)
    for wheel in (-0.04, 0.04):
        canvas.disc(*on_slope(wheel, 0.026), 0.026, _INK)
        canvas.disc(*on_slope(wheel, 0.026), 0.010, _FAINT)
    return canvas.array()


def _pendulum(state: Any) -> np.ndarray:
    theta, torque = float(state.theta), float(np.asarray(state.last_u).reshape(()))
    canvas = _Canvas(400, 400, unit=150)
    for step in range(12):
        angle = step * math.pi / 6
        canvas.disc(
            1.15 * math.sin(angle), 1.15 * math.cos(angle), 0.03 if step == 0 else 0.012, _RED if step == 0 else _FAINT
        )
    canvas.line([(0, 0), (-math.sin(theta), math.cos(theta))], 0.18, _BLUE)
    if abs(torque) > 0.05:  # an arrow around the pivot, as long as the torque; positive is counterclockwise
        sweep = torque / 2 * 0.8 * math.pi
        arc = [(0.34 * -math.sin(a), 0.34 * math.cos(a)) for a in np.linspace(-sweep / 2, sweep / 2, 30)]
        canvas.line(arc, 0.035, _GOLD)
        (x0, y0), (x1, y1) = arc[-2], arc[-1]
        direction = math.atan2(y1 - y0, x1 - x0)
        tip = [
            (x1 + 0.09 * math.cos(direction + angle), y1 + 0.09 * math.sin(direction + angle))
            for angle in (0, 2.2, -2.2)
        ]
        canvas.polygon(tip, _GOLD)
    canvas.disc(0, 0, 0.045, _INK)
    return canvas.array()


def _acrobot(state: Any) -> np.ndarray:
    first, second = float(state.joint_angle1), float(state.joint_angle1 + state.joint_angle2)
    elbow = (math.sin(first), -math.cos(first))
    tip = (elbow[0] + math.sin(second), elbow[1] - math.cos(second))
    canvas = _Canvas(400, 400, unit=85)
    for dash in np.arange(-2.2, 2.2, 0.2):  # the height to reach
        canvas.line([(float(dash), 1), (float(dash) + 0.1, 1)], 0.025, _RED)
    canvas.line([(0, 0), elbow], 0.17, _BLUE)
    canvas.line([elbow, tip], 0.17, _GREEN)
    for joint in ((0, 0), elbow):
        canvas.disc(*joint, 0.06, _INK)
    canvas.disc(*tip, 0.05, _GOLD)
    return canvas.array()


_CLASSIC = {
    "CartPole-v1": _cart_pole,
    "MountainCar-v0": lambda state: _mountain_car(state, 0.5),
    "MountainCarContinuous-v0": lambda state: _mountain_car(state, 0.45),
    "Pendulum-v1": _pendulum,
    "Acrobot-v1": _acrobot,
}


def _grid(cells: np.ndarray, layers: Sequence[tuple[int, Color, str]]) -> np.ndarray:
    """Draw layers of cells [rows, columns, C], row 0 on top; cells other than 0 have their layer's color and shape."""
    rows, columns, _ = cells.shape
    size = max(8, 400 // max(rows, columns))
    canvas = _Canvas(columns * size, rows * size, (columns / 2, -rows / 2), size, _NIGHT)
    for row, column in np.ndindex(rows, columns):
        canvas.box(column + 0.5, -row - 0.5, 0.94, 0.94, 0.12, _TILE)
    for channel, color, shape in layers:
        for row, column in np.argwhere(cells[:, :, channel] != 0):
            x, y = column + 0.5, -row - 0.5
            match shape:
                case "block":
                    canvas.box(x, y, 0.94, 0.94, 0.16, color)
                case "bar":
                    canvas.box(x, y - 0.15, 0.94, 0.5, 0.12, color)
                case "ball":
                    canvas.disc(x, y, 0.4, color)
                case _:
                    canvas.disc(x, y, 0.2, color)
    return canvas.array()


def _other(name: str, obs: Any) -> np.ndarray:
    """Draw an observation: a small grid as a grid, any other as text."""
    if not isinstance(obs, dict | tuple) and np.ndim(obs) in (2, 3) and max(np.shape(obs)[:2]) <= 64:
        cells = np.asarray(obs)[:, :, None] if np.ndim(obs) == 2 else np.asarray(obs)
        colors = (_SKY, _YELLOW, _SLATE, _CORAL, _MINT, _VIOLET, _ORANGE, _WHITE)
        return _grid(cells, [(i, colors[i % len(colors)], "block") for i in reversed(range(cells.shape[2]))])
    if isinstance(obs, dict) and GAME_STATE in obs:  # arrays for the rules of a game
        obs = {part: x for part, x in obs.items() if part != GAME_STATE}
    parts = obs.items() if isinstance(obs, dict) else enumerate(obs) if isinstance(obs, tuple) else [("", obs)]
    form: Any = {"precision": 3, "threshold": 100, "max_line_width": 50}  # as wide as the picture
    text = [f"{part} {np.array2string(np.asarray(x), **form)}".strip() for part, x in parts]
    canvas = _Canvas(480, 360)
    font, large = (ImageFont.load_default(size * _SHARPNESS) for size in (16, 22))
    canvas.draw.text((24 * _SHARPNESS, 20 * _SHARPNESS), name, _BLUE, large)
    canvas.draw.multiline_text((24 * _SHARPNESS, 64 * _SHARPNESS), "\n".join(text), _INK, font, spacing=6 * _SHARPNESS)
    return canvas.array()
