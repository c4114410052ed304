"""Arrays, tensors, lists and files: one number is one number however it is handed over."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import polytriton
from polytriton.errors import PolytritonError
from polytriton.frontend.arrays import as_numpy, as_pixels, exact_numbers

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def net() -> polytriton.Verifier:
    return polytriton.compile(EXAMPLES / "digits_conv_ibp.onnx")


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    with np.load(EXAMPLES / "digits.npz") as held:
        return held["images"].astype(np.float64)


def test_bounds_of_arrays_tensors_lists_and_files(net: polytriton.Verifier, images: np.ndarray, tmp_path: Path) -> None:
    x = images[:2]
    np.save(tmp_path / "lo.npy", x - 0.01)
    want = net.bounds(x - 0.01, x + 0.01)
    forms: tuple[Callable[[np.ndarray], Any], ...] = (torch.tensor, lambda v: v.tolist(), lambda v: [torch.tensor(i) for i in v])
    for form in forms:
        got = net.bounds(form(x - 0.01), form(x + 0.01))
        assert np.array_equal(got.lo, want.lo) and np.array_equal(got.hi, want.hi)
    assert np.array_equal(net.bounds(str(tmp_path / "lo.npy"), x + 0.01).lo, want.lo)
    eye = np.eye(10)[:2]
    assert np.array_equal(net.margins(x, x, eye.tolist()), net.margins(x, x, torch.tensor(eye)))
    assert as_numpy(torch.tensor([1.5], dtype=torch.bfloat16, requires_grad=True), "x").tolist() == [1.5]


def test_a_file_of_images_is_a_batch_with_its_labels(net: polytriton.Verifier, tmp_path: Path) -> None:
    with np.load(EXAMPLES / "digits.npz") as held:
        np.savez(tmp_path / "few.npz", images=held["images"][:3], labels=held["labels"][:3])
        labels = held["labels"][:3].tolist()
    results = net.verify(tmp_path / "few.npz", "0.05", clip=(0, 1))
    assert [r.label for r in results] == labels and [r.verdict for r in results] == ["unsat"] * 3
    assert [r.label for r in net.verify(str(tmp_path / "few.npz"), "0.01", label=[1, 2, 3], falsifier=False)] == [1, 2, 3]
    assert net.predict(tmp_path / "few.npz").argmax(1).tolist() == labels


def test_uint8_is_a_level_of_255_exactly(net: polytriton.Verifier, images: np.ndarray) -> None:
    levels = np.rint(images[:2] * 255).astype(np.uint8)
    seen: list[tuple[Any, Any]] = []
    for image in levels:
        prop = net.ball_property(image, Fraction(1, 100), 0)
        for level, lo, hi in zip(image.ravel().tolist(), prop.disjuncts[0].exact_lo, prop.disjuncts[0].exact_hi, strict=True):
            assert (lo, hi) == (Fraction(level, 255) - Fraction(1, 100), Fraction(level, 255) + Fraction(1, 100))
            seen.append((lo, hi))
    assert len(seen) == 128
    a, b = net.verify(levels, "0.01"), net.verify(levels / 255.0, "0.01")
    for r, s in zip(a, b, strict=True):
        assert (r.verdict, r.label) == (s.verdict, s.label) and np.abs(r.margins - s.margins).max() < 1e-9
    assert np.array_equal(net.predict(levels), net.predict(levels / 255.0))


def test_mean_and_std_are_numbers_or_one_a_channel() -> None:
    assert exact_numbers(0.1307) == exact_numbers("0.1307") == (Fraction(1307, 10000),)
    wanted = (Fraction(1, 10), Fraction(1, 5))
    listed = ((0.1, "1/5"), [0.1, 0.2], np.array([0.1, 0.2]), np.array([0.1, 0.2], np.float32), torch.tensor([0.1, 0.2]))
    assert all(exact_numbers(v) == wanted for v in listed)


def test_normalised_pixels_are_what_the_network_gets(net: polytriton.Verifier, images: np.ndarray) -> None:
    """(pixel - mean) / std of a network that learnt plain pixels: shifted images are taken back to them."""
    x = images[:3]
    a = net.verify(x, "0.05", clip=(0, 1))
    b = net.verify(2 * x + 1, "0.1", clip=(1, 3), mean=1, std=(2,))
    for r, s in zip(a, b, strict=True):
        assert (r.label, r.verdict) == (s.label, s.verdict) and np.abs(r.margins - s.margins).max() < 1e-6


def test_what_counts_as_one_image(net: polytriton.Verifier, images: np.ndarray) -> None:
    for one in (images[0], images[0].reshape(-1), images[0, 0]):
        assert isinstance(net.verify(one, "0.01"), polytriton.Result)
    for batch in (images[:1], images[:2], images[:2].reshape(2, -1)):
        assert len(net.verify(batch, "0.01")) == len(batch)


def test_channels_last_is_brought_into_order_and_other_axes_are_refused() -> None:
    pixels = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5) / 120.0
    assert np.array_equal(as_pixels(pixels.transpose(0, 2, 3, 1), (3, 4, 5)).values, pixels)
    assert np.array_equal(as_pixels(pixels.transpose(0, 2, 3, 1)[0], (3, 4, 5)).values, pixels[:1])
    assert np.array_equal(as_pixels(pixels.reshape(2, 60), (3, 4, 5)).values, pixels)
    for wrong in (
        pixels.transpose(0, 3, 1, 2),
        pixels.reshape(6, 20),
        pixels.reshape(-1),
        pixels.reshape(4, 30),
        np.zeros(0),
        np.float64(1),
    ):
        with pytest.raises(PolytritonError):
            as_pixels(wrong, (3, 4, 5))
    assert as_pixels(np.zeros((1, 1, 28, 28)), (784,)).values.shape == (1, 784)


def test_vnnlib_files_texts_and_properties() -> None:
    net = polytriton.compile(EXAMPLES / "digits_conv_normal.onnx")
    path = EXAMPLES / "specs" / "digits_conv_normal_21_0.05.vnnlib"
    asked = (
        net.verify_vnnlib(path),
        net.verify_vnnlib(str(path)),
        net.verify(path),
        net.verify(str(path)),
        net.verify_property(path.read_text()),
        net.verify(path.read_text()),
        net.verify(polytriton.read_vnnlib(path)),
    )
    assert [r.verdict for r in asked] == ["sat"] * len(asked)
    assert all(r.picture is None and r.label is None for r in asked)


def test_no_targets_leave_nothing_to_prove(net: polytriton.Verifier, images: np.ndarray) -> None:
    assert [r.verdict for r in net.verify(images[:2], "0.01", targets=[])] == ["unsat", "unsat"]
    assert net.verify(images[0], "0.01", targets=[]).margin == np.inf


@pytest.mark.parametrize(
    "call,words",
    [
        (lambda n: n.verify(np.zeros(64)), "radius"),
        (lambda n: n.verify("images.png", "0.1"), "images.png"),
        (lambda n: n.verify("nothing.npz", "0.1"), "nothing.npz"),
        (lambda n: n.verify("nothing.vnnlib"), "nothing.vnnlib"),
        (lambda n: n.verify("nothing.vnnlib", "0.1"), "no epsilon"),
        (lambda n: n.verify_vnnlib(EXAMPLES / "specs" / "none.vnnlib"), "none.vnnlib"),
        (lambda n: n.verify_property("(declare-const X_0 Real)\n(declare-const Y_0 Real)\n(assert (>= X_0 0))"), "property"),
        (lambda n: n.bounds("lo.npy", np.ones(64)), "lo.npy"),
        (lambda n: n.bounds("lo.csv", np.ones(64)), ".npy"),
        (lambda n: n.bounds([[1, 2], [3]], np.ones(64)), "lo"),
        (lambda n: n.bounds(np.array(["a"] * 64), np.ones(64)), "real numbers"),
        (lambda n: n.verify(np.zeros(64), "0.1", mean=(0, 0, 0), std=(1, 1, 1)), "3 means"),
        (lambda n: n.verify(np.zeros(64), "0.1", mean="a"), "no numbers"),
        (lambda n: n.verify(np.zeros(64), "0.1", std=0), "standard deviation"),
        (lambda n: n.verify(np.full(64, 200.0), "0.1", clip=(0, 1)), "scale the pixels"),
        (lambda n: n.verify(np.zeros((2, 64)), "0.1", label=[1, 2, 3]), "3 labels"),
        (lambda n: n.predict(np.zeros(63)), "64 values"),
        (lambda n: n.predict(np.full(64, np.inf)), "NaN or infinity"),
    ],
)
def test_mistakes_meet_a_message(net: polytriton.Verifier, call: Any, words: str) -> None:
    with pytest.raises(PolytritonError) as caught:
        call(net)
    assert words in str(caught.value) and caught.value.remedy and "\n" not in caught.value.message


def test_a_pickle_is_not_opened(net: polytriton.Verifier, tmp_path: Path) -> None:
    np.save(tmp_path / "lo.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(PolytritonError, match="pickled"):
        net.bounds(tmp_path / "lo.npy", np.ones(64))
