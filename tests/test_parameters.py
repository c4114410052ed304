"""Nothing takes so many parameters that a call cannot be read: what belongs together is grouped."""

from __future__ import annotations

import ast
from pathlib import Path

from polytriton.heap import pause_collection

ROOT = Path(__file__).parents[1]
MOST = 20


@pause_collection()  # there is none among millions of nodes
def test_no_function_takes_more_than_can_be_read() -> None:
    counted: dict[str, int] = {}
    for path in (p for room in ("polytriton", "bench") for p in sorted((ROOT / room).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                a = node.args
                counted[f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"] = len(a.posonlyargs) + len(a.args) + len(a.kwonlyargs)
    assert len(counted) > 2000
    assert {name: count for name, count in counted.items() if count > MOST} == {}
