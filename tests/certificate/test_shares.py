"""`check --workers`: the same verdict and margins whatever the number of processes; a lost one is never an `unsat`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from polytriton import checker
from polytriton.certificate.write import pack
from polytriton.cli import main
from polytriton.commands import shares
from polytriton.errors import ResourceError
from polytriton.workers.process import JobFailed, Process, WorkerLost
from tests.certificate.models import prop, random_tree
from tests.certificate.nodes import Node
from tests.processes import plain_environment
from tests.prove.piecewise import drawn

Files = tuple[Path, Path, Path]


def silent(*_: Any) -> None:
    pass


def tree(kind: str, lo: list[float], hi: list[float], depth: int = 0) -> Node:
    """255 nodes: the first piece is refuted below two divisions, the second in the leaves."""
    node = Node(0 if depth in (2, 7) else -1, 0, [(0, 0)] if depth == 2 else [(1, 0)] if depth == 7 else [])
    if depth < 7:
        i = depth % 3
        middle = (lo[i] + hi[i]) / 2
        ends = (lo, [middle if j == i else v for j, v in enumerate(hi)]), ([middle if j == i else v for j, v in enumerate(lo)], hi)
        below = [tree(kind, *(side if kind == "cuts" else (lo, hi)), depth + 1) for side in ends]
        node.divide(i if kind == "cuts" else 3 + depth, middle if kind == "cuts" else 0.0, *below)
    return node


@pytest.fixture(scope="module", params=["cuts", "signs"])
def large(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Files:
    """A certificate of two boxes whose trees are worth dividing."""
    folder = tmp_path_factory.mktemp(request.param)
    onnx.save(drawn(np.random.default_rng(6), 3, (6, 6)).model(), path := folder / "n.onnx")
    parts = []
    for lo in (-1, -0.5):
        ends = " ".join(f"(>= X_{i} {lo}) (<= X_{i} 1)" for i in range(3))
        parts += [f"(and {ends} {row})" for row in ("(<= Y_0 -2000)", "(>= Y_0 1000)")]
    text = prop(folder / "p.vnnlib", [(-1, 1)] * 3, 1, f"(or {' '.join(parts)})")
    trees = [tree(request.param, [lo] * 3, [1.0] * 3).arrays(b) for b, lo in enumerate((-1.0, -0.5))]
    (folder / "c.cert").write_bytes(pack(trees, "real", checker.load(path, text)[2]))
    return path, text, folder / "c.cert"


def test_shares_are_all_leaves_once(large: Files) -> None:
    rng = np.random.default_rng(0)
    trees = checker.plain(checker.open_files)(*large)[3]
    some = [trees, [trees[0]] * 200, [checker.Tree(random_tree(rng, 3, 12, 1, 9).arrays()) for _ in range(30)]]
    for forest in some:
        made = shares.divide(forest)
        assert 1 <= len(made) <= shares.MOST
        for b, one in enumerate(forest):
            leaves = np.concatenate([s[b] for s in made if b in s])
            assert sorted(leaves.tolist()) == np.flatnonzero(one.child < 0).tolist()
    assert len(shares.divide(trees)) > 3
    assert len(shares.divide([checker.Tree(Node(0).arrays())])) == 1


@pytest.mark.slow
def test_every_number_of_processes_says_the_same(large: Files) -> None:
    whole = checker.check(*large)
    seen: list[int] = []
    found = [shares.confirm(*large, n, lambda _, done, total: seen.append(done)) for n in (1, 2, 3)]
    assert found[0] == found[1] == found[2]
    assert (found[0].semantics, found[0].nodes, found[0].leaves) == (whole.semantics, whole.nodes, whole.leaves)
    np.testing.assert_allclose(found[0].margins, whole.margins, rtol=1e-6)
    assert max(seen) == whole.nodes


def test_a_refusal_is_one_whoever_meets_it(large: Files, tmp_path: Path) -> None:
    meta, tensors = checker.read(large[2].read_bytes())
    last = tensors[-1] | {"row": tensors[-1]["row"].copy()}
    last["row"][-1] = 7
    hashes = {k: meta[k] for k in ("onnx", "vnnlib")}
    (bad := tmp_path / "bad.cert").write_bytes(pack([*tensors[:-1], last], meta["semantics"], hashes))
    for n in (1, 2):
        with pytest.raises(checker.Refused, match="a row that is none"):
            shares.confirm(*large[:2], bad, n, silent)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("when", [0, 1, 2])
def test_a_killed_process_is_an_error(large: Files, monkeypatch: pytest.MonkeyPatch, when: int) -> None:
    """While the files are read, or in the middle of the shares; the other processes end too."""
    children, exchange, met = list[Process](), Process.exchange, 0

    def killing(child: Process, data: bytes) -> bytes:
        nonlocal met
        children.append(child)
        met += 1
        if met > when * 2:
            os.kill(child.pid or 0, signal.SIGTERM)
        return exchange(child, data)

    monkeypatch.setattr(Process, "exchange", killing)
    with pytest.raises(ResourceError, match="a process of the check is lost: it was killed by SIGTERM"):
        shares.confirm(*large, 2, silent)
    assert not any(child.alive() for child in children)


def test_a_share_that_nobody_answers_for_is_no_proof(large: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    here = shares._here
    monkeypatch.setattr(shares, "_here", lambda *a: (x for k, x in enumerate(here(*a)) if k != 1))
    with pytest.raises(RuntimeError, match="looked at by nobody"):
        shares.confirm(*large, 1, silent)
    monkeypatch.setattr(shares, "_here", lambda *a: (x for x in here(*a) for _ in (0, 1)))
    with pytest.raises(RuntimeError, match="confirmed before"):
        shares.confirm(*large, 1, silent)


def test_a_process_that_looks_elsewhere_is_an_error(large: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = Process.exchange

    def other(child: Process, data: bytes) -> bytes:
        back = exchange(child, data)
        if not back:
            return back
        told = json.loads(back)
        box = next(iter(told["leaves"]))
        told["leaves"][box] = told["leaves"][box][1:]
        return json.dumps(told).encode()

    monkeypatch.setattr(Process, "exchange", other)
    with pytest.raises(RuntimeError, match="other leaves"):
        shares.confirm(*large, 2, silent)


def test_processes_end_with_an_interrupt(large: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    started, start = list[Process](), Process.start
    monkeypatch.setattr(Process, "start", lambda child: (started.append(child), start(child))[1])

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shares.confirm(*large, 2, interrupt)
    assert len(started) == 2 and not any(child.alive() for child in started)


def test_the_far_end_reports_what_it_cannot_do(large: Files) -> None:
    files = [shares.Snapshot(f.read_bytes(), f.suffix) for f in large]
    torn = [files[0], files[1], shares.Snapshot(b"none", "")]
    answer = shares.handler()
    with pytest.raises(checker.Refused):
        answer(shares._pack(torn))
    assert answer(shares._pack(files)) == b""
    with pytest.raises(IndexError):
        answer(b"100")
    told = json.loads(answer(b"0"))
    assert min(m for some in told["margins"].values() for m in some) > 0
    assert isinstance(shares._rebuild_error(WorkerLost("was killed")), ResourceError)
    met = [shares._rebuild_error(JobFailed(kind, "why")) for kind in ("Refused", "Unsupported", "MemoryError", "KeyError")]
    assert [type(error) for error in met] == [checker.Refused, shares.Unsupported, MemoryError, RuntimeError]


def test_the_command(large: Files, capfd: pytest.CaptureFixture[str]) -> None:
    found = []
    for n in ("1", "2"):
        assert main(["check", *map(str, large), "--workers", n, "--json"]) == 0
        found.append(json.loads(capfd.readouterr().out))
    assert found[0] | {"seconds": 0} == found[1] | {"seconds": 0}
    assert main(["check", *map(str, large), "--workers", "0"]) == 2
    assert main(["check", *map(str, large), "--workers", "2", "--sample", "2"]) == 2
    assert main(["check", str(large[0].parent), "--workers", "2"]) == 2


@pytest.mark.slow
def test_processes_need_no_guard_of_the_caller(large: Files, tmp_path: Path) -> None:
    """They are fresh interpreters that import one module: a script without `if __name__ == "__main__"` starts them once."""
    (script := tmp_path / "script.py").write_text(
        "import sys; from pathlib import Path; from polytriton.commands.shares import confirm\n"
        "print(confirm(*map(Path, sys.argv[1:]), 2, lambda *_: None).nodes)\n"
    )
    began = time.monotonic()
    env = plain_environment()
    said = subprocess.run([sys.executable, str(script), *map(str, large)], capture_output=True, text=True, env=env, timeout=120)
    assert said.stdout == f"{checker.check(*large).nodes}\n", said.stderr
    assert time.monotonic() - began < 60
