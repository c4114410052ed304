"""`run --batch`: images proved together answer as they do alone, and what a batch cannot do is said or asked one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polytriton.api import Verifier
from polytriton.frontend.query import Property
from polytriton.runs.asker import Asker, Begun, Networks, Settings
from polytriton.runs.choose import GPU_BATCH, make_engine
from polytriton.runs.local import Local
from polytriton.runs.queries import Asked, Ball, Query, vnnlib_query
from polytriton.runs.records import Record
from polytriton.runs.task import Backlog, Done, Job, Task, Turn
from tests.cli.conftest import Cli
from tests.cli.test_run import records as as_written


def records(path: str) -> list[dict[str, Any]]:
    """In the order of the images; a batch's lie in the order in which they were decided."""
    return sorted(as_written(path), key=lambda r: r["property"])


def balls(here: Path) -> Path:
    """Six images: proved, falsified and misclassified ones, some of them twice."""
    pixels = np.random.default_rng(3).integers(0, 256, (6, 1, 2, 2)).astype(np.uint8)
    pixels[4] = pixels[0]
    labels = pixels.reshape(6, 4)[:, :3].argmax(1)
    labels[5] = (labels[5] + 1) % 3
    np.savez(here / "b.npz", images=pixels, labels=labels)
    return here / "b.npz"


def comparable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in r.items() if k not in ("seconds", "statistics", "margins", "margin", "counterexample")} for r in rows]


@pytest.mark.parametrize("batch", [2, 4, 100])
def test_a_batch_of_images_answers_as_one_by_one(cli: Cli, poly: Path, here: Path, batch: int) -> None:
    asked = ["run", poly, "--images", balls(here), "--epsilon", "20/255", "--clip", "0,1", "--json"]
    assert cli(*asked, "one.jsonl").code == 0
    said = cli(*asked, "many.jsonl", "--batch", batch)
    assert said.code == 0 and "6 queries" in said.out
    one, many = records("one.jsonl"), records("many.jsonl")
    assert comparable(one) == comparable(many)
    assert {"unsat", "sat"} <= {r["verdict"] for r in one}
    assert any(r["note"] for r in one)
    for a, b in zip(one, many, strict=True):
        if a["verdict"] == "unsat":
            assert a["margins"] == pytest.approx(b["margins"], rel=1e-5)
            assert a["statistics"] and not b["statistics"]  # the proof of a batch is no image's own
    again = cli(*asked, "many.jsonl", "--batch", batch, "--resume")
    assert "6 from an earlier run" in again.out


def test_a_batch_with_radii_and_a_later_start(cli: Cli, poly: Path, here: Path) -> None:
    asked = ["run", poly, "--images", balls(here), "--epsilon", "20/255", "--start", "1", "--certify-radius", "--json"]
    assert cli(*asked, "one.jsonl").code == cli(*asked, "many.jsonl", "--batch", "3").code == 0
    one, many = ([(r["property"], r["verdict"], r["radius"]["proved"]) for r in records(f)] for f in ("one.jsonl", "many.jsonl"))
    assert one == many and one[0][0] == "b[1]"


