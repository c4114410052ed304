"""Properties decided together: what a batch says of each is what each says alone, also where some have parts that others lack."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import polytriton
from polytriton.commands.groups import ImageOptions
from polytriton.commands.tune import _work
from polytriton.errors import UsageError
from polytriton.frontend.query import Property
from polytriton.frontend.vnnlib import read_vnnlib
from polytriton.prove.attempt import Attempt
from polytriton.prove.questions import questions, unite
from polytriton.prove.together import decide_together
from polytriton.tuning import work
from tests.cli import tiny

PARTS = {
    "proved": (0.1, "(or (and (<= Y_0 Y_1)) (and (<= Y_0 Y_2)))"),
    "falsified": (0.6, "(or (and (<= Y_0 Y_1)) (and (<= Y_0 Y_2)))"),
    "mixed and proved": (0.1, "(>= (- Y_0 X_0) 0.25)"),
    "mixed and falsified": (0.1, "(<= (- Y_0 X_1) 0.85)"),
    "with coefficients that round": (0.1, "(<= (* 0.1 Y_0) (* 0.3 Y_1))"),
    "a piece proved, another not": (0.3, "(or (and (<= Y_0 -1.0)) (and (>= Y_1 0.3) (>= Y_2 0.3)))"),
}


@pytest.fixture
def net(tmp_path: Path) -> polytriton.Verifier:
    return polytriton.compile(tiny.brightest(tmp_path / "net.onnx"), semantics="real")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    return {
        name: tiny.vnnlib(tmp_path / f"{name}.vnnlib", [(v - e, v + e) for v in tiny.BRIGHT], unsafe) for name, (e, unsafe) in PARTS.items()
    }


@pytest.fixture
def props(net: polytriton.Verifier, files: dict[str, Path]) -> dict[str, Property]:
    read = {name: read_vnnlib(file, n_in=net.inputs, n_out=net.outputs) for name, file in files.items()}
    return {"nothing unsafe": Property.from_disjuncts("nothing unsafe", net.inputs, net.outputs, ()), **read}


def test_together_as_alone(net: polytriton.Verifier, props: dict[str, Property]) -> None:
    found = dict(decide_together(net, list(props.values()), [None] * len(props)))
    alone = {name: net.verify_property(p) for name, p in props.items()}
    assert {name: r.verdict for name, r in alone.items()} == {
        "proved": "unsat", "falsified": "sat", "mixed and proved": "unsat", "mixed and falsified": "sat",
        "with coefficients that round": "unsat", "a piece proved, another not": "sat", "nothing unsafe": "unsat",
    }  # fmt: skip
    for k, (name, prop) in enumerate(props.items()):
        assert found[k].verdict == alone[name].verdict and found[k].rivals == () and not found[k].statistics
        if found[k].verdict == "unsat":
            np.testing.assert_allclose(found[k].margins, alone[name].margins, rtol=1e-6)
        else:
            assert found[k].counterexample is not None
            assert prop.violated(found[k].counterexample.x.ravel(), found[k].counterexample.y.ravel()) is not None


def test_what_the_quick_steps_leave_open_is_tried_further(
    net: polytriton.Verifier, props: dict[str, Property], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first try proves nothing here; what a search has falsified meanwhile is not asked about again."""
    names, asked, run = list(props), list[set[str]](), Attempt.run

    def later(attempt: Attempt, rows: np.ndarray) -> None:
        groups = attempt.q.group[rows]
        begins = np.cumsum([0, *(len(p.disjuncts) for p in props.values())])
        asked.append({names[int(np.searchsorted(begins, g, side="right")) - 1] for g in groups})
        if len(asked) > 1:
            run(attempt, rows)

    monkeypatch.setattr(Attempt, "run", later)
    found = dict(decide_together(net, list(props.values()), [None] * len(props)))
    verdicts = {name: found[k].verdict for k, name in enumerate(names)}
    assert verdicts.pop("nothing unsafe") == "unsat"
    assert asked[0] == set(verdicts) and asked[1] == {name for name, v in verdicts.items() if v == "unsat"}
    assert set(verdicts.values()) == {"sat", "unsat"}


@pytest.mark.parametrize("falsifier", [False, True])
def test_unknown_together_as_alone(tmp_path: Path, falsifier: bool) -> None:
    """What no relaxation shows stays open, with the margin that was reached, beside what is proved."""
    net = polytriton.compile(tiny.zero(tmp_path / "zero.onnx"), semantics="real")
    files = [tiny.hard(tmp_path / "a.vnnlib", 0.5), tiny.hard(tmp_path / "b.vnnlib", 0.25)]
    files.append(tiny.vnnlib(tmp_path / "c.vnnlib", [(-0.5, 0.5)], "(>= Y_0 9.0)", outputs=1))
    props = [read_vnnlib(f, n_in=1, n_out=1) for f in files]
    heard: list[str] = []
    found = dict(decide_together(net, props, [None] * 3, falsifier=falsifier, progress=lambda stage, done, total: heard.append(stage)))
    alone = [net.verify_property(p, falsifier=falsifier, search="none") for p in props]  # as together: one try
    assert [found[k].verdict for k in range(3)] == [r.verdict for r in alone] == ["unknown", "unknown", "unsat"]
    for k, r in enumerate(alone):
        np.testing.assert_allclose(found[k].margins, r.margins, rtol=1e-6)
        assert found[k].counterexample is None and found[k].seconds > 0
    assert ("looking for a counterexample" in heard) == falsifier


def test_united_keeps_every_part(props: dict[str, Property]) -> None:
    asked = [q for q in map(questions, props.values()) if q is not None]
    whole, ends = unite(asked)
    assert len(ends) == len(asked) + 1 and ends[-1] == whole.group.max() + 1
    at = boxes = 0
    for k, q in enumerate(asked):
        rows = slice(at, at + len(q.image))
        assert np.array_equal(whole.group[rows], q.group + ends[k]) and np.array_equal(whole.image[rows], q.image + boxes)
        assert np.array_equal(whole.lo[boxes : boxes + len(q.lo)], q.lo) and np.array_equal(whole.hi[boxes : boxes + len(q.hi)], q.hi)
        for name in ("over_output", "constant", "over_input", "output_error", "input_error"):
            mine, ours = getattr(q, name), getattr(whole, name)
            assert np.array_equal(ours[rows], np.zeros_like(ours[rows]) if mine is None else mine), name
        at, boxes = at + len(q.image), boxes + len(q.lo)
    assert any(q.over_input is None for q in asked) and whole.over_input is not None and whole.over_input.any()
    plain, _ = unite([q for q in asked if q.over_input is None])
    assert plain.over_input is None and plain.input_error is None


def test_a_property_of_another_network_is_refused(net: polytriton.Verifier, props: dict[str, Property], tmp_path: Path) -> None:
    other = read_vnnlib(tiny.vnnlib(tmp_path / "other.vnnlib", [(0, 1)] * 5, "(<= Y_0 Y_1)"))
    with pytest.raises(UsageError, match="5 inputs"):
        next(decide_together(net, [props["proved"], other], [None, None]))


def test_nothing_to_decide(net: polytriton.Verifier) -> None:
    assert list(decide_together(net, [], [])) == []


def test_mixed_properties_are_work_to_tune_on(net: polytriton.Verifier, files: dict[str, Path]) -> None:
    asked = _work(Path("net.onnx"), net, ImageOptions(), list(files.values()), 0)
    again = work.unpack(work.pack(asked))
    best = work.run(net, again)
    assert again.over_input is not None and len(best) == len(asked.image) and np.isfinite(best).all()
