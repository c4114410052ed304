"""Reads every error meant for a user out of the package's source: its message, its remedy, its class.

An error is made by calling one of the classes of `errors.py`, or a *maker*: a function with a parameter that becomes words of
such a call (`Site.fail(why)`), or an exception whose arguments do, where it is caught. Words are literals, names that stand for
literals, and both put together; whatever else goes into a message is filled in at run time and shown as a name in braces.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from polytriton import errors

PACKAGE = Path(__file__).parents[1] / "polytriton"
CASE = "depends on the case"
KINDS = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, errors.PolytritonError)}
MARK = "\0{}\0"  # where a maker's parameter stands in its message
WORDS = ("why", "message", "remedy", "problem", "missing", "again")  # what makers call such parameters
ROUNDS = 4  # makers that call makers
Names = Mapping[str, ast.expr]


@dataclasses.dataclass(frozen=True, order=True)
class Message:
    """An error as the code writes it; what is filled in at run time stands in braces."""

    room: str
    message: str
    remedy: str
    kind: str


@dataclasses.dataclass(frozen=True)
class Place:
    """Where an error is made: a function and its parameters, or the handler of an exception and the names of its arguments."""

    name: str
    parameters: tuple[str, ...]
    defaults: Names


@dataclasses.dataclass(frozen=True)
class Maker:
    """A class of errors, or a place that makes one of the words it is given."""

    parameters: tuple[str, ...]
    defaults: Names
    message: str
    remedy: str
    kind: str
    file: Path | None = None  # None: known everywhere


@dataclasses.dataclass(frozen=True)
class Call:
    """A call in the source: what is called, where, and what names stand for there."""

    called: str
    node: ast.Call
    path: Path
    place: Place | None
    names: Names


@cache
def find_messages() -> tuple[Message, ...]:
    """Every message, without repetition."""
    files = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
    constants = {path: _constants(tree) for path, tree in files.items()}
    nodes = {path: list(ast.walk(tree)) for path, tree in files.items()}
    calls = [c for path, every in nodes.items() for c in _calls(path, every, {**_find_imported(every, constants), **constants[path]})]
    makers = {name: [Maker(("message", "remedy"), {}, MARK.format("message"), MARK.format("remedy"), name)] for name in KINDS}
    for _ in range(ROUNDS):
        made = [(call, m) for call in calls for m in _says(call, makers)]
        fresh: dict[str, list[Maker]] = {}
        for call, m in made:
            if (place := call.place) is not None and "\0" in m.message + m.remedy:
                fresh.setdefault(place.name, []).append(Maker(place.parameters, place.defaults, m.message, m.remedy, m.kind, call.path))
        makers = {**{k: makers[k] for k in KINDS}, **fresh}
    spoken = {m.message for _, m in made if "\0" not in m.message + m.remedy}
    filled = {_fill(told) for _, told in made if not _is_said(told, spoken)}
    return tuple(sorted(m for m in filled if m is not None))


def _is_said(told: Message, spoken: set[str]) -> bool:
    """Whether a maker's own template is covered by what its callers say."""
    if "\0" not in told.message:
        return "\0" in told.remedy and told.message in spoken
    pattern = re.compile(".* .*".join(re.escape(part) for part in re.split("\0[^\0]*\0", told.message)), re.S)
    return any(pattern.fullmatch(s) for s in spoken)


def _fill(m: Message) -> Message | None:
    message, remedy = (re.sub("\0([^\0]*)\0", r"{\1}", text) for text in (m.message, m.remedy))
    if not re.sub(r"\{[^}]*\}", "", message).strip(" :"):
        return None  # nothing but what another error said
    return Message(m.room, message, remedy if re.sub(r"\{[^}]*\}", "", remedy).strip() else CASE, m.kind)


def _calls(path: Path, nodes: Sequence[ast.AST], names: Names) -> Iterator[Call]:
    """Every call of a file, all of whose nodes are given."""
    inside: dict[int, tuple[Place | None, Names]] = {id(node): (None, names) for node in nodes}
    for f in (n for n in nodes if isinstance(n, ast.FunctionDef)):  # the innermost comes last
        place, own = _place(f, names), list(ast.walk(f))
        known = {**names, **_marks(place), **_find_assigned(own)}
        inside.update({id(node): (place, known) for node in own})
    for h in (n for n in nodes if isinstance(n, ast.ExceptHandler)):
        if (handled := _handler(h)) is not None:
            inside.update({id(node): (handled, {**inside[id(node)][1], **_marks(handled)}) for node in ast.walk(h)})
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
            yield Call(node.func.id if isinstance(node.func, ast.Name) else node.func.attr, node, path, *inside[id(node)])


def _marks(place: Place) -> Names:
    return {p: ast.Constant(MARK.format(p)) for p in place.parameters if p in WORDS}


