"""MNIST and CIFAR as they are published: idx files, binary records, and the batches that Python wrote, which are read, never unpickled."""

from __future__ import annotations

import math
import pickletools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from polytriton.errors import UsageError
from polytriton.frontend.packed import read_file

MOST = 1 << 30  # bytes of a file, unpacked; the largest of these holds 47 MB
TESTS = ("t10k-images-idx3-ubyte", "t10k-images.idx3-ubyte", "test_batch.bin", "test.bin", "test_batch", "test")
HOUSES = (  # of torchvision's root and of the archives
    "raw", "MNIST/raw", "FashionMNIST/raw", "KMNIST/raw", "cifar-10-batches-py", "cifar-10-batches-bin", "cifar-100-python",
    "cifar-100-binary",
)  # fmt: skip
SIDE, CHANNELS = 32, 3  # of an image of CIFAR

Pair = tuple[np.ndarray, "np.ndarray | None"]


def find_dataset(folder: Path) -> Path | None:
    """The test images among the files of a folder, or None: what networks are judged by. They may lie where torchvision keeps them, or
    where an archive was unpacked, as long as one set alone does."""
    if (found := _tests(folder)) is not None:
        return found
    sets = [held for house in HOUSES if (held := _tests(folder / house)) is not None]
    if len(sets) > 1:
        raise UsageError(f"{folder} holds several sets: {', '.join(str(p.parent) for p in sets)}", "name the folder of one")
    return sets[0] if sets else None


