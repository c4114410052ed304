"""Names mean one thing: no class name stands in two files of the package."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "polytriton"
ALONE = ("checker.py", "checker_files.py")  # the checker imports nothing of the package: a name of its own is not met elsewhere
TWICE = {"Node": "of a certificate's tree and of a network"}  # and why


def sources() -> dict[str, ast.Module]:
    files = {str(path.relative_to(PACKAGE)): path for path in sorted(PACKAGE.rglob("*.py"))}
    return {name: ast.parse(path.read_text()) for name, path in files.items() if name not in ALONE}


def classes(tree: ast.Module) -> Iterator[str]:
    return (node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def shared(trees: Mapping[str, ast.Module]) -> dict[str, list[str]]:
    """Class names of several files."""
    found: dict[str, set[str]] = defaultdict(set)
    for file, tree in trees.items():
        for name in classes(tree):
            found[name].add(file)
    return {name: sorted(files) for name, files in found.items() if len(files) > 1}


def test_a_class_name_stands_in_one_file() -> None:
    found = shared(sources())
    assert found.keys() == TWICE.keys(), {name: files for name, files in found.items() if name not in TWICE}


def test_a_class_name_in_two_files_is_seen() -> None:
    here, there = ast.parse("class Engine: ...\nclass Engine: ..."), ast.parse("def f():\n    class Engine: ...\nclass Job: ...")
    assert shared({"here": here, "there": there}) == {"Engine": ["here", "there"]}
    assert not shared({"here": here})
