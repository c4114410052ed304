"""The certified radius: a bracket whose lower end was proved, on fakes that know the truth and on networks that do not."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import polytriton
from polytriton.api import Verifier
from polytriton.errors import UsageError
from polytriton.prove.radius import LEAST, bisect, certify_radius
from tests.cli import tiny


@given(
    truth=st.fractions(0, 1, max_denominator=10**5),
    start=st.fractions(Fraction(1, 10**4), 1, max_denominator=10**4),
    tolerance=st.sampled_from([Fraction(1, 10), Fraction(1, 100), Fraction(1, 1000)]),
)
def test_the_bracket_holds_the_truth_and_is_as_narrow_as_asked(truth: Fraction, start: Fraction, tolerance: Fraction) -> None:
    asked = {}

    def ask(radius: Fraction) -> str:
        assert radius not in asked
        asked[radius] = "unsat" if radius <= truth else "unknown"
        return asked[radius]

    found = bisect(ask, start, tolerance=tolerance)
    assert found.finished and found.queries == len(asked) < 60
    assert found.proved is not None and found.proved <= truth
    assert asked[found.proved] == "unsat"
    if truth == 1:
        assert (found.proved, found.not_proved) == (1, None)
    else:
        assert found.not_proved is not None and truth < found.not_proved
        assert asked[found.not_proved] == found.verdict == "unknown"
        assert found.not_proved <= LEAST or found.not_proved - found.proved <= tolerance * found.not_proved


@given(answers=st.lists(st.sampled_from(["unsat", "unknown", "sat", "timeout"]), min_size=1), start=st.fractions(Fraction(1, 1000), 1))
def test_whatever_the_answers_what_is_reported_was_proved(answers: list[str], start: Fraction) -> None:
    said = {}

    def ask(radius: Fraction) -> str:
        said[radius] = answers[len(said) % len(answers)]
        return said[radius]

    found = bisect(ask, start)
    assert found.proved is None or said[found.proved] == "unsat"
    assert found.not_proved is None or (said[found.not_proved] == found.verdict != "unsat")
    assert found.finished == ("timeout" not in said.values())
    if found.proved is not None and found.not_proved is not None:
        assert found.proved < found.not_proved


def test_what_is_known_is_not_asked_again() -> None:
    asked = []

    def ask(radius: Fraction) -> str:
        asked.append(radius)
        return "unsat" if radius <= Fraction(3, 100) else "unknown"

    up = bisect(ask, Fraction(1, 50), known=[(Fraction(1, 50), "unsat")])
    assert Fraction(0) not in asked and Fraction(1, 50) not in asked
    assert up.proved is not None and Fraction(29, 1000) < up.proved <= Fraction(3, 100)
    asked.clear()
    down = bisect(ask, Fraction(1, 20), known=[(Fraction(1, 20), "sat")])
    assert max(asked) < Fraction(1, 20)
    assert down.proved is not None and down.proved <= Fraction(3, 100)
    assert bisect(ask, Fraction(1, 20), known=[(Fraction(1, 20), "timeout")]).proved is not None  # says nothing


@pytest.fixture(scope="module")
def bright(tmp_path_factory: pytest.TempPathFactory) -> Verifier:
    path: Path = tiny.brightest(tmp_path_factory.mktemp("net") / "net.onnx")
    return polytriton.compile(path, check=False)


def test_a_radius_that_can_be_seen(bright: Verifier) -> None:
    """Label 0 leads by 0.7, which two pixels use up at 0.35."""
    image = np.array(tiny.BRIGHT).reshape(1, 2, 2)
    found = certify_radius(bright, image, 0, clip=(0, 1), tolerance=Fraction(1, 1000))
    assert found.finished and found.proved is not None and found.not_proved is not None
    assert Fraction("0.349") < found.proved < Fraction("0.35") <= found.not_proved < Fraction("0.351")
    prop = bright.ball_property(image, found.proved, 0, clip=(0, 1))
    assert bright.verify_property(prop, falsifier=False).verdict == "unsat"


def test_a_wrong_label_has_no_radius(bright: Verifier) -> None:
    found = certify_radius(bright, np.array(tiny.BRIGHT).reshape(1, 2, 2), 1, clip=(0, 1))
    assert (found.proved, found.not_proved, found.queries) == (None, 0, 1)


def test_a_rival_that_cannot_win_leaves_the_whole_range(bright: Verifier) -> None:
    found = certify_radius(bright, np.array(tiny.BRIGHT).reshape(1, 2, 2), 0, clip=(0, 1), targets=())
    assert (found.proved, found.not_proved, found.verdict) == (1, None, "")


def test_no_time_proves_nothing(bright: Verifier) -> None:
    found = certify_radius(bright, np.array(tiny.BRIGHT).reshape(1, 2, 2), 0, timeout=1e-9)
    assert (found.proved, found.finished, found.verdict) == (None, False, "timeout")


@pytest.mark.parametrize("options", [{"tolerance": Fraction(0)}, {"tolerance": Fraction(2)}, {"timeout": 0.0}, {"timeout": float("nan")}])
def test_wrong_options_say_so(bright: Verifier, options: dict) -> None:
    with pytest.raises(UsageError):
        certify_radius(bright, np.zeros((1, 2, 2)), 0, **options)


def test_no_counterexample_lies_in_a_certified_ball() -> None:
    """Random inputs of the ball, by the original model: its answer never changes."""
    verifier = polytriton.compile("examples/digits_conv_ibp.onnx", check=False)
    data, rng = np.load("examples/digits.npz"), np.random.default_rng(0)
    for k in range(3):
        image, label = data["images"][k], int(data["labels"][k])
        found = certify_radius(verifier, image, label, clip=(0, 1), tolerance=Fraction(1, 20))
        assert found.proved is not None and found.proved > Fraction("0.02")
        eps = float(found.proved) * 0.999
        points = np.clip(image + eps * rng.choice([-1.0, 1.0], (200, *image.shape)), 0, 1)
        assert (verifier.predict(points).argmax(1) == label).all()


def test_batches_and_single_images_from_python(bright: Verifier) -> None:
    images = np.array([tiny.BRIGHT, (0.55, 0.5, 0.2, 0.4)]).reshape(2, 1, 2, 2)
    both = bright.radius(images, clip=(0, 1), tolerance="0.1", mean="0.5", std="0.5")
    assert [r.finished for r in both] == [True, True]
    one = bright.radius(images[0], 0, clip=(0, 1), tolerance="0.1", mean="0.5", std="0.5", epsilon="1/4")
    for found, truth in ((both[0], 0.35), (both[1], 0.025), (one, 0.35)):
        assert found.proved <= Fraction(str(truth)) <= found.not_proved
        assert float(found.proved) > 0.85 * truth
    with pytest.raises(UsageError):
        bright.radius(images, epsilon="2")
