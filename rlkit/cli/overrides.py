"""Keys of a config that are given on the command line."""

import re
from collections.abc import Sequence
from typing import Any


def parse_overrides(words: Sequence[str], flags: Sequence[str] = ()) -> tuple[dict[str, Any], dict[str, str]]:
    """Parse `--key value` and `--key=value`.

    Args:
      words: of the command line, after the config.
      flags: names of the command's own flags, such as init_from, which are no keys of a config.

    Returns:
      YAML values by key, and the texts of the command's own flags by name.

    Raises:
      ConfigError: a word that is no flag, a flag without a value, or one given twice.
    """
    from rlkit.names import shorten
    from rlkit.runs.config.errors import show_value
    from rlkit.runs.config.strict_yaml import parse
    from rlkit.types import ConfigError

    values: dict[str, Any] = {}
    texts: dict[str, str] = {}
    left = list(words)
    while left:
        word = left.pop(0)
        flag, equals, text = word.partition("=")
        if not flag.startswith("--") or flag == "--":
            remedy = f"--{word.replace('=', ' ', 1)}" if re.fullmatch(r"[\w.-]+=.+", word) else "--key value"
            raise ConfigError(f"{show_value(word)} must be a flag; write {shorten(remedy)}")
        name, dot, inner = flag[2:].partition(".")
        key = "num_seeds" if name == "seeds" else name.replace("-", "_") + dot + inner
        if not equals:
            if not left or left[0].startswith("--"):
                raise ConfigError(f"{flag} needs a value; write {flag} VALUE, e.g. true for a switch")
            text = left.pop(0)
        if key in values or key in texts:
            raise ConfigError(f"{flag} is given twice; keep one")
        if key in flags:
            texts[key] = text
            continue
        try:
            values[key] = parse(text)
        except ValueError as error:
            raise ConfigError(f"{flag}={show_value(text)} must be one YAML value: {error}") from None
    return values, texts
