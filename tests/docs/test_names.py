"""Names of code in the documentation exist: a promise is checked where it is kept. Counts it quotes are those of the records."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from tests.mutation.__main__ import RESULTS, read_results, summary

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
EXAMPLES = {"net", "onnx", "pixels", "spec", "torch"}  # what the pages' own examples and other packages call things
FILES = {
    "md",
    "py",
    "csv",
    "onnx",
    "poly",
    "vnnlib",
    "jsonl",
    "html",
    "gz",
    "npz",
    "npy",
    "json",
    "txt",
    "sh",
    "ptir",
    "toml",
    "safetensors",
    "yml",
}


@cache
def known() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """What modules and classes of the package hold, each by its own name; two of one name are held together."""
    modules, classes = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for path in (ROOT / "polytriton").rglob("*.py"):
        room = path.parent.name if path.name == "__init__.py" else path.stem
        tree = ast.parse(path.read_text(encoding="utf-8"))
        modules[room] |= names(tree)
        modules[path.parent.name].add(path.stem)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                own = names(node)
                own |= {a.attr for a in ast.walk(node) if isinstance(a, ast.Attribute) and getattr(a.value, "id", "") == "self"}
                own |= {e for base in node.bases for e in [f"<{ast.unparse(base).split('[')[0].split('.')[-1]}>"]}
                classes[node.name] |= own
    return modules, classes


def names(node: ast.Module | ast.ClassDef) -> set[str]:
    found: set[str] = set()
    for part in ast.walk(node) if isinstance(node, ast.Module) else node.body:
        if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(part.name)
        elif isinstance(part, (ast.Assign, ast.AnnAssign)):
            targets = part.targets if isinstance(part, ast.Assign) else [part.target]
            found |= {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        elif isinstance(part, ast.Import | ast.ImportFrom):
            found |= {a.asname or a.name for a in part.names}
    return found


def has(owner: str, name: str) -> bool:
    """Whether the class or one it is made from holds the name."""
    classes = known()[1]
    held = classes.get(owner)
    if held is None:
        return True  # of another package: not ours to judge
    return name in held or any(has(base[1:-1], name) and base[1:-1] in classes for base in held if base.startswith("<"))


def missing(name: str) -> bool:
    """Whether the name is of this package's code and is not there."""
    modules, classes = known()
    first, *rest = name.split(".")
    if first in EXAMPLES:
        return False
    if first == "polytriton":
        room = "polytriton"
        while rest and (ROOT / "polytriton" / rest[0]).is_dir() and len(rest) > 1:
            room, *rest = rest
        if rest[0] not in modules:
            return rest[0] not in modules[room] and rest[0] not in interface()
        first, rest = rest[0], rest[1:]
        if not rest:
            return False
    if first in modules and rest[0] in modules[first]:
        return len(rest) > 1 and rest[0] in classes and not has(rest[0], rest[1])
    if first in classes:
        return not has(first, rest[0])
    return first in modules


def interface() -> set[str]:
    import polytriton

    return set(polytriton.__all__)


def told(page: Path) -> set[str]:
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    return {n for code in re.findall(r"`([^`\n]+)`", text) for n in DOTTED.findall(code) if n.rpartition(".")[2] not in FILES}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_name_exists(page: Path) -> None:
    assert not sorted(n for n in told(page) if missing(n))


def test_what_counts_as_a_name() -> None:
    for good in ["polytriton.compile", "walk.Walk", "Walk.run", "polytriton.runtime.cpu.walk.Walk", "torch.nn.Linear", "Verifier.verify"]:
        assert not missing(good), good
    for bad in ("polytriton.compiled_net", "tables.sum_error", "Tables.feeds_nonlinear", "walk.TINY", "Walk._pay"):
        assert missing(bad), bad


def test_the_planted_faults_are_those_of_the_record() -> None:
    assert summary(list(read_results(RESULTS).values())) in (ROOT / "docs" / "trust.md").read_text(encoding="utf-8")
