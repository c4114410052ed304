"""Net as text and back: `parse_net(print_net(x), x.weights) == x`."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from polytriton.errors import InvalidIR
from polytriton.ir.net import Attr, Net, Node, Ref, Shape
from polytriton.ir.ops import OPS

NAME = r"[A-Za-z0-9_]+"
SHAPE = r"(?:\d{1,15}(?:x\d{1,15})*)?"
_HEAD = re.compile(rf"net @({NAME})\(%({NAME}): f32\[({SHAPE})\](?: \{{(.*)\}})?\) -> f32\[({SHAPE})\] \{{$", re.ASCII)
_NODE = re.compile(rf"%({NAME})\s*=\s*({NAME})\s+((?:%{NAME})(?:,\s*%{NAME})*)\s*(?:\{{(.*)\}})?\s*:\s*f32\[({SHAPE})\]$", re.ASCII)
_RETURN = re.compile(rf"return %({NAME})$")
_DIMS = {"k", "s", "d", "to", "of"}


def dims(shape: Shape) -> str:
    return "x".join(map(str, shape))


def parse_dims(text: str) -> Shape:
    return tuple(int(d) for d in text.split("x")) if text else ()


def _print_attr(key: str, value: Attr) -> str:
    if isinstance(value, Ref):
        return f"{key}=@{value.name}"
    if isinstance(value, tuple):
        return f"{key}=" + ("x" if key in _DIMS else ",").join(map(str, value))
    if isinstance(value, str):
        return f"{key}=%{value}"
    return f"{key}={float(value)!r}" if isinstance(value, float) else f"{key}={int(value)}"  # numpy's numbers print as Python's


def _print_attrs(attrs: Mapping[str, Attr]) -> str:
    return ", ".join(_print_attr(k, v) for k, v in attrs.items())


def _parse_attr(op: str, item: str, where: str) -> tuple[str, Attr]:
    key, _, text = item.partition("=")
    spec = OPS.get(op)
    kind = spec.attrs.get(key) if spec else None
    if kind is None:
        raise InvalidIR(f"{where}: operator {op!r} has no attribute {key!r}", f"operators: {', '.join(sorted(OPS))}")
    try:
        if kind is Ref:
            if not re.fullmatch(rf"@{NAME}", text):
                raise ValueError(text)
            return key, Ref(text[1:])
        if kind is tuple:
            return key, tuple(int(t) for t in text.split("x" if key in _DIMS else ",")) if text else ()
        if kind is str:
            if not re.fullmatch(rf"%{NAME}", text):
                raise ValueError(text)
            return key, text[1:]
        return key, int(text) if kind is int else float(text)
    except ValueError:
        raise InvalidIR(f"{where}: cannot read {item!r}", f"{key} takes a value of type {kind.__name__}") from None


def _parse_attrs(op: str, text: str | None, where: str) -> dict[str, Attr]:
    items = re.split(r",\s+", text.strip()) if text and text.strip() else []
    attrs = dict(_parse_attr(op, item, where) for item in items)
    if len(attrs) < len(items):
        raise InvalidIR(f"{where}: an attribute is given twice", "keep one of the two")
    return attrs


def numbered_lines(text: str) -> list[tuple[int, str]]:
    """The numbered lines without comments, single spaces between words: the patterns would try every split of a long gap."""
    lines = ((k, " ".join(re.sub(r"//.*", "", raw).split())) for k, raw in enumerate(text.splitlines(), 1))
    return [(k, line) for k, line in lines if line]


def print_net(net: Net) -> str:
    """One line a node, aligned; weights are named, not printed."""
    x, out = net.input, net.node(net.output)
    extra = f" {{{_print_attrs(x.attrs)}}}" if x.attrs else ""
    lines = []
    for n in net.nodes[1:]:
        attrs = f" {{{_print_attrs(n.attrs)}}}" if n.attrs else ""
        lines.append((f"  %{n.name} = {n.op} {', '.join('%' + i for i in n.inputs)}{attrs}", f": f32[{dims(n.shape)}]"))
    width = min(100, max((len(a) for a, _ in lines), default=0))
    body = "".join(f"{a.ljust(width)} {b}\n" for a, b in lines)
    return f"net @{net.name}(%{x.name}: f32[{dims(x.shape)}]{extra}) -> f32[{dims(out.shape)}] {{\n{body}  return %{net.output}\n}}\n"


def parse_net(text: str, weights: Mapping[str, np.ndarray] | None = None) -> Net:
    """Reads the printer's form; comments run from // to the end of the line. Structure only: `check_net` judges it."""
    lines = numbered_lines(text)
    first = lines[0][0] if lines else 1
    head = _HEAD.match(lines[0][1]) if lines else None
    if head is None:
        raise InvalidIR(f"line {first}: not a net", "begin with `net @name(%x: f32[CxHxW]) -> f32[N] {`")
    nodes = [Node(head[2], "input", (), parse_dims(head[3]), _parse_attrs("input", head[4], f"line {first}"))]
    output, closed = None, False
    for k, line in lines[1:]:
        if output is not None:
            if closed or line != "}":
                raise InvalidIR(f"line {k}: text after the {'net' if closed else 'return'}", "end the net with `}`")
            closed = True
        elif (m := _RETURN.match(line)) is not None:
            output = m[1]
        elif (m := _NODE.match(line)) is not None:
            inputs = tuple(re.findall(rf"%({NAME})", m[3]))
            nodes.append(Node(m[1], m[2], inputs, parse_dims(m[5]), _parse_attrs(m[2], m[4], f"line {k}")))
        else:
            raise InvalidIR(f"line {k}: cannot read {line[:80]!r}", "write `%name = op %operand {attrs} : f32[shape]`")
    if output is None or not closed:
        raise InvalidIR("the net is not closed", "end it with `return %name` and `}`")
    shape = next((n.shape for n in nodes if n.name == output), None)
    if shape is not None and shape != parse_dims(head[5]):
        raise InvalidIR(f"line {first}: the result is declared {head[5]}, %{output} is {dims(shape)}", "correct the declared shape")
    return Net(head[1], tuple(nodes), output, weights or {})
