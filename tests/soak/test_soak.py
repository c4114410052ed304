"""The soak's short form, and that the soak itself works: it finds planted faults, shrinks them, and loses nothing when killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from polytriton.ir.net import Node
from polytriton.runtime import planes, soundness, tables
from polytriton.runtime.forward import AffineParts, Boxes, Forward
from tests.soak.__main__ import main, summary
from tests.soak.case import HAS_TRITON, INTERPRET, POISON, VERSION, Case, GraphCase, draw, draw_any
from tests.soak.outcome import Outcome
from tests.soak.shards import Shard, append, attempt, keep, read_progress
from tests.soak.shrink import restore, shrink, store


def burst(seeds: range | list[int]) -> Outcome:
    total = Outcome()
    for seed in seeds:
        with np.errstate(all="ignore"):
            outcome, found = attempt(draw(seed))
        assert outcome is not None and not found, f"case {seed}: {found}; see python -m tests.soak --case {seed}"
        total.compared += outcome.compared
        total.finite += outcome.finite
        total.ratio = max(total.ratio, outcome.ratio)
    return total


def test_a_burst_of_cases() -> None:
    total = burst(range(1_000_000, 1_000_080))
    assert total.compared > 80 * 1000 / 3
    assert total.finite > 80 * 160 / 3
    assert 0.35 < total.ratio < 1, "executions come near the bounds, and stay inside"


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason="Triton has no wheels for this platform")
def test_cases_in_kernels() -> None:
    total = burst([7 + INTERPRET * k for k in range(2, 9)])  # two of them in interval arithmetic
    assert total.finite > 80


@pytest.mark.slow
@pytest.mark.parametrize("block", range(4))
def test_many_cases(block: int) -> None:
    """`make soak` draws as many as one likes."""
    burst(range(2_000_000 + 100 * block, 2_000_100 + 100 * block))


def test_drawing_is_repeatable_and_reaches_every_kind() -> None:
    seen: Counter[str] = Counter()
    for seed in range(600):
        case = draw(seed)
        seen.update([case.via, "poisoned" * case.poisoned, "mixed" * (case.over_input is not None), case.knobs["deployed"]])
        seen.update(f"{k}={v}" for k, v in case.knobs.items() if k != "deployed")
        seen.update({n.op for n in case.net})
        assert (case.lo <= case.hi).all()
    again = draw(599)
    assert again.net == case.net and np.array_equal(again.forms, case.forms) and again.knobs == case.knobs
    kinds = ("net", "public", "onnx", *["interpret"] * HAS_TRITON, "poisoned", "mixed", "float16", "tight=True", "loops=False")
    wanted = (*kinds, "conv", "maxpool", "gather")
    assert all(seen[w] for w in wanted), seen


@pytest.mark.slow
def test_graphs_of_functions_and_products_are_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And a planted fault in the planes of a product is found in one of them, shortened and kept."""
    graphs = [c for c in map(draw_any, range(200)) if isinstance(c, GraphCase)]
    assert len(graphs) == 20
    plain = planes.product_planes
    monkeypatch.setattr(tables, "product_planes", lambda *a: replace(p := plain(*a), upper_cut=p.upper_cut - 1e-3 * p.upper_cut.abs()))
    case, found = next((c, f) for c in graphs if (f := attempt(c)[1]))
    keep(case, found, tmp_path)
    kept = restore(tmp_path / "escapes" / str(case.seed))
    assert isinstance(kept, GraphCase) and kept.most <= case.most and attempt(kept)[1]
    assert main(["--replay", str(tmp_path / "escapes" / str(case.seed))]) == 1
    monkeypatch.undo()
    assert main(["--replay", str(tmp_path / "escapes" / str(case.seed))]) == 0


def test_networks_with_nan_or_infinity_are_refused() -> None:
    refused = [seed for seed in range(11, 12 * POISON, POISON) if (o := attempt(draw(seed))[0]) is not None and o.refused]
    assert len(refused) >= 3


def faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rounding of products is no longer charged."""
    plain = soundness.gammas
    monkeypatch.setattr(soundness, "gammas", lambda n, u: 0 * plain(n, u))


def test_a_planted_fault_is_found_shrunk_and_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    faulty(monkeypatch)
    seed = next(s for s in range(300) if len(draw(s).net.nodes) > 7 and attempt(draw(s))[1])
    case = draw(seed)
    small = shrink(case, lambda c: bool((found := attempt(c)[1]) and not found[0].startswith("Traceback")), patience=150)
    assert len(small.lo) == 1
    assert sum(n.size for n in small.net) < sum(n.size for n in case.net)
    kept = restore(store(small, ["planted"], tmp_path))
    assert kept.net == small.net
    assert all(np.array_equal(kept.net.weights[k], w) for k, w in small.net.weights.items())
    assert np.array_equal(kept.lo, small.lo) and np.array_equal(kept.forms, small.forms) and kept.knobs == small.knobs
    assert attempt(kept)[1]
    monkeypatch.undo()
    assert not attempt(kept)[1]


def test_the_balls_see_a_layer_that_loses_part_of_its_range(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Forward._affine

    def narrow(self: Forward, node: Node, boxes: Boxes, parts: AffineParts | None) -> None:
        plain(self, node, boxes, parts)
        hi = boxes.hi[node.name]
        hi -= 1e-9 * hi.abs()

    monkeypatch.setattr(Forward, "_affine", narrow)
    found = [e for seed in range(0, 80, 8) for e in attempt(draw(seed))[1]]
    assert any("loses part of the layer's range" in e for e in found)


# ---- the driver ------------------------------------------------------------------------------------------------------


def run(folder: Path, *more: str) -> int:
    threads = torch.get_num_threads()
    try:
        return main(["--networks", "6", "--first", "40", "--folder", str(folder), *more])
    finally:
        torch.set_num_threads(threads)


def test_a_run_resumes_and_repeats_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path) == 0
    first = (tmp_path / "progress.jsonl").read_text()
    said = capsys.readouterr().out
    assert "6 networks" in said and "escapes: 0" in said and "tightest: 0." in said
    assert run(tmp_path) == 0
    assert (tmp_path / "progress.jsonl").read_text() == first
    with (tmp_path / "progress.jsonl").open("a") as f:
        f.write('{"first": 46, "count"')  # killed while writing
    assert run(tmp_path, "--status") == 0
    assert (tmp_path / "progress.jsonl").read_text() == first
    (tmp_path / "progress.jsonl").write_text(first + first)  # two runs in one folder
    capsys.readouterr()
    assert run(tmp_path, "--status") == 0
    assert "6 networks" in capsys.readouterr().out


def test_an_escape_is_told_and_makes_the_exit_code_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = ["real %y exact: 1 wrong"]
    monkeypatch.setattr("tests.soak.shards.attempt", lambda case: (None, []) if case.seed != 42 else (Outcome(escapes=found), found))
    assert run(tmp_path) == 1
    said = capsys.readouterr()
    assert "escapes: 1 (cases 42)" in said.out and "case 42: real %y exact: 1 wrong" in said.err
    assert json.loads((tmp_path / "escapes" / "42" / "case.json").read_text())["found"] == found
    assert isinstance(restore(tmp_path / "escapes" / "42"), Case)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["tests.soak --networks", "tests.oracle.graphs --graphs"])
def test_two_processes_share_the_work(command: str, tmp_path: Path) -> None:
    """As `make soak` asks them: processes must find by name what they are to do."""
    given = [sys.executable, "-m", *command.split(), "4", "--jobs", "2", "--folder", str(tmp_path)]
    ran = subprocess.run(given, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0 and "4 " in ran.stdout and "0 escapes" in ran.stdout + ran.stderr, ran.stderr


def test_progress_of_another_generator_is_refused(tmp_path: Path) -> None:
    append(tmp_path / "progress.jsonl", Shard(0, 10, VERSION + 1))
    with pytest.raises(SystemExit, match="another version"):
        read_progress(tmp_path / "progress.jsonl", VERSION)


def test_summary_counts() -> None:
    shards = [Shard(0, 5, 1, [3], 0, 10, 8, 0.5, 2, 0.1), Shard(5, 5, 1, [], 1, 10, 8, 0.75, 6, 0.1)]
    assert summary(shards).splitlines()[1:] == ["escapes: 1 (cases 3)", "tightest: 0.750000 of the room for rounding used (case 6)"]
