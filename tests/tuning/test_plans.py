"""Plans that a configuration chooses: windows that become whole images elsewhere, and checks that are left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import polytriton
from polytriton.api import Verifier, load
from polytriton.artifact import read_artifact, write_artifact
from polytriton.ir import interp
from polytriton.ir.plan import Plan
from polytriton.ir.plan_text import print_plan
from polytriton.passes.pipeline import compile_net, replan
from polytriton.passes.windows import DENSE_SHARE
from polytriton.prove.decider import Try
from polytriton.runtime.config import DEFAULT, Config
from polytriton.runtime.engine import Engine
from polytriton.runtime.layers import from_physical
from polytriton.tuned import Entry, Tuned, device_name, plan_key, versions
from polytriton.tuning import work
from polytriton.tuning.checks import Check, Seen
from polytriton.tuning.cpu_cost import plan_cost
from polytriton.tuning.device import TYPICAL
from polytriton.tuning.evidence import Reference, gather_evidence
from polytriton.tuning.plans import Plans, shares
from polytriton.tuning.profile import CONV, Profile, profile_engine
from polytriton.tuning.space import plan_choices
from tests.oracle.nets import random_box, random_net

ROOT = Path(__file__).parents[2]

OPTIONS: dict[str, Any] = {"device": "cpu", "semantics": "float32", "dtype": "float32", "memory": 1 << 30}


@pytest.fixture(scope="module")
def verifier(compiled: Path) -> Verifier:
    return Verifier.from_artifact(read_artifact(compiled), **OPTIONS, config=DEFAULT)


@pytest.fixture(scope="module")
def reference(verifier: Verifier) -> Reference:
    return Reference(verifier, work.default_work(verifier, 0), 0)


@pytest.fixture(scope="module")
def seen(reference: Reference) -> Seen:
    return reference.watch("float32")


def other(verifier: Verifier, **config: Any) -> Verifier:
    return Verifier(verifier.compiled, replace(verifier.options, config=Config(**config)), verifier.imported)


def profile(verifier: Verifier) -> Profile:
    q = work.default_work(verifier, 0)
    with profile_engine(verifier._decider.engine(Try("float32", "all"))) as made:
        work.run(verifier, q)
    return made


def checks(plan: Plan) -> set[tuple[str, str, str]]:
    return {(p.kind, p.target, s.node) for p in plan for s in p.steps if s.check}


# ---- whole images ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(16))
def test_where_windows_become_whole_changes_bounds_by_rounding_alone(seed: int) -> None:
    """Under every share bounds hold for points, and are the default's."""
    compiled = compile_net(random_net(seed + 60, image=True, scale="normal", limit=80), ("all", "input")[seed % 2])
    rng = np.random.default_rng(seed)
    lo, hi = random_box(rng, compiled.net, "ordinary", 1)
    points = interp.evaluate(compiled.net, lo + rng.random((64, *lo.shape[1:])) * (hi - lo))
    box = [torch.from_numpy(v.reshape(1, -1)) for v in (lo, hi)]
    want: dict[str, torch.Tensor] = {}
    for share in (DENSE_SHARE, 1.0, 0.5, 0.2, 1e-9):
        engine = Engine(compiled, dtype="float64", semantics="real", config=Config(whole=share))
        found = engine.refine(box[0], box[1])
        for name in engine.programs:
            low, high = (from_physical(v[name], engine.nodes[name].shape).numpy() for v in (found.lo, found.hi))
            assert (low <= points[name] + 1e-9).all() and (points[name] <= high + 1e-9).all()
            both = torch.stack((found.lo[name], found.hi[name]))
            torch.testing.assert_close(both, want.setdefault(name, both), rtol=1e-9, atol=1e-9)


def test_at_the_smallest_share_every_window_is_whole_and_at_one_few_are(verifier: Verifier) -> None:
    def partial(share: float) -> int:
        plan = replan(verifier.compiled, share, {})
        return sum(not w.whole for p in plan for s in p.steps if s.op == "relu" for w in s.windows)

    assert partial(1e-9) == 0 < partial(DENSE_SHARE)
    assert replan(verifier.compiled, DENSE_SHARE, {}) is verifier.compiled.plan


