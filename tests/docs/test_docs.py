"""The documentation: its links lead somewhere, the options it names exist, and the README's Python runs on a reader's own numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import typer

import polytriton
from polytriton.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)


def prose(page: Path) -> str:
    """Without blocks of code, fenced or indented, and without code between backticks."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^    .*$", "", text, flags=re.M))


def anchors(page: Path) -> set[str]:
    """As hosts of repositories make them: lower case, words joined by hyphens, other signs dropped."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


@pytest.mark.parametrize("page", [p for p in PAGES if "](soundness" in p.read_text(encoding="utf-8") or p.name == "soundness.md"], ids=str)
def test_sections_are_numbered_in_order(page: Path) -> None:
    numbers = [int(n) for n in re.findall(r"^## (\d+)\. ", page.read_text(encoding="utf-8"), re.M)]
    assert numbers == list(range(1, len(numbers) + 1))


def test_the_readme_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a network of the examples in place of the reader's own."""
    monkeypatch.chdir(ROOT)
    data = np.load(ROOT / "examples" / "digits.npz")
    x = data["images"][0].astype(np.float64)
    open_, found = polytriton.compile, blocks(ROOT / "README.md")
    monkeypatch.setattr(
        polytriton, "compile", lambda path: open_(ROOT / "examples" / "digits_conv_ibp.onnx") if path == "net.onnx" else None
    )
    names: dict[str, object] = {"x": x, "lo": x - 0.01, "hi": x + 0.01, "C": np.eye(10)[:2]}
    assert found
    for block in found:
        exec(compile(block, "README.md", "exec"), names)
    assert np.shape(names["m"]) == (1, 2)
    assert names["r"].verdict in ("unsat", "sat", "unknown")  # type: ignore[attr-defined]


def commands() -> Mapping[str, set[str]]:
    """Every command and all spellings of its options, as its help shows them."""
    group = typer.main.get_command(app)
    assert hasattr(group, "commands")
    return {
        name: {o for p in command.params for o in (*p.opts, *p.secondary_opts) if o.startswith("-")} | {"--help"}
        for name, command in group.commands.items()
    }


def code(text: str) -> str:
    """What stands between backticks or in indented blocks."""
    return "\n".join([*re.findall(r"`([^`\n]+)`", text), *re.findall(r"^    (.*)$", text, re.M)])


def test_every_option_the_command_line_page_names_exists() -> None:
    known = commands()
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    parts = dict(re.findall(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", text, re.S | re.M))
    assert set(known) <= set(parts)
    union = set().union(*known.values()) | {"--version"}
    for title, part in {"": text, **parts}.items():
        if title == "Options of verify and run":
            allowed = known["verify"] & known["run"]
        else:
            allowed = known.get(title, union)
        for line in code(part).splitlines():
            for option in OPTION.findall(line):
                assert option in allowed, (title, line)


def test_every_option_is_described() -> None:
    """On the page of the command line, or, for images, on that of properties."""
    text = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("cli.md", "properties.md"))
    named = set(OPTION.findall(code(text)))
    for name, options in commands().items():
        assert {o for o in options if o.startswith("--")} <= named, name


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_in_blocks_take_their_options(page: Path) -> None:
    known = commands()
    for line in re.findall(r"^(?:    |\$ )+(?:\$ )?polytriton (.*)$", page.read_text(encoding="utf-8"), re.M):
        words = line.split("#")[0].split()
        if words[0] not in known:
            continue
        for word in words[1:]:
            for option in OPTION.findall(word.strip("[]").split("=")[0]) if word.startswith(("-", "[-")) else ():
                assert option in known[words[0]], line


def test_the_table_of_rooms_names_every_module() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = set(re.findall(r"`([\w./]+)`", text.partition("## Rooms")[2].partition("\n## ")[0]))
    package = ROOT / "polytriton"
    modules = {p.name for p in package.glob("*.py")} - {"__init__.py"}
    rooms = {f"{p.parent.name}/" for p in package.glob("*/__init__.py")}
    assert len(modules) > 10 and len(rooms) > 8
    assert modules | rooms <= table
    for told in (t for t in table if t.endswith(("/", ".py"))):
        assert list(package.rglob(told)), told


def test_variables_of_the_environment_are_described_and_exist() -> None:
    def named(*files: Path) -> set[str]:
        return {v for f in files for v in re.findall(r"POLYTRITON_[A-Z_]+[A-Z]", f.read_text(encoding="utf-8"))}

    scripts = named(*(ROOT / "vnncomp_scripts").glob("*.sh"))
    read = named(ROOT / "polytriton" / "knobs.py")
    described = named(*PAGES)
    assert "POLYTRITON_CACHE" in read and "POLYTRITON_VENV" in scripts
    assert scripts | read <= described
    assert described <= scripts | read | named(ROOT / "tests" / "conftest.py", *(ROOT / "bench").rglob("*.py"))
