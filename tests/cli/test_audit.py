"""`run --certificates`, and `check` over a whole run: the results file claims, the certificates prove."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from polytriton.commands import shares
from tests.cli import tiny
from tests.cli.conftest import Cli


@pytest.fixture
def whole(cli: Cli, here: Path) -> Path:
    """A run with two unsat, one sat and one unsat of a property that the checker does not read, in the folder `out`."""
    (here / "bench").mkdir()
    (here / "out").mkdir()
    tiny.brightest(here / "bench" / "net.onnx")
    tiny.robust(here / "bench" / "near.vnnlib", 0.05)
    tiny.robust(here / "bench" / "safe.vnnlib", 0.1)
    tiny.robust(here / "bench" / "unsafe.vnnlib", 0.5)
    tiny.vnnlib(here / "bench" / "strict.vnnlib", [(0.0, 1.0)] * 4, "(< Y_0 -1)")
    lines = ["net.onnx,near.vnnlib,9", "net.onnx,safe.vnnlib,9", "net.onnx,unsafe.vnnlib,9"]
    (here / "bench" / "all.csv").write_text("\n".join([*lines, "net.onnx,strict.vnnlib,9"]))
    (here / "bench" / "some.csv").write_text("\n".join(lines))
    return here / "out"


def run(cli: Cli, listed: str, *options: str, code: int = 0) -> str:
    work = ("--workers", "1", "--threads", "1", "--json", "out/results.jsonl", "--certificates", "out/certificates", *options)
    said = cli("run", "--instances", f"bench/{listed}.csv", *work)
    assert said.code == code, said.err
    return said.err


def records(whole: Path) -> dict[str, dict[str, str]]:
    return {r["property"]: r for r in map(json.loads, (whole / "results.jsonl").read_text().splitlines())}


def states(cli: Cli, *options: str) -> tuple[int, dict[str, tuple[str, str]]]:
    said = cli("check", "out", "--root", "bench", "--json", *options)
    found = json.loads(said.out)
    rows = {r["property"]: (r["state"], r["note"]) for r in found["rows"]}
    assert {s: found[s] for s in ("checked", "refused", "missing")} == {
        s: sum(state == s for state, _ in rows.values()) for s in ("checked", "refused", "missing")
    }
    return said.code, rows


@pytest.mark.parametrize("semantics", ["float32", "real", "tf32", "bf16", "float16"])
def test_every_unsat_of_a_run_is_confirmed(cli: Cli, whole: Path, semantics: str) -> None:
    assert "certificates of 2 of 2 unsat" in run(cli, "some", "--semantics", semantics)
    assert {p.stem for p in (whole / "certificates").iterdir()} == {records(whole)[p]["key"] for p in ("near", "safe")}
    said = cli("check", "out", "--root", "bench")
    assert said.code == 0
    assert "2 unsat of 3 results: 2 checked, 0 refused, 0 missing" in said.out
    assert "[2/2] safe: checked" in said.err
    assert "unsafe" not in said.out
    assert cli("check", "out/results.jsonl", "--root", "bench").code == 0
    assert cli("check", "out/results.jsonl", "--root", "bench", "--certificates", "bench").code == 3


def test_processes_share_each_certificate(cli: Cli, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(cli, "some")
    asked, own = list[int | None](), shares.confirm

    def confirm(net: Path, prop: Path, certificate: Path, workers: int | None, progress: shares.Progress) -> shares.Checked:
        asked.append(workers)
        return own(net, prop, certificate, workers, progress)

    monkeypatch.setattr(shares, "confirm", confirm)
    for options in ((), ("--workers", "2")):
        code, rows = states(cli, *options)
        assert (code, {state for state, _ in rows.values()}) == (0, {"checked"})
    assert asked == [None, None, 2, 2]


def test_what_has_no_certificate_is_missing(cli: Cli, whole: Path) -> None:
    told = run(cli, "all", code=3)
    assert "polytriton: strict: unsat stands, but the certificate could not be written: " in told
    assert "certificates of 2 of 3 unsat" in told
    code, rows = states(cli)
    assert code == 3
    assert (rows["near"], rows["safe"]) == (("checked", ""),) * 2
    assert rows["strict"][0] == "missing"
    said = cli("check", "out")  # where the list's paths do not start; the same safe.vnnlib happens to lie here
    assert "1 checked, 0 refused, 2 missing" in said.out
    assert said.code == 3
    assert "there is no file near.vnnlib" in said.out


def test_nothing_is_confirmed_that_the_certificate_does_not_prove(cli: Cli, whole: Path, here: Path) -> None:
    """Forged results: a sat called unsat with another's certificate, other executions, another network; and damaged certificates."""
    run(cli, "some")
    held, certificates = records(whole), whole / "certificates"

    def claim(name: str, **changed: object) -> tuple[int, str]:
        forged = held | {name: held[name] | changed}
        (whole / "results.jsonl").write_text("".join(json.dumps(r) + "\n" for r in forged.values()))
        code, rows = states(cli)
        return code, rows[name][0]

    assert claim("unsafe", verdict="unsat") == (3, "missing")
    assert claim("unsafe", verdict="unsat", key="../certificates/x") == (3, "missing")
    certificate = (certificates / f"{held['safe']['key']}.cert").read_bytes()
    (certificates / f"{held['unsafe']['key']}.cert").write_bytes(certificate)
    assert claim("unsafe", verdict="unsat") == (2, "refused")
    assert claim("safe", semantics="real") == (2, "refused")
    assert claim("safe", semantics="tf32") == (2, "refused")
    assert claim("safe", semantics="float8") == (3, "missing")
    assert claim("safe", vnnlib="") == (3, "missing")
    assert claim("safe", sha256="0" * 64) == (2, "refused")
    assert claim("safe") == (0, "checked")
    tiny.brightest(here / "bench" / "net.onnx", 2.0)
    assert claim("safe", sha256="") == (2, "refused")
    tiny.brightest(here / "bench" / "net.onnx")
    (certificates / f"{held['safe']['key']}.cert").write_bytes(certificate[:-8])
    assert claim("safe") == (2, "refused")
    (certificates / f"{held['safe']['key']}.cert").unlink()
    assert claim("safe") == (3, "missing")


def test_an_interrupted_run_keeps_its_certificates(cli: Cli, whole: Path) -> None:
    run(cli, "some")
    one, other = sorted((whole / "certificates").iterdir())
    one.unlink()
    other.write_bytes(b"kept as it is")
    assert "certificates of 2 of 2 unsat, 1 of them from an earlier run" in run(cli, "some", "--resume")
    assert one.is_file()
    assert other.read_bytes() == b"kept as it is"
    assert states(cli)[0] == 2
    run(cli, "some", "--overwrite")
    assert states(cli)[0] == 0


def test_mistakes_with_runs(cli: Cli, poly: Path, here: Path) -> None:
    for options, says in (
        (("net.onnx", "--images", "none.npz", "--epsilon", "0.1"), "has no property file"),
        (("net.poly", "--vnnlib", "safe.vnnlib"), "NET.onnx"),
    ):
        said = cli("run", *options, "--certificates", "certs")
        assert said.code == 2
        assert says in said.err
    assert not (here / "certs").exists()
    assert cli("check", "nowhere").code == 2
    assert cli("check", ".").code == 2
    (here / "results.jsonl").write_text("")
    assert cli("check", ".").code == 2
    assert cli("check", ".", "--sample", "3").code == 2
    assert cli("check", "net.onnx", "safe.vnnlib", "a.cert", "--root", ".").code == 2
