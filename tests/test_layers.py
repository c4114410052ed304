"""Which room of the package imports which: the table, and no circle in it. Imports for types and those inside functions count."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "polytriton"

# a room, and the rooms that it imports; `polytriton` itself, which imports its face when it is first asked for, is no room
ALLOWED = {
    "__main__": "cli",
    "api": "artifact certificate errors frontend guard ir kernels known passes prove results runtime tuned",
    "artifact": "errors frontend guard ir kernels limit passes tuned",
    "cache": "api artifact errors frontend guard knobs limit passes",
    "certificate": "checker checker_files checker_slopes errors frontend guard prove",
    "checker": "checker_files checker_slopes",
    "checker_exact": "checker checker_files",
    "checker_slopes": "checker_files",
    "child": "knobs",
    "cli": "commands errors guard heap knobs",
    "commands": "api artifact certificate checker checker_exact checker_files child errors explain frontend ir "
    "kernels known knobs limit pages passes prove runs runtime show tuning",
    "explain": "errors",
    "frontend": "errors guard ir limit whole",
    "guard": "errors",
    "ir": "errors limit",
    "kernels": "errors ir knobs passes rounding",
    "knobs": "errors",
    "known": "artifact errors ir kernels knobs",
    "pages": "errors guard results runs show",
    "passes": "errors ir limit",
    "prove": "child errors frontend guard ir kernels passes results runtime",
    "results": "errors guard",
    "runs": "api artifact cache child errors explain frontend guard heap knobs limit prove results runtime show whole",
    "runtime": "errors frontend guard heap ir kernels knobs limit passes results rounding",
    "show": "errors guard ir results",
    "tuned": "ir knobs passes runtime",
    "tuning": "api artifact errors heap ir kernels knobs passes prove runtime tuned whole",
}

# What still runs against the layers and closes a circle, and why. None of them is followed when its file is imported.
AGAINST = {
    ("prove", "api"): "the strategy takes a Verifier apart: it wants compiled, options and decider only",
    ("show", "api"): "a notebook's page of a Verifier wants its compiled network only",
    ("api", "show"): "a Verifier shows itself in a notebook",
    ("results", "runs"): "several answers save themselves as the records of a run",
    ("results", "show"): "answers show themselves in a notebook and turn into tables",
    ("guard", "runtime"): "torch's settings are put in order once torch is there",
}


def imports(text: str) -> Iterator[tuple[str, bool]]:
    """The rooms a file imports, and whether that happens as soon as the file is imported."""

    def visit(node: ast.AST, at_once: bool) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from ((a.name.split(".")[1], at_once) for a in child.names if a.name.startswith("polytriton."))
            elif isinstance(child, ast.ImportFrom) and child.module == "polytriton":
                yield from ((a.name, at_once) for a in child.names)
            elif isinstance(child, ast.ImportFrom) and (child.module or "").startswith("polytriton."):
                yield (child.module or "").split(".")[1], at_once
            assert not (isinstance(child, ast.ImportFrom) and child.level), "imports name the whole path"
            function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            typing = isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING"
            yield from visit(child, at_once and not function and not typing)

    return visit(ast.parse(text), True)


@cache
def arrows() -> dict[tuple[str, str], bool]:
    """From room to room, and whether any file follows the arrow when it is imported."""
    found: dict[tuple[str, str], bool] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        room = path.relative_to(PACKAGE).with_suffix("").parts[0]
        for to, at_once in imports(path.read_text()):
            if room not in ("__init__", to):
                found[room, to] = found.get((room, to), False) or at_once
    return found


def table() -> set[tuple[str, str]]:
    return {(room, to) for room, others in ALLOWED.items() for to in others.split()}


def test_rooms_import_what_the_table_allows() -> None:
    assert not (new := set(arrows()) - table() - AGAINST.keys()), f"not in the table: {new}"
    assert not (gone := (table() | AGAINST.keys()) - set(arrows())), f"no file needs them any more: {gone}"


def test_the_table_has_no_circle() -> None:
    assert list(TopologicalSorter({room: set(others.split()) for room, others in ALLOWED.items()}).static_order())


@pytest.mark.parametrize("arrow", AGAINST)
def test_what_runs_against_the_layers_closes_a_circle_and_waits(arrow: tuple[str, str]) -> None:
    """Where it closes none, it belongs in the table."""
    room, to = arrow
    assert not arrows()[arrow], "it is followed as soon as its file is imported"
    reached, ahead = {to}, [to]
    while ahead:
        here = ahead.pop()
        new = {t for r, t in table() | AGAINST.keys() if r == here} - reached
        reached |= new
        ahead += new
    assert room in reached


def test_every_kind_of_import_is_seen() -> None:
    text = """
import polytriton.ir.net
from polytriton import rounding
from polytriton.errors import A
if TYPE_CHECKING:
    from polytriton.api import B
def f():
    from polytriton.show.frames import c
class D:
    from polytriton.limit import e
import numpy, polytriton
"""
    assert list(imports(text)) == [("ir", True), ("rounding", True), ("errors", True), ("api", False), ("show", False), ("limit", True)]
