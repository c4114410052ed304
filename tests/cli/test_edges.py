"""What people stumbled over: lists of networks, rows that join, and messages that led the wrong way."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import polytriton
from polytriton.errors import UsageError
from polytriton.frontend.images import load_images
from polytriton.frontend.instances import named_network, read_instances
from polytriton.pages.facts import facts
from polytriton.runs.records import Image, Record
from tests.cli import tiny
from tests.cli.conftest import Cli
from tests.cli.test_vnncomp import bash, script, vnnlib2


def rows_of(name: str) -> list[dict[str, str]]:
    with open(name, newline="") as file:
        return list(csv.DictReader(file))


# ---- the list of networks that the competition's harness passes -------------------------------------------------


def test_a_list_of_one_network(cli: Cli, here: Path) -> None:
    vnnlib2(here / "two.vnnlib", 0.1)
    for prop in ("safe.vnnlib", "two.vnnlib"):
        for more in ((), ("--prepare",)):
            said = cli("verify", "[('f', 'net.onnx')]", prop, *more)
            assert (said.code, said.out) == (0, "" if more else "unsat\n"), said.err
    said = cli("verify", "[('g', 'net.onnx')]", "two.vnnlib")
    assert (said.code, "calls its network f, not g" in said.err) == (2, True)
    said = cli("verify", "[('f', 'net.onnx'), ('g', 'net.onnx')]", "two.vnnlib")
    assert (said.code, "needs the networks f, given are f, g" in said.err) == (2, True)
    assert cli("verify", "[('f', 'net.onnx')]", "safe.vnnlib", "--timeout", "1e-9").out == "timeout\n"


def test_what_is_no_list_is_a_file() -> None:
    assert named_network("[odd] net.onnx") == ("", "[odd] net.onnx")
    assert named_network(" [('f','a/b.onnx')] ") == ("f", "a/b.onnx")
    for wrong in ("[]", "[('f', 'a'), ('f', 'b')]", "[('f', 1)]"):
        with pytest.raises(UsageError, match="is not understood"):
            named_network(wrong)
    with pytest.raises(UsageError, match="one network a query"):
        named_network("[('f', 'a'), ('g', 'b')]")


def test_a_list_of_instances_with_lists_of_networks(cli: Cli, here: Path) -> None:
    (here / "list.csv").write_text("\"[('f', 'net.onnx')]\",safe.vnnlib,60\n")
    assert read_instances(here / "list.csv")[0].onnx == here / "net.onnx"
    assert cli("run", "--instances", "list.csv", "--csv", "r.csv", "--vnncomp-csv", "o.csv", "--category", "t").code == 0
    (row,) = rows_of("r.csv")
    assert (row["onnx"], row["vnnlib"], row["verdict"]) == ("[('f', 'net.onnx')]", "safe.vnnlib", "unsat")


@bash
@pytest.mark.slow
def test_the_scripts_take_it(here: Path) -> None:
    for name, more in (("prepare_instance.sh", ()), ("run_instance.sh", ("out.txt", 60))):
        said = script(name, "v1", "tiny", "[('f', 'net.onnx')]", "safe.vnnlib", *more)
        assert said.returncode == 0, said.stderr
    assert (here / "out.txt").read_text() == "unsat\n"


# ---- rows that can be joined with the list ----------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_rows_name_both_files_as_listed(cli: Cli, here: Path, workers: int) -> None:
    folder = here / "bench"
    folder.mkdir()
    (folder / "net.onnx").write_bytes((here / "net.onnx").read_bytes())
    for k in (1, 2):
        (folder / str(k)).mkdir()
        with gzip.open(folder / str(k) / "same.vnnlib.gz", "wb") as packed:
            packed.write((here / "safe.vnnlib").read_bytes())
    (folder / "list.csv").write_text("net.onnx,./1/same.vnnlib,60\nnet.onnx,2/same.vnnlib,60\n")
    options = ("--workers", workers) if workers > 1 else ()
    assert cli("run", "--instances", "bench/list.csv", "--csv", "r.csv", *options).code == 0
    rows = rows_of("r.csv")
    assert sorted((r["onnx"], r["vnnlib"], r["property"]) for r in rows) == [
        ("net.onnx", "./1/same.vnnlib", "same"),
        ("net.onnx", "2/same.vnnlib", "same"),
    ]
    assert cli("run", "net.onnx", "--vnnlib", "bench/1/same.vnnlib.gz", "--csv", "s.csv").code == 0
    (row,) = rows_of("s.csv")
    assert (row["onnx"], row["vnnlib"]) == ("net.onnx", "bench/1/same.vnnlib.gz")


# ---- messages ---------------------------------------------------------------------------------------------------


def test_networks_that_take_channels_last(tmp_path: Path) -> None:
    images = np.random.default_rng(0).random((5, 3, 8, 6))
    np.savez(tmp_path / "i.npz", images=images)
    assert np.array_equal(load_images(tmp_path / "i.npz", shape=(8, 6, 3)).pixels, images.transpose(0, 2, 3, 1))
    np.savez(tmp_path / "i.npz", images=images.transpose(0, 3, 2, 1))
    with pytest.raises(UsageError) as said:
        load_images(tmp_path / "i.npz", shape=(8, 6, 3))
    assert "[image, 8, 6, 3]" in said.value.remedy
    assert "--layout" in said.value.remedy
    assert "C, H, W" not in said.value.remedy


@pytest.mark.parametrize("op", ["Tan", "Cosh", "LSTM"])
def test_curved_operators_are_not_told_to_simplify(op: str, tmp_path: Path) -> None:
    if op == "LSTM":
        weights = {"w": np.zeros((1, 8, 3)), "r": np.zeros((1, 8, 2))}
        nodes, shape = [helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=2, name="n")], [1, 1, 3]
    else:
        weights, nodes, shape = {}, [helper.make_node(op, ["x"], ["y"], name="n")], [1, 3]
    path = tiny.save(tmp_path / "net.onnx", nodes, shape, 3, weights)
    with pytest.raises(polytriton.PolytritonError) as said:
        polytriton.compile(path)
    assert "not supported" in said.value.message
    assert "ReLU" in said.value.remedy
    assert "onnxsim" not in said.value.remedy


def test_quantised_networks_are_refused_with_the_reason(tmp_path: Path) -> None:
    scale = {"s": np.float32(0.1), "z": np.int8(0)}
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]), helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"])]
    model = onnx.load(tiny.save(tmp_path / "net.onnx", nodes, [1, 3], 3, {}))
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in scale.items())
    with pytest.raises(polytriton.PolytritonError) as said:
        polytriton.compile(model)
    assert said.value.exit_code == 3 and "float network" in said.value.remedy
    assert all(word in said.value.message for word in ("QuantizeLinear rounds and saturates", "DequantizeLinear"))


@pytest.mark.parametrize(
    "name, data, word",
    [
        ("net.h5", b"\x89HDF\r\n\x1a\n" + bytes(99), "HDF5"),
        ("net.tflite", b"\x1c\0\0\0TFL3" + bytes(99), "TensorFlow Lite"),
        ("net.keras", b"PK\x03\x04" + bytes(99), "zip archive"),
        ("net.onnx.lfs", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "Git LFS"),
    ],
)
def test_other_formats_are_named(cli: Cli, here: Path, name: str, data: bytes, word: str) -> None:
    (here / name).write_bytes(data)
    said = cli("compile", name)
    assert said.code == 2
    assert word in said.err
    assert "ire format" not in said.err
    assert any(remedy in said.err for remedy in ("torch", "python -m tf2onnx.convert --", "git lfs pull"))
    if name.endswith(("h5", "tflite", "keras")):
        assert f"{name} --output net.onnx" in " ".join(said.err.split())
        assert ("pip install tf2onnx" in " ".join(said.err.split())) == (find_spec("tf2onnx") is None)


def test_missing_data_is_missing(cli: Cli, here: Path) -> None:
    model = onnx.load(here / "net.onnx")
    onnx.save(model, here / "big.onnx", save_as_external_data=True, location="big.data", size_threshold=0)
    assert cli("compile", "big.onnx").code == 0
    (here / "big.data").unlink()
    said = cli("compile", "big.onnx")
    assert said.code == 2
    assert "'big.data' is missing" in said.err


def test_the_least_memory_is_what_is_said(cli: Cli, here: Path) -> None:
    assert cli("verify", "net.onnx", "safe.vnnlib", "--memory", "1M").out == "unsat\n"
    assert "at least 1M" in cli("verify", "net.onnx", "safe.vnnlib", "--memory", "1K").err


def test_a_range_has_its_own_remedy(cli: Cli, poly: Path, here: Path) -> None:
    np.savez(here / "i.npz", images=np.zeros((1, 1, 2, 2)))
    for given in ("0..1", "0", "1,0", "x,y"):
        said = cli("run", poly, "--images", "i.npz", "--epsilon", "0.1", "--clip", given)
        assert (said.code, "--clip 0,1" in said.err, "8/255" in said.err) == (2, True, False)


def test_weights_alone_are_no_network() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(UsageError) as said:
        polytriton.compile(torch.nn.Linear(2, 2).state_dict())
    assert "give the module" in said.value.remedy


# ---- images that are misclassified ------------------------------------------------------------------------------


def _asked(cli: Cli, here: Path, labels: list[int]) -> str:
    np.savez(here / "i.npz", images=np.tile(np.reshape(tiny.BRIGHT, (1, 1, 2, 2)), (len(labels), 1, 1, 1)), labels=labels)
    said = cli("run", "net.onnx", "--images", "i.npz", "--epsilon", "0.01")
    assert said.code == 0
    return said.err


def test_all_misclassified_is_a_wrong_preprocessing(cli: Cli, here: Path) -> None:
    assert "preprocessing is probably not" in _asked(cli, here, [1, 2, 1])
    assert "preprocessing" not in _asked(cli, here, [1, 0, 1])
    assert "preprocessing" not in _asked(cli, here, [1])


def test_an_image_is_misclassified_once(tmp_path: Path) -> None:
    def record(k: int, epsilon: str, more: Mapping[str, str]) -> Record:
        return Record(network="n", property=f"i[{k}]", verdict="sat", epsilon=epsilon, image=Image("i.npz", k, [1]), **more)  # type: ignore[arg-type]

    wrong = {"note": "misclassified as 3"}
    records = [record(k, e, wrong if k < 15 else {}) for k in range(20) for e in ("0.1", "0.2", "0.3", "0.4")]
    assert facts(records).misclassified == 15