def test_plans_that_are_the_same_are_one_choice(verifier: Verifier) -> None:
    found = shares(verifier.compiled)
    assert next(iter(found)) == DEFAULT.whole and found[DEFAULT.whole] is verifier.compiled.plan
    assert len({print_plan(p) for p in found.values()}) == len(found) > 1
    assert plan_choices((0.8,), ({},)) == {}


def test_a_tuned_artifact_keeps_its_plan_and_runs_another(poly: Path) -> None:
    held = read_artifact(poly)
    verifier = Verifier.from_artifact(held)
    config = {"whole": 0.2, "skips": {"gemm5": ["relu1"]}}
    entry = Entry(plan_key(held.compiled), device_name("cpu"), versions("cpu"), config, 1.0, 2.0, 9, 0)
    write_artifact(verifier, poly, None, Tuned(entries=(entry,)))
    again = read_artifact(poly)
    assert again.compiled.plan == held.compiled.plan
    found = load(poly)
    assert found.options.config == Config.of(config)
    engine = found._decider.engine(Try("float32", "all"))
    assert engine.plan == replan(held.compiled, 0.2, config["skips"]) != held.compiled.plan  # type: ignore[arg-type]
    x = np.full((1, found.inputs), 0.5)
    plain = verifier.bounds(x - 0.01, x + 0.01, effort="quick")
    assert np.allclose(found.bounds(x - 0.01, x + 0.01, effort="quick").lo, plain.lo, atol=1e-4)


@pytest.mark.parametrize("share", [1.0, 0.5, 0.2, 1e-9])
def test_configurations_with_another_plan_pass_the_check(verifier: Verifier, reference: Reference, share: float) -> None:
    made = other(verifier, whole=share)
    assert reference.problem(gather_evidence(made, reference.q, 0, work.run(made, reference.q))) == ""


# ---- predicted times ---------------------------------------------------------------------------------------------


def test_rows_of_another_plan_are_foretold(verifier: Verifier, seen: Seen) -> None:
    """The convolutions that a run by another plan multiplies by, from a run of the default."""
    held = profile(verifier)
    different = shares(verifier.compiled)
    plans = Plans(verifier.compiled, different, seen)
    for share in different:
        told = plans.load(held.load(), Config(whole=share))
        found = profile(other(verifier, whole=share))
        assert told.rows == {k: s.rows for k, s in found.kernels.items() if s.kind == CONV}
        assert told.rows.keys() <= plans.shapes.keys()
        assert told.values == pytest.approx(found.load().values, rel=0.35)
        assert plan_cost(plans.shapes, told, Config(whole=share), TYPICAL) > 0


def test_a_check_that_is_left_out_is_time_saved(verifier: Verifier, seen: Seen) -> None:
    plans = Plans(verifier.compiled, shares(verifier.compiled), seen)
    load = profile(verifier).load()
    skips = {target: [node] for target, node in seen.checks}
    less = plans.load(load, Config(skips=skips))
    assert less.values < load.values and less.passes < load.passes
    assert plan_cost(plans.shapes, less, Config(skips=skips), TYPICAL) < plan_cost(plans.shapes, load, DEFAULT, TYPICAL)


# ---- checks ------------------------------------------------------------------------------------------------------


def test_what_is_skipped_is_what_is_named(verifier: Verifier) -> None:
    plan = verifier.compiled.plan
    less = replan(verifier.compiled, DENSE_SHARE, {"gemm5": ["relu1", "image", "nobody"], "logits": ["relu6"], "conv9": ["relu1"]})
    assert checks(plan) - checks(less) == {("bound", "gemm5", "relu1")}  # the last check and the query's stay


