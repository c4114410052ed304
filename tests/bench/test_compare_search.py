"""Both searches asked in turns: with a small program in the peer's place, which prints what the peer prints."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bench.compare import search, search_side
from bench.compare.search_side import AlphaBetaCrown, OurSearch, config
from bench.families import family

# Says what FAKE/answers.json holds of the property asked, leaves a file beside it as the peer does, and writes down whom it played.
FAKE = """
import json, sys, time
from pathlib import Path
who, words = sys.argv[1], sys.argv[2:]
here = Path(__file__).parent
if "--help" in words:
    sys.exit((here / "broken").exists() and "ModuleNotFoundError: No module named 'onnx2pytorch'")
net, spec = (Path(next(w for w in words if w.endswith(end))) for end in (".onnx", ".vnnlib"))
kept = Path(str(spec) + ".compiled")
assert net.exists() and not kept.exists() and not Path("cache").exists(), "something is kept of an earlier instance"
kept.touch()
answer = json.loads((here / "answers.json").read_text())[spec.stem][who]
with (here / "asked").open("a") as f:
    print(who, spec.stem, *words, file=f)
if answer[0] == "sleeps":
    time.sleep(60)
if answer[0] == "fails":
    raise TypeError("unexpected keyword argument 'quirks'")
if who == "polytriton":
    print("a warning")
    print(json.dumps({"verdict": answer[0], "seconds": answer[1]}))
else:
    print("Accumulated time: 9.9\\nResult:", answer[0], "\\nTime:", answer[1], "\\nResult dict saved")
"""
UNSAT = ["unsat", 0.5]
HEAD = "id,group,kind,net,spec,verdict,n_in,n_out,crown_verified"


class Place:
    """A folder of properties and of both programs' answers."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.peer, self.out = folder, folder / "peer", folder / "out.csv"
        self.rows, self.answers = [HEAD], dict[str, dict[str, list[object]]]()
        for name in ("peer/complete_verifier", "nets/acasxu", "nets/cora", "specs", "stub"):
            (folder / name).mkdir(parents=True)
        self.fake, self.python = self.peer / "complete_verifier" / "abcrown.py", folder / "python"
        self.fake.write_text(FAKE)
        (folder / "stub" / "torch.py").write_text("__version__ = '9.9'")
        # as the peer's interpreter, the program is called with the peer's name before its options
        self.python.write_text(
            f'#!/bin/sh\nexport PYTHONPATH={folder}/stub\nif [ "$1" = -c ]; then exec {sys.executable} "$@"; fi\n'
            f'program=$1; shift; exec {sys.executable} "$program" peer "$@"\n'
        )
        self.python.chmod(0o755)

    def add(self, key: str, net: str, ours: list[object] = UNSAT, theirs: list[object] = UNSAT, official: str = "unsat") -> None:
        self.rows.append(f"{key},g,official,{net},specs/{key}.vnnlib,{official},2,1,0")
        self.answers[key] = {"polytriton": ours, "peer": theirs}
        (self.folder / net).touch()
        (self.folder / "specs" / f"{key}.vnnlib").touch()
        (self.folder / "instances.csv").write_text("\n".join(self.rows))
        (self.fake.parent / "answers.json").write_text(json.dumps(self.answers))

    def run(self, *arguments: str) -> int:
        given = ["--peer", str(self.peer), "--peer-python", str(self.python), "--data", str(self.folder), "--out", str(self.out)]
        return search.main([*given, *arguments])

    def told(self) -> dict[str, dict[str, str]]:
        with self.out.open(newline="") as f:
            return {r["id"]: r for r in csv.DictReader(f)}

    def asked(self) -> list[list[str]]:
        return [line.split() for line in (self.fake.parent / "asked").read_text().splitlines()]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    found = Place(tmp_path)
    mine: Callable[..., list[str]] = lambda self, net, spec, timeout: [sys.executable, str(found.fake), "polytriton", str(net), str(spec)]  # noqa: E731
    monkeypatch.setattr(OurSearch, "command", mine)
    return found


