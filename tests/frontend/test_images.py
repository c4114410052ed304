"""Image files and balls: the float64 box holds the exact ball, tightly; files that mean something else are refused."""

from __future__ import annotations

import math
import os
import pickle
import time
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polytriton.errors import UsageError
from polytriton.frontend import balls
from polytriton.frontend.balls import ball, exact_ball
from polytriton.frontend.images import load_images, parse_epsilon, parse_list
from polytriton.frontend.query import Disjunct, float_bounds
from polytriton.runtime.attack.box import _inward

DATA = Path(os.environ.get("POLYTRITON_DATA") or Path(__file__).parents[2].parent / "shared" / "data")
NORMAL = {"mean": parse_list("0.4914,0.4822,0.4465"), "std": parse_list("0.2023,0.1994,0.201")}


def need_data() -> Path:
    if not (DATA / "images").is_dir():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"no image data in {DATA}; set POLYTRITON_DATA")
    return DATA


def encloses(image: np.ndarray, lo: np.ndarray, hi: np.ndarray, places: int, eps: Fraction, **more) -> None:
    """The box holds the exact ball and each bound is at most so many float64 places away (relative to the box's magnitude)."""
    exact_lo, exact_hi = exact_ball(image, eps, **more)
    for a, b, low, high in zip(exact_lo, exact_hi, lo.ravel().tolist(), hi.ravel().tolist(), strict=True):
        assert Fraction(low) <= a <= b <= Fraction(high)
        slack = places * Fraction(float(np.spacing(max(abs(low), abs(high), 1.0) if places > 1 else max(abs(low), abs(high)))))
        assert a - Fraction(low) <= slack
        assert Fraction(high) - b <= slack


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 255), min_size=12, max_size=12),
    st.fractions(0, 1, max_denominator=1000),
    st.booleans(),
    st.booleans(),
)
def test_integer_balls_are_exact(levels, eps, clipped, normal) -> None:
    image = np.array(levels, dtype=np.uint8).reshape(3, 2, 2)
    more = {"clip": (0, 1) if clipped else None, **(NORMAL if normal else {})}
    lo, hi = ball(image[None], eps, **more)
    encloses(image, lo, hi, 1, eps, **more)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=12, max_size=12), st.fractions(0, 1, max_denominator=1000), st.booleans())
def test_few_float_values_are_exact(pixels, eps, normal) -> None:
    image = np.array(pixels).reshape(3, 2, 2)
    more = NORMAL if normal else {}
    lo, hi = ball(image[None], eps, **more)
    encloses(image, lo, hi, 1, eps, **more)


@pytest.mark.parametrize(
    "more", [{}, NORMAL, {"clip": None}, {"clip": (0, Fraction(1)), "mean": parse_list("0.5"), "std": parse_list("0.3")}]
)
def test_many_float_values_are_enclosed(more) -> None:
    rng = np.random.default_rng(0)
    image = rng.random((3, 50, 100))
    image[0, 0, :4] = 0, 1, 5e-324, 1e-310
    for eps in (Fraction(0), Fraction(8, 255), Fraction(1, 10**9)):
        lo, hi = ball(image[None], eps, **more)
        encloses(image[:, :2], lo[0, :, :2], hi[0, :, :2], 60, eps, **more)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("mean", [Fraction(-0.9), Fraction(0.9), Fraction(0.5)])
@pytest.mark.parametrize(
    "std",
    [Fraction(0.5) + Fraction(1, 10**40), Fraction(float(np.nextafter(0.5, 1))) - Fraction(1, 10**40), Fraction(3, 10), Fraction(0.7)],
)
def test_no_margin_is_wasted_on_many_float_values(mean, std) -> None:
    """Small pixels against a large mean: hardly any slack is left over from one operation to cover for the next."""
    image = np.random.default_rng(2).random((1, 1, 6000)) / 10
    more = {"mean": (mean,), "std": (std,), "clip": None}
    lo, hi = ball(image[None], Fraction(0), **more)
    encloses(image, lo[0], hi[0], 8, Fraction(0), **more)


