"""Lists of (network, property, timeout), as the verification competitions hand them out."""

from __future__ import annotations

import ast
import csv
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from polytriton.errors import UsageError

NAMES = {"onnx": ("onnx", "net", "network", "model"), "vnnlib": ("vnnlib", "spec", "property"), "timeout": ("timeout", "timeout_s")}


@dataclass(frozen=True)
class Instance:
    """One line: two existing files and the seconds allowed (None: no limit). `row` counts lines of the file from 1.

    `names`: both files as the line spells them.
    """

    onnx: Path
    vnnlib: Path
    timeout: float | None
    row: int
    names: tuple[str, str] = ("", "")


def named_networks(text: str) -> list[tuple[str, str]]:
    """The names a property knows networks by, and their files: the competition of 2026 writes `[('f', 'net.onnx')]`, others the file."""
    if not text.lstrip().startswith("["):
        return [("", text)]
    try:
        held = ast.literal_eval(text.strip())
        pairs = [(name, file) for name, file in held if isinstance(name, str) and isinstance(file, str)]
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return [("", text)]  # a strange name of a file
    if not pairs or len(held) != len(pairs) or len(dict(pairs)) != len(pairs):
        raise UsageError(f"the list of networks {text[:80]} is not understood", "[('f', 'net.onnx'), ('g', 'other.onnx')]")
    return pairs


def named_network(text: str) -> tuple[str, str]:
    """The one network of a list of instances' line."""
    pairs = named_networks(text)
    if len(pairs) > 1:
        raise UsageError(
            f"{len(pairs)} networks in {text[:80]}: a run asks about one network a query",
            "ask it alone: polytriton verify --network f=NET.onnx --network g=NET.onnx PROP.vnnlib",
        )
    return pairs[0]


def read_instances(path: str | Path) -> list[Instance]:
    """Reads `onnx,vnnlib,timeout` lines, or a table whose header names such columns; paths are relative to the file."""
    path = Path(path)
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            lines = [(reader.line_num, [cell.strip() for cell in row]) for row in reader]
    except FileNotFoundError:
        raise UsageError(f"no instance list {path}", "check the path") from None
    except (OSError, ValueError, csv.Error) as why:
        raise UsageError(f"cannot read the instance list {path}: {why}", "it is a CSV file in UTF-8: onnx,vnnlib,timeout") from None
    lines = [(row, cells) for row, cells in lines if any(cells)]
    columns = _columns(lines[0][1]) if lines else None
    made, missing = [], []
    for row, cells in lines[1 if columns else 0 :]:
        instance = _instance(path, row, cells, columns or {"onnx": 0, "vnnlib": 1, "timeout": 2})
        made.append(instance)
        folders = [file for file in (instance.onnx, instance.vnnlib) if os.path.isdir(file)]
        if folders:
            raise UsageError(
                f"{path}, line {row}: {str(folders[0])[:200]} is a folder",
                "name an .onnx file and a .vnnlib file; a compiled network is given once: polytriton run NET.poly --instances FILE",
            )
        missing += [f"{str(file)[:200]} (line {row})" for file in (instance.onnx, instance.vnnlib) if not os.path.isfile(file)]
    if not made:
        raise UsageError(f"{path} lists no instances", "one line each: onnx,vnnlib,timeout")
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise UsageError(f"{path} names files that do not exist: {', '.join(missing[:3])}{more}", f"paths are relative to {path.parent}")
    return made


def _columns(cells: Sequence[str]) -> dict[str, int] | None:
    """The places of the known columns where the line is a header, else None."""
    lower = [cell.lower() for cell in cells]
    places = {key: lower.index(name) for key, names in NAMES.items() for name in names if name in lower}
    return places if "onnx" in places and "vnnlib" in places else None


def _instance(path: Path, row: int, cells: Sequence[str], columns: dict[str, int]) -> Instance:
    if len(cells) <= max(columns["onnx"], columns["vnnlib"]):
        found = "1 column" if len(cells) == 1 else f"{len(cells)} columns"
        raise UsageError(f"{path}, line {row}: {found}", "a line is onnx,vnnlib,timeout, with commas between")
    place = columns.get("timeout")
    text = cells[place] if place is not None and place < len(cells) else ""
    try:
        timeout = float(text) if text else None
    except ValueError:
        timeout = math.nan
    if timeout is not None and not 0 < timeout < math.inf:
        raise UsageError(f"{path}, line {row}: `{text[:40]}` is no timeout", "give seconds above 0")
    names = cells[columns["onnx"]], cells[columns["vnnlib"]]
    if is_property(names[0]) and not is_property(names[1]):
        raise UsageError(f"{path}, line {row}: {names[0][:200]} stands where the network belongs", "a line is onnx,vnnlib,timeout")
    return Instance(shipped_file(path.parent / named_network(names[0])[1]), shipped_file(path.parent / names[1]), timeout, row, names)


def is_property(name: str) -> bool:
    """By what the file is called."""
    return name.removesuffix(".gz").endswith(".vnnlib")


def require_properties(files: Sequence[Path]) -> None:
    """Each is a file."""
    for path in files:
        if path.is_dir():
            raise UsageError(f"{path} is a folder, not a property file", f"name its files, for example {path / '*.vnnlib'}")
        if not path.is_file():
            raise UsageError(f"no property file {path}", "check the path; it is taken relative to the current folder")


def shipped_file(plain: Path) -> Path:
    """Published benchmarks name the plain file where only the compressed one is there."""
    packed = Path(f"{plain}.gz")
    return packed if not os.path.exists(plain) and os.path.isfile(packed) else plain  # pathlib's own raise on names too long
