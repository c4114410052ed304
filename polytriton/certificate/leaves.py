"""The leaves of a certificate as properties of their own, which any other verifier can decide.

A tree that divides inputs alone divides the property's box into boxes. Every leaf becomes a VNN-LIB file: its box and all pieces of the
unsafe set over it. The cuts are floats and the root's ends are the property's own numbers, all written as decimals of the same value, and
halves share their cut: the union of the leaves' boxes is the root's box, so the property holds if every leaf's does. Nothing that the
certificate says of bounds is used. The sign of a neuron is nothing that a property can say: such a tree is refused.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np

from polytriton import checker
from polytriton.checker_files import Array, Atom, Box, Refused, need
from polytriton.guard import guard

INDEX, LIST = "index.json", "instances.csv"
SECONDS = 300  # a leaf's timeout in the list
DIGITS = 400  # on either side of the point, as the checker reads them


def decimal(value: Fraction) -> str:
    """The number in decimals, exactly."""
    two = (value.denominator & -value.denominator).bit_length() - 1
    five, rest = 0, value.denominator >> two
    while rest % 5 == 0:
        five, rest = five + 1, rest // 5
    places = max(two, five, 1)
    need(rest == 1, f"{str(value)[:60]} has no end as a decimal number")
    whole, part = divmod(abs(value.numerator) * 10**places // value.denominator, 10**places)
    need(places <= DIGITS and whole < 10**DIGITS, f"a number needs more than {DIGITS} digits")
    return f"{'-' if value < 0 else ''}{whole}.{part:0{places}}"


def boxes(split: Array, cut: Array, root: Box) -> Iterator[tuple[int, Box]]:
    """The leaves of a tree of cuts, by node, and their boxes in exact numbers."""
    n, made = len(root[0]), 0
    held = {0: root}
    for node in range(len(split)):
        lo, hi = held.pop(node)
        if (i := int(split[node])) < 0:
            yield node, (lo, hi)
            continue
        need(i < n, f"node {node} is divided by the sign of a neuron, which no property over inputs and outputs can say")
        at = Fraction(float(cut[node]))
        need(lo[i] < at < hi[i], f"node {node}: a cut of input {i} outside its box")
        held[2 * made + 1] = lo, (*hi[:i], at, *hi[i + 1 :])
        held[2 * made + 2] = (*lo[:i], at, *lo[i + 1 :]), hi
        made += 1


def text(box: Box, pieces: Iterable[list[Atom]], outputs: int, comment: str) -> str:
    """VNN-LIB 1.0: the box, and that some piece's rows hold."""
    names = [f"X_{i}" for i in range(len(box[0]))] + [f"Y_{i}" for i in range(outputs)]
    lines = [f"; {comment}", *(f"(declare-const {name} Real)" for name in names)]
    for i, (lo, hi) in enumerate(zip(*box, strict=True)):
        lines += [f"(assert (>= X_{i} {decimal(lo)}))", f"(assert (<= X_{i} {decimal(hi)}))"]
    whole = []
    for rows in pieces:
        need(rows, "a piece of the unsafe set without a condition on the outputs")
        whole.append(f"(and {' '.join(map(row_text, rows))})")
    return "\n".join([*lines, f"(assert (or {' '.join(whole)}))", ""])


def row_text(atom: Atom) -> str:
    """`sum c v <= k`, in the plainest form that says it."""
    row, k = atom
    need(row, "a row without variables")
    names = {v: f"X_{v}" if v >= 0 else f"Y_{~v}" for v in row}
    if len(row) == 2 and k == 0 and sorted(row.values()) == [-1, 1]:
        above, below = sorted(row, key=lambda v: row[v])
        return f"(<= {names[below]} {names[above]})"
    if len(row) == 1 and abs(c := next(iter(row.values()))) == 1:
        return f"({'<=' if c > 0 else '>='} {next(iter(names.values()))} {decimal(c * k)})"
    terms = [f"(* {decimal(c)} {names[v]})" for v, c in row.items()]
    left = f"(+ {' '.join(terms)})" if len(terms) > 1 else terms[0]
    return f"(<= {left} {decimal(k)})"


@guard
@np.errstate(all="ignore")
def export(onnx_file: Path, vnnlib_file: Path, certificate_file: Path, folder: Path) -> int:
    """Writes the leaves into a new folder, with a list of instances and an index, all or nothing; returns how many there are."""
    net, pieces, hashes = checker.load(onnx_file, vnnlib_file)
    data = certificate_file.read_bytes()
    meta, tensors = checker.read(data)
    need(meta | hashes == meta, "the certificate belongs to another network or property file", Refused)
    trees, held = list(map(checker.Tree, tensors)), list(pieces.items())  # their nodes fit together, or they are refused
    every = {(b, p) for b, (_, group) in enumerate(held) for p in range(len(group))}
    need(every == {(t.box, p) for t in trees for p in t.own}, "a piece that no tree is about, or that is none", Refused)
    part = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    leaves: list[dict[str, object]] = []
    try:
        part.mkdir()
        with open(part / LIST, "w", newline="") as listed:
            network = os.path.relpath(onnx_file, folder)
            for k, tree in enumerate(trees):
                b, (root, group) = tree.box, held[tree.box]
                several = f"tree-{k}-" * (sum(t.box == b for t in trees) > 1)
                for node, box in boxes(tree.split, tree.cut, root):
                    name = f"box-{b}-{several}node-{node}.vnnlib"
                    comment = f"node {node} of box {b} of {hashes['vnnlib']}"
                    made = text(box, [group[p] for p in tree.own], net.sizes[net.output], comment).encode()
                    (part / name).write_bytes(made)
                    csv.writer(listed, lineterminator="\n").writerow([network, name, SECONDS])
                    leaves.append({"file": name, "box": b, "node": node, "sha256": hashlib.sha256(made).hexdigest()})
        told = {**hashes, "certificate": hashlib.sha256(data).hexdigest(), "semantics": meta["semantics"], "leaves": leaves}
        (part / INDEX).write_text(json.dumps(told, indent=1) + "\n")
        os.replace(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return len(leaves)
