"""What a command takes, as plain data: a command line is read without a parser's library, which is loaded for help and mistakes alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from polytriton.errors import UsageError

WHOLE, NUMBER = re.compile(r"[+-]?\d{1,18}", re.ASCII), re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


@dataclass(frozen=True)
class Option:
    """`names` are its spellings; one of both truths is written --yes/--no."""

    names: tuple[str, ...]
    help: str
    metavar: str | None = None


@dataclass(frozen=True)
class Argument:
    metavar: str
    help: str


def option(*names: str, help: str, metavar: str | None = None) -> Any:
    return Option(names, help, metavar)


def argument(metavar: str, help: str) -> Any:
    return Argument(metavar, help)


class Odd(Exception):
    """A line that is to be left to the parser's library."""


@dataclass(frozen=True)
class _Taken:
    """A parameter: the type of one value, whether it has several, and what its spellings stand for."""

    name: str
    kind: type
    several: bool
    default: Any
    spellings: Mapping[str, bool | None]  # a flag's spelling says what it sets; None: a value follows

    @property
    def positional(self) -> bool:
        return not self.spellings


def read(command: Callable[..., int], args: Sequence[str]) -> dict[str, Any]:
    """The command's parameters. Odd where anything is unusual, also help; a single value given twice is a mistake."""
    known = [_read_parameter(p) for p in signature(command).parameters.values()]
    spelled = {spelling: taken for taken in known for spelling in taken.spellings}
    given: dict[str, list[Any]] = {}
    loose: list[str] = []
    rest = list(args)
    while rest:
        word = rest.pop(0)
        if word == "--":
            loose += rest
            break
        if not word.startswith("-") or word == "-":
            loose.append(word)
            continue
        name, sign, value = word.partition("=")
        taken = spelled.get(name)
        if taken is None or (sign and not name.startswith("--")):
            raise Odd
        flag = taken.spellings[name]
        if flag is not None:
            if sign:
                raise Odd
            given.setdefault(taken.name, []).append(flag)
            continue
        if not sign:
            if not rest or (rest[0].startswith("-") and rest[0] != "-"):
                raise Odd
            value = rest.pop(0)
        if taken.name in given and not taken.several:
            raise UsageError(f"{name} is given twice", "give it once: of two values one would be lost")
        given.setdefault(taken.name, []).append(_value(taken.kind, value))
    return {**_place([t for t in known if t.positional], loose), **_fill_values([t for t in known if not t.positional], given)}


def _read_parameter(p: Parameter) -> _Taken:
    plain, about = get_args(p.annotation)
    kind, several = plain, False
    if get_origin(kind) in (Union, UnionType):
        (kind,) = (k for k in get_args(kind) if k is not NoneType)
    if get_origin(kind) is list:
        (kind,), several = get_args(kind), True
    spellings: dict[str, bool | None] = {}
    for name in getattr(about, "names", ()):
        yes, _, no = name.partition("/")
        spellings[yes] = True if kind is bool else None
        if no:
            spellings[no] = False
    return _Taken(p.name, kind, several, p.default, spellings)


def _value(kind: type, text: str) -> Any:
    if kind is int and WHOLE.fullmatch(text):
        return int(text)
    if kind is float and NUMBER.fullmatch(text):
        return float(text)
    if kind is Path:
        return Path(text)
    if kind is str:
        return text
    raise Odd


def _place(taken: Sequence[_Taken], words: Sequence[str]) -> dict[str, Any]:
    """Arguments by their order; one that takes several takes what the others leave."""
    made: dict[str, Any] = {}
    left = list(words)
    for k, t in enumerate(taken):
        behind = len(taken) - k - 1
        if t.several:
            part, left = left[: max(0, len(left) - behind)], left[max(0, len(left) - behind) :]
            if not part and t.default is Parameter.empty:
                raise Odd
            made[t.name] = [_value(t.kind, w) for w in part] or t.default
        elif left:
            made[t.name] = _value(t.kind, left.pop(0))
        elif t.default is Parameter.empty:
            raise Odd
        else:
            made[t.name] = t.default
    if left:
        raise Odd
    return made


def _fill_values(taken: Sequence[_Taken], given: Mapping[str, list[Any]]) -> dict[str, Any]:
    made = {}
    for t in taken:
        if t.name not in given and t.default is Parameter.empty:
            raise Odd
        made[t.name] = t.default if t.name not in given else given[t.name] if t.several else given[t.name][-1]
    return made
