"""Kernels in an artifact: readable files that say what they are, and none is read but those this version makes.

After a change that is meant to be seen in the headers: `python -m tests.artifact.test_artifact_kernels` writes them anew; read the diff.
"""

from __future__ import annotations

import ast
import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import torch.nn.functional as F

import polytriton
from polytriton import artifact as A
from polytriton.errors import ArtifactError, ResourceError, UsageError
from polytriton.ir.launches import COUNTED
from polytriton.kernels import stock
from polytriton.kernels.choose import Sizes
from polytriton.kernels.emitter import Emitter
from polytriton.kernels.files import INDEX, LAUNCHES, REPORT, Kernels, code_path, differing, emit_files
from polytriton.kernels.header import SHA256, header
from polytriton.kernels.network import network_kernels
from polytriton.kernels.spec import Report
from polytriton.passes.pipeline import Compiled, compile_net
from tests.artifact.test_artifact import DAMAGE
from tests.cli import tiny
from tests.oracle.nets import random_net, toy_residual

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "toy_residual_headers.txt"
HASH = re.compile(r"(?<=_)[0-9a-f]{10}\b|\b[0-9a-f]{64}\b")
TILES = Sizes(values=512, line=512, pairs=64, columns=64, terms=16)  # whatever the tuned ones are


def with_reports(kernels: Kernels) -> Kernels:
    """As after compilation."""
    counts = dict.fromkeys(COUNTED, 1)
    made = [Report(k.name, t, 40, 128, 0, 0, 0, counts, 48, 9000, 1.5, False) for t in kernels.gpus for k in kernels.machine]
    cubins = {t: {k.name: f"{t} {k.name}".encode() for k in kernels.machine} for t in kernels.gpus}
    return kernels.with_code(made, cubins, "3.7.1")


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> polytriton.Verifier:
    return polytriton.compile(tiny.brightest(tmp_path_factory.mktemp("model") / "net.onnx"))


@pytest.fixture(scope="module")
def kernels(verifier: polytriton.Verifier) -> Kernels:
    return with_reports(emit_files(verifier.compiled, ("cuda:80", "cuda:90"), ("float64", "float32")))


@pytest.fixture
def poly(verifier: polytriton.Verifier, kernels: Kernels, tmp_path: Path) -> Path:
    return A.write_artifact(verifier, tmp_path / "net.poly", kernels)


def contents(path: Path) -> dict[str, bytes]:
    return {p.relative_to(path).as_posix(): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def reseal(path: Path, files: set[str] | None = None, **changes: Any) -> None:
    """A manifest whose hashes fit what lies there, as a forger would leave it; `files` instead of those it named."""
    manifest = msgspec.json.decode((path / A.MANIFEST).read_bytes(), type=A.Manifest)
    held = contents(path)
    names = manifest.files.keys() if files is None else files
    entries = {n: A.FileEntry(hashlib.sha256(held.get(n, b"")).hexdigest(), len(held.get(n, b""))) for n in names}
    (path / A.MANIFEST).write_bytes(msgspec.structs.replace(manifest, files=entries, **changes).seal().encode())


def named(path: Path) -> set[str]:
    return set(json.loads((path / A.MANIFEST).read_bytes())["files"])


def first_kernel(path: Path) -> Path:
    return sorted((path / "kernels").glob("*.py"))[0]


# ---- files ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def example() -> Compiled:
    return polytriton.compile(ROOT / "examples" / "digits_resnet_ibp.onnx", check=False).compiled


@pytest.fixture(scope="module")
def emitted(example: Compiled) -> Emitter:
    emitter = Emitter()
    network_kernels(example, ("float64", "float32"), emitter=emitter)
    return emitter


def test_every_file_is_readable_python_that_needs_only_triton(example: Compiled) -> None:
    files = emit_files(example, ("interpret",), ("float32",)).files
    assert len(files) > 30
    for path, text in files.items():
        name = Path(path).stem
        tree = ast.parse(text)
        imports = [n for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom))]
        assert [ast.unparse(n) for n in imports] == ["import triton", "import triton.language as tl"]
        last = tree.body[-1]
        assert isinstance(last, ast.FunctionDef)
        assert last.name == name
        assert all(a.annotation is None for a in last.args.args), "a tl.constexpr is left"
        assert max(map(len, text.splitlines())) <= 140
        head = [line for line in text.splitlines() if line.startswith("#")][:2]
        assert head[0] == f"# {name}"
        assert head[1].startswith("#   steps     %")


