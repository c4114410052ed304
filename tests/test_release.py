"""What is shipped: a wheel that works where nothing of the checkout is, and an sdist from which the same wheel can be made."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from datetime import date, timedelta
from email.parser import Parser
from pathlib import Path

import pytest

import polytriton

ROOT = Path(__file__).parents[1]
SHIPPED = ("polytriton", "docs", "examples", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in", "README.md", "constraints.txt")
BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"


def run(*words: str | Path, cwd: Path) -> str:
    """As a user runs it: nothing of this process's paths, threads or coverage is handed on."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "POLYTRITON", "COV"))}
    done = subprocess.run([str(w) for w in words], cwd=cwd, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(kind: str, tree: Path, into: Path) -> Path:
    """A wheel or an sdist by the build backend alone: no package is fetched."""
    pytest.importorskip("setuptools", minversion="77")
    into.mkdir(exist_ok=True)
    return into / run(sys.executable, "-c", BUILD, f"build_{kind}", into, cwd=tree).splitlines()[-1]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what goes into a release: building leaves files beside the sources."""
    copy = tmp_path_factory.mktemp("release") / "tree"
    copy.mkdir()
    for name in (*SHIPPED, "pyproject.toml", "mkdocs.yml"):
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, copy / name)
    return copy


@pytest.fixture(scope="module")
def sdist(tree: Path) -> Path:
    return build("sdist", tree, tree.parent / "dist")


@pytest.fixture(scope="module")
def wheel(sdist: Path) -> Path:
    """Made from the sdist, unpacked: what it lacks is missed."""
    with tarfile.open(sdist) as held:
        held.extractall(sdist.parent, filter="data")
    return build("wheel", sdist.parent / sdist.name.removesuffix(".tar.gz"), sdist.parent)


def test_the_last_release_is_told_with_its_day() -> None:
    """What is not released yet stands above it."""
    told = re.findall(r"^## (\S+) - (\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert told and told[0][0] == polytriton.__version__
    assert date.fromisoformat(told[0][1]) <= date.today() + timedelta(days=1), "by any clock of the world"


def test_extras_that_are_told_of_are_there() -> None:
    told = {
        extra
        for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "polytriton").rglob("*.py")]
        for found in re.findall(r"polytriton\[([a-z,]+)\]", path.read_text(encoding="utf-8"))
        for extra in found.split(",")
    }
    declared = set(re.findall(r"^([a-z]+) = \[", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE))
    assert {"images"} <= told <= declared


def modules(names: list[str]) -> set[str]:
    return {n for n in names if n.startswith("polytriton/") and not n.endswith("/")}


@pytest.mark.slow
def test_the_sdist_holds_what_a_reader_wants(sdist: Path) -> None:
    with tarfile.open(sdist) as held:
        names = {n.partition("/")[2] for n in held.getnames()}
    pages = {p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").rglob("*.md")}
    assert pages and pages <= names
    assert {"LICENSE", "CHANGELOG.md", "README.md", "pyproject.toml", "examples/digits_conv_ibp.onnx", "examples/train.py"} <= names
    assert not [n for n in names if n.endswith(".pyc") or n.startswith((".", "tests/", "build/"))]


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as held:
        names = held.namelist()
        meta = Parser().parsestr(held.read(next(n for n in names if n.endswith(".dist-info/METADATA"))).decode())
    own = {p.relative_to(ROOT).as_posix() for p in (ROOT / "polytriton").rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    assert modules(names) == own and "polytriton/py.typed" in own
    assert {n.partition("/")[0] for n in names} == {"polytriton", f"polytriton-{polytriton.__version__}.dist-info"}
    assert any(n.endswith("LICENSE") for n in names)
    assert meta["Version"] == polytriton.__version__ and meta["License-Expression"] == "Apache-2.0"
    assert {"export", "images", "pandas", "ray"} <= set(meta.get_all("Provides-Extra") or [])


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an environment with the wheel: dependencies are this environment's, by a .pth file, so that nothing is fetched."""
    tmp_path = tmp_path_factory.mktemp("installed")
    clean = tmp_path / "clean"
    venv.create(clean, with_pip=False)
    python = clean / ("Scripts" if os.name == "nt" else "bin") / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    place = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    (place / "dependencies.pth").write_text("\n".join(dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))))
    assert Path(run(python, "-c", "import polytriton; print(polytriton.__file__)", cwd=tmp_path).strip()).is_relative_to(clean)
    return python


@pytest.mark.slow
def test_the_wheel_works_in_a_clean_environment(python: Path, tmp_path: Path) -> None:
    command = python.with_name("polytriton")
    assert run(command, "--version", cwd=tmp_path).split() == ["polytriton", polytriton.__version__]
    prop = next(iter(sorted((ROOT / "examples" / "specs").glob("digits_conv_ibp_*_0.05.vnnlib"))))
    assert run(command, "verify", ROOT / "examples" / "digits_conv_ibp.onnx", prop, cwd=tmp_path).startswith("unsat")


USER = """
from pathlib import Path

import polytriton


def proved(path: Path, epsilon: str) -> list[int]:
    net = polytriton.compile(path)
    results = net.verify("images.npz", epsilon, clip=(0, 1))
    assert isinstance(results, polytriton.ResultList)
    return [k for k, r in enumerate(results) if r.verdict == "unsat" and r.margin > 0]


def widest(net: polytriton.Verifier) -> float:
    found: polytriton.Reach = polytriton.reach(net, (-1, 1), planes=[(0, 1)], pieces=8)
    found.save("reach.svg", overwrite=True)
    return float((found.hi - found.lo).max())
"""


@pytest.mark.slow
def test_a_users_program_is_checked_against_the_installed_types(python: Path, tmp_path: Path) -> None:
    """By mypy, which reads the wheel's own files: without py.typed it would call them untyped."""
    pytest.importorskip("mypy")
    mistaken = USER.replace("pieces=8", "peaces=8").replace("r.margin", "r.marjin")
    for text, code in ((USER, 0), (mistaken, 1)):
        (tmp_path / "program.py").write_text(text)
        options = ["--strict", "--follow-imports=silent", "--config-file=", "--cache-dir=cache", "--no-color-output"]
        command = [sys.executable, "-m", "mypy", *options, "--python-executable", str(python), "program.py"]
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "MYPY"))}
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)
        assert done.returncode == code, done.stdout + done.stderr
    assert '"peaces"' in done.stdout and '"marjin"' in done.stdout
