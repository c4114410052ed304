"""A peer beside polytriton on the same boxes and margins: one process each, both kept warm, asked alternately.

    python -m bench.compare auto_lirpa [--nets FOLDER | --zoo NAME-KIND ... | --onnx FILE ... [--images FILE.npy]] [--eps 1/255]
        [--batch 1] [--rounds 9] [--threads 1] [--peer-python PYTHON] [--peer-path FOLDER] [--out FILE.csv]

By default the three networks of bench.cpu. The peer may live in an interpreter of its own (--peer-python, or $POLYTRITON_PEER_PYTHON),
which needs it, torch, numpy and onnx; --peer-path is searched for packages first. Whoever begins a round ends the one before it, so a
machine that drifts hits both alike. `ratio` is the peer's median over polytriton's: above 1 polytriton is faster; ratio_lo and
ratio_hi are the quartiles of the rounds' own ratios. `peak_mb`: what a side's process held at most in its first run beyond what it held
before. Margins: how many of polytriton's are above the peer's (`tighter`), below (`looser`), both beyond rounding, and the largest loss
(`gap`), relative to the largest margin.

auto_LiRPA: CROWN, adaptive lower slope, patches; its margins are not sound against rounding, polytriton's are.

Exit code: 0, 1 where a side failed, 2 for wrong usage or where the peer is not installed.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from bench import cpu, zoo
from bench.core.children import Gone, MeasuringChild
from bench.core.command import check_known, parser
from bench.core.machine import describe
from bench.core.measure import summary
from bench.core.remote import answer_of
from bench.core.serve import Message
from bench.core.table import END_TO_END, Row, Table, say
from bench.suite.zoo import groups as zoo_groups
from bench.suite.zoo import split

PEERS = {"auto_lirpa": "auto_LiRPA"}
COLUMNS = (*END_TO_END, "ratio", "ratio_lo", "ratio_hi", "tighter", "looser", "gap", "peer")
SHOWN = (
    "network", "engine", "numerics", "batch", "seconds", "spread", "runs", "worst", "ratio", "ratio_lo", "ratio_hi", "tighter", "looser",
    "gap", "peak_mb", "note",
)  # fmt: skip
ROUNDING = 1e-4  # of the largest margin: float32 coefficients of deep networks differ by less, other relaxations by more
SAME = 1e-3  # relative difference at which two readings of one network are two networks
FAILED, NO_PEER = 1, 2
PAUSE = 0.3  # seconds between turns where threads of the side that waits may still spin


def main(arguments: Sequence[str] | None = None) -> int:
    p = parser("compare", __doc__)
    p.add_argument("peer", choices=PEERS)
    p.add_argument("--nets", type=Path, help="folder of bench.cpu's networks")
    p.add_argument("--zoo", nargs="+", metavar="NAME-KIND", help="networks of bench.zoo")
    p.add_argument("--onnx", nargs="+", type=Path, metavar="FILE", help="networks of your own, fed values in [0, 1]")
    p.add_argument("--images", type=Path, help="inputs of --onnx, [images, ...] (.npy); by default random ones")
    p.add_argument("--eps", help="radius (1/255; zoo networks: the paper's)")
    p.add_argument("--batch", type=int, default=1)
    p.add_argument("--rounds", type=int, default=9)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--dtype", choices=("float32", "float64"), nargs="+", default=["float32"], help="polytriton's, a row each (%(default)s)")
    p.add_argument("--peer-dtype", choices=("float32", "float64"), help="the peer's (as polytriton's)")
    p.add_argument("--cpu", action="store_true", help="count processor time, where other work shares the machine")
    p.add_argument("--candidates", choices=("all", "input"), default="all", help="polytriton's; input is what CROWN does (%(default)s)")
    p.add_argument("--device", default="cpu")
    p.add_argument("--limit", type=float, default=300.0, help="seconds that one answer may take (%(default)g)")
    p.add_argument("--budget", type=float, default=120.0, help="seconds for a network's rounds; three are made at least (%(default)g)")
    p.add_argument("--peer-python", default=os.environ.get("POLYTRITON_PEER_PYTHON") or sys.executable)
    p.add_argument("--peer-path", type=Path, help="folder to import the peer from")
    p.add_argument("--out", type=Path, help="CSV file")
    a = p.parse_args(arguments)
    if min(a.batch, a.rounds, a.threads) < 1:
        p.error("--batch, --rounds and --threads are 1 or more")
    check_known(p, "network", a.zoo or [], zoo_groups(False))
    if a.eps:
        try:
            if Fraction(a.eps) < 0:
                raise ValueError
        except (ValueError, ZeroDivisionError):
            p.error(f"--eps {a.eps!r} is no radius: give 1/255 or 0.01")
    if absent := [f for f in [*(a.onnx or []), *filter(None, [a.images])] if not f.exists()]:
        p.error(f"no file {absent[0]}")
    try:
        with peer(a) as child:
            about = answer_of(child, {"about": True, "threads": a.threads}, a.limit)
    except OSError as error:
        p.error(f"--peer-python {a.peer_python}: {error.strerror}")
    except Gone as error:
        say(f"{PEERS[a.peer]} does not run in {a.peer_python} ({error}): install it there, or name an interpreter with --peer-python")
        return NO_PEER
    name = f"{PEERS[a.peer]} {about['version']} (torch {about['torch']})"
    mine = describe(a.device, a.threads) | {"clock": "processor" if a.cpu else "wall"}
    say(f"polytriton {mine['polytriton']} (torch {mine['torch']}) beside {name}, {a.threads} thread(s)")
    table, code = Table(COLUMNS, a.out, {"part": "peer", **mine}, SHOWN), 0
    with tempfile.TemporaryDirectory() as folder:
        for row, file, x, eps in networks(a, Path(folder)):
            for dtype in a.dtype:
                about_row = {**row, "eps": str(eps), "numerics": dtype, "batch": len(x), "peer": name}
                try:
                    for found in pair(a, dtype, file, Path(folder) / "boxes.npz", x, float(eps)):
                        table.add({**about_row, **found})
                except Gone as error:
                    table.add({**about_row, "note": str(error)})
                    code = FAILED
    table.close()
    return code


def peer(a: argparse.Namespace) -> MeasuringChild:
    path = [str(a.peer_path.resolve())] if a.peer_path else []
    return MeasuringChild("bench.compare.side", [a.peer], python=a.peer_python, path=path, threads=a.threads)


def networks(a: argparse.Namespace, folder: Path) -> Iterator[tuple[Row, Path, np.ndarray, Fraction]]:
    """What to ask about: columns of the row, a file, images, a radius."""
    if a.onnx:
        for file in a.onnx:
            shape = input_of(file)[1][1:]
            x = np.load(a.images) if a.images else np.random.default_rng(0).random((a.batch, *shape))
            if x.size % math.prod(shape):
                raise SystemExit(f"{a.images}: shape {list(x.shape)} is no batch of {list(shape)}, the input of {file}")
            yield {"network": file.stem}, file.resolve(), x.reshape(-1, math.prod(shape))[: a.batch], Fraction(a.eps or "1/255")
    elif a.zoo:
        for group in a.zoo:
            name, kind = split(group)
            file = folder / f"{group}.onnx"
            onnx.save(zoo.build(name, kind), file)
            x = zoo.image(name, count=a.batch).reshape(a.batch, -1)
            yield {"network": name, "kind": kind, "weights": "synthetic"}, file, x, Fraction(a.eps) if a.eps else zoo.EPS[name, kind]
    else:
        place = cpu.folder(a.nets)
        for name, (image, _) in cpu.NETS.items():
            x = np.load(place / f"{image}.npy").reshape(1, -1)
            more = np.random.default_rng(8).random((a.batch - 1, x.shape[1]))
            row = {"network": name, "kind": "normal", "weights": "synthetic"}
            yield row, (place / f"{name}.onnx").resolve(), np.concatenate([x, more]), Fraction(a.eps or "1/255")


def input_of(net: Path) -> tuple[onnxruntime.InferenceSession, list[int]]:
    """The network in onnxruntime, and its input's shape with a batch of one."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors: old models hold what they never use
    session = onnxruntime.InferenceSession(str(net), options, providers=["CPUExecutionProvider"])
    return session, [d if isinstance(d, int) and d > 0 else 1 for d in session.get_inputs()[0].shape]