def _tests(folder: Path) -> Path | None:
    return next((p for name in TESTS for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)


def read_dataset(path: Path) -> Pair | None:
    """Images as levels 0..255, [N, H, W] or [N, C, H, W], and their labels; None where the file is of another kind."""
    if path.suffix not in ("", ".gz", ".bin") and not path.name.endswith("ubyte"):
        return None
    data = read_file(path, MOST)
    if len(data) > MOST:
        raise ValueError(f"it holds more than {MOST >> 30} GiB")
    if path.suffix == ".bin":
        return _records(data, path.name)
    if data[:3] == b"\0\0\x08":
        return _idx(data, 3), _idx_labels(path)
    if data[:1] == b"\x80":
        return _batch(data)
    raise ValueError("it is neither an idx file of bytes nor a batch of CIFAR")


# ---- idx -------------------------------------------------------------------------------------------------------------


def _idx(data: bytes, axes: int) -> np.ndarray:
    """Zero, zero, the type (8: bytes), the number of axes; their lengths, big-endian; the values."""
    begin = 4 + 4 * axes
    if len(data) < begin or data[:4] != bytes((0, 0, 8, axes)):
        raise ValueError(f"its header is not that of bytes with {axes} axes; images and labels are two files, name that of the images")
    shape = [int(n) for n in np.frombuffer(data, ">u4", axes, 4)]
    if math.prod(shape) != len(data) - begin:
        raise ValueError(f"its header declares {'x'.join(map(str, shape))} bytes, it holds {len(data) - begin}")
    return np.frombuffer(data, np.uint8, offset=begin).reshape(shape)


def _idx_labels(images: Path) -> np.ndarray | None:
    """Those of the file beside, which is called `labels` for `images`."""
    name = images.name.removesuffix(".gz").replace("images", "labels").replace("idx3", "idx1")
    for path in (images.with_name(name), images.with_name(f"{name}.gz")):
        if path != images and path.is_file():
            return _idx(read_file(path, MOST), 1)
    return None


# ---- CIFAR's binary records ------------------------------------------------------------------------------------------


def _records(data: bytes, name: str) -> Pair:
    """A label, in CIFAR-100 a coarse and a fine one, and three planes of 32 x 32 bytes."""
    pixels = CHANNELS * SIDE * SIDE
    hundred = name in ("test.bin", "train.bin") or len(data) % (pixels + 1) != 0
    record = pixels + (2 if hundred else 1)
    if not data or len(data) % record:
        raise ValueError(f"its {len(data)} bytes are no whole number of CIFAR's records of {pixels + 1} or {pixels + 2}")
    table = np.frombuffer(data, np.uint8).reshape(-1, record)
    return table[:, -pixels:].reshape(-1, CHANNELS, SIDE, SIDE), table[:, -pixels - 1]


# ---- CIFAR's batches of Python ---------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Call:
    """A call that unpickling would make, and the state it would set. Nobody makes it."""

    name: str
    arguments: Sequence[object]
    state: object = None


_MARK = object()


def _batch(data: bytes) -> Pair:
    held = _structure(data)
    if not isinstance(held, dict):
        raise ValueError("it is no batch of CIFAR: a dictionary with data and labels")
    by_name = {_text(k): v for k, v in held.items()}
    pixels, labels = by_name.get("data"), by_name.get("labels", by_name.get("fine_labels"))
    if pixels is None or not isinstance(labels, list):
        raise ValueError(f"it is no batch of CIFAR: it holds {sorted(by_name)[:5]}, not data and labels")
    levels = _array(pixels)
    if levels.ndim != 2 or levels.shape[1] != CHANNELS * SIDE * SIDE:
        raise ValueError(f"its data have the shape {list(levels.shape)}, not [N, {CHANNELS * SIDE * SIDE}]")
    return levels.reshape(-1, CHANNELS, SIDE, SIDE), np.array([_number(v) for v in labels], dtype=np.int64)


def _array(call: object) -> np.ndarray:
    """The array of bytes that numpy would rebuild: (version, shape, type, column-major, bytes)."""
    if not (isinstance(call, _Call) and call.name.endswith("_reconstruct") and isinstance(call.state, tuple) and len(call.state) == 5):
        raise ValueError("its data are no array of numpy's")
    _, shape, kind, columns, raw = call.state
    named = kind.arguments[0] if isinstance(kind, _Call) and kind.name.endswith(" dtype") and kind.arguments else None
    if _text(named) not in ("u1", "|u1") or columns or not isinstance(shape, tuple):
        raise ValueError(f"its data are no rows of bytes, but of type {_text(named)}")
    return np.frombuffer(_text(raw).encode("latin-1"), np.uint8).reshape([_number(n) for n in shape])


def _text(value: object) -> str:
    """One character a byte; empty for what is no text. Python 3 writes bytes for Python 2 as text to be encoded."""
    if isinstance(value, _Call) and value.name == "_codecs encode" and value.arguments[1:] == ("latin1",):
        value = value.arguments[0]
    return value.decode("latin-1") if isinstance(value, bytes) else value if isinstance(value, str) else ""


def _number(value: object) -> int:
    if not isinstance(value, int):
        raise ValueError(f"{value!r:.40} stands where a number should")
    return value


def _structure(data: bytes) -> object:
    """What the bytes describe, built of tuples, lists, dictionaries and calls that nobody makes."""
    stack: list[object] = []
    memo: dict[int, object] = {}
    for op, arg, _ in pickletools.genops(data):
        name = op.name
        if name in ("PROTO", "FRAME"):
            continue
        if name == "STOP":
            break
        if name == "MARK":
            stack.append(_MARK)
        elif name in ("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE"):
            stack.append({"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}[name]())
        elif name in ("NONE", "NEWTRUE", "NEWFALSE"):
            stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            memo[_number(arg)] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(memo[_number(arg)])
        elif name in ("TUPLE", "LIST", "DICT", "APPENDS", "SETITEMS"):
            _gather(name, stack)
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            n = int(name[-1])
            stack[-n:] = [tuple(stack[-n:])]
        elif name in ("APPEND", "SETITEM"):
            n = 1 if name == "APPEND" else 2
            _extend(stack[-n - 1], stack[-n:])
            del stack[-n:]
        elif name == "GLOBAL":
            stack.append(_Call(str(arg), ()))
        elif name == "STACK_GLOBAL":
            stack[-2:] = [_Call(f"{_text(stack[-2])} {_text(stack[-1])}", ())]
        elif name == "REDUCE":
            target, arguments = stack[-2], stack[-1]
            if not isinstance(target, _Call) or not isinstance(arguments, tuple):
                raise ValueError("it calls what has no name")
            stack[-2:] = [_Call(target.name, arguments)]
        elif name == "BUILD":
            target = stack[-2]
            if not isinstance(target, _Call):
                raise ValueError("it sets the state of what was not made by a call")
            target.state = stack.pop()
        elif isinstance(arg, (str, bytes, int)):  # a literal
            stack.append(arg)
        else:
            raise ValueError(f"it holds {name}, which no batch of CIFAR does")
    return stack[-1] if stack else None


def _gather(name: str, stack: list[object]) -> None:
    """What stands above the last mark becomes a tuple, a list or a dictionary, or is added to the one below."""
    start = len(stack) - 1 - next(k for k, v in enumerate(reversed(stack)) if v is _MARK)
    some = stack[start + 1 :]
    del stack[start:]
    if name in ("APPENDS", "SETITEMS"):
        _extend(stack[-1], some)
    else:
        stack.append(tuple(some) if name == "TUPLE" else some if name == "LIST" else dict(_pairs(some)))


def _extend(target: object, some: Sequence[object]) -> None:
    if isinstance(target, list):
        target += some
    elif isinstance(target, dict):
        target.update(_pairs(some))
    else:
        raise ValueError("it adds to what is neither a list nor a dictionary")


def _pairs(some: Sequence[object]) -> Iterator[tuple[object, object]]:
    return zip(some[::2], some[1::2], strict=True)