def test_verdicts_seconds_and_a_summary(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.add("v1", "nets/acasxu/a.onnx", theirs=["timeout", 60.2])
    place.add("v2", "nets/acasxu/a.onnx", ["sat", 1.5], ["sat", 2.5], "sat")
    place.add("v3", "nets/cora/b.onnx", ["timeout", 60.0])
    assert place.run() == 0
    rows = place.told()
    assert [(r["verdict"], r["peer_verdict"], r["official"]) for r in rows.values()] == [
        ("unsat", "timeout", "unsat"), ("sat", "sat", "sat"), ("timeout", "unsat", "unsat"),
    ]  # fmt: skip
    first = rows["v2"]
    assert (first["seconds"], first["peer_seconds"], first["limit"], first["threads"], first["device"]) == ("1.5", "2.5", "60", "1", "cpu")
    assert 0 < float(first["peer_cpu_seconds"]) and 0 < float(first["peer_wall"]) < 60 and "(torch 9.9)" in first["peer"]
    assert rows["v1"]["config"] == "vnncomp21/acasxu.yaml" and rows["v1"]["note"] == ""
    assert [r["first"] for r in rows.values()] == ["polytriton", "alpha-beta-CROWN", "polytriton"], "whoever begins ends the one before"
    assert [w[0] for w in place.asked()[1:]] == ["polytriton", "peer", "peer", "polytriton", "polytriton", "peer"], "the first warms up"
    words = next(w for w in place.asked() if w[:2] == ["peer", "v1"])
    assert words[words.index("--timeout") + 1] == "60" and "--complete_verifier" in words and words[words.index("--device") + 1] == "cpu"
    said = capsys.readouterr()
    lines = [line.split("|")[1:-1] for line in said.out.splitlines() if line.startswith(("| acasxu", "| all"))]
    assert [[c.strip() for c in (line[2], line[3], line[4], line[6])] for line in lines] == [
        ["2", "1", "1", "2.0"], ["2", "0", "1", "62.5"], ["3", "1", "1", "62.0"], ["3", "1", "1", "63.0"],
    ]  # fmt: skip
    assert "v3, 3 of 3, about 0 min left" in said.err and "1 thread(s) each, 60 s" in said.err


def test_it_goes_on_and_asks_again_what_the_peer_failed(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.add("v1", "nets/acasxu/a.onnx")
    place.add("v2", "nets/cora/b.onnx", theirs=["fails"])
    assert place.run("--only", "v1", "v2") == search.FAILED
    assert place.told()["v2"]["peer_verdict"] == "error"
    assert place.told()["v2"]["note"] == "alpha-beta-CROWN: TypeError: unexpected keyword argument 'quirks'"
    place.add("v3", "nets/acasxu/a.onnx")
    place.answers["v2"]["peer"] = UNSAT
    place.add("v4", "nets/acasxu/a.onnx")
    before = len(place.asked())
    assert place.run("--budget", "100") == 0 and [*place.told()] == ["v1", "v2", "v3", "v4"]
    assert sorted({w[1] for w in place.asked()[before:]}) == ["v2", "v3", "v4"]
    assert place.told()["v2"]["peer_verdict"] == "unsat" and "| all | polytriton | 4 | 4 |" in capsys.readouterr().out
    before = len(place.asked())
    assert place.run() == 0 and len(place.asked()) == before, "all is known"


def test_a_budget_and_another_question(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.add("v1", "nets/acasxu/a.onnx")
    place.add("v2", "nets/acasxu/a.onnx")
    assert place.run("--budget", "0.01") == 0 and [*place.told()] == ["v1"]
    assert "1 instance left: the same command goes on" in capsys.readouterr().err
    for arguments, words in ((["--timeout", "5"], "was measured with limit '60'"), (["--threads", "2"], "measured with threads '1'")):
        with pytest.raises(SystemExit):
            place.run(*arguments)
        assert words in capsys.readouterr().err
    place.out.write_text("id,verdict\nv1,unsat\n")
    with pytest.raises(SystemExit, match="it lacks the column network"):
        place.run()


def test_late_stopped_and_false(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_side, "GRACE", 0.1)
    place.add("v1", "nets/acasxu/a.onnx", theirs=["unsat", 3.5])
    place.add("v2", "nets/acasxu/a.onnx", theirs=["sleeps"])
    place.add("v3", "nets/acasxu/a.onnx", theirs=["sat", 0.5])
    assert place.run("--timeout", "0.9") == search.FAILED
    rows = place.told()
    assert [rows[k]["peer_verdict"] for k in rows] == ["timeout", "timeout", "sat"] and rows["v2"]["peer_seconds"] == ""
    assert rows["v1"]["note"] == "alpha-beta-CROWN: unsat too late" and rows["v2"]["note"] == "alpha-beta-CROWN: stopped after 1 s"
    assert rows["v3"]["note"] == "alpha-beta-CROWN CONTRADICTS"


def test_a_peer_that_is_not_there(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.add("v1", "nets/acasxu/a.onnx")
    (place.fake.parent / "broken").touch()
    assert place.run() == search.NO_PEER
    assert "does not run in" in (said := capsys.readouterr().err) and "No module named 'onnx2pytorch'" in said
    place.python.unlink()
    with pytest.raises(SystemExit):
        place.run()
    assert "No such file" in capsys.readouterr().err
    place.fake.unlink()
    assert place.run() == search.NO_PEER and "is not installed in" in capsys.readouterr().err
    assert not place.out.exists()


def test_a_sample_is_spread_and_mixed() -> None:
    rows = [{"id": f"a{k}", "net": "nets/acasxu/x.onnx"} for k in range(6)] + [{"id": "b", "net": "nets/mnist_fc/mnist-net_256x2.onnx"}]
    assert [r["id"] for r in search.sample(rows, 3)] == ["a0", "b", "a2", "a4"]
    assert {family(r) for r in search.sample(rows, 1)} == {"acasxu", "256x2"}


def test_configurations_are_the_families() -> None:
    for net, file in (
        ("mnist_fc/mnist-net_256x2.onnx", "vnncomp22/mnistfc_small.yaml"),
        ("mnist_fc/mnist-net_256x4.onnx", "vnncomp22/mnistfc.yaml"),
        ("sri_resnet_a/resnet_3b2.onnx", "vnncomp22/resnet_A.yaml"),
        ("generated_props/mnist_relu_5_100.onnx", "vnncomp21/eran_mlp.yaml (nearest)"),
        ("generated_props/mnist_colt_0.1.onnx", "vnncomp22/cifar2020_2_255.yaml (nearest)"),
    ):
        assert config(Path("nets") / net) == file
    words = AlphaBetaCrown(Path("p"), "python").command(Path("/f/cora/x.onnx"), Path("/f/cora/y.vnnlib"), 9.0)
    assert words[0] == "python" and words[words.index("--config") + 1].endswith("/complete_verifier/exp_configs/vnncomp25/cora.yaml")


@pytest.mark.slow
def test_polytriton_answers_as_it_is_read(tmp_path: Path) -> None:
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [1, 2]), ("y", [1, 1]))]
    weights = [numpy_helper.from_array(np.ones((2, 1), np.float32), "w")]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", ends[:1], ends[1:], weights)
    net, spec = tmp_path / "n.onnx", tmp_path / "p.vnnlib"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), net)
    box = "".join(f"(declare-const X_{i} Real)(assert (>= X_{i} 0))(assert (<= X_{i} 1))" for i in range(2))
    for bound, verdict in ((3, "unsat"), (1, "sat")):
        spec.write_text(f"{box}(declare-const Y_0 Real)(assert (>= Y_0 {bound}))")
        turn = search_side.run_turn(OurSearch(1), net, spec, 30.0, 1)
        assert turn.verdict == verdict and turn.seconds is not None and turn.seconds < turn.wall, turn
    net.write_bytes(b"no network")
    turn = search_side.run_turn(OurSearch(1), net, spec, 30.0, 1)
    assert turn.verdict == search_side.ERROR and turn.note.startswith("polytriton: "), turn