def test_the_hash_in_the_head_is_of_all_below_it(kernels: Kernels) -> None:
    for text in kernels.files.values():
        head, found, body = re.split(r"#   sha256    (\w{64})\n", text)
        assert all(line.startswith("#") for line in head.splitlines())
        assert hashlib.sha256(body.encode()).hexdigest() == found


def test_the_same_code_is_one_file(emitted: Emitter) -> None:
    made = emitted.kernels.values()
    alike = {(k.source.replace(k.name, "NAME"), k.types, k.warps, k.stages) for k in made}
    assert len(alike) == len(made)
    moves = [name for name in emitted.kernels if name.startswith("count_staying")]
    assert len(moves) == 1  # of float64 and float32 alike
    assert {use.numerics for use in emitted.uses[moves[0]]} == {"float64", "float32"}
    assert len({use.step for use in emitted.uses[moves[0]]}) > 5
    assert re.search(r"^# +and \d+ more$", header(emitted.kernels[moves[0]], emitted.uses[moves[0]]), re.M)


def test_no_entry_sums_more_terms_than_its_head_says(emitted: Emitter) -> None:
    """Counted by convolving ones; where the window is large enough for an inner cell, exactly as many."""
    both = Emitter(dict(emitted.kernels), {name: list(uses) for name, uses in emitted.uses.items()})
    for seed in range(4):  # groups, strides and dilations of all kinds
        network_kernels(compile_net(random_net(seed, image=True)), ("float64",), emitter=both)
    seen, tight = set(), 0
    for name, kernel in both.kernels.items():
        for use in both.uses[name] if name.startswith("conv_step") else ():
            c: dict[str, Any] = dict(use.constants)
            seen |= {key for key in ("G", "SH", "DH") if c[key] > 1}
            rows, weights = torch.ones(1, c["CO"], c["H"], c["W"]), torch.ones(c["CO"], c["CI"] // c["G"], c["KH"], c["KW"])
            terms = int(F.conv_transpose2d(rows, weights, stride=(c["SH"], c["SW"]), dilation=(c["DH"], c["DW"]), groups=c["G"]).max())
            found = re.search(r"K = (\d+) terms an entry, in blocks of (\d+)", header(kernel, both.uses[name]))
            assert found is not None
            assert terms <= int(found[1])
            assert int(found[2]) <= min(c["BK"], c["CO"] // c["G"])
            tight += terms == int(found[1])
    assert seen == {"G", "SH", "DH"}
    assert tight > 3


def headers() -> str:
    emitter = Emitter()
    network_kernels(compile_net(toy_residual()), ("float32", "tf32x3"), TILES, emitter)
    return "\n".join(HASH.sub("HASH", header(kernel, emitter.uses[name])) for name, kernel in emitter.kernels.items())


def test_headers_are_as_filed() -> None:
    assert headers() == GOLDEN.read_text(), "run `python -m tests.artifact.test_artifact_kernels` and read the diff"


# ---- round trip -------------------------------------------------------------------------------------------------


def test_reads_back_what_was_written(verifier: polytriton.Verifier, kernels: Kernels, poly: Path, tmp_path: Path) -> None:
    back = A.read_artifact(poly)
    assert back.kernels is not None
    assert back.compiled == verifier.compiled
    assert back.kernels.files == kernels.files
    assert back.kernels.steps == kernels.steps
    assert back.kernels.machine == kernels.machine
    assert back.kernels.triton == "3.7.1"
    assert back.kernels.reports == tuple(replace(r, seconds=0.0, cached=True) for r in kernels.reports)
    assert back.manifest.options == {"output": "y", "candidates": "all", "target": "cuda:80,cuda:90", "numerics": "float64,float32"}
    assert back.kernels.filed == kernels.filed
    assert back.compiled.filed is None
    assert set(contents(poly)) == {A.MANIFEST, *A.FILES, REPORT, INDEX, LAUNCHES, *map(code_path, kernels.gpus), *kernels.files}
    again = replace(kernels, reports=tuple(replace(r, seconds=9.0, cached=True) for r in kernels.reports))
    assert contents(A.write_artifact(verifier, tmp_path / "again.poly", again)) == contents(poly)
    assert contents(polytriton.load(poly).save(tmp_path / "saved.poly")) == contents(poly)
    moved = shutil.move(poly, tmp_path / "moved.poly")
    x = np.array(tiny.BRIGHT).reshape(1, 2, 2)
    assert polytriton.load(moved).verify(x, 0.1).verdict == "unsat"


def test_emitted_kernels_need_no_report(verifier: polytriton.Verifier, tmp_path: Path) -> None:
    made = emit_files(verifier.compiled, ("interpret",), ("float32",))
    assert made.machine == made.gpus == ()
    path = A.write_artifact(verifier, tmp_path / "net.poly", made)
    assert not (path / REPORT).exists()
    assert A.read_artifact(path).kernels == made
    both = emit_files(verifier.compiled, ("interpret", "cuda:90"), ("float32",))
    assert both.files.keys() == made.files.keys() | emit_files(verifier.compiled, ("cuda:90",), ("float32",)).files.keys()
    assert len(both.machine) < len(both.files)


def test_without_kernels_nothing_is_added(verifier: polytriton.Verifier, tmp_path: Path) -> None:
    path = verifier.save(tmp_path / "net.poly")
    assert set(contents(path)) == {A.MANIFEST, *A.FILES}
    assert A.read_artifact(path).kernels is None
    assert A.read_artifact(path).manifest.options == {"output": "y", "candidates": "all"}


# ---- damage -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("file", [REPORT, INDEX, LAUNCHES, code_path("cuda:90"), ""])
def test_damage_is_refused(poly: Path, file: str, kind: str) -> None:
    path = poly / file if file else first_kernel(poly)
    DAMAGE[kind](path)
    with pytest.raises(ArtifactError) as refused:
        polytriton.load(poly)
    assert path.name in refused.value.message
    assert "polytriton compile" in refused.value.remedy


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("tl.store(", "print(), tl.store(", 1),
        lambda text: text + "\nimport os\n",
        lambda text: "",
        lambda text: rehash(text.replace("tl.store(", "print(), tl.store(", 1)),
        lambda text: re.sub(r"(sha256    )\w{64}", r"\g<1>" + "0" * 64, text),
        lambda text: "import os\n" + text,
    ],
)
def test_a_kernel_of_another_hand_is_refused(poly: Path, change: Callable[[str], str]) -> None:
    path = first_kernel(poly)
    path.write_text(change(path.read_text()))
    reseal(poly)
    with pytest.raises(ArtifactError, match=rf"kernels/{path.name} is not as it was emitted") as refused:
        polytriton.load(poly)
    assert "--target cuda:80,cuda:90" in refused.value.remedy


