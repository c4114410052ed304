"""Names mean one thing and say what they are of: no class name stands in two files, functions are verbs or the noun they return."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from polytriton.heap import pause_collection

ROOT = Path(__file__).parents[1]
# the checker imports nothing of the package: a name of its own is not met elsewhere
ALONE = ("checker.py", "checker_boxes.py", "checker_files.py")
TWICE: dict[str, str] = {}  # and why
PARTICIPLES = """
arisen begun bought broken brought caught chosen done drawn driven fallen felt forgotten found frozen given gone grown heard held hidden
kept known laid led left lent lit lost made meant met paid risen said seen sent shown sold sought spent staying stood struck sworn taken
taught thought thrown told torn understood woken won worn written
"""
PREPOSITIONS = """
about above across after ahead along among apart around at before behind below beneath beside besides between beyond by down during
exactly for from in inside into late later near of off on onto out outside over past per since through to toward under until up upon via
with
within without
"""
LONE = frozenset((PARTICIPLES + PREPOSITIONS).split())
VERBS = ("embed", "exceed", "feed", "need", "proceed", "seed", "shed", "speed", "succeed")  # or nouns, as they stand
KEPT = {
    ("polytriton/frontend/joint.py", "violated"): "as Property.violated",
    ("polytriton/frontend/query.py", "violated"): "documented",
    ("polytriton/results/__init__.py", "restored"): "documented",
    ("polytriton/kernels/device/ascent.py", "taken"): "the ledger of machine code knows kernels by their text",
    ("polytriton/kernels/device/forward.py", "centred"): "as above",
    ("polytriton/kernels/device/neurons.py", "undecided"): "as above",
    ("polytriton/runtime/config.py", "of"): "documented: programs of others say Config.of",
    ("polytriton/runtime/soundness.py", "up"): "soundness.md writes it so",
}


@cache
def names() -> dict[str, tuple[list[str], list[str]]]:
    """Of every file its classes and its lone words. No tree is kept, and no garbage looked for among millions of nodes."""
    files = [path for room in ("polytriton", "bench", "tools") for path in sorted((ROOT / room).rglob("*.py"))]
    found = {}
    with pause_collection():
        for path in files:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found[path.relative_to(ROOT).as_posix()] = list(classes(tree)), list(lone(tree))
    return found


def classes(tree: ast.Module) -> Iterator[str]:
    yield from (n.name for n in ast.walk(tree) if isinstance(n, ast.ClassDef))


def shared(modules: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """Class names of several files."""
    found: dict[str, set[str]] = defaultdict(set)
    for file, held in modules.items():
        for name in held:
            found[name].add(file)
    return {name: sorted(files) for name, files in found.items() if len(files) > 1}


def lone(tree: ast.Module) -> Iterator[str]:
    """Functions, wherever they stand, that are called by nothing but a participle or a preposition."""
    functions = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    yield from (f.name for f in functions if _is_lone(f.name.strip("_")) and not _is_property(f))


def _is_lone(word: str) -> bool:
    return word in LONE or (word.endswith("ed") and "_" not in word and word not in VERBS)


def _is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Properties are adjectives as often as nouns: `job.batched`."""
    return any(isinstance(d, ast.Name) and d.id in ("property", "cached_property") for d in function.decorator_list)


def test_a_class_name_stands_in_one_file() -> None:
    package = {file.removeprefix("polytriton/"): held for file, (held, _) in names().items() if file.startswith("polytriton/")}
    assert len(package) > 200
    found = shared({file: held for file, held in package.items() if file not in ALONE})
    assert found.keys() == TWICE.keys(), {name: files for name, files in found.items() if name not in TWICE}


def test_functions_have_verbs_or_the_noun_they_return() -> None:
    found = {(file, name) for file, (_, words) in names().items() for name in words}
    assert found == KEPT.keys()


def test_a_class_name_in_two_files_is_seen() -> None:
    texts = "class Engine: ...\nclass Engine: ...", "def f():\n    class Engine: ...\nclass Job: ..."
    here, there = (list(classes(ast.parse(text))) for text in texts)
    assert shared({"here": here, "there": there}) == {"Engine": ["here", "there"]}
    assert not shared({"here": here})


def test_a_lone_word_is_seen() -> None:
    text = """
def made(): ...
def _make():
    def told(): ...
    def seed(): ...
def read(): ...
async def _split_up(): ...
async def _into(): ...
class A:
    made = 1
    def bounded(self): ...
    def __reduced__(self): ...
    def bound(self): ...
    def kept_rows(self): ...
    @property
    def asked(self): ...
    class B:
        def of(self): ...
"""
    assert sorted(lone(ast.parse(text))) == ["__reduced__", "_into", "bounded", "made", "of", "told"]