def test_balls_of_a_hundred_images_are_fast() -> None:
    rng = np.random.default_rng(1)
    for images in (rng.integers(0, 256, (100, 3, 32, 32), dtype=np.uint8), rng.random((100, 3, 32, 32))):
        start = time.process_time()
        lo, hi = ball(images, Fraction(2, 255), **NORMAL)
        assert time.process_time() - start < 3, "about 0.1 s on an idle core"
        assert lo.shape == hi.shape == images.shape
        assert (lo < hi).all()


def test_ball_refuses_what_it_cannot_mean() -> None:
    image = np.full((1, 3, 2, 2), 0.5)
    for bad in (
        {"mean": parse_list("0.5,0.5"), "std": parse_list("1,1")},
        {"mean": parse_list("0.5,0.5,0.5"), "std": parse_list("1")},
        {"std": parse_list("0")},
        {"std": parse_list("-1")},
        {"clip": (0, Fraction(1, 4))},
        {"epsilon": Fraction(-1)},
        {"std": (Fraction(1, 10**400),)},
    ):
        with pytest.raises(UsageError):
            ball(image, **{"epsilon": Fraction(1, 10), **bad})
    for broken in (image * np.nan, image + 1, -image, np.full((1, 3, 2, 2), 256)):
        with pytest.raises(UsageError):
            ball(broken, Fraction(1, 10))


@pytest.mark.parametrize(
    "text, value",
    [("8/255", Fraction(8, 255)), ("0.3", Fraction(3, 10)), (" 1e-3 ", Fraction(1, 1000)), ("1.", Fraction(1)), ("0", Fraction(0))],
)
def test_epsilon(text: str, value: Fraction) -> None:
    assert parse_epsilon(text) == value


