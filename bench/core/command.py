"""What the commands of benches share: how they are asked, where their rows go, and the loop over the groups of a part."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from bench.core.children import Gone
from bench.core.machine import ROOT
from bench.core.table import Row, Table

FAILED = 1


def parser(name: str, doc: str | None) -> argparse.ArgumentParser:
    """Of `python -m bench.NAME`, which the docstring describes."""
    return argparse.ArgumentParser(prog=f"bench.{name}", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def add_parts(p: argparse.ArgumentParser, parts: Iterable[str]) -> None:
    p.add_argument("parts", nargs="*", metavar="PART", help=", ".join(parts))
    p.add_argument("--only", nargs="+", default=[], metavar="GROUP", help="some groups of the parts")


def check_known(p: argparse.ArgumentParser, kind: str, asked: Iterable[str], known: Iterable[str]) -> None:
    """Wrong usage where something is asked for that is not there."""
    listed = list(known)
    if unknown := [name for name in asked if name not in listed]:
        p.error(f"there is no {kind} {unknown[0]!r}: choose from {', '.join(listed)}")


def check_checkout(p: argparse.ArgumentParser, folder: Path) -> None:
    """Wrong usage where `--before` names no checkout of an earlier commit."""
    if not (folder / "polytriton" / "__init__.py").exists():
        p.error(f"--before {folder} is no checkout of polytriton")


def run_folder(about: Mapping[str, str]) -> Path:
    return ROOT / "build" / "bench" / f"{time.strftime('%Y%m%d-%H%M%S')}-{about['commit']}"


def run_groups(table: Table, groups: Iterable[str], rows_of: Callable[[str], Iterator[Row]]) -> int:
    """The rows of every group; FAILED where a process died, a check failed or a verdict contradicts a published one. A group that comes to
    no end leaves a row that says why."""
    code = 0
    for group in groups:
        try:
            for row in rows_of(group):
                code |= FAILED * (row.get("note") == "CONTRADICTS" or row.get("verdict") == "FAIL")
                table.add(row)
        except Gone as error:
            code |= FAILED * (not error.late)
            table.add({table.columns[0]: group, "note": str(error)})
    table.close()
    return code
