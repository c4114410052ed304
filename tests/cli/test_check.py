"""`verify --certificate` and `check`, and the mistakes one can make with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.certificate.models import change
from tests.cli import tiny
from tests.cli.conftest import Cli

CERTIFY = ("verify", "net.onnx", "safe.vnnlib", "--certificate", "a.cert")


@pytest.mark.parametrize("semantics", ["", "real", "tf32", "bf16", "float16"])
def test_a_certificate_is_written_and_confirmed(cli: Cli, here: Path, semantics: str) -> None:
    options = ("--semantics", semantics) if semantics else ()
    executions = "exact arithmetic" if semantics == "real" else f"{semantics or 'float32'} executions"
    said = cli(*CERTIFY, *options)
    assert (said.code, said.out) == (0, "unsat\n")
    assert "a.cert: " in said.err
    said = cli("check", "net.onnx", "safe.vnnlib", "a.cert")
    assert (said.code, said.out) == (0, "unsat\n")
    assert f"confirmed for {executions}" in said.err
    found = json.loads(cli("check", "net.onnx", "safe.vnnlib", "a.cert", "--json").out)
    assert found["verdict"] == "unsat"
    assert min(found["margins"]) > 0
    assert found["semantics"] == (semantics or "float32")
    first = (here / "a.cert").read_bytes()
    assert cli(*CERTIFY, *options).code == 0
    assert (here / "a.cert").read_bytes() == first
    assert [p.name for p in here.iterdir() if ".cert" in p.name] == ["a.cert"]


def test_a_sample_is_no_proof(cli: Cli, here: Path) -> None:
    cli(*CERTIFY)
    said = cli("check", "net.onnx", "safe.vnnlib", "a.cert", "--sample", "3")
    assert (said.code, said.out) == (0, "sampled\n")
    assert "1 leaves drawn at random hold" in said.err
    assert cli("check", "net.onnx", "safe.vnnlib", "a.cert", "--sample", "0").code == 2


def test_a_foreign_or_damaged_certificate_is_refused(cli: Cli, here: Path) -> None:
    cli(*CERTIFY)
    tiny.robust(here / "other.vnnlib", 0.11)
    tiny.brightest(here / "twice.onnx", 2.0)
    data = (here / "a.cert").read_bytes()
    (here / "half.cert").write_bytes(data[: len(data) // 2])
    for files in (("net.onnx", "other.vnnlib", "a.cert"), ("twice.onnx", "safe.vnnlib", "a.cert"), ("net.onnx", "safe.vnnlib", "half.cert"),
                  ("net.onnx", "safe.vnnlib", "net.onnx")):  # fmt: skip
        said = cli("check", *files)
        assert (said.code, said.out) == (2, "refused\n")
        assert json.loads(cli("check", *files, "--json").out)["verdict"] == "refused"
        assert "write it again" in said.err


def test_writing_again_is_no_remedy_where_bounds_do_not_reach(cli: Cli, here: Path) -> None:
    """A certificate of exact arithmetic that is passed off as one of coarser executions, all hashes rewritten."""
    tiny.zero(here / "zero.onnx")
    tiny.vnnlib(here / "zero.vnnlib", [(1, 1)], "(>= Y_0 0.0001)", 1)
    cli("verify", "zero.onnx", "zero.vnnlib", "--certificate", "a.cert", "--semantics", "real")
    data = change((here / "a.cert").read_bytes(), meta=lambda m: m.update(semantics="bf16"))
    (here / "b.cert").write_bytes(data)
    said = cli("check", "zero.onnx", "zero.vnnlib", "b.cert", "--workers", "1")
    assert (said.code, said.out) == (2, "refused\n")
    assert "still open" in said.err and "slightly weaker property" in said.err and "write it again" not in said.err


def test_only_unsat_has_one(cli: Cli, here: Path) -> None:
    (here / "a.cert").write_bytes(b"an older one")
    said = cli("verify", "net.onnx", "unsafe.vnnlib", "--certificate", "a.cert")
    assert said.code == 0
    assert said.out.startswith("sat\n")
    assert "no certificate of sat" in said.err
    assert (here / "a.cert").read_bytes() == b"an older one"


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (("net.onnx", "safe.vnnlib", "--semantics", "real", "--certificate", "none/a.cert"), 2, "existing folder"),
        (("net.onnx", "safe.vnnlib", "--semantics", "real", "--certificate", "."), 2, "existing folder"),
        (("net.poly", "safe.vnnlib", "--semantics", "real", "--certificate", "a.cert"), 2, "NET.onnx"),
        (("cosh.onnx", "safe.vnnlib", "--semantics", "real", "--certificate", "a.cert"), 3, "Cosh"),
        (("net.onnx", "strict.vnnlib", "--semantics", "real", "--certificate", "a.cert"), 3, "only <=, >=, and, or are read"),
    ],
)
def test_what_has_no_certificate_is_said_before_the_run(
    cli: Cli, poly: Path, here: Path, options: tuple[str, ...], code: int, says: str
) -> None:
    tiny.unsupported(here / "cosh.onnx")
    tiny.vnnlib(here / "strict.vnnlib", [(0.0, 1.0)] * 4, "(< Y_0 -1)")
    said = cli("verify", *options)
    assert (said.code, said.out) == (code, "")
    assert says in said.err
    assert not (here / "a.cert").exists()


def test_mistakes_with_check(cli: Cli, here: Path) -> None:
    assert cli("check", "net.onnx", "safe.vnnlib", "none.cert").code == 2
    assert cli("check", "net.onnx", "safe.vnnlib").code == 2
    tiny.unsupported(here / "cosh.onnx")
    said = cli("check", "cosh.onnx", "safe.vnnlib", "net.onnx")
    assert (said.code, said.out) == (3, "")
    assert "operator Cosh" in said.err
