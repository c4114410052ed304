"""Which room imports which: the table, and no circle in it, imports for types and inside functions counted; and where rooms are tested."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from polytriton.heap import pause_collection

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "polytriton"

# a room, and the rooms that it imports; `polytriton` itself, which imports its face when it is first asked for, is no room
ALLOWED = {
    "__main__": "cli",
    "api": "artifact certificate errors frontend guard ir kernels known passes prove results runtime tuned",
    "arithmetic": "rounding",
    "artifact": "arithmetic errors frontend guard ir kernels limit passes tuned",
    "cache": "api artifact errors frontend guard knobs limit passes",
    "certificate": "checker checker_boxes checker_files checker_slopes errors explain frontend guard prove whole",
    "checker": "checker_boxes checker_files checker_slopes",
    "checker_boxes": "checker_files checker_slopes",
    "checker_exact": "checker checker_boxes checker_files checker_slopes",
    "checker_slopes": "checker_files",
    "cli": "commands errors guard heap knobs",
    "commands": "api arithmetic artifact certificate checker checker_boxes checker_exact checker_files checker_slopes errors explain "
    "frontend ir kernels knobs known limit pages passes prove results runs runtime several show tuning whole workers",
    "explain": "errors",
    "frontend": "errors guard heap ir limit whole",
    "guard": "errors",
    "ir": "errors limit",
    "kernels": "arithmetic errors ir knobs passes rounding workers",
    "knobs": "errors",
    "known": "artifact errors ir kernels knobs",
    "pages": "errors guard results runs show whole",
    "passes": "errors ir limit",
    "prove": "errors frontend guard ir kernels passes results runtime workers",
    "results": "errors guard passes show whole",
    "runs": "api artifact cache errors explain frontend guard heap knobs limit prove results runtime show whole workers",
    "runtime": "arithmetic errors frontend guard heap ir kernels knobs limit passes results rounding",
    "several": "api cache errors frontend guard limit passes prove runtime",
    "torch": "errors",
    "tuned": "ir knobs passes runtime",
    "tuning": "api arithmetic artifact errors heap ir kernels knobs passes prove runtime tuned whole workers",
    "workers": "knobs",
    "whole": "errors",
}

# rooms whose tests lie under another name, and why
TESTED_ELSEWHERE = {"commands": "cli: commands are asked as a user asks them, through polytriton.cli"}
# tests that are of no room
OF_NO_ROOM = {
    "test_constraints": "the versions that are installed", "test_filecheck": "a helper of tests", "test_heap": "polytriton/heap.py",
    "test_interpreter": "a helper of tests", "test_layers": "all rooms", "test_names": "all rooms", "test_parameters": "all rooms",
    "test_release": "the package as it is shipped",
}  # fmt: skip


def imports(text: str) -> Iterator[str]:
    """The rooms a file imports."""
    for node in ast.walk(ast.parse(text)):
        assert not (isinstance(node, ast.ImportFrom) and node.level), "imports name the whole path"
        if isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("polytriton."))
        elif isinstance(node, ast.ImportFrom) and node.module == "polytriton":
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("polytriton."):
            yield (node.module or "").split(".")[1]


@cache
@pause_collection()  # there is none among millions of nodes
def arrows() -> set[tuple[str, str]]:
    """From room to room."""
    rooms = ((path.relative_to(PACKAGE).with_suffix("").parts[0], path) for path in sorted(PACKAGE.rglob("*.py")))
    return {(room, to) for room, path in rooms for to in imports(path.read_text()) if room not in ("__init__", to)}


def table() -> set[tuple[str, str]]:
    return {(room, to) for room, others in ALLOWED.items() for to in others.split()}


def test_rooms_import_what_the_table_allows() -> None:
    assert not (new := arrows() - table()), f"not in the table: {new}"
    assert not (gone := table() - arrows()), f"no file needs them any more: {gone}"


def test_the_table_has_no_circle() -> None:
    assert list(TopologicalSorter({room: set(others.split()) for room, others in ALLOWED.items()}).static_order())


def test_every_room_has_a_folder_of_tests() -> None:
    rooms = {p.parent.name for p in PACKAGE.glob("*/__init__.py")} | {"bench"}
    tested = {p.parent.name for p in TESTS.glob("*/test_*.py")}
    assert rooms - tested == TESTED_ELSEWHERE.keys()
    assert {why.split(":")[0] for why in TESTED_ELSEWHERE.values()} <= tested
    assert {p.stem for p in TESTS.glob("test_*.py")} == OF_NO_ROOM.keys(), "a test lies in the folder of its room"


def test_every_kind_of_import_is_seen() -> None:
    text = """
import polytriton.ir.net
from polytriton import rounding
from polytriton.errors import A
if TYPE_CHECKING:
    from polytriton.api import B
def f():
    from polytriton.results.frames import c
class D:
    from polytriton.limit import e
import numpy, polytriton
"""
    assert sorted(imports(text)) == ["api", "errors", "ir", "limit", "results", "rounding"]


def test_no_module_asks_for_the_published_data_when_it_is_imported() -> None:
    """Tests import benches where there is none."""
    for path in (*(TESTS.parent / "bench").rglob("*.py"), *TESTS.rglob("*.py")):
        text = path.read_text()
        for node in ast.parse(text).body if "data_folder" in text else []:
            if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.ImportFrom):
                called = {n.func.id for n in ast.walk(node) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
                assert "data_folder" not in called, path
