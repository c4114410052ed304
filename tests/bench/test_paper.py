"""The paper's evaluation: its rows, the images, the training, and the command from nothing to a page."""

from __future__ import annotations

import csv
import gzip
import json
import re
import shutil
import struct
from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import prod
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from bench import zoo
from bench.paper import standins
from bench.paper.__main__ import main
from bench.paper.ask import BOXES, Answers, Question, ask
from bench.paper.images import drawn_shapes, enlarged_digits, images_for
from bench.paper.rows import EVERY, METHODS, PARTS, ROWS, Training
from bench.paper.tables import Measured
from polytriton.errors import UsageError

RADII = {
    "mnist-6x500": "8/255", "mnist-convbig": "3/10", "mnist-convsuper": "8/255", "mnist-ibplarge-0.2": "129/500",
    "mnist-ibplarge-0.4": "3/10", "cifar-6x500": "1/500", "cifar-convbig": "8/255", "cifar-convlarge": "8/255",
    "cifar-ibplarge-2": "2/255", "cifar-ibplarge-8": "8/255",
    "resnettiny-pgd": "1/500", "resnet18-pgd": "1/500", "resnettiny-diffai": "8/255", "skipnet18-diffai": "8/255",
    "resnet18-diffai": "8/255", "resnet34-diffai": "8/255",
}  # fmt: skip


def test_rows_are_the_papers() -> None:
    assert {k: str(r.epsilon) for k, r in ROWS.items()} == RADII
    assert {r.zoo for r in ROWS.values()} == set(zoo.NETS)
    for row in ROWS.values():
        assert row.epsilon in {e for kind in zoo.KINDS for e in zoo.radii(row.zoo, kind)} | {zoo.SECOND.get(row.zoo)}
        assert row.crown_ibp <= row.verified <= row.candidates <= row.images
        assert row.deeppoly is None or row.deeppoly[1] <= row.deeppoly[0] <= 500
    assert all(set(rows) <= EVERY.keys() for _, rows in PARTS.values())
    for name in zoo.NETS:  # both kinds of every shape
        assert len({r.training == "robust" for r in EVERY.values() if r.zoo == name}) == 2, name
    assert set(PARTS["table2"][1]) | set(PARTS["table4"][1]) == ROWS.keys()


def test_images_travel_with_the_project() -> None:
    for make, shape in ((enlarged_digits, (1, 28, 28)), (partial(drawn_shapes, 0, 500), (3, 32, 32))):
        a, b = make(), getattr(make, "__wrapped__", make)()
        assert a.held.shape[1:] == a.train.shape[1:] == shape and a.held.dtype == np.uint8 and len(a.held) == 400
        assert np.array_equal(a.held, b.held) and np.array_equal(a.train_labels, b.train_labels)
        assert set(a.held_labels) == set(a.train_labels) == set(range(10))
        assert a.held.min() == 0 and a.held.max() > 250


def test_a_folder_without_the_published_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="train-images"):
        images_for("mnist", tmp_path)


def test_the_published_files_are_read_once(tmp_path: Path) -> None:
    """As torchvision leaves them: packed and unpacked, training and test ones beside each other."""
    raw, sizes = tmp_path / "MNIST" / "raw", {"train": 7, "t10k": 3}
    raw.mkdir(parents=True)
    for side, count in sizes.items():
        for what, axes in (("images-idx3", (count, 28, 28)), ("labels-idx1", (count,))):
            data = struct.pack(f">4B{len(axes)}I", 0, 0, 8, len(axes), *axes) + bytes(k % 10 for k in range(prod(axes)))
            (raw / f"{side}-{what}-ubyte").write_bytes(data)
            (raw / f"{side}-{what}-ubyte.gz").write_bytes(gzip.compress(data))
    held = images_for("mnist", tmp_path)
    assert held.name == "MNIST" and held.train.shape == (7, 1, 28, 28) and held.held.shape == (3, 1, 28, 28)
    assert held.train_labels.tolist() == list(range(7)) and held.held_labels.tolist() == [0, 1, 2]
    other = tmp_path / "FashionMNIST" / "raw"
    shutil.copytree(raw, other)
    with pytest.raises(UsageError, match="name the folder of one set"):
        images_for("mnist", tmp_path)
    batches = tmp_path / "cifar-10-batches-bin"
    batches.mkdir()
    for name, labels in (("data_batch_1", (4, 5)), ("data_batch_2", (6,)), ("test_batch", (7,))):
        (batches / f"{name}.bin").write_bytes(b"".join(bytes([v]) + bytes(3072) for v in labels))
    held = images_for("cifar", tmp_path)
    assert held.train_labels.tolist() == [4, 5, 6] and held.held.shape == (1, 3, 32, 32) and held.name == "CIFAR-10"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quick part's shapes with twelve neurons, and one of each way of training."""
    monkeypatch.setitem(zoo.NETS, "mnist-6x500", (zoo.MNIST, lambda *shape: zoo.Stack(*shape).dense(12), "22"))
    monkeypatch.setitem(zoo.NETS, "cifar-6x500", (zoo.CIFAR, lambda *shape: zoo.Stack(*shape).conv(2, 4, 4, 0).dense(12), "150"))


