"""What is fuzzed: one target for each reader of foreign bytes. A run ends well or in a documented error; all else is a finding."""

from __future__ import annotations

import atexit
import gzip
import io
import json
import os
import pickle
import random
import re
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import msgspec
import numpy as np

import polytriton
from polytriton import artifact as A
from polytriton import checker
from polytriton.certificate.write import pack
from polytriton.commands.opt import invent, run_passes
from polytriton.errors import INTERNAL, ArtifactError, PolytritonError
from polytriton.frontend.images import load_images
from polytriton.frontend.instances import read_instances
from polytriton.frontend.onnx import load_onnx
from polytriton.frontend.vnnlib import read_vnnlib
from polytriton.ir.check import check_net, check_plan
from polytriton.ir.plan_text import parse_plan, print_plan
from polytriton.ir.text import parse_net, print_net
from polytriton.passes.pipeline import Compiled, compile_net
from polytriton.runs.records import CsvSink, JsonSink, Point, Record
from polytriton.tuned import TUNED, Tuned
from tests.certificate.nodes import Node
from tests.cli import tiny
from tests.frontend import onnx_cases as catalogue
from tests.frontend.onnx_models import model as onnx_model
from tests.fuzz import mutate, words
from tests.fuzz.limits import TooSlow, bounded
from tests.oracle.nets import random_net

EXAMPLES = Path(__file__).parents[2] / "examples"
CORPUS = Path(__file__).parent / "corpus"


class Finding(Exception):
    """An input that did what no input may."""


@dataclass(frozen=True)
class Target:
    """`run` reads the bytes; `seconds` of CPU time and `memory` of address space are what an input of a few KB may take."""

    name: str
    run: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]
    mutate: mutate.Mutation
    seconds: float = 5.0
    memory: int = 1 << 30


def outcome(target: Target, data: bytes) -> str:
    """What the input led to, as a word for novelty: `read`, or the error's message without its particulars. Raises Finding."""
    try:
        with bounded(target.seconds, target.memory):
            target.run(data)
        return "read"
    except PolytritonError as error:
        if error.exit_code == INTERNAL or not error.message or not error.remedy:
            raise Finding(f"{type(error).__name__} without a remedy, or internal: {error}") from error
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, MemoryError):
                raise Finding(f"more than {target.memory >> 20} MiB: {error.message}") from error
            cause = cause.__cause__ or cause.__context__
        return error.message
    except TooSlow as error:
        raise Finding(f"more than {target.seconds:g} s of CPU time") from error
    except Exception as error:
        raise Finding(f"{type(error).__name__}: {error}") from error


@cache
def folder() -> Path:
    """A place for files, in memory where the system has one."""
    place = Path(tempfile.mkdtemp(prefix="polytriton-fuzz-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    owner = os.getpid()
    atexit.register(lambda: os.getpid() == owner and shutil.rmtree(place, ignore_errors=True))
    return place


def written(name: str, data: bytes) -> Path:
    path = folder() / name
    path.write_bytes(data)
    return path


# ---- networks ---------------------------------------------------------------------------------------------------


@cache
def models() -> list[bytes]:
    """One small model for every test of an operator."""
    cases = catalogue.LIVE
    made = [
        onnx_model(nodes, shape, weights, **options).SerializeToString() for nodes, shape, weights, options in (c.values for c in cases)
    ]
    return [m for m in made if len(m) < 4096]


def _onnx(data: bytes) -> None:
    load_onnx(data)


def _compile(data: bytes) -> None:
    polytriton.compile(data)


NNET = b"// made\n1,2,1,2,\n2,1,\n0,\n-1.0,-1.0,\n1.0,1.0,\n0.0,0.5,0.0,\n1.0,2.0,1.0,\n0.5,-2.0,\n0.25,\n"


def _nnet(data: bytes) -> None:
    load_onnx(written("net.nnet", data))


@cache
def nets() -> list[bytes]:
    return [print_net(n).encode() for n in (random_net(seed, limit=60) for seed in range(12))]


def _net(data: bytes) -> None:
    """What `polytriton opt` does with a text."""
    net = parse_net(data.decode("utf-8", errors="replace"))
    net = type(net)(net.name, net.nodes, net.output, invent(net))
    check_net(net)
    run_passes(net, ["fold", "layout", "fold", "lower", "schedule", "memory"], "all")


@cache
def compiled() -> dict[str, Compiled]:
    """Networks with their plans, by the plan's name."""
    made = (compile_net(random_net(seed, limit=60)) for seed in range(8))
    return {f"p{k}": replace(c, plan=replace(c.plan, name=f"p{k}")) for k, c in enumerate(made)}


def _plan(data: bytes) -> None:
    plan = parse_plan(data.decode("utf-8", errors="replace"))
    if parse_plan(print_plan(plan)) != plan:
        raise AssertionError("the plan does not print as it was read")
    if plan.name in compiled():
        check_plan(compiled()[plan.name].net, plan)


# ---- properties, images, lists, results -------------------------------------------------------------------------


def _vnnlib(data: bytes) -> None:
    packed = data[:2] == b"\x1f\x8b"
    read_vnnlib(written("p.vnnlib.gz" if packed else "p.vnnlib", data))


def properties() -> list[bytes]:
    place = folder()
    tiny.robust(place / "a.vnnlib", 0.1)
    tiny.hard(place / "b.vnnlib")
    two = b"""(vnnlib-version <2.0>)
(declare-network f (declare-input X float32 [1,3]) (declare-output Y Real [2]))
(assert (and (<= X[0,0] 1.5) (>= X[0,0] -1.5) (<= 0 X[0,1] (/ 1 3)) (= X[0,2] (* 2 (+ 0.5 -1e-3)))))
(assert (or (not (> Y[0] (- Y[1] X[0,0]))) (and (!= Y[0] 3) (< Y[1] (* 2.5 Y[0])))))
"""
    plain = [(place / n).read_bytes() for n in ("a.vnnlib", "b.vnnlib")]
    return [*plain, two, gzip.compress(plain[0], mtime=0), plain[0].replace(b"(assert", b"; note\n(assert", 3)]


KINDS = (".npz", ".npy", ".csv", "", ".gz", ".bin")


def _images(data: bytes) -> None:
    """The first byte chooses the kind of file."""
    load_images(written("i" + KINDS[data[0] % len(KINDS) if data else 0], data[1:]), shape=(1, 2, 2), n_out=10)


def pictures() -> list[bytes]:
    pixels = np.arange(24, dtype=np.uint8).reshape(6, 1, 2, 2)
    made = []
    for kind, array in ((0, pixels), (0, pixels / 255), (1, pixels), (1, pixels.astype(">f4") / 255)):
        file = io.BytesIO()
        if kind == 0:
            np.savez_compressed(file, images=array, labels=np.arange(6))
        else:
            np.save(file, array)
        made.append(bytes([kind]) + file.getvalue())
    lines = "\n".join(f"{k % 10}," + ",".join(map(str, row.ravel())) for k, row in enumerate(pixels))
    idx = b"\0\0\x08\3" + np.array([6, 2, 2], ">u4").tobytes() + pixels.tobytes()
    batches = [b"\3" + pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [1, 2]}, protocol) for protocol in (2, 4)]
    made += [b"\3" + idx, b"\4" + gzip.compress(idx, mtime=0), b"\5" + bytes(2 * 3073), *batches]
    return [*made, b"\2" + lines.encode(), b"\2" + b"3,0.5,1,0,1e-3\n"]


