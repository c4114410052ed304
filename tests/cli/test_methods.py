"""`--method`: results carry it, runs of several are kept apart, and what does not go with it is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli import tiny
from tests.cli.conftest import Cli
from tests.cli.test_batches import balls
from tests.cli.test_run import records


@pytest.mark.parametrize("method", ["ibp", "crown-ibp", "deeppoly"])
def test_a_run_by_another_method(cli: Cli, poly: Path, here: Path, method: str) -> None:
    asked = ["run", poly, "--images", balls(here), "--epsilon", "20/255", "--clip", "0,1", "--json", "r.jsonl"]
    assert cli(*asked).code == 0
    own = {r["property"]: r for r in records("r.jsonl")}
    assert cli(*asked, "--method", method, "--batch", 4, "--resume").code == 0
    other = {r["property"]: r for r in records("r.jsonl") if r["method"] == method}
    assert own.keys() == other.keys() and all(r["method"] == "" for r in own.values())
    for name, r in other.items():
        assert r["verdict"] == own[name]["verdict"], "one layer without a bias: all are exact on it"
        assert r["margin"] == pytest.approx(own[name]["margin"], abs=1e-5)


def test_a_property_by_another_method(cli: Cli, here: Path) -> None:
    tiny.zero(here / "zero.onnx")
    tiny.vnnlib(here / "loose.vnnlib", [(-1.0, 1.0)], "(<= Y_0 -3.0)", 1)
    said = cli("verify", "zero.onnx", "loose.vnnlib", "--method", "ibp")
    assert (said.code, said.out) == (0, "unsat\n") and "by ibp, " in said.err
    tiny.hard(here / "hard.vnnlib")
    said = cli("verify", "zero.onnx", "hard.vnnlib", "--method", "deeppoly", "--no-falsify", "--json", "-")
    record = json.loads(said.out)
    assert (record["verdict"], record["ended_by"], record["search"]) == ("unknown", "method", None)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--method", "crown"], "use one of: polytriton, ibp, crown-ibp, deeppoly"),
        (["--method", "ibp", "--search", "auto"], "leave one of them out"),
    ],
)
def test_what_does_not_go_with_a_method(cli: Cli, poly: Path, here: Path, extra: list[str], words: str) -> None:
    said = cli("run", poly, "--images", balls(here), "--epsilon", "0.1", *extra)
    assert said.code == 2 and words in said.err
