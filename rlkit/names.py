"""Names that several packages share: observation leaves with a meaning, and names as error messages show them.

Worker processes import this module, so it does not import JAX.
"""

import difflib
from collections.abc import Iterable

ACTION_MASK = "action_mask"  # the leaf of a Dict observation, at its top level, that marks the legal actions
PRIVILEGED = "privileged"  # the part of a Dict observation, at its top level, that is for critics and values alone


def did_you_mean(word: object, known: Iterable[str], *, cutoff: float = 0.6, prefix: str = "", suffix: str = "") -> str:
    """Suggest existing names for a misspelled one, as a text to be appended to an error message.

    Args:
      word: the name that was given; upper and lower case count as equal.
      known: the names that exist.
      cutoff: similarity in [0, 1] below which nothing is suggested.
      prefix, suffix: added to each suggested name, where `word` is only a part of the full name.

    Returns:
      "; did you mean 'a' or 'b'?", or "" where no known name is similar.
    """
    names = {name.lower(): name for name in known}
    similar = difflib.get_close_matches(str(word)[:60].lower(), names, n=2, cutoff=cutoff)
    suggestions = [repr(f"{prefix}{names[name]}{suffix}") for name in similar]
    return f"; did you mean {' or '.join(suggestions)}?" if suggestions else ""


def shorten(text: str) -> str:
    """Text for an error message, cut after 60 characters."""
    return text if len(text) <= 60 else f"{text[:50]}..."
