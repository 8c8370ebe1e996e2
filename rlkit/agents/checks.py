"""Rules that several agents share, each with an error that names the field, the value, the rule and a remedy."""

from rlkit.types import Box, ConfigError, Space


def divides(name: str, value: int, of: str, total: int) -> None:
    """Raise a ConfigError unless `value` divides `total`; it names the nearest values that do."""
    if total % value:
        divisors = [d for d in range(1, total + 1) if total % d == 0]
        below, above = [d for d in divisors if d < value][-1:], [d for d in divisors if d > value][:1]
        remedy = " or ".join(str(d) for d in below + above)
        raise ConfigError(f"{name}={value} must divide {of} = {total}; try {remedy}")


def needs_box(field: str, space: Space, *, bounded: bool) -> None:
    """Raise a ConfigError unless the action space is a Box, and one with finite bounds where `bounded` is set."""
    if not isinstance(space, Box) or (bounded and not space.bounded):
        kind = "a Box action space with finite bounds" if bounded else "a Box action space"
        raise ConfigError(f"{field}=True needs {kind}, and this one is {space}; use False")