def _instances(data: bytes) -> None:
    for name in ("net.onnx", "p.vnnlib"):
        (folder() / name).touch()
    read_instances(written("instances.csv", data))


def _results(data: bytes) -> None:
    """The first byte chooses the form; a record that is read must be written and read again."""
    kind = CsvSink if data[:1] == b"\1" else JsonSink
    path = written("r.csv" if kind is CsvSink else "r.jsonl", data[1:])
    sink = kind(path, resume=True, overwrite=False)
    try:
        for record in list(sink.held.values())[:3]:
            sink.write(record)
    finally:
        sink.close()
    kind(path, resume=True, overwrite=False).close()


def _certificate(data: bytes) -> None:
    """The reader and the trees; a refusal is what a damaged certificate is to meet."""
    try:
        for held in checker.read(data)[1]:
            checker.Tree(held)
    except checker.Refused as error:
        raise ArtifactError(re.sub(r"[0-9]+", "", str(error)), "write it again") from error


def certificates() -> list[bytes]:
    """Trees of one node and of several, for one box and for two."""
    small, large = Node(0, 5, [(0, 0)]), Node(-1, 0)
    large.divide(0, 0.5, Node(3, 2, [(0, 0), (1, 2)]), Node(0, 0, [(0, 1), (1, 0)]))
    hashes = {"onnx": "0" * 64, "vnnlib": "1" * 64}
    kinds = (([small], "real"), ([large, small], "float32"))
    return [pack([tree.arrays(b) for b, tree in enumerate(trees)], kind, hashes) for trees, kind in kinds]


def _resealed(data: bytes, rng: random.Random) -> bytes:
    """Header or numbers changed; mostly with a digest that fits them, as a forger would see to."""
    size = int.from_bytes(data[:8], "little") % (1 << 20)
    head, body = data[8 : 8 + size], data[8 + size :]
    if rng.random() < 0.5:
        head = SPOILED(head, rng)
    else:
        body = mutate.raw(body, rng)
    with suppress(Exception):
        header = json.loads(head)
        if rng.random() < 0.8:
            header["__metadata__"]["data"] = checker.digest(header["__metadata__"], body)
            head = json.dumps(header).encode()
    return len(head).to_bytes(8, "little") + head + body