@pytest.mark.parametrize("training", ["normal", "robust", "pgd"])
def test_training_learns_and_repeats_itself(small: None, training: Training) -> None:
    row = replace(ROWS["mnist-6x500"], training=training, epsilon=Fraction(1, 100))
    images = enlarged_digits()
    images = replace(images, train=images.train[:500], train_labels=images.train_labels[:500])
    nets = [standins.train(row, images, 1000) for _ in range(2)]
    right = standins.accuracy(nets[0], images.held, images.held_labels)
    assert right > 0.25 and right == standins.accuracy(nets[1], images.held, images.held_labels)
    x = standins.scale(images.held[:5])
    lo, hi = nets[0].intervals(x - 0.01, x + 0.01)
    y = nets[0].values(x)
    assert ((lo <= y + 1e-5) & (y <= hi + 1e-5)).all()


def test_interval_bounds_in_the_loss_teach_drawn_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A set whose classes are told apart by nothing that a box keeps leaves such a network guessing."""
    monkeypatch.setitem(zoo.NETS, "cifar-6x500", (zoo.CIFAR, lambda *shape: zoo.Stack(*shape).dense(40, 40), "90"))
    row, images = EVERY["cifar-6x500-robust"], drawn_shapes(0, 600)
    net = standins.train(row, images, 1600)
    assert standins.accuracy(net, images.held, images.held_labels) > 0.7
    x, y, epsilon = standins.scale(images.held), torch.from_numpy(images.held_labels), float(row.epsilon)
    with torch.inference_mode():
        lo, hi = net.intervals((x - epsilon).clamp(0, 1), (x + epsilon).clamp(0, 1))
    worst = torch.where(torch.nn.functional.one_hot(y, 10).bool(), lo, hi)
    assert float((worst.argmax(1) == y).float().mean()) > 0.4


def test_robust_networks_begin_with_boxes_as_wide_as_they_come(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through layers, strides and sums; random weights would widen them at every layer."""
    stack = lambda *shape: zoo.Stack(*shape).conv(4, 3, 1, 1).block("a", 4, 1, "identity").block("b", 8, 2, "conv").dense(20)  # noqa: E731
    monkeypatch.setitem(zoo.NETS, "cifar-6x500", (zoo.CIFAR, stack, "150"))
    net = standins.StandIn(replace(ROWS["cifar-6x500"], training="robust"), 0)
    net.params[net.layers[-1].name][0].data.fill_(1 / 20)  # the mean of the last neurons
    x = standins.scale(drawn_shapes(0, 10).held[:5])
    lo, hi = net.intervals(x - 0.02, x + 0.02)
    assert float((hi - lo).max()) <= 0.0401 and float((hi - lo).min()) > 0.005
    assert torch.allclose(net.values(x), (lo + hi) / 2, atol=0.021) and float(net.values(x).std()) > 0


@pytest.mark.slow
def test_the_command_from_nothing_to_a_page_and_on(small: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["quick", "--images", "6", "--budget", "2", "--seen", "2000", "--out", str(tmp_path)]
    assert main(line) == 0
    out = capsys.readouterr().out
    assert out.startswith("| network | radius | method |") and "| mnist-6x500 | 8/255 | CR-IBP |" in out
    rows = list(csv.DictReader((tmp_path / "paper.csv").open()))
    assert {r["method"] for r in rows} == set(METHODS) and {r["row"] for r in rows} == set(PARTS["quick"][1])
    for r in rows:
        assert int(r["verified"]) <= int(r["candidates"]) <= int(r["images"]) <= 6
    best = {(r["row"], r["radius"]): int(r["verified"]) for r in rows if r["method"] == "polytriton"}
    assert all(int(r["verified"]) <= best[r["row"], r["radius"]] for r in rows), "nothing proves more than what contains it"
    mine = [r for r in rows if r["row"] == "mnist-6x500" and r["method"] == "polytriton"]
    assert 0 < int(mine[-1]["verified"]) < int(mine[-1]["candidates"]), "the paper's radius, or a stated one, tells something"
    assert [r["stated"] for r in mine] == ["0", "1"][: len(mine)]
    answers = (tmp_path / "answers.jsonl").read_text()
    with (tmp_path / "answers.jsonl").open("a") as f:
        f.write('{"row": "cut')
    nets = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "nets").iterdir()}
    assert main(line) == 0
    assert (tmp_path / "answers.jsonl").read_text() == answers, "the second run asked nothing, and dropped what was cut"
    assert {p.name: p.stat().st_mtime_ns for p in (tmp_path / "nets").iterdir()} == nets
    page = (tmp_path / "paper.html").read_text()
    proved = {row for (row, _), count in best.items() if count}  # a curve is of what was proved
    assert "9,844" in page and "7,291" in page and page.count("<svg") >= len(proved) >= 1 and "not asked for" in page
    ids = set(re.findall(r'id="([\w-]+)"', page))
    assert set(re.findall(r'href="#([\w-]+)"', page)) <= ids


