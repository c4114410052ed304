"""The versions that `make` installs fit one another on every Python that is promised."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
ELSEWHERE = {"torch", "triton"}  # builds of their own, for one processor or GPU each
OF_TORCH = ("filelock", "fsspec", "jinja2", "setuptools", "sympy", "typing-extensions", "networkx")  # what it brings with it


def needed(lines: list[str], python: str) -> list[str]:
    """Requirements as this Python reads them: pip judges markers by the Python that it runs on."""
    known = {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
    made = []
    for line in lines:
        r = Requirement(line)
        if r.name not in ELSEWHERE and (r.marker is None or r.marker.evaluate(known)):
            made.append(f"{r.name}{r.specifier}")
    return made


def pins() -> list[str]:
    lines = (line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line]


def wanted() -> list[str]:
    """What pyproject.toml asks for; Python 3.10 has no parser of TOML."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    lists = re.search(r"^dependencies = \[\n(.*?)^\]", text, re.S | re.M), re.search(r"^dev = \[(.*)\]$", text, re.M)
    assert lists[0] is not None and lists[1] is not None
    return [line for found in lists if found is not None for line in re.findall(r'"([^"]+)"', found[1])]


def resolve(python: str, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--dry-run", "--ignore-installed"]
    command += ["--python-version", python, "--only-binary=:all:", "--target", "unused", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("python", PYTHONS)
def test_every_package_has_one_version(python: str) -> None:
    names = [Requirement(p).name.lower().replace("_", "-") for p in needed(pins(), python)]
    assert len(names) == len(set(names))
    assert {Requirement(w).name for w in needed(wanted(), python)} <= {*names}
    assert set(OF_TORCH) <= {*names}


@pytest.mark.slow
@pytest.mark.parametrize("python", [PYTHONS[0], PYTHONS[-1]])
def test_the_versions_fit_one_another(python: str, tmp_path: Path) -> None:
    floor = re.search(r'requires-python = "(.*)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert floor is not None and SpecifierSet(floor[1]).contains(f"{python}.0")
    reach = resolve("3.11", "--no-deps", "filelock")
    if reach.returncode:
        pytest.skip(f"the package index cannot be reached: {reach.stderr.strip().splitlines()[-1][:100]}")
    (tmp_path / "constraints.txt").write_text("\n".join(needed(pins(), python)))
    done = resolve(python, "-c", str(tmp_path / "constraints.txt"), *needed(wanted(), python), *OF_TORCH)
    assert done.returncode == 0, "\n".join(line for line in done.stderr.splitlines() if not line.startswith("WARNING"))


def test_types_are_checked_for_the_oldest_python() -> None:
    """What newer ones alone have, by name or by syntax, is refused before anybody runs it."""
    text = (ROOT / "pyproject.toml").read_text()
    (floor,), (target,) = (re.findall(rf'\n{name} = "(?:>=)?([\d.]+)"', text) for name in ("requires-python", "python_version"))
    assert floor == target == PYTHONS[0]
