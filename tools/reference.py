"""Writes the reference pages of the documentation from the code: `python -m tools.reference`; a test holds them up to date.

docs/reference-cli.md from the commands' own options, docs/reference-api.md from the public names' signatures and docstrings, and
docs/reference-errors.md from every place in the package where an error meant for a user is made.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import polytriton
from polytriton import errors
from polytriton.cli import app
from tools.messages import KINDS, find_messages

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NOTE = "<!-- written by `python -m tools.reference`; do not edit -->"


def pages() -> dict[str, str]:
    """Every page by its name."""
    return {"reference-cli.md": command_line(), "reference-api.md": interface(), "reference-errors.md": messages()}


# ---- the command line -------------------------------------------------------------------------------------------


def command_line() -> str:
    group: Any = typer.main.get_command(app)
    out = [NOTE, "# Commands and options", "", "What `polytriton COMMAND --help` says. [cli.md](cli.md) explains it."]
    for name, command in group.commands.items():
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        usage = [a.metavar or a.name.upper() if a.required else f"[{a.metavar or a.name.upper()}]" for a in arguments]
        out += ["", f"## {name}", "", " ".join(["    polytriton", name, *usage, "[options]"]), ""]
        out += [" ".join(part.split()) + "\n" for part in inspect.cleandoc(command.callback.__doc__ or "").split("\n\n")]
        out += ["| option | default | |", "|---|---|---|"]
        out += [f"| {_spell(p)} | {_default(p)} | {_cell(p.help or '')} |" for p in command.params if p.param_type_name != "argument"]
    return "\n".join(out) + "\n"


def _spell(p: Any) -> str:
    value = "" if p.is_flag else f" {p.metavar or p.name.upper()}"
    return ", ".join(f"`{o}{value}`" for o in (*p.opts, *p.secondary_opts))


def _default(p: Any) -> str:
    if p.default is None or p.default is False or p.default == [] or callable(p.default):
        return ""
    return f"`{p.opts[0] if p.default is True else p.default}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# ---- the Python interface ---------------------------------------------------------------------------------------


def interface() -> str:
    out = [NOTE, "# Public names", "", "Everything that `import polytriton` offers. [python.md](python.md) shows how to use it."]
    for name in polytriton.__all__:
        thing = getattr(polytriton, name)
        if inspect.isclass(thing):
            out += _class(name, thing)
        elif callable(thing):
            out += ["", f"## {name}", "", "```text", _signature(f"polytriton.{name}", thing), "```", "", _doc(thing)]
    return "\n".join(out) + "\n"


def _class(name: str, thing: type) -> Iterator[str]:
    yield from ("", f"## {name}", "")
    if not issubclass(thing, Exception):
        yield from ("```text", _signature(f"polytriton.{name}", thing), "```", "")
    yield _doc(thing)
    fields = {f.name for f in dataclasses.fields(thing)} if dataclasses.is_dataclass(thing) else set()
    own = [kind for kind in thing.__mro__ if kind.__module__.startswith("polytriton.")]
    for member, value in (item for kind in own for item in vars(kind).items()):
        if member.startswith("_") or member in fields:
            continue
        if isinstance(value, property):
            yield from ("", f"**`.{member}`** {_doc(value)}")
        elif isinstance(value, (staticmethod, classmethod)) or inspect.isfunction(value):
            plain = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
            yield from ("", "```text", _signature(f".{member}", plain), "```", "", _doc(plain))


def _signature(name: str, thing: Any) -> str:
    """One line, or one a parameter where that is too long."""
    found = inspect.signature(thing)
    parts: list[str] = []
    for p in found.parameters.values():
        if p.kind is p.KEYWORD_ONLY and not any(part.startswith("*") for part in parts):
            parts.append("*")
        if p.name != "self":
            stars = "*" if p.kind is p.VAR_POSITIONAL else "**" if p.kind is p.VAR_KEYWORD else ""
            kind = "" if p.annotation is p.empty else f": {_plain(p.annotation)}"
            parts.append(f"{stars}{p.name}{kind}{'' if p.default is p.empty else f' = {_value(p.default)}'}")
    told = not inspect.isclass(thing) and found.return_annotation not in (found.empty, None, "None")
    back = f" -> {_plain(found.return_annotation)}" if told else ""
    line = f"{name}({', '.join(parts)}){back}"
    return line if len(line) <= 110 else f"{name}(\n    " + ",\n    ".join(parts) + f",\n){back}"


def _plain(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _value(default: Any) -> str:
    """A default as a user would write it."""
    if type(default).__name__ == "_HAS_DEFAULT_FACTORY_CLASS":
        return "..."
    return default.__name__ if callable(default) else repr(default)


def _doc(thing: Any) -> str:
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split()) + "".join(
        "\n\n" + " ".join(part.split()) for part in (inspect.getdoc(thing) or "").split("\n\n")[1:]
    )


# ---- messages ---------------------------------------------------------------------------------------------------

CODES = {
    errors.USAGE: "Exit code 2: the command, its files, or the machine's resources",
    errors.UNSUPPORTED: "Exit code 3: a network, a property or a kernel outside the supported set",
    errors.INTERNAL: "Exit code 4: an error of polytriton",
}


def messages() -> str:
    said = find_messages()
    intro = "Every message is printed with its remedy. What is in braces is filled in with names and numbers of the case."
    out = [NOTE, "# Messages and remedies", "", intro]
    for code, title in CODES.items():
        mine = [m for m in said if KINDS[m.kind].exit_code == code]
        if not mine:
            continue
        out += ["", f"## {title}"]
        for room in dict.fromkeys(m.room for m in mine):
            out += ["", f"### {room}", "", "| message | remedy |", "|---|---|"]
            out += [f"| {_show(m.message)} | {_show(m.remedy)} |" for m in mine if m.room == room]
    return "\n".join(out) + "\n"


def _show(text: str) -> str:
    cleaned = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
    return re.sub(r"(\{[^}]*\})", r"`\1`", cleaned.replace("`", "'"))


def main() -> None:
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")
        print(DOCS / name)


if __name__ == "__main__":
    main()