def write_boxes(path: Path, net: Path, x: np.ndarray, eps: float) -> np.ndarray:
    """The question as both sides read it, exact in float32; the answers of onnxruntime, which the labels come from."""
    session, shape = input_of(net)
    name = session.get_inputs()[0].name
    x = x.astype(np.float32)
    y = np.stack([np.asarray(session.run(None, {name: v.reshape(shape)})[0]).ravel() for v in x])
    lo, hi = (np.clip(x + np.float32(d), 0, 1).astype(np.float64) for d in (-eps, eps))
    np.savez(path, x=x.astype(np.float64), lo=lo, hi=hi, forms=zoo.margins_of(y))
    return y


def pair(a: argparse.Namespace, dtype: str, file: Path, boxes: Path, x: np.ndarray, eps: float) -> Iterator[Row]:
    """A row for each side: polytriton's carries the comparison."""
    y = write_boxes(boxes, file, x, eps)
    question = {"net": str(file), "boxes": str(boxes), "device": a.device, "candidates": a.candidates}
    types, clock = {"polytriton": dtype, PEERS[a.peer]: a.peer_dtype or dtype}, "cpu_seconds" if a.cpu else "seconds"
    with MeasuringChild("bench.compare.side", ["polytriton"], threads=a.threads) as ours, peer(a) as theirs:
        sides = {"polytriton": ours, PEERS[a.peer]: theirs}
        first: dict[str, Message] = {}
        for name, child in sides.items():
            try:
                answer_of(child, {"about": True, "threads": a.threads}, a.limit)
                told = np.array(answer_of(child, {**question, "dtype": types[name]}, a.limit)["y"])
                first[name] = answer_of(child, {"run": True, "watched": True}, a.limit)
            except Gone as error:
                raise Gone(f"{name}: {error}", error.late) from None
            if not np.allclose(told, y, rtol=0, atol=SAME * max(1.0, np.abs(y).max())):
                raise Gone(f"{name} answers otherwise than onnxruntime, by {np.abs(told - y).max():.3g}")
        times: dict[str, list[float]] = {name: [] for name in sides}
        begin = time.monotonic()
        for k in range(a.rounds):
            for name, child in [*sides.items()][:: 1 if k % 2 == 0 else -1]:
                if a.threads > 1:
                    time.sleep(PAUSE)
                times[name].append(answer_of(child, {"run": True}, a.limit)[clock])
            if k >= 2 and (time.monotonic() - begin) * (k + 2) / (k + 1) > a.budget:
                break
    margins = {name: np.array(first[name]["margins"]) for name in sides}
    for name in sides:
        row: Row = {"engine": name, "numerics": types[name], **summary(times[name], len(x))}
        row |= {"first": first[name][clock], "worst": float(margins[name].min()), "peak_mb": first[name]["mb"] or ""}
        yield row | (compare([*times.values()], [*margins.values()]) if name == "polytriton" else {})


def compare(times: list[list[float]], margins: list[np.ndarray]) -> Row:
    (ours, theirs), (mine, other) = times, margins
    each = [p / o for o, p in zip(ours, theirs, strict=True)]
    quarters = statistics.quantiles(each, n=4, method="inclusive") if len(each) > 1 else [each[0]] * 3
    difference, scale = mine - other, float(np.abs(other).max()) or 1.0
    return {
        "ratio": statistics.median(theirs) / statistics.median(ours),
        "ratio_lo": quarters[0], "ratio_hi": quarters[2],
        "tighter": int((difference > ROUNDING * scale).sum()), "looser": int((difference < -ROUNDING * scale).sum()),
        "gap": max(0.0, float(-difference.min())) / scale,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
