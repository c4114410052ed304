"""Certifies images of the usual data files: which of them keep their label in every L-infinity ball of radius epsilon?

    python examples/certify_images.py NET DATA --epsilon 2/255 [--mean M,... --std S,...] [--csv OUT.csv]

NET is an .onnx file or a compiled .poly folder. DATA is one of

    t10k-images-idx3-ubyte[.gz]   MNIST and its kin, with the labels file beside it; or the folder of both
    test_batch.bin                CIFAR-10's binary version; or its folder, cifar-10-batches-bin
    FILE.npz, FILE.npy, FILE.csv  images and labels as `polytriton run --images` reads them

CIFAR-10's Python version is pickled: whoever made such a file decides what runs when it is opened, so it is not.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import struct
import sys
import zlib
from pathlib import Path

import numpy as np

import polytriton
from polytriton.errors import UsageError
from polytriton.frontend.images import load_images

SIDE, CHANNELS = 32, 3
RECORD = 1 + CHANNELS * SIDE * SIDE  # CIFAR-10: one label, then three planes
PICKLED = ("data_batch", "test_batch", "batches.meta")


def read(data: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images as levels [count, ...] or as numbers in [0, 1], and their labels."""
    if data.is_dir():
        data = _inside(data)
    name = data.name.lower()
    if "idx3-ubyte" in name:
        images = _idx(data, 3)
        labels = _idx(data.with_name(data.name.replace("images", "labels").replace("idx3", "idx1")), 1)
        if len(images) != len(labels):
            raise UsageError(
                f"{data.name} holds {len(images)} images and its labels file {len(labels)} labels", "take both from one download"
            )
        return images, labels
    if data.suffix == ".bin":
        return _cifar(data)
    if name.startswith(PICKLED):
        raise UsageError(f"{data.name} is pickled and is not opened", "download CIFAR-10's binary version, cifar-10-binary.tar.gz")
    held = load_images(data)
    if held.labels is None:
        raise UsageError(f"{data.name} holds no labels", "store an array of labels beside the images")
    return held.source, held.labels


def _inside(folder: Path) -> Path:
    """The test images of a folder, packed or not."""
    for pattern in ("t10k-images*idx3-ubyte*", "*images*idx3-ubyte*", "test_batch.bin", "*_batch*.bin"):
        if found := sorted(folder.glob(pattern)):
            return found[0]
    if any(p.name.startswith(PICKLED) for p in folder.iterdir()):
        raise UsageError(
            f"the files of {folder} are pickled and are not opened", "download CIFAR-10's binary version, cifar-10-binary.tar.gz"
        )
    raise UsageError(f"{folder} holds no images known here", "name a folder with t10k-images-idx3-ubyte.gz or test_batch.bin, or a file")


def _bytes(path: Path) -> bytes:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read()
    except FileNotFoundError:
        raise UsageError(f"no file {path}", "check the path; labels of idx files lie beside their images") from None
    except (OSError, EOFError, zlib.error) as why:
        raise UsageError(f"cannot read {path}: {why}", "download it again") from None


def _idx(path: Path, axes: int) -> np.ndarray:
    """An idx file: two zeros, the type (8: uint8), the number of axes, their lengths as big-endian 32-bit numbers, the values."""
    data = _bytes(path)
    if len(data) < 4 + 4 * axes or data[:4] != bytes([0, 0, 8, axes]):
        raise UsageError(
            f"{path.name} is no idx file of {axes} axes of uint8", "take the images file for images, the labels file for labels"
        )
    shape = struct.unpack(f">{axes}I", data[4 : 4 + 4 * axes])
    values = np.frombuffer(data, np.uint8, offset=4 + 4 * axes)
    if values.size != np.prod(shape, dtype=np.int64) or not values.size:
        raise UsageError(f"{path.name} promises {'x'.join(map(str, shape))} values and holds {values.size}", "download it again")
    return values.reshape(shape)


def _cifar(path: Path) -> tuple[np.ndarray, np.ndarray]:
    values = np.frombuffer(_bytes(path), np.uint8)
    if not values.size or values.size % RECORD:
        raise UsageError(
            f"{path.name} has {values.size} bytes, no multiple of {RECORD}", "take CIFAR-10's binary version, and download it again"
        )
    records = values.reshape(-1, RECORD)
    if int(records[:, 0].max()) > 9:
        raise UsageError(f"{path.name} holds the label {int(records[:, 0].max())}", "take CIFAR-10's binary version: its labels are 0 to 9")
    return records[:, 1:].reshape(-1, CHANNELS, SIDE, SIDE), records[:, 0].astype(np.int64)


def certify(args: argparse.Namespace) -> None:
    images, labels = read(args.data)
    images, labels = (v[args.start : None if args.count is None else args.start + args.count] for v in (images, labels))
    if not len(images):
        raise UsageError(f"no image from {args.start} on", "choose a smaller --start, and a --count above 0")
    open_ = polytriton.load if args.net.is_dir() or args.net.suffix == ".poly" else polytriton.compile
    net = open_(args.net, semantics=args.semantics, device=args.device)
    mean, std = args.mean.split(","), args.std.split(",")
    rows: list[tuple[int, int, str, str, str]] = []
    right = 0
    print(f"{'image':>6} {'label':>5} {'verdict':<8} {'margin':>10} {'seconds':>8}")
    for a in range(0, len(images), args.batch):
        part, known = images[a : a + args.batch], labels[a : a + args.batch]
        right += int((net.predict(part, mean=mean, std=std).argmax(1) == known).sum())
        results = net.verify(part, args.epsilon, known, clip=(0, 1), mean=mean, std=std, timeout=args.timeout)
        for k, r in enumerate(results, args.start + a):
            rows.append((k, r.label, r.verdict, f"{r.margin:.6g}", f"{r.seconds:.3f}"))
            print(f"{rows[-1][0]:>6} {rows[-1][1]:>5} {rows[-1][2]:<8} {rows[-1][3]:>10} {rows[-1][4]:>8}")
        print(f"{len(rows)}/{len(images)}", file=sys.stderr)
    if args.csv is not None:
        with args.csv.open("w", newline="") as file:
            csv.writer(file).writerows([("image", "label", "verdict", "margin", "seconds"), *rows])
    proved = sum(row[2] == "unsat" for row in rows)
    print(f"{len(rows)} images, {right} classified rightly, {proved} certified at epsilon {args.epsilon} ({args.semantics} arithmetic)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("net", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--epsilon", required=True, help="radius in [0, 1] pixel space: 2/255 or 0.01")
    parser.add_argument("--mean", default="0", help="one number, or one a channel separated by commas")
    parser.add_argument("--std", default="1")
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--count", type=int)
    parser.add_argument("--batch", type=int, default=64, help="images asked together")
    parser.add_argument("--timeout", type=float, help="seconds an image; images are then asked one by one")
    parser.add_argument("--semantics", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--csv", type=Path)
    try:
        certify(parser.parse_args())
    except polytriton.PolytritonError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
