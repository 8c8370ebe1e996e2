"""Names that several packages share: observation leaves with a meaning, and suggestions for misspelled names.

Worker processes import this module, so it does not import JAX.
"""

import difflib
from collections.abc import Iterable

ACTION_MASK = "action_mask"  # the leaf of a Dict observation, at its top level, that marks the legal actions


def did_you_mean(word: object, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """A suggestion for a misspelled name, to be appended to an error message.

    Args:
      word: the name that was given.
      known: the names that exist.
      cutoff: similarity in [0, 1] below which nothing is suggested.

    Returns:
      "; did you mean 'a' or 'b'?", or "" where no known name is similar.
    """
    found = difflib.get_close_matches(str(word)[:60], list(known), n=2, cutoff=cutoff)
    return f"; did you mean {' or '.join(map(repr, found))}?" if found else ""
