"""Instance lists: networks, properties and timeouts from a CSV file."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from polytriton.errors import UsageError
from polytriton.frontend.instances import read_instances


def test_instance_lists(tmp_path: Path) -> None:
    for name in ("a.onnx", "p.vnnlib", "q.vnnlib.gz"):
        (tmp_path / name).write_text("")
    (tmp_path / "net.poly").mkdir()
    listing = tmp_path / "instances.csv"
    listing.write_text("a.onnx,p.vnnlib,116\n./a.onnx, q.vnnlib ,\n\n")
    first, second = read_instances(listing)
    assert (first.onnx.name, first.vnnlib.name, first.timeout, first.row) == ("a.onnx", "p.vnnlib", 116.0, 1)
    assert (second.vnnlib.name, second.timeout, second.row) == ("q.vnnlib.gz", None, 2)
    listing.write_text("id,spec,net\n1,p.vnnlib,a.onnx\n")
    assert read_instances(listing)[0].timeout is None
    for text, message in [
        ("", "lists no instances"),
        ("a.onnx,none.vnnlib,1\n", "none.vnnlib (line 1)"),
        ("a.onnx\n", "line 1: 1 column"),
        ("a.onnx;p.vnnlib;60\n", "line 1: 1 column"),
        ("p.vnnlib,a.onnx,60\n", "line 1: p.vnnlib stands where the network belongs"),
        ("q.vnnlib.gz,a.onnx,60\n", "q.vnnlib.gz stands where the network belongs"),
        ("net.poly,p.vnnlib,60\n", "net.poly is a folder"),
        ("a.onnx,p.vnnlib,soon\n", "no timeout"),
        ("a.onnx,p.vnnlib,-1\n", "no timeout"),
        ("net,spec\n", "lists no instances"),
    ]:
        listing.write_text(text)
        with pytest.raises(UsageError) as caught:
            read_instances(listing)
        assert message in caught.value.message
    with pytest.raises(UsageError):
        read_instances(tmp_path / "no.csv")


def test_published_instance_list(data: Path) -> None:
    found = read_instances(data / "instances.csv")
    with open(data / "instances.csv", newline="") as file:
        assert len(found) == len(list(csv.DictReader(file)))