def rehash(text: str) -> str:
    """With the hash of what follows its head, as somebody leaves it who knows of that line alone."""
    head, _, source = re.split(r"#   sha256    (\w{64})\n", text)
    return f"{head}{SHA256}{hashlib.sha256(source.encode()).hexdigest()}\n{source}"


@pytest.mark.parametrize("field", ["types", "warps", "stages"])
def test_a_kernel_is_launched_as_its_name_says(poly: Path, field: str) -> None:
    name, other = first_kernel(poly).stem, {"types": ["*i64"], "warps": 8, "stages": 2}[field]
    index = json.loads((poly / INDEX).read_text())
    index["kernels"][name][field] = other
    (poly / INDEX).write_text(json.dumps(index))
    reseal(poly)
    with pytest.raises(ArtifactError, match="is not as it was emitted"):
        A.read_artifact(poly)


def test_kernels_of_another_library_are_stale(poly: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polytriton.kernels.files.library_digest", lambda: "0" * 64)
    with pytest.raises(ArtifactError, match=r"are stale: another version of polytriton made them") as refused:
        polytriton.load(poly)
    assert "polytriton compile NET.onnx" in refused.value.remedy


def test_the_library_is_all_that_decides_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {name for name, _ in stock._sources(resources.files("polytriton.kernels"), "")}
    assert {"emit.py", "launches.py", "dense.py", "numerics.py", "partial/folding.py"} <= names
    before = stock.library_digest()
    monkeypatch.setattr(stock, "_sources", lambda *_: [("dense.py", b"else")])
    stock.library_digest.cache_clear()
    try:
        assert stock.library_digest() != before
    finally:
        stock.library_digest.cache_clear()


@pytest.mark.parametrize("change", ["head", "launches", "orders"])
def test_made_again_whatever_was_written_otherwise_shows(verifier: polytriton.Verifier, kernels: Kernels, change: str) -> None:
    assert differing(kernels, verifier.compiled) == []
    filed, path = kernels.filed, next(iter(kernels.files))
    if change == "head":
        other, name = replace(kernels, files={**kernels.files, path: "#" + kernels.files[path]}), path
    elif change == "launches":
        key, text = next(iter(filed.programs.items()))
        other, name = replace(kernels, filed=replace(filed, programs={**filed.programs, key: text + "// mine\n"})), LAUNCHES
    else:
        orders = dict(zip(filed.orders, [*list(filed.orders.values())[1:], next(iter(filed.orders.values()))], strict=True))
        other, name = replace(kernels, filed=replace(filed, orders=orders)), INDEX
    assert differing(other, verifier.compiled) == [name]


def test_no_kernel_may_be_missing_or_added(poly: Path) -> None:
    own, path = named(poly), first_kernel(poly)
    text = path.read_bytes()
    path.unlink()
    reseal(poly, own - {f"kernels/{path.name}"})
    with pytest.raises(ArtifactError, match=rf"index\.json and the folder do not both have kernels/{path.name}"):
        A.read_artifact(poly)
    path.write_bytes(text)
    (poly / "kernels" / "more_0.py").write_bytes(text)
    reseal(poly, own | {"kernels/more_0.py"})
    with pytest.raises(ArtifactError, match=r"do not both have kernels/more_0\.py"):
        A.read_artifact(poly)


def test_files_the_manifest_does_not_name_are_ignored(poly: Path) -> None:
    before = A.read_artifact(poly)
    (poly / "kernels" / "notes.txt").write_text("mine")
    (poly / "kernels" / "__pycache__").mkdir()
    (poly / "kernels" / "another_0123456789.py").write_text("raise SystemExit")
    assert A.read_artifact(poly) == before


@pytest.mark.parametrize(
    "name",
    [
        "kernels/../evil.py",
        "kernels/../../evil.py",
        "/etc/kernels/evil.py",
        "../kernels/evil.py",
        "kernels//evil.py",
        "kernels/sub/evil.py",
        "kernels\\evil.py",
        "kernels/evil.py\n",
        "kernels/evil.pyc",
        "kernels/Evil.py",
        "kernels/.py",
        "kernels/.hidden.py",
        "kernels/évil.py",
        "kernels/report.json/x.py",
        "kernels/reportXjson",
        "kernels/" + "a" * 300 + ".py",
        "kernels",
        "evil.py",
    ],
)
def test_no_name_leads_outside(poly: Path, name: str) -> None:
    reseal(poly, named(poly) | {name})
    with pytest.raises(ArtifactError, match=r"manifest\.json is damaged"):
        A.read_artifact(poly)


@pytest.mark.parametrize(
    "options",
    [
        {"target": "cuda:90,tpu", "numerics": "float64"},
        {"target": "", "numerics": "float64"},
        {"target": "cuda:80,cuda:90", "numerics": "float8"},
        {"target": "cuda:80,cuda:90"},
        {"target": "interpret", "numerics": "float64,float32"},
        {},
    ],
)
def test_options_that_do_not_fit_are_refused(poly: Path, options: dict[str, str]) -> None:
    reseal(poly, options={"output": "y", "candidates": "all", **options})
    with pytest.raises(ArtifactError, match=r"manifest\.json is damaged"):
        A.read_artifact(poly)


def test_other_numerics_have_other_kernels(poly: Path) -> None:
    reseal(poly, options={"output": "y", "candidates": "all", "target": "cuda:80,cuda:90", "numerics": "float64"})
    with pytest.raises(ArtifactError, match=r"index\.json is of cuda:80, cuda:90 in float64, float32"):
        A.read_artifact(poly)


def _first(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda report: {**report, "kernels": [{**report["kernels"][0], **changes}, *report["kernels"][1:]]}


@pytest.mark.parametrize(
    "change",
    [
        _first(name="another"),
        _first(target="cuda:86"),
        _first(registers="many"),
        lambda report: {**report, "kernels": report["kernels"][1:]},
        lambda report: {**report, "kernels": [{"name": "x"}]},
        lambda report: {**report, "kernels": None},
        lambda report: {"kernels": report["kernels"]},
        lambda report: {**report, "more": 1},
        lambda report: [],
    ],
)
def test_a_report_on_something_else_is_refused(poly: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    (poly / REPORT).write_text(json.dumps(change(json.loads((poly / REPORT).read_text()))))
    reseal(poly)
    with pytest.raises(ArtifactError, match=r"report\.json is not the report on these kernels"):
        A.read_artifact(poly)


# ---- writing ----------------------------------------------------------------------------------------------------


def test_replaces_an_artifact_with_kernels_even_a_damaged_one(verifier: polytriton.Verifier, kernels: Kernels, poly: Path) -> None:
    before = contents(poly)
    first_kernel(poly).write_text("?")
    (poly / REPORT).unlink()
    (poly / A.MANIFEST).unlink()
    A.write_artifact(verifier, poly, kernels)
    assert contents(poly) == before
    verifier.save(poly)
    assert set(contents(poly)) == {A.MANIFEST, *A.FILES}
    assert [p.name for p in poly.parent.iterdir()] == ["net.poly"]


def test_never_replaces_what_is_not_its_own(verifier: polytriton.Verifier, poly: Path) -> None:
    (poly / "kernels" / "notes.txt").write_text("precious")
    before = contents(poly)
    with pytest.raises(UsageError, match="not overwritten"):
        verifier.save(poly)
    assert contents(poly) == before
    shutil.rmtree(poly / "kernels")
    (poly / "kernels").write_text("a file")
    with pytest.raises(UsageError, match="not overwritten"):
        verifier.save(poly)
    assert (poly / "kernels").read_text() == "a file"


@pytest.mark.parametrize("at", [0, 5, -3, -1])
@pytest.mark.parametrize("existing", [False, True])
def test_a_full_disk_leaves_nothing_behind(
    verifier: polytriton.Verifier, kernels: Kernels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, existing: bool
) -> None:
    """Whichever file it is that no longer fits: that of a kernel, or the folder itself."""
    path = tmp_path / "net.poly"
    before = contents(verifier.save(path)) if existing else {}
    total = len(A.FILES) + 1 + len(kernels.contents()) + 2  # every file once, both folders
    calls = 0

    def fail(fd: int) -> None:
        nonlocal calls
        calls += 1
        if calls - 1 == at % total:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(ResourceError, match="disk is full"):
            A.write_artifact(verifier, path, kernels)
    assert [p.name for p in tmp_path.iterdir()] == ["net.poly"] * existing
    assert (contents(path) if existing else {}) == before


if __name__ == "__main__":
    GOLDEN.write_text(headers())
