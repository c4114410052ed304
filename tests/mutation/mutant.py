"""One planted fault."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """Wherever the text stands in the file it is replaced."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    argued: str = ""  # why no test can notice it, where none can

    @property
    def path(self) -> str:
        return f"polytriton/{self.file}"


def m(name: str, file: str, old: str, new: str, *tests: str, argued: str = "") -> Mutant:
    """A row of a list of faults: the tests likeliest to notice come first."""
    return Mutant(name, file, old, new, tests, argued)
