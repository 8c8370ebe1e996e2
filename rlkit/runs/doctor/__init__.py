"""Examination of the installation, the machine and its known faults, for `rlkit doctor`."""

from typing import Literal, NamedTuple


class Finding(NamedTuple):
    """One line of an examination."""

    level: Literal["ok", "note", "fault"]  # a note costs speed or a feature; a fault breaks runs or makes them crawl
    subject: str
    text: str
    remedy: str = ""

    def line(self) -> str:
        """Return the finding as one line of text."""
        text = f"{self.level:6}{self.subject:13}{self.text}"
        return " ".join((f"{text}; {self.remedy}" if self.remedy else text).splitlines())