@pytest.fixture(scope="module")
def residual() -> Verifier:
    return polytriton.compile(ROOT / "examples" / "digits_resnet_ibp.onnx", check=False, dtype="float32")


def test_idle_checks_repeat_the_bounds_exactly(residual: Verifier) -> None:
    """Bit for bit; and the check of a session agrees."""
    q = work.default_work(residual, 0, 0.01)
    reference = Reference(residual, q, 0)
    idle = reference.watch("float32").idle()
    assert idle and not idle.keys() & {"add8"}
    made = other(residual, skips=idle)
    best = work.run(made, q)
    assert (best == work.run(residual, q)).all()
    assert reference.problem(gather_evidence(made, q, 0, best), fewer=True) == ""


def test_a_check_that_the_workload_needs_may_not_be_skipped() -> None:
    """Bounds get looser, and the session says so."""
    verifier = polytriton.compile(ROOT / "examples" / "digits_conv_ibp.onnx", check=False, dtype="float32")
    q = work.default_work(verifier, 0, 0.3)
    reference = Reference(verifier, q, 0)
    needed: dict[str, list[str]] = {}
    for (target, node), check in reference.watch("float32").checks.items():
        if check.best:
            needed.setdefault(target, []).append(node)
    made = other(verifier, skips=needed)
    best = work.run(made, q)
    assert (best <= work.run(verifier, q) + 1e-5).all()
    assert "disagrees" in reference.problem(gather_evidence(made, q, 0, best), fewer=True)


def test_what_every_check_found_adds_up(verifier: Verifier, seen: Seen) -> None:
    assert {("bound", *at) for at in seen.checks} == {c for c in checks(verifier.compiled.plan) if c[0] == "bound" and c[2] != "image"}
    assert not seen.runs
    for check in seen.checks.values():
        assert 0 <= check.decided <= check.rows and 0 <= check.best <= check.rows
        assert check.values > check.rows and check.calls > 0


def test_choices_are_by_what_checks_found() -> None:
    none, some, many = Check(1000), Check(1000, decided=10), Check(1000, decided=10, best=11)
    found = Seen({("a", "x"): none, ("a", "y"): some, ("b", "x"): many})
    assert found.choices() == ({}, {"a": ["x"]}, {"a": ["x", "y"]})
    assert Seen({("b", "x"): many}).choices() == ({},)
    assert found.savings({"a": ["x"]}) == (0, 0)


def test_the_patient_tries_skip_nothing(verifier: Verifier) -> None:
    skips = {"gemm5": ["relu1"]}
    decider = other(verifier, skips=skips)._decider
    quick, patient = decider.tries(patient=False), decider.tries(patient=True)
    assert not any(how.full for how in quick) and all(how.full for how in patient)
    assert patient[0] == Try("float32", "all", full=True)
    assert decider.engine(quick[0]).config.skips == skips and decider.engine(patient[0]).config.skips == {}
    assert not any(how.full for how in verifier._decider.tries(patient=True))


def test_a_proof_that_needs_a_skipped_check_is_found_after_all() -> None:
    """Between the largest radius without any check but the last and that with all of them."""
    data = np.load(ROOT / "examples" / "digits.npz")
    x, label, epsilon = data["images"][1], int(data["labels"][1]), 0.18267
    verifier = polytriton.compile(ROOT / "examples" / "digits_conv_ibp.onnx", check=False, dtype="float32")
    fewer = other(verifier, skips={"gemm5": ["relu1"]})
    forms = np.delete(np.eye(10)[label] - np.eye(10), label, 0)
    box = np.clip(x[None] - epsilon, 0, 1), np.clip(x[None] + epsilon, 0, 1)
    assert fewer.margins(*box, forms, effort="quick").min() < 0 < verifier.margins(*box, forms, effort="quick").min()
    asked: dict[str, Any] = {"epsilon": epsilon, "label": label, "clip": (0, 1), "falsifier": False}
    assert verifier.verify(x, **asked).verdict == fewer.verify(x, **asked).verdict == "unsat"