def test_a_network_made_otherwise_is_made_again(small: None, tmp_path: Path) -> None:
    images = enlarged_digits()
    first = standins.make(ROWS["mnist-6x500"], images, tmp_path, 320)
    assert standins.make(ROWS["mnist-6x500"], images, tmp_path, 320) == first
    (tmp_path / "mnist-6x500.onnx").write_bytes(b"broken")
    assert standins.make(ROWS["mnist-6x500"], images, tmp_path, 320)["sha256"] == first["sha256"]
    assert json.loads((tmp_path / "mnist-6x500.json").read_text())["data"] == images.name
    longer = standins.make(ROWS["mnist-6x500"], images, tmp_path, 640)
    assert longer["seen"] == 640
    assert standins.make(ROWS["mnist-6x500"], images, tmp_path, most=320) == longer, "where nobody says how long, what is there is taken"
    (tmp_path / "mnist-6x500.onnx").unlink()
    assert standins.make(ROWS["mnist-6x500"], images, tmp_path, most=320)["seen"] == 320


def test_answers_survive_an_end_in_the_middle_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    told = {"row": "r", "sha256": "s", "method": "m", "radius": "1", "image": 0, "verdict": "unsat", "seconds": 1.0, "margin": 1.0}
    told["boxes"] = BOXES
    path.write_text(json.dumps(told) + "\n" + json.dumps(told)[:30])
    held = Answers(path)
    assert len(held.held) == 1
    held.add(held.held[0])
    assert len(Answers(path).held) == 2


@pytest.mark.parametrize("method", METHODS)
def test_balls_hold_images_alone(method: str, tmp_path: Path) -> None:
    """The darkest pixel lies 1/20 above where the label changes, and the brightest as much below: outside [0, 1], no images lie there."""
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", ["N", 1, 1, 2]), ("y", ["N", 2]))]
    numbers = {"w": [[1.0, 0.0], [0.0, -1.0]], "b": [0.05, 1.05]}
    nodes = [helper.make_node("Flatten", ["x"], ["f"]), helper.make_node("Gemm", ["f", "w", "b"], ["h"])]
    nodes += [helper.make_node("Relu", ["h"], ["r"]), helper.make_node("Gemm", ["r", "v"], ["y"])]
    held = [helper.make_tensor(k, TensorProto.FLOAT, np.shape(v), np.ravel(v)) for k, v in numbers.items()]
    held.append(helper.make_tensor("v", TensorProto.FLOAT, [2, 2], [1.0, 0.0, 1.0, 0.0]))
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), tmp_path / "n.onnx")
    q = Question("r", tmp_path / "n.onnx", "s", method, Fraction(1, 10), 1, 60.0)
    levels, labels = np.array([[[[0, 255]]]], np.uint8), np.array([0])
    (answer,) = ask(q, levels, labels, Answers(tmp_path / "a.jsonl"))
    assert answer.proved and 0.09 < answer.margin < 0.11
    kept = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    (tmp_path / "old.jsonl").write_text("".join(json.dumps({k: v for k, v in line.items() if k != "boxes"}) + "\n" for line in kept))
    old = Answers(tmp_path / "old.jsonl")
    assert not old.held, "it does not say that it was asked about images alone"
    assert len(list(ask(q, levels, labels, old))) == 1 and len((tmp_path / "old.jsonl").read_text().splitlines()) == 2


def test_what_is_not_proved_within_the_limit_is_not_proved(small: None, tmp_path: Path) -> None:
    """It is a candidate, unlike what the budget had no time for; who gives it more time asks again."""
    row, images = ROWS["mnist-6x500"], enlarged_digits()
    about = standins.make(row, images, tmp_path, 640)
    q = Question(row.key, tmp_path / "mnist-6x500.onnx", about["sha256"], "polytriton", Fraction(1, 1000), 5, 60.0, limit=1e-9)

    def verdicts(q: Question) -> list[str]:
        return [a.verdict for a in ask(q, images.held, images.held_labels, Answers(tmp_path / "a.jsonl"))]

    at_once = verdicts(q)
    assert len(at_once) == 5 and set(at_once) <= {"timeout", "wrong"} and "timeout" in at_once
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    assert verdicts(q) == at_once and (tmp_path / "a.jsonl").read_text().splitlines() == lines, "they stand"
    held = Measured(row, about, q.method, str(q.radius), False, Answers(tmp_path / "a.jsonl").select(*q.key()))
    assert len(held.candidates) == at_once.count("timeout") and held.verified == 0 and "not proved within 0 s" in held.note
    later = verdicts(replace(q, limit=60.0))
    assert "unsat" in later and [v == "wrong" for v in later] == [v == "wrong" for v in at_once]
    assert verdicts(q) == later == verdicts(replace(q, limit=None)), "what is decided stands whatever the limit"


@pytest.mark.parametrize("line", [["table9"], ["--limit", "0"], ["--near", "0"], ["--near", "1/0"], ["--near", "2"], ["--near", "x"]])
def test_wrong_usage(line: list[str]) -> None:
    with pytest.raises(SystemExit) as e:
        main(line)
    assert e.value.code == 2
