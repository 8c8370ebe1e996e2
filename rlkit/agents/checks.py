"""Rules that several agents share, each with an error that names the field, the value, the rule and a remedy."""

from rlkit.types import Box, ConfigError, Space


def divides(name: str, value: int, of: str, total: int) -> None:
    """Raise a ConfigError unless `value` divides `total`; it names the nearest values that do."""
    if total % value:
        divisors = [d for d in range(1, total + 1) if total % d == 0]
        below, above = [d for d in divisors if d < value][-1:], [d for d in divisors if d > value][:1]
        remedy = " or ".join(str(d) for d in below + above)
        raise ConfigError(f"{name}={value} must divide {of} = {total}; try {remedy}")


def squashable(space: Space) -> None:
    """Raise a ConfigError unless `space` is a Box with finite bounds, which a tanh can span."""
    if not isinstance(space, Box) or not space.bounded:
        raise ConfigError(
            f"squash=True needs a Box action space with finite bounds, and this one is {space}; use False"
        )
