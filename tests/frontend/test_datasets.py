"""MNIST's and CIFAR's files and folders of images, written here as their authors publish them."""

from __future__ import annotations

import gzip
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polytriton.errors import UsageError
from polytriton.frontend.images import load_images

RNG = np.random.default_rng(0)
GREY, GREY_LABELS = RNG.integers(0, 256, (5, 28, 28), dtype=np.uint8), np.array([3, 0, 9, 1, 3])
COLOUR, COLOUR_LABELS = RNG.integers(0, 256, (4, 3, 32, 32), dtype=np.uint8), np.array([2, 9, 0, 5])


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def mnist(folder: Path, *, packed: bool, dot: bool = False) -> Path:
    """The two files of a set as the archive, or torchvision's folder, has them."""
    joint = "." if dot else "-"
    for name, array in ((f"t10k-images{joint}idx3-ubyte", GREY), (f"t10k-labels{joint}idx1-ubyte", GREY_LABELS)):
        data = idx(array)
        (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(data) if packed else data)
    return folder / (f"t10k-images{joint}idx3-ubyte" + ".gz" * packed)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("dot", [True, False])
def test_mnist(tmp_path: Path, packed: bool, dot: bool) -> None:
    path = mnist(tmp_path, packed=packed, dot=dot)
    for given in (path, tmp_path):
        held = load_images(given, 1, 4, (1, 28, 28), n_out=10)
        assert held.levels is not None
        np.testing.assert_array_equal(held.levels[:, 0], GREY[1:4])
        np.testing.assert_array_equal(held.labels, GREY_LABELS[1:4])


def test_where_torchvision_keeps_them(tmp_path: Path) -> None:
    """Its root holds a folder a set, and in it the packed files beside the others."""
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    mnist(raw, packed=True)
    mnist(raw, packed=False)
    for given in (tmp_path, tmp_path / "MNIST", raw):
        np.testing.assert_array_equal(load_images(given, shape=(1, 28, 28)).labels, GREY_LABELS)
    other = tmp_path / "cifar-10-batches-bin"
    other.mkdir()
    (other / "test_batch.bin").write_bytes(b"\1" + COLOUR[0].tobytes())
    with pytest.raises(UsageError, match=r"several sets: .*MNIST/raw, .*cifar-10-batches-bin"):
        load_images(tmp_path)
    assert load_images(other, shape=(3, 32, 32)).labels.tolist() == [1]  # type: ignore[union-attr]


def test_images_without_their_labels(tmp_path: Path) -> None:
    (tmp_path / "some-images-idx3-ubyte").write_bytes(idx(GREY))
    assert load_images(tmp_path / "some-images-idx3-ubyte").labels is None


@pytest.mark.parametrize("hundred", [False, True])
def test_records_of_cifar(tmp_path: Path, hundred: bool) -> None:
    """CIFAR-100 has a coarse label before the fine one."""
    coarse = [b"\x07"] if hundred else [b""]
    data = b"".join(coarse[0] + bytes([label]) + image.tobytes() for image, label in zip(COLOUR, COLOUR_LABELS.tolist(), strict=True))
    name = "test.bin" if hundred else "test_batch.bin"
    (tmp_path / name).write_bytes(data)
    for path in (tmp_path / name, tmp_path):
        held = load_images(path, shape=(3, 32, 32), n_out=10)
        np.testing.assert_array_equal(held.source, COLOUR)
        np.testing.assert_array_equal(held.labels, COLOUR_LABELS)


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("hundred", [False, True])
def test_batches_that_python_wrote(tmp_path: Path, protocol: int, hundred: bool) -> None:
    labels = {b"fine_labels": COLOUR_LABELS.tolist(), b"coarse_labels": [1] * 4} if hundred else {b"labels": COLOUR_LABELS.tolist()}
    held = {b"batch_label": b"testing batch 1 of 1", **labels, b"data": COLOUR.reshape(4, -1), b"filenames": [b"a.png"] * 4}
    (tmp_path / "test_batch").write_bytes(pickle.dumps(held, protocol))
    for path in (tmp_path / "test_batch", tmp_path):
        found = load_images(path, shape=(3, 32, 32), n_out=10)
        np.testing.assert_array_equal(found.source, COLOUR)
        np.testing.assert_array_equal(found.labels, COLOUR_LABELS)


