"""The public Python interface on the example networks."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

import polytriton
from polytriton.errors import PolytritonError
from polytriton.frontend.query import Property
from polytriton.ir import interp
from polytriton.prove.questions import questions

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    with np.load(EXAMPLES / "digits.npz") as held:
        return held["images"].astype(np.float64), held["labels"]


@pytest.fixture(scope="module")
def net() -> polytriton.Verifier:
    return polytriton.compile(EXAMPLES / "digits_resnet_ibp.onnx")


def test_bounds_margins_and_verdicts_agree(net: polytriton.Verifier, digits: tuple[np.ndarray, np.ndarray]) -> None:
    x, labels = digits[0][:6], digits[1][:6]
    b = net.bounds(x - 0.02, x + 0.02)
    assert b.lo.shape == b.hi.shape == (6, 10)
    assert all(v.lo.shape[0] == 6 and (v.lo <= v.hi).all() for v in b.layers.values())
    y = net.predict(x)
    assert (b.lo <= y).all() and (y <= b.hi).all()
    forms = np.stack([np.eye(10)[label] - np.delete(np.eye(10), label, axis=0) for label in labels])
    m = net.margins(x - 0.02, x + 0.02, forms)
    results = net.verify(x, epsilon=0.02, label=labels)
    assert len(results) == 6
    for k, r in enumerate(results):
        assert r.label == labels[k] and r.rivals == tuple(j for j in range(10) if j != labels[k])
        assert r.margins.shape == (9,)
        if (m[k] > 0).all():
            assert r.verdict == "unsat"
        if r.verdict == "unsat":
            assert (r.margins > 0).all()


def test_a_batch_says_what_single_images_say(net: polytriton.Verifier, digits: tuple[np.ndarray, np.ndarray]) -> None:
    x, labels = digits[0][:12], digits[1][:12]
    together = net.verify(x, epsilon="0.08", label=labels, clip=(0, 1))
    alone = [net.verify(v, epsilon="0.08", label=int(k), clip=(0, 1)) for v, k in zip(x, labels, strict=True)]
    assert [r.verdict for r in together] == [r.verdict for r in alone]
    assert {r.verdict for r in alone} >= {"unsat"}


@pytest.mark.slow
def test_a_counterexample_is_one(digits: tuple[np.ndarray, np.ndarray]) -> None:
    net = polytriton.compile(EXAMPLES / "digits_conv_normal.onnx")
    found = 0
    for x, label in zip(digits[0][:20], digits[1][:20], strict=True):
        r = net.verify(x, epsilon=0.1, label=int(label), search="none")
        if r.verdict == "sat":
            found += 1
            assert r.counterexample is not None
            assert np.abs(r.counterexample.x.reshape(x.shape) - x).max() <= 0.1
            assert net.predict(r.counterexample.x)[0].argmax() != label or np.ptp(np.sort(r.counterexample.y.ravel())[-2:]) == 0
    assert found


def test_tensors_labels_and_defaults(net: polytriton.Verifier, digits: tuple[np.ndarray, np.ndarray]) -> None:
    x = digits[0][0]
    a = net.verify(torch.tensor(x, dtype=torch.float32, requires_grad=True), epsilon=Fraction(1, 100))
    assert a.label == int(net.predict(x)[0].argmax())
    assert a.verdict == "unsat" and a.margin > 0 and a.seconds >= 0


def test_save_and_load(net: polytriton.Verifier, digits: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    x = digits[0][:2]
    again = polytriton.load(net.save(tmp_path / "net.poly"))
    a, b = net.bounds(x - 0.01, x + 0.01), again.bounds(x - 0.01, x + 0.01)
    assert np.array_equal(a.lo, b.lo) and np.array_equal(a.hi, b.hi)


def test_boxes_that_share_one_side_only() -> None:
    """Disjuncts may share their lower bounds and not their upper ones."""
    net = polytriton.compile(EXAMPLES / "digits_conv_ibp.onnx", semantics="real")
    x = np.load(EXAMPLES / "digits.npz")["images"][0].astype(np.float64).reshape(-1)
    label = int(interp.run(net.net, x)[0].argmax())
    small, large = (Property.from_box(np.zeros(64), np.full(64, top), label, 10).disjuncts[0] for top in (1e-6, 1.0))
    from dataclasses import replace

    lo, exact = large.lo, large.exact_lo
    both = Property.from_disjuncts("two", 64, 10, (replace(small, lo=lo, exact_lo=exact), replace(large, lo=lo, exact_lo=exact)))
    alone = [Property.from_disjuncts("one", 64, 10, (d,)) for d in both.disjuncts]
    verdicts = [net.verify_property(p, falsifier=False, search="none").verdict for p in alone]
    assert net.verify_property(both, falsifier=False, search="none").verdict == ("unsat" if verdicts == ["unsat", "unsat"] else "unknown")
    q = questions(both)
    assert q is not None and len(q.hi) == 2 and not np.array_equal(q.hi[0], q.hi[1])


@pytest.mark.parametrize(
    "call,words",
    [
        (lambda n: n.bounds(np.zeros(63), np.ones(63)), "64 values"),
        (lambda n: n.bounds(np.ones(64), np.zeros(64)), "inverted"),
        (lambda n: n.bounds(np.full(64, np.nan), np.ones(64)), "NaN"),
        (lambda n: n.margins(np.zeros(64), np.ones(64), np.ones((1, 9))), "forms"),
        (lambda n: n.verify(np.zeros(64), epsilon="8%"), "epsilon"),
        (lambda n: n.verify(np.zeros(64), epsilon=0.1, label=10), "label 10"),
        (lambda n: polytriton.compile(EXAMPLES / "none.onnx"), "none.onnx"),
        (lambda n: polytriton.compile(EXAMPLES / "digits_conv_ibp.onnx", semantics="float31"), "float32"),
        (lambda n: polytriton.compile(EXAMPLES / "digits_conv_ibp.onnx", memory=1), "memory"),
    ],
)
def test_mistakes_meet_a_message(net: polytriton.Verifier, call: object, words: str) -> None:
    with pytest.raises(PolytritonError) as caught:
        call(net)  # type: ignore[operator]
    assert words.lower() in str(caught.value).lower() and "\n" not in caught.value.message