@pytest.mark.parametrize(
    "text, message",
    [
        ("2%", "for 2% write 0.02"),
        ("-0.1", "negative"),
        ("nan", "no epsilon"),
        ("", "no epsilon"),
        ("1/0", "zero"),
        ("8", "did you mean 8/255, or 0.08 for 8 per cent?"),
        ("1e999", "no epsilon"),
    ],
)
def test_epsilon_refusals(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_epsilon(text)
    assert message in str(caught.value)


def test_lists() -> None:
    assert parse_list("0.1307, 0.3,.4") == (Fraction(1307, 10000), Fraction(3, 10), Fraction(2, 5))
    for text in ("", "1,,2", "a"):
        with pytest.raises(UsageError):
            parse_list(text)


# Files

LEVELS = np.arange(24, dtype=np.uint8).reshape(2, 3, 2, 2) * 10


@pytest.mark.parametrize("keys", [("images", "labels"), ("x", "y"), ("x_test", "y_test"), ("anything", None)])
def test_npz_of_bytes(tmp_path: Path, keys) -> None:
    arrays = {keys[0]: LEVELS, **({keys[1]: np.array([1, 2])} if keys[1] else {})}
    np.savez(tmp_path / "a.npz", **arrays)
    held = load_images(tmp_path / "a.npz", shape=(3, 2, 2))
    pixels, labels = held
    assert (pixels == LEVELS / 255).all()
    assert held.source.dtype == np.uint8
    assert (held.source == LEVELS).all()
    assert labels is None if keys[1] is None else labels.tolist() == [1, 2]


def test_ranges_and_slices(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", LEVELS)
    assert (load_images(tmp_path / "a.npy", 1, 2).levels == LEVELS[1:]).all()
    for start, end in ((2, None), (-1, 1), (0, 3), (1, 1)):
        with pytest.raises(UsageError, match="holds 0 to 2"):
            load_images(tmp_path / "a.npy", start, end)


def test_csv_has_the_label_first(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("7,0,128,255,3\n2,1,0,0,1\n")
    held = load_images(file, shape=(1, 2, 2))
    assert held.labels is not None
    assert held.labels.tolist() == [7, 2]
    assert held.levels is not None
    assert held.levels.tolist() == [[[[0, 128], [255, 3]]], [[[1, 0], [0, 1]]]], "the whole file decides that pixels are bytes"
    file.write_text("7,0,0.5,1,0.25\n")
    held = load_images(file)
    assert held.levels is None
    assert held.pixels.tolist() == [[0, 0.5, 1, 0.25]]
    with pytest.raises(UsageError, match="label 7 of image 0"):
        load_images(file, n_out=7)
    for text in ("", "7,1,2\n3,1\n", "label,p0\n1,2\n", "7.5,0,1\n", "7,nan,1\n", "7,0.5,2\n", "-1,0,1\n"):
        file.write_text(text)
        with pytest.raises(UsageError):
            load_images(file)


def test_channels_last_is_turned(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=LEVELS.transpose(0, 2, 3, 1))
    assert (load_images(tmp_path / "a.npz", shape=(3, 2, 2)).levels == LEVELS).all()
    flat = np.column_stack([np.zeros(2), LEVELS.transpose(0, 2, 3, 1).reshape(2, -1)])
    np.savetxt(tmp_path / "a.csv", flat, delimiter=",", fmt="%d")
    assert (load_images(tmp_path / "a.csv", shape=(3, 2, 2), layout="hwc").levels == LEVELS).all()
    with pytest.raises(UsageError, match="axes"):
        load_images(tmp_path / "a.npz", shape=(2, 3, 2))
    with pytest.raises(UsageError, match="layout"):
        load_images(tmp_path / "a.csv", shape=(3, 2, 2), layout="rgb")


def test_range_mistakes(tmp_path: Path) -> None:
    file = tmp_path / "a.npy"
    np.save(file, LEVELS.astype(np.float32))
    with pytest.raises(UsageError) as caught:
        load_images(file)
    assert "--scale 1/255" in str(caught.value)
    assert (load_images(file, scale=Fraction(1, 255)).levels == LEVELS).all()
    np.save(file, np.linspace(-2, 2, 8).reshape(2, 4))
    with pytest.raises(UsageError, match="normalised already"):
        load_images(file)
    np.save(file, np.full((2, 4), 100.5))
    assert load_images(file, scale=Fraction(1, 201)).pixels.max() == 0.5


def test_damaged_files(tmp_path: Path) -> None:
    np.save(tmp_path / "o.npy", np.array([{}, []], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "two.npz", a=LEVELS, b=LEVELS)
    np.savez(tmp_path / "short.npz", images=LEVELS, labels=np.arange(3))
    np.savez(tmp_path / "flat.npz", images=np.arange(3))
    np.savez(tmp_path / "text.npz", images=np.array([["a"]]))
    (tmp_path / "z.npz").write_bytes(b"PK\3\4 no archive")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "two.npz").read_bytes()[:200])
    (tmp_path / "e.npy").write_bytes(b"")
    for name in ("o.npy", "two.npz", "short.npz", "flat.npz", "text.npz", "z.npz", "cut.npz", "e.npy", "none.npz", "a.png"):
        with pytest.raises(UsageError):
            load_images(tmp_path / name)
    np.save(tmp_path / "a.npy", LEVELS)
    with pytest.raises(UsageError, match="has 12 pixels, the network takes 3x32x32 = 3072"):
        load_images(tmp_path / "a.npy", shape=(3, 32, 32))


def test_published_images() -> None:
    held = load_images(need_data() / "images" / "cifar100.npz", 0, 10, shape=(3, 32, 32), n_out=10)
    assert held.pixels.shape == (10, 3, 32, 32)
    lo, hi = ball(held.source, Fraction(2, 255), **NORMAL)
    encloses(held.source[3], lo[3], hi[3], 1, Fraction(2, 255), **NORMAL)


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(st.integers(0, 255), st.floats(0, 1), st.sampled_from([0.0, -0.0, 5e-324, 1e-310, 1.0])),
    st.fractions(0, 1, max_denominator=10**30),
    st.fractions(-2, 2, max_denominator=1000),
    st.fractions(Fraction(1, 1000), 3, max_denominator=1000),
    st.sampled_from([None, (0, 1), (Fraction(1, 3), Fraction(2, 3))]),
)
def test_bounds_in_integers_are_the_rationals_own(value, eps, mean, std, clip) -> None:
    whole = isinstance(value, int)
    lo, hi = balls._interval(Fraction(value) / (255 if whole else 1), eps, mean, std, clip)
    for _ in range(2):  # the second time it is known
        ((a, b),) = balls._least([value], whole, eps, mean, std, clip)
        assert (a, b) == (float_bounds(lo)[0], float_bounds(hi)[1])


def test_rationals_are_worked_out_when_somebody_looks(monkeypatch) -> None:
    image, more = np.array([[[0.25, 0.5]]]), ((Fraction(0),), (Fraction(1),), (0, 1))
    lo, hi = balls.lazy_ball(image, Fraction(1, 3), *more)
    want = exact_ball(image, Fraction(1, 3))
    image[:] = 7.0  # the caller's own
    made = pickle.loads(pickle.dumps((lo, hi)))
    monkeypatch.setattr(balls, "exact_ball", lambda *_, **__: pytest.fail("asked too early"))
    assert len(lo) == len(hi) == 2
    monkeypatch.undo()
    for side, wanted in zip((lo, hi, *made), want * 2, strict=True):
        assert tuple(side) == wanted and side[1] == wanted[1] and side[:1] == wanted[:1]


def test_a_ball_as_a_property(monkeypatch) -> None:
    """Its float64 box is the exact ball's own; nothing is worked out for a proof that needs no counterexample."""
    import polytriton

    verifier = polytriton.compile("examples/digits_conv_ibp.onnx", check=False)
    image = np.load("examples/digits.npz")["images"][0].astype(np.float64)
    exact_lo, exact_hi = exact_ball(image, Fraction(1, 255), clip=(0, 1))
    with monkeypatch.context() as patch:
        patch.setattr(balls, "exact_ball", lambda *_, **__: pytest.fail("asked for a proof"))
        prop = verifier.ball_property(image, Fraction(1, 255), int(np.load("examples/digits.npz")["labels"][0]), clip=(0, 1))
        assert verifier.verify_property(prop).verdict == "unsat"
    d = prop.disjuncts[0]
    assert tuple(d.exact_lo) == exact_lo and tuple(d.exact_hi) == exact_hi
    assert d.lo.tolist() == [float_bounds(v)[0] for v in exact_lo] and d.hi.tolist() == [float_bounds(v)[1] for v in exact_hi]


@settings(max_examples=60, deadline=None)
@given(st.fractions(-1, 1, max_denominator=12), st.fractions(0, 1, max_denominator=12), st.integers(0, 2), st.booleans(), st.booleans())
def test_the_largest_box_inside(low, width, wider, open_lo, open_hi) -> None:
    """Also where the float64 box around is wider than it had to be."""
    high = low + width
    lo, hi = float_bounds(low)[0], float_bounds(high)[1]
    for _ in range(wider):
        lo, hi = math.nextafter(lo, -math.inf), math.nextafter(hi, math.inf)
    d = Disjunct(np.array([lo]), np.array([hi]), (low,), (high,), (), frozenset([0] if open_lo else []), frozenset([0] if open_hi else []))
    (a,), (b,) = (v.tolist() for v in _inward(d, np.dtype(np.float64)))
    assert Fraction(a) > low if open_lo else Fraction(a) >= low
    assert Fraction(b) < high if open_hi else Fraction(b) <= high
    before, after = Fraction(math.nextafter(a, -math.inf)), Fraction(math.nextafter(b, math.inf))
    assert before <= low if open_lo else before < low
    assert after >= high if open_hi else after > high
