"""Names of Gymnasium's environments as people write them: bare ids, and the many ids of an Atari game."""

import importlib.util
import re

from rlkit.envs import registry
from rlkit.names import did_you_mean
from rlkit.types import ConfigError

GROUPS = ("mujoco", "box2d")  # folders of Gymnasium's environments, and extras of rlkit
# The 57 games of Bellemare et al. 2013, with what surrounds them in their ids.
_ATARI_ID = re.compile(
    "(?:ALE/)?("
    "Alien|Amidar|Assault|Asterix|Asteroids|Atlantis|BankHeist|BattleZone|BeamRider|Berzerk|Bowling|Boxing|Breakout|"
    "Centipede|ChopperCommand|CrazyClimber|Defender|DemonAttack|DoubleDunk|Enduro|FishingDerby|Freeway|Frostbite|"
    "Gopher|Gravitar|Hero|IceHockey|Jamesbond|Kangaroo|Krull|KungFuMaster|MontezumaRevenge|MsPacman|NameThisGame|"
    "Phoenix|Pitfall|Pong|PrivateEye|Qbert|Riverraid|RoadRunner|Robotank|Seaquest|Skiing|Solaris|SpaceInvaders|"
    "StarGunner|Surround|Tennis|TimePilot|Tutankham|UpNDown|Venture|VideoPinball|WizardOfWor|YarsRevenge|Zaxxon"
    ")(?:-ram)?(?:NoFrameskip|Deterministic)?-v[045]"
)


def ids(group: str | None = None) -> list[str]:
    """Return the ids of Gymnasium's environments, or those of one of `GROUPS`; none where it is not installed."""
    if importlib.util.find_spec("gymnasium") is None:
        return []
    import gymnasium

    return [name for name, spec in gymnasium.registry.items() if group is None or f".{group}" in str(spec.entry_point)]


def full_name(name: str) -> str:
    """Return `gymnasium:ID` for a bare id that Gymnasium alone has, but no Atari game; any other name as it is."""
    if ":" in name or name in registry.names() or _ATARI_ID.fullmatch(name):
        return name
    return f"gymnasium:{name}" if name in ids() else name


def in_gymnasium_too(name: str) -> bool:
    """Return true for the name of an environment in JAX that is an id of Gymnasium's as well."""
    return ":" not in name and name in registry.names() and name in ids()


def check_bare_name(name: str) -> None:
    """Raise ConfigError, with the names that may be meant, for a bare name of no environment.

    An Atari game has one name here for all of its ids.
    """
    if ":" in name or name in registry.names():
        return
    _check_no_game(name, name)
    known = [*registry.names(), *ids()]
    _check_version(name, name, known)
    if re.fullmatch(r"[\w./-]+-v\d+", name) and (remedy := did_you_mean(name, known)):
        raise ConfigError(f"env={name!r} is not known{remedy}")


def check_id(task: str) -> None:
    """Raise ConfigError, with the name that may be meant, for an id of `gymnasium:ID` that is not registered."""
    if task not in (known := ids()):
        if not task.startswith("ALE/"):
            _check_no_game(f"gymnasium:{task}", task)
        _check_version(f"gymnasium:{task}", task, known)


def _check_no_game(env: str, task: str) -> None:
    """Raise ConfigError, with the names that may be meant, where an id is one of an Atari game."""
    if match := _ATARI_ID.fullmatch(task):
        raise ConfigError(
            f"env={env!r} is an Atari game, whose name here is 'atari:{match[1]}', or 'ale:{match[1]}' for the same "
            f"frames in a vector environment; its raw frames are 'gymnasium:ALE/{match[1]}-v5'"
        )


def _check_version(env: str, task: str, known: list[str]) -> None:
    """Raise ConfigError where known ids are this one with a version; the newest is suggested."""
    found = [re.fullmatch(rf"{re.escape(task)}-v(\d+)", name, re.IGNORECASE) for name in known]
    versions = {int(match[1]): match[0] for match in found if match}
    if versions:
        newest = env[: len(env) - len(task)] + versions[max(versions)]
        raise ConfigError(f"env={env!r} lacks the version of its id; did you mean {newest!r}?")
