"""Writes networks of sigmoids and tanhs of the shapes that are usual in papers, random weights from fixed seeds, for bench.compare.

    python -m bench.nets.smooth FOLDER
    python -m bench.compare auto_lirpa --onnx FOLDER/*.onnx --eps 1/255 --dtype float64
"""

from __future__ import annotations

from pathlib import Path

from bench.core.command import parser
from bench.nets.goals import OnnxGrower

SHAPES = {"6x100": (0, [100] * 5), "6x500": (0, [500] * 5), "conv": (2, [100])}  # convolutions of stride 2, then widths


def write(folder: Path) -> list[Path]:
    """One file for each shape and function."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for seed, (name, (convs, widths)) in enumerate(SHAPES.items()):
        for op in ("Sigmoid", "Tanh"):
            made.append(folder / f"{op.lower()}-{name}.onnx")
            made[-1].write_bytes(network(op, convs, widths, seed))
    return made


def network(op: str, convs: int, widths: list[int], seed: int) -> bytes:
    """Of images of 28 x 28."""
    n = OnnxGrower((1, 28, 28), seed)
    at, channels, side = "input", 1, 28
    for k in range(convs):
        at = n.op(op, n.conv(at, channels, 8 << k, 4, 2, 1))
        channels, side = 8 << k, side // 2
    at, size = n.op("Flatten", at, axis=1), channels * side * side
    for width in widths:
        at, size = n.op(op, n.fc(at, size, width)), width
    n.fc(at, size, 10)
    return n.model(op.lower())


if __name__ == "__main__":
    p = parser("nets.smooth", __doc__)
    p.add_argument("folder", type=Path)
    for path in write(p.parse_args().folder):
        print(path)
