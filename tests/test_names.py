"""Names mean one thing and say what they are of: no class name stands in two files, no function is called by a lone participle."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "polytriton"
ALONE = ("checker.py", "checker_files.py")  # the checker imports nothing of the package: a name of its own is not met elsewhere
TWICE: dict[str, str] = {}  # and why
WORDS = """
allowed answered apart around asked began beside bounded branched chosen cleaned commented compiled counted covered described divided
enclosed ended exactly failed grouped held inside known late later made measured of parsed passed pinned profiled reached recorded
reported retiled saved sealed shipped spaced specialised staying through tiled told united until watched written
"""
LONE = frozenset(WORDS.split())
KEPT = {("runtime/config.py", "of"): "documented: programs of others say Config.of"}


def sources() -> dict[str, ast.Module]:
    files = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}
    return {name: ast.parse(path.read_text()) for name, path in files.items() if name not in ALONE}


def shared(trees: Mapping[str, ast.Module]) -> dict[str, list[str]]:
    """Class names of several files."""
    found: dict[str, set[str]] = defaultdict(set)
    for file, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[node.name].add(file)
    return {name: sorted(files) for name, files in found.items() if len(files) > 1}


def lone(tree: ast.Module) -> Iterator[str]:
    """Functions of a module and of its classes, but no function within another, that are called by a lone word."""
    for node in (tree, *(n for n in ast.walk(tree) if isinstance(n, ast.ClassDef))):
        yield from (f.name for f in node.body if isinstance(f, ast.FunctionDef) and f.name in LONE and not _is_property(f))


def _is_property(function: ast.FunctionDef) -> bool:
    """Properties are adjectives as often as nouns: `job.batched`."""
    return any(isinstance(d, ast.Name) and d.id in ("property", "cached_property") for d in function.decorator_list)


def test_a_class_name_stands_in_one_file() -> None:
    found = shared(sources())
    assert found.keys() == TWICE.keys(), {name: files for name, files in found.items() if name not in TWICE}


def test_functions_have_verbs_or_the_noun_they_return() -> None:
    assert {(file, name) for file, tree in sources().items() for name in lone(tree)} == KEPT.keys()


def test_a_class_name_in_two_files_is_seen() -> None:
    here, there = ast.parse("class Engine: ...\nclass Engine: ..."), ast.parse("def f():\n    class Engine: ...\nclass Job: ...")
    assert shared({"here": here, "there": there}) == {"Engine": ["here", "there"]}
    assert not shared({"here": here})


def test_a_lone_word_is_seen() -> None:
    text = """
def made(): ...
def _made():
    def told(): ...
class A:
    made = 1
    def bounded(self): ...
    @property
    def asked(self): ...
    class B:
        def of(self): ...
"""
    assert list(lone(ast.parse(text))) == ["made", "bounded", "of"]