def test_the_published_batches_strings(tmp_path: Path) -> None:
    """Python 2 wrote them: text of one byte a character, the array's bytes among it."""
    raw = COLOUR.reshape(4, -1).tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x01(cnumpy\nndarray\nq\x02K\x00\x85U\x01btRq\x03(K\x01K\x04M\x00\x0c\x86"
        b"cnumpy\ndtype\nq\x04U\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + struct.pack("<i", len(raw)) + raw + b"tb"
    )  # fmt: skip
    labels = b"](" + b"".join(b"K" + bytes([v]) for v in COLOUR_LABELS.tolist()) + b"e"
    (tmp_path / "data_batch_1").write_bytes(b"\x80\x02}q\x00(U\x04data" + array + b"U\x06labels" + labels + b"u.")
    found = load_images(tmp_path / "data_batch_1", shape=(3, 32, 32))
    np.testing.assert_array_equal(found.source, COLOUR)
    np.testing.assert_array_equal(found.labels, COLOUR_LABELS)


class Trap:
    """What unpickling would run."""

    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return Path.write_text, (Path("sprung"), "it ran")


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("where", ["data", "labels", "other", "all"])
def test_nothing_that_a_batch_names_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int, where: str) -> None:
    monkeypatch.chdir(tmp_path)
    held: dict[str, object] = {"data": COLOUR.reshape(4, -1), "labels": [0, 1, 2, 3]}
    value = Trap() if where == "all" else {**held, where: Trap()}
    (tmp_path / "test_batch").write_bytes(pickle.dumps(value, protocol))
    if where == "other" and protocol:
        assert load_images(tmp_path / "test_batch").labels is not None
    else:
        with pytest.raises(UsageError, match="cannot read the images"):
            load_images(tmp_path / "test_batch")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("t10k-images-idx3-ubyte", idx(GREY)[:-1], "its header declares 5x28x28 bytes, it holds 3919"),
        ("t10k-images-idx3-ubyte", idx(GREY_LABELS), "images and labels are two files"),
        ("t10k-images-idx3-ubyte", b"\0\0\x08\x03" + b"\xff" * 12, "declares 4294967295x"),
        ("t10k-images-idx3-ubyte", b"\0\0\x0d\x03" + b"\0" * 12, "neither an idx file of bytes"),
        ("t10k-images-idx3-ubyte.gz", b"\x1f\x8b no", "cannot read the images"),
        ("test_batch.bin", b"\0" * 5000, "no whole number"),
        ("test_batch.bin", b"", "no whole number"),
        ("test_batch", pickle.dumps([1, 2]), "no batch of CIFAR"),
        ("test_batch", pickle.dumps({"data": np.zeros((2, 7), np.uint8), "labels": [0, 1]}), r"shape \[2, 7\]"),
        ("test_batch", pickle.dumps({"data": np.zeros((2, 3072)), "labels": [0, 1]}), "no rows of bytes"),
        ("test_batch", pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": ["a", "b"]}), "where a number should"),
        ("test_batch", pickle.dumps({"data": np.zeros((2, 3072), np.uint8)})[:-20], "cannot read the images"),
        ("test_batch", b"\x80\x02h\x05.", "cannot read the images"),
        ("test_batch", b"\x80\x02tR.", "cannot read the images"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, name: str, data: bytes, why: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError, match=why):
        load_images(tmp_path / name)


def test_labels_of_another_length_are_refused(tmp_path: Path) -> None:
    path = mnist(tmp_path, packed=False)
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(GREY_LABELS[:4]))
    with pytest.raises(UsageError, match="5 images and labels of shape"):
        load_images(path)


# ---- folders of images -----------------------------------------------------------------------------------------------


def pictures(folder: Path, images: np.ndarray) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for k, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{k:03}.png")


def test_a_folder_of_classes(tmp_path: Path) -> None:
    """Labels are the folders' numbers by name; the images of a folder follow by name."""
    pixels = COLOUR.transpose(0, 2, 3, 1)
    for k, name in enumerate(("dog", "cat")):
        pictures(tmp_path / name, pixels[2 * k : 2 * k + 2])
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    held = load_images(tmp_path, shape=(3, 32, 32), n_out=2)
    np.testing.assert_array_equal(held.labels, [0, 0, 1, 1])
    np.testing.assert_array_equal(held.source, COLOUR[[2, 3, 0, 1]])
    some = load_images(tmp_path, 1, 3, (3, 32, 32))
    np.testing.assert_array_equal(some.source, COLOUR[[3, 0]])
    np.testing.assert_array_equal(some.labels, [0, 1])


def test_a_folder_of_grey_images(tmp_path: Path) -> None:
    pictures(tmp_path, GREY)
    held = load_images(tmp_path, shape=(1, 28, 28))
    assert held.labels is None
    np.testing.assert_array_equal(held.source[:, 0], GREY)


def test_folders_that_hold_something_else(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="neither images nor"):
        load_images(tmp_path)
    pictures(tmp_path, GREY[:1])
    Image.fromarray(GREY[0][:20]).save(tmp_path / "zz.png")
    with pytest.raises(UsageError, match="28x20 pixels"):
        load_images(tmp_path)
    (tmp_path / "zz.png").write_bytes(b"no image")
    with pytest.raises(UsageError, match="cannot read the image"):
        load_images(tmp_path)
    assert len(load_images(tmp_path, 0, 1).source) == 1


def test_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures(tmp_path, GREY)
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(UsageError, match="takes Pillow"):
        load_images(tmp_path)