def _says(call: Call, makers: Mapping[str, list[Maker]]) -> Iterator[Message]:
    room = call.path.relative_to(PACKAGE).parts
    for maker in makers.get(call.called, ()):
        if maker.file is None or _reaches(call.called, maker.file, call.path):
            given = _bind_arguments(call.node, maker, call.names)
            message, remedy = (_put(text, given) for text in (maker.message, maker.remedy))
            if message:
                yield Message(room[0] if len(room) > 1 else "polytriton", message, remedy, maker.kind)


def _reaches(called: str, home: Path, path: Path) -> bool:
    """A maker is called in its own file, or, where its name says it is for others, in its room."""
    return home == path if called.startswith("_") else home.parent == path.parent


def _bind_arguments(node: ast.Call, maker: Maker, known: Names) -> dict[str, str]:
    given: dict[str, ast.expr] = {**maker.defaults, **dict(zip(maker.parameters, node.args, strict=False))}
    given.update({k.arg: k.value for k in node.keywords if k.arg in maker.parameters})
    return {p: _text(value, known) or f"{{{p if maker.file else _hole(value)}}}" for p, value in given.items()}


def _put(template: str, given: Mapping[str, str]) -> str:
    """A parameter that is left out, or no words, says nothing by itself."""
    if (alone := re.fullmatch("\0([^\0]*)\0", template)) and not re.search(r"[\w\0]", re.sub(r"\{[^}]*\}", "", given.get(alone[1], ""))):
        return ""
    return re.sub("\0([^\0]*)\0", lambda m: given.get(m[1], f"{{{m[1]}}}"), template)


def _place(function: ast.FunctionDef, names: Names) -> Place:
    a = function.args
    plain = [p.arg for p in (*a.posonlyargs, *a.args)]
    defaults = zip(plain[len(plain) - len(a.defaults) :], a.defaults, strict=True)
    parameters = tuple(p for p in (*plain, *(p.arg for p in a.kwonlyargs)) if p not in ("self", "cls"))
    return Place(function.name, parameters, {k: ast.Constant(_text(v, names)) for k, v in defaults if _text(v, names)})


def _handler(handler: ast.ExceptHandler) -> Place | None:
    """`except Refused as stop: message, remedy = stop.args`."""
    for node in ast.walk(handler):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute) and node.value.attr == "args":
            taken = node.targets[0]
            if isinstance(taken, ast.Tuple) and isinstance(handler.type, ast.Name):
                return Place(handler.type.id, tuple(e.id for e in taken.elts if isinstance(e, ast.Name)), {})
    return None


def _constants(tree: ast.Module) -> dict[str, ast.expr]:
    return _find_assigned(tree.body)


def _find_imported(nodes: Sequence[ast.AST], constants: Mapping[Path, Names]) -> dict[str, ast.expr]:
    """Constants of other modules of the package."""
    held: dict[str, ast.expr] = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("polytriton."):
            home = constants.get(PACKAGE.joinpath(*(node.module or "").split(".")[1:]).with_suffix(".py"), {})
            held.update({a.asname or a.name: home[a.name] for a in node.names if a.name in home})
    return held


def _find_assigned(nodes: Sequence[ast.AST]) -> dict[str, ast.expr]:
    """What the names of a function stand for, the last assignment winning."""
    return {target.id: n.value for n in nodes if isinstance(n, ast.Assign) for target in n.targets if isinstance(target, ast.Name)}


def _text(node: ast.expr, names: Names) -> str:
    """The words of a message: literals as they are, expressions in braces; "" where there are no words at all."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(v, names) if isinstance(v, ast.Constant) else _part(v, names) for v in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left, names) + _text(node.right, names)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        return _text(node.func.value, names)
    if isinstance(node, ast.IfExp):
        return " / ".join(filter(None, (_text(node.body, names), _text(node.orelse, names))))
    if isinstance(node, ast.Name) and node.id in names:
        rest = {k: v for k, v in names.items() if k != node.id}
        return _text(names[node.id], rest)
    return ""


def _part(node: ast.expr, names: Names) -> str:
    """What stands in braces: a maker's parameter, else a short name."""
    value = node.value if isinstance(node, ast.FormattedValue) else node
    if isinstance(value, ast.Name) and isinstance(told := names.get(value.id), ast.Constant) and str(told.value).startswith("\0"):
        return str(told.value)
    return f"{{{_hole(node)}}}"


def _hole(node: ast.AST) -> str:
    """A short name for what is filled in."""
    value = node.value if isinstance(node, ast.FormattedValue) else node
    text = ast.unparse(value)
    last = re.findall(r"[A-Za-z_]\w*", text)
    return text if len(text) <= 24 else last[-1] if last else "..."
