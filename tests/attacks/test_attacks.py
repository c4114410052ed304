"""Every known attack bites, fools a verifier that rounds to nearest where it was made for one, and does not fool polytriton."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from polytriton.api import Verifier
from polytriton.frontend.query import Property
from polytriton.ir.interp import run
from tests.attacks.__main__ import execution, main, margin
from tests.attacks.constructions import FMA, Attack, backdoor, brightness, chord, detector, every, hidden, swallowed
from tests.attacks.nearest import Nearest

ATTACKS = list(every())
NAMES = [a.name for a in ATTACKS]


def naive(attack: Attack, dtype: str) -> float:
    return float(Nearest(attack.net, np.dtype(dtype)).margins(attack.lo, attack.hi, attack.forms)[0])


@pytest.mark.thinned(3)
@pytest.mark.parametrize("attack", ATTACKS, ids=NAMES)
def test_the_attack_bites(attack: Attack) -> None:
    assert ((attack.lo <= attack.at) & (attack.at <= attack.hi)).all()
    if attack.deployed is None:
        assert attack.exact() <= 0
    else:
        assert attack.exact() > 0
        assert execution(attack) < 0


@pytest.mark.thinned(4)
@pytest.mark.parametrize("dtype", ["float32", "float64", "auto"])
@pytest.mark.parametrize("attack", ATTACKS, ids=NAMES)
def test_no_bound_exceeds_the_truth(attack: Attack, dtype: str) -> None:
    true = attack.exact()
    for candidates in ("all", "input"):
        for semantics in ("real", "float32", "tf32", "bf16", "float16"):
            claimed = margin(attack, semantics, dtype, candidates)
            assert claimed == -np.inf or Fraction(claimed) <= true, (semantics, candidates)
            if attack.deployed is not None and semantics in attack.covered:
                assert claimed <= execution(attack), (semantics, candidates)


@pytest.mark.parametrize("attack", ATTACKS, ids=NAMES)
def test_what_is_violated_is_never_verified(attack: Attack) -> None:
    rows = [(attack.lo, attack.hi)]
    outputs = attack.net.node(attack.net.output).size
    for semantics in ("float32",) if attack.deployed else ("real", "float32"):
        if attack.deployed and semantics not in attack.covered:
            continue
        verifier = Verifier.from_net(attack.net, semantics=semantics)
        if outputs == 2:
            result = verifier.verify_property(Property.from_box(*rows[0], 0, 2))
            assert result.verdict != "unsat"
        assert margin(attack, semantics) <= 0


@pytest.mark.parametrize("attack", [backdoor(27, 1), backdoor(27, 3), swallowed(27)], ids=lambda a: a.name)
def test_float32_to_nearest_verifies_what_is_false(attack: Attack) -> None:
    assert naive(attack, "float32") > 0 > attack.exact()


@pytest.mark.parametrize("attack", [backdoor(56, 1), backdoor(56, 4), swallowed(56)], ids=lambda a: a.name)
def test_float64_to_nearest_verifies_what_is_false(attack: Attack) -> None:
    assert naive(attack, "float32") > 0 > attack.exact()
    assert naive(attack, "float64") > 0


def test_float32_to_nearest_claims_more_than_the_truth_at_the_brink() -> None:
    """Jia and Rinard's images, and chords that pass below their end: about as often as not."""
    images = [brightness(seed) for seed in range(12)]
    assert sum(Fraction(naive(a, "float32")) > a.exact() for a in images) >= 4
    assert all(margin(a, "real") > 0 for a in images[:6]), "exactly they are safe, and float64 coefficients see it"
    chords = [chord(seed) for seed in range(40)]
    assert sum(Fraction(naive(a, "float32")) > a.exact() for a in chords) >= 8


@pytest.mark.parametrize("attack", [a for a in ATTACKS if a.name.startswith("detector")], ids=lambda a: a.name)
def test_detectors_are_verified_where_they_are_safe(attack: Attack) -> None:
    assert margin(attack, "real") > 0
    if "float32" not in attack.covered:
        assert margin(attack, "float32") > 0
    if attack.name != f"detector of {FMA}":
        assert max(naive(attack, "float32"), naive(attack, "float64")) > 0


def test_the_sum_that_fuses_or_not() -> None:
    """The two environments of one detector differ in nothing but fusing."""
    attack = detector(FMA)
    at = attack.deployed
    assert at is not None
    fused = Attack(attack.name, attack.net, attack.lo, attack.hi, attack.forms, attack.at, type(at)(**{**at.__dict__, "fma": 1}))
    assert execution(fused) > 0 > execution(attack)


@pytest.mark.parametrize("pixels,steep", [(4, 1e4), (12, 1e6)])
def test_hidden_counterexamples_are_hidden(pixels: int, steep: float) -> None:
    attack = hidden(pixels, steep)
    points = np.random.default_rng(0).uniform(attack.lo, attack.hi, (20_000, pixels))
    assert (run(attack.net, points) @ attack.forms[0] > 0).all()
    assert attack.exact() == -1


def test_the_table_has_a_line_for_every_attack_that_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--only", "swallowed unit"])
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[0] == "attack"
    assert [line[:42].strip() for line in lines] == [name for name in NAMES if "swallowed unit" in name] != []
    assert all(float(line.split()[-1]) < 0 for line in lines)  # float32 does not prove what is violated