def results() -> list[bytes]:
    made = []
    point = Point([0.5, -1e-30], [1e300])
    records = [
        Record(network="net.onnx", property="p", verdict="unsat", margin=0.5, key="a", margins=[0.5, None], timeout=20.0),
        Record(network="net.onnx", property="q[0]", verdict="sat", key="b", counterexample=point, label=3, rivals=[1], epsilon="2/255"),
        Record(network="net.onnx", property='"x",', verdict="error", note='a "note", of\nlines', key="c"),
    ]
    for k, kind in enumerate((JsonSink, CsvSink)):
        path = folder() / f"seed{k}"
        sink = kind(path, resume=False, overwrite=True)
        for record in records:
            sink.write(record)
        sink.close()
        made.append(bytes([k]) + path.read_bytes())
    return made


# ---- artifacts --------------------------------------------------------------------------------------------------

PARTS = (A.NET, A.PLAN, A.WEIGHTS, A.MODEL, TUNED, A.MANIFEST)
SEALED = 6  # a manifest with a digest that fits again


@cache
def base() -> dict[str, bytes]:
    """A good artifact's files."""
    verifier = polytriton.compile(tiny.brightest(folder() / "net.onnx"))
    key = {"plan": "0" * 64, "device": "cpu", "versions": {"torch": "2"}, "config": {}}
    tuned = msgspec.convert({"entries": [{**key, "seconds": 1.0, "default_seconds": 2.0, "trials": 3, "seed": 0}]}, Tuned)
    assert verifier.imported is not None
    manifest, contents = A.pack(verifier.compiled, verifier.imported, tuned=tuned)
    return {**contents, A.MANIFEST: manifest.encode()}


def _artifact(data: bytes) -> None:
    """The first byte chooses the file that the rest replaces; hashes are made to fit, as a forger would."""
    part = data[0] % 7 if data else 0
    name = PARTS[min(part, 5)]
    files = {**base(), name: data[1:]}
    if part < 5 or part == SEALED:
        try:
            manifest = msgspec.json.decode(files[A.MANIFEST], type=A.Manifest)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return
        if part < 5:
            entries = {n: A.FileEntry(A.sha256(d), len(d)) for n, d in files.items() if n != A.MANIFEST}
            manifest = msgspec.structs.replace(manifest, files=entries)
        files[A.MANIFEST] = manifest.seal().encode()
    place = folder() / "net.poly"
    place.mkdir(exist_ok=True)
    for n, d in files.items():
        (place / n).write_bytes(d)
    verifier = polytriton.Verifier.from_artifact(A.read_artifact(place))
    if sum(n.size for n in verifier.net) <= 4096:
        verifier.bounds(np.zeros(verifier.inputs), np.ones(verifier.inputs))


def artifacts() -> list[bytes]:
    files = base()
    return [bytes([k]) + files[name] for k, name in enumerate((*PARTS, A.MANIFEST))]


def _spoiled(data: bytes, rng: random.Random) -> bytes:
    change = SPOILED if data[:1] and data[0] % 7 in (0, 1, 4, 5, 6) else mutate.raw
    if data[:1] and data[0] % 7 == 2 and rng.random() < 0.7:  # safetensors: a length, JSON, numbers
        size = int.from_bytes(data[1:9], "little") % (1 << 20)
        head = SPOILED(data[9 : 9 + size], rng)
        return data[:1] + len(head).to_bytes(8, "little") + head + data[9 + size :]
    return data[:1] + change(data[1:], rng)


# ---- the table --------------------------------------------------------------------------------------------------


def _pictured(data: bytes, rng: random.Random) -> bytes:
    change = LISTED if data[:1] and data[0] % 3 == 2 else mutate.raw
    if rng.random() < 0.3:  # a header of numpy's is text
        change = HEADED
    return data[:1] + change(data[1:], rng)


def _resulted(data: bytes, rng: random.Random) -> bytes:
    return data[:1] + RESULTED(data[1:], rng)


LISTED, RESULTED, HEADED = mutate.text(words.LIST), mutate.text(words.RESULTS), mutate.text(words.NUMPY)
SPOILED = mutate.text([*words.NET, *words.PLAN, *words.ARTIFACT])
TARGETS = {
    t.name: t
    for t in (
        Target("onnx", _onnx, models, mutate.model, seconds=10.0, memory=3 << 29),
        Target("compile", _compile, models, mutate.model, seconds=20.0, memory=3 << 29),
        Target("nnet", _nnet, lambda: [NNET], mutate.text(words.LIST)),
        Target("vnnlib", _vnnlib, properties, mutate.text(words.VNNLIB)),
        Target("net", _net, nets, mutate.text(words.NET), seconds=10.0),
        Target("plan", _plan, lambda: [print_plan(c.plan).encode() for c in compiled().values()], mutate.text(words.PLAN)),
        Target("artifact", _artifact, artifacts, _spoiled, seconds=10.0),
        Target("images", _images, pictures, _pictured),
        Target(
            "instances",
            _instances,
            lambda: [b"net.onnx,p.vnnlib,20\n", b"onnx,vnnlib,timeout\nnet.onnx,p.vnnlib,\n"],
            mutate.text(words.LIST),
        ),
        Target("results", _results, results, _resulted),
        Target("certificate", _certificate, certificates, _resealed),
    )
}


def kept(name: str) -> list[bytes]:
    """The corpus in the repository."""
    return [p.read_bytes() for p in sorted((CORPUS / name).glob("*"))]