def test_what_fails_in_a_batch_is_asked_alone(
    cli: Cli, poly: Path, here: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error belongs to its image: the others are answered."""
    real = Ball.read

    def asked(ball: Ball, verifier: Verifier, name: str) -> Asked:
        if name == "b[1]":
            raise MemoryError
        return real(ball, verifier, name)

    monkeypatch.setattr(Ball, "read", asked)
    caplog.set_level("DEBUG", "polytriton")
    said = cli("run", poly, "--images", balls(here), "--epsilon", "20/255", "--json", "r.jsonl", "--batch", "4")
    got = records("r.jsonl")
    assert "images are asked one by one" in caplog.text
    assert said.code == 2 and [r["verdict"] == "error" for r in got] == [k == 1 for k in range(6)]
    assert all(r["statistics"] for r in got[:4] if r["verdict"] == "unsat") and not any(r["statistics"] for r in got[4:])


@pytest.mark.parametrize(
    "extra, word",
    [
        (["--batch", "0"], "out of range"),
        (["--batch", "4", "--timeout", "5"], "exclude each other"),
        (["--batch", "4", "--workers", "2"], "one worker"),
        (["--batch", "4", "--engine", "processes"], "one worker"),
    ],
)
def test_batches_that_cannot_be(cli: Cli, poly: Path, here: Path, extra: list[str], word: str) -> None:
    said = cli("run", poly, "--images", balls(here), "--epsilon", "0.1", *extra)
    assert said.code == 2 and word in said.err
    said = cli("run", poly, "--vnnlib", "safe.vnnlib", "--batch", "4")
    assert said.code == 2 and "--batch belongs to --images" in said.err


# ---- what is taken together --------------------------------------------------------------------------------------


NOTHING = Property.from_disjuncts("nothing", 4, 3, ())


def ball(name: str) -> Query:
    return Query("net", name, Ball(b"\0" * 4, "|u1", (1, 2, 2), "1/10"))


def task(k: int, query: Query | None, network: str = "net", timeout: float | None = None) -> Task:
    blank = None if query is None else Record(network=network, property=query.name, verdict="error", timeout=timeout)
    return Task(Turn(k, query is not None), Job(network, query, blank))


def names(tasks: list[Task]) -> list[str]:
    return ["open" if t.job.query is None else t.job.query.name for t in tasks]


def test_a_batch_is_of_neighbours_that_are_images_without_a_limit() -> None:
    backlog = Backlog()
    file = vnnlib_query(Path("net"), Path("p.vnnlib"))
    asked = [None, *[ball(f"i{k}") for k in range(5)], file, ball("i5"), ball("slow"), ball("i6")]
    for k, query in enumerate(asked):
        backlog.put(task(k, query, timeout=9.0 if query is not None and query.name == "slow" else None))
    backlog.put(task(99, ball("other"), "another"))
    taken = []
    while backlog:
        taken.append(names(backlog.take_batch(3)))
    assert taken == [["open"], ["i0", "i1", "i2"], ["i3", "i4"], ["p"], ["i5"], ["slow"], ["i6"], ["other"]]


@pytest.mark.parametrize(
    "device, given, size", [("cpu", None, 1), ("interpret", None, 1), ("cpu", 7, 7), ("cuda", None, GPU_BATCH), ("cuda:0,cuda:1", 5, 5)]
)
def test_gpus_are_given_batches_unasked(device: str, given: int | None, size: int) -> None:
    engine = {"device": device, "memory": 1 << 30}
    asker = Asker(Networks(engine), Settings(engine))
    asked: list[int] = []

    def together(queries: Sequence[Query]) -> Iterator[tuple[int, Begun]]:
        """The last is known first, and then something fails."""
        asked.append(len(queries))
        yield len(queries) - 1, Begun(Asked(NOTHING))

    asker.together = together  # type: ignore[method-assign]
    asker.answer = lambda query, blank, begun=None: query.name  # type: ignore[assignment,misc,return-value]
    work = make_engine("auto", asker, queries=GPU_BATCH + 3, workers=1, batch=given)
    assert isinstance(work, Local)
    for k in range(GPU_BATCH + 3):
        work.submit(task(k, ball(f"i{k}")))
    events = list(work.events())
    done = [e.task.turn.query for e in events if isinstance(e, Done)]
    assert sorted(done) == list(range(GPU_BATCH + 3)) and done[:2] == ([size - 1, 0] if size > 1 else [0, 1])
    assert set(asked[:1]) == ({size} if size > 1 else set())


def test_a_batch_by_kernels(here: Path, cli: Cli, poly: Path) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    asked = ["run", poly, "--images", balls(here), "--epsilon", "20/255", "--clip", "0,1", "--json"]
    assert cli(*asked, "one.jsonl").code == cli(*asked, "many.jsonl", "--device", "interpret", "--batch", "6").code == 0
    one, many = ([(r["property"], r["verdict"], r["note"]) for r in records(f)] for f in ("one.jsonl", "many.jsonl"))
    assert one == many
