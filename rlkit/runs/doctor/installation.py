"""Findings about installed packages, from their metadata alone: nothing is imported, JAX included."""

import platform
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, metadata, requires, version

from packaging.requirements import Requirement

from rlkit import __version__
from rlkit.runs.doctor import Finding

_PACKAGE = "rlkit-jax"
_SHOWN = ("jax", "jaxlib", "flax", "optax", "gymnax", "numpy")


def examine() -> Iterator[Finding]:
    """Yield findings about the versions of what rlkit needs, and about its extras."""
    installed = {name: number for name in _SHOWN if (number := installed_version(name))}
    shown = ", ".join(f"{name} {number}" for name, number in installed.items())
    yield Finding("ok", "versions", f"rlkit {__version__}, Python {platform.python_version()}, {shown}")
    try:
        requirements = [Requirement(text) for text in requires(_PACKAGE) or ()]
        extras = metadata(_PACKAGE).get_all("Provides-Extra") or []
    except PackageNotFoundError:
        where = "rlkit runs from a folder; the versions of what it needs have not been compared"
        yield Finding("note", "packages", where, "pip install -e . in that folder")
        return
    yield packages([one for one in requirements if one.marker is None or one.marker.evaluate({"extra": ""})])
    yield from examine_extras({name: _of_extra(requirements, name) for name in extras})


def packages(requirements: Sequence[Requirement]) -> Finding:
    """Return a finding about the packages that rlkit needs."""
    problems = [problem for requirement in requirements if (problem := _problem(requirement))]
    if problems:
        return Finding("fault", "packages", "; ".join(problems), f"pip install --upgrade {_PACKAGE}")
    return Finding("ok", "packages", f"the {len(requirements)} that rlkit needs, in the versions that it needs")


def examine_extras(extras: dict[str, list[Requirement]]) -> Iterator[Finding]:
    """Yield findings about extras: which ones are whole, which ones are absent, and which packages do not fit.

    Args:
      extras: requirements of each extra, by its name.
    """
    whole = [name for name, needed in extras.items() if not any(map(_problem, needed))]
    absent = [name for name, needed in extras.items() if any(installed_version(one.name) is None for one in needed)]
    yield Finding("ok", "extras", f"installed: {', '.join(whole) or 'none'}")
    if absent:
        yield Finding("ok", "extras", f"not installed: {', '.join(absent)}", f'pip install "{_PACKAGE}[NAME]" adds one')
    for name in extras:
        if name not in whole and name not in absent:
            problems = "; ".join(filter(None, map(_problem, extras[name])))
            yield Finding("note", "extras", f"{name}: {problems}", f'pip install --upgrade "{_PACKAGE}[{name}]"')


def _of_extra(requirements: Sequence[Requirement], extra: str) -> list[Requirement]:
    """The requirements of an extra beyond those of the package."""
    return [
        one
        for one in requirements
        if one.marker and one.marker.evaluate({"extra": extra}) and not one.marker.evaluate({"extra": ""})
    ]


def _problem(requirement: Requirement) -> str | None:
    """The difference of the installed version from the required one; None where it fits."""
    installed = installed_version(requirement.name)
    if installed is None:
        return f"{requirement.name} is not installed"
    if requirement.specifier.contains(installed, prereleases=True):
        return None
    return f"{requirement.name} {installed} is not {requirement.specifier}"


def installed_version(package: str) -> str | None:
    """Return the version of an installed package; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
