"""Commands as typer sees them: a group of options (groups.py) is spread out into a parameter for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from inspect import Parameter, signature
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints


def written_hint(hint: Any) -> Any:
    """The annotation as it is written: Python 3.10 puts a union with None around that of a parameter whose default is None."""
    inside = [a for a in get_args(hint) if get_origin(a) is Annotated] if get_origin(hint) is Union else []
    return inside[0] if inside else hint


def flatten_groups(command: Callable[..., int]) -> Callable[..., int]:
    """The command as typer sees it: parameters that are option groups are replaced by the group's fields."""
    own, hints = signature(command), get_type_hints(command, include_extras=True)
    groups: dict[str, type] = {}
    seen: list[Parameter] = []
    for p in own.parameters.values():
        kind = written_hint(hints[p.name])
        if not is_dataclass(kind):
            seen.append(p.replace(annotation=kind, kind=Parameter.KEYWORD_ONLY))
            continue
        groups[p.name] = kind  # type: ignore[assignment]
        inner = get_type_hints(kind, include_extras=True)
        for f in fields(kind):
            default = Parameter.empty if f.default is MISSING else f.default
            seen.append(Parameter(f.name, Parameter.KEYWORD_ONLY, default=default, annotation=inner[f.name]))

    def call(**given: Any) -> int:
        made = {name: kind(**{f.name: given.pop(f.name) for f in fields(kind)}) for name, kind in groups.items()}
        return command(**given, **made)

    call.__name__, call.__doc__ = command.__name__, command.__doc__
    call.__signature__ = own.replace(parameters=seen, return_annotation=int)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in seen}
    return call
