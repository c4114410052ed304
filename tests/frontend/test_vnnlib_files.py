"""VNN-LIB files: packed, large, and bad ones, which are refused in words."""

from __future__ import annotations

import gzip
import time
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polytriton.errors import PolytritonError, UnsupportedProperty, UsageError
from polytriton.frontend.vnnlib import read_vnnlib
from tests.frontend.vnnlib_texts import HEAD, HEAD2, legacy

# Files


def test_files_plain_and_packed(tmp_path: Path) -> None:
    text = legacy("(<= Y_0 0)")
    (tmp_path / "p.vnnlib").write_text(text)
    with gzip.open(tmp_path / "q.vnnlib.gz", "wt") as file:
        file.write(text)
    assert read_vnnlib(tmp_path / "p.vnnlib").name == "p"
    assert read_vnnlib(str(tmp_path / "q.vnnlib.gz")).name == "q"
    (tmp_path / "bad.vnnlib.gz").write_bytes(b"no gzip")
    (tmp_path / "cut.vnnlib.gz").write_bytes((tmp_path / "q.vnnlib.gz").read_bytes()[:-12])
    for name in ("bad.vnnlib.gz", "cut.vnnlib.gz", "none.vnnlib", "."):
        with pytest.raises(UsageError):
            read_vnnlib(tmp_path / name)


def test_large_files_read_fast() -> None:
    n = 5000
    text = "".join(f"(declare-const X_{i} Real)\n" for i in range(n)) + HEAD.split("\n", 2)[2]
    text += "".join(f"(assert (<= X_{i} 0.{i + 1}))\n(assert (>= X_{i} 0.0{i}))\n" for i in range(n))
    text += "(assert (or " + " ".join(f"(and (<= Y_0 {i}.5) (>= Y_1 X_{i}))" for i in range(20)) + "))"
    start = time.process_time()
    prop = read_vnnlib(text)
    assert time.process_time() - start < 3, "about 0.2 s on an idle core"
    assert len(prop.disjuncts) == 20
    assert len({id(d.lo) for d in prop.disjuncts}) == len({id(d.exact_lo) for d in prop.disjuncts}) == 1


# Refusals


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "X_0 is not declared"),
        (HEAD, "X_0 has no lower bound"),
        (HEAD + "(assert (<= -1 X_0 1))", "X_1 has no lower bound"),
        (HEAD + "(assert (<= -1 X_0 1))(assert (<= 0 X_1))", "X_1 has no upper bound"),
        (legacy("(>= X_0 0.5)", "(<= X_0 0.2)"), "inverted box for X_0: 0.5 > 0.2"),
        (legacy("(not (or (< X_0 1) (>= X_0 1)))"), "inverted box for X_0"),
        (legacy("(<= (* X_0 Y_0) 1)"), "not linear"),
        (legacy("(<= (* Y_1 Y_1) 1)"), "not linear"),
        (legacy("(<= (/ 1 Y_1) 1)"), "not linear"),
        (legacy("(<= (/ Y_1 0) 1)"), "division by zero"),
        (legacy("(<= X_0 1e999999999)"), "out of range"),
        (legacy("(<= X_0 1e99999999999999999999)"), "out of range"),
        (legacy("(<= X_0 -1e400)"), "inverted box"),
        (HEAD + "(assert (<= 0 X_0 1e400))(assert (<= 0 X_1 1))", "beyond float64"),
        (legacy("(<= Y_0 1e400)"), "beyond float64"),
        (legacy("(<= X_0 nan)"), "`nan` is no bound"),
        (legacy("(<= X_0 -inf)"), "is no bound"),
        (legacy("(<= X_7 1)"), "X_7"),
        (legacy("(<= X_0 1)") + ")", "closing bracket too many"),
        (legacy("(<= X_0 1)") + "(assert", "ends inside a bracket"),
        (legacy("(=> (<= X_0 1) (<= Y_0 1))"), "unknown operator `=>`"),
        (legacy("X_0"), "a comparison was expected"),
        (legacy("(<= (and (<= X_0 1)) 1)"), "a number or a variable was expected"),
        (legacy("(<= X_0 " + "9" * 2000 + ")"), "2000 digits"),
        (legacy("(<= (*" + " 1e400" * 100 + " X_0) 1)"), "grows beyond any use"),
        (legacy("(and " * 5000 + "(<= X_0 1)" + ")" * 5000), "nest deeper"),
        (legacy(*["(or (<= Y_0 0) (>= Y_1 1))"] * 18), "262,144 disjuncts"),
        (legacy(*["(or (<= Y_0 0) (>= Y_1 1))"] * 5000), "over 10^12 disjuncts"),
        ("(declare-const X_0 Int)", "declare-const is not understood"),
        ("(declare-const Z_0 Real)", "neither an input"),
        ("(declare-const X_0 Real)(declare-const X_0 Real)", "declared twice"),
        ("(declare-const X_0 Real)(declare-const X_2 Real)(declare-const Y_0 Real)", "X_1 is not declared"),
        ("(vnnlib-version <3.0>)", "version"),
        (HEAD2 + "(declare-network g (declare-input A float32 [2]) (declare-output B float32 [2]))", "about 2 networks"),
        (HEAD2 + "(assert (<= X[0,2] 1))", "outside the shape [1, 2]"),
        (HEAD2 + "(assert (<= X[0] 1))", "X has 2 axes"),
        (HEAD2 + "(assert (<= X 1))", "X has 2 axes"),
        (HEAD2 + "(declare-const X_0 Real)", "is not understood"),
        (HEAD2.replace("float32", "int8"), "element type `int8`"),
        (HEAD2.replace("[2]", "[99999999,99999999]"), "elements are supported"),
        (HEAD2.replace("(declare-output", "(declare-input Z Real []) (declare-output"), "network of 2 inputs"),
        (HEAD2.replace("(declare-output", '(declare-hidden Z Real [] "n") (declare-output') + "(assert (<= Z 1))", "hidden node Z"),
    ],
)
def test_refusals_name_the_trouble(text: str, message: str) -> None:
    start = time.process_time()
    with pytest.raises(UnsupportedProperty) as caught:
        read_vnnlib(text)
    assert message in str(caught.value)
    assert caught.value.remedy
    assert time.process_time() - start < 5


def test_errors_name_the_line() -> None:
    with pytest.raises(UnsupportedProperty, match=r"property:7: "):
        read_vnnlib(HEAD + "; a comment ) (\n\n(assert (<= X_0 oops))")


def test_property_of_another_network() -> None:
    with pytest.raises(UnsupportedProperty, match="it declares 2 inputs, the network has 5"):
        read_vnnlib(legacy("(<= Y_0 0)"), n_in=5)
    with pytest.raises(UnsupportedProperty, match="it declares 2 outputs, the network has 10"):
        read_vnnlib(legacy("(<= Y_0 0)"), n_in=2, n_out=10)


def test_deep_nesting_within_the_limit() -> None:
    deep = "(not " * 900 + "(<= Y_0 1)" + ")" * 900
    assert len(read_vnnlib(legacy(deep)).disjuncts) == 1
    sums = "(+ X_0 " * 900 + "1" + ")" * 900
    assert read_vnnlib(legacy(f"(<= Y_0 {sums})")).disjuncts[0].rows[0].x == ((0, Fraction(-900)),)


WHOLE = legacy("(or (and (<= X_0 0.25) (>= Y_0 1e-3)) (not (= (* 2 Y_1) (- X_1 3))))") + "; end\n"


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_files_are_refused_not_crashed(data) -> None:
    text = data.draw(st.sampled_from([WHOLE, HEAD2 + "(assert (<= -1 X[0,0] 1))(assert (<= -1 X[0,1] 1.5))(assert (!= Y[0] Y[1]))"]))
    raw = bytearray(text.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(len(raw) - 1, 0)))
        action = data.draw(st.sampled_from(["set", "cut", "drop", "insert", "copy"]))
        if action == "set" and raw:
            raw[at] = data.draw(st.integers(0, 255))
        elif action == "cut":
            del raw[at:]
        elif action == "drop":
            del raw[at : at + data.draw(st.integers(1, 8))]
        elif action == "insert":
            raw[at:at] = data.draw(
                st.sampled_from([b"(", b")", b"[", b"]", b'"', b";", b" ", b"X_0", b"[0]", b"1e9", b"()", b"-", "٣".encode()])
            )
        else:
            raw[at:at] = raw[: data.draw(st.integers(0, 60))]
    try:
        prop = read_vnnlib(";\n" + raw.decode(errors="replace"))
    except PolytritonError:
        return
    assert all(np.isfinite(d.lo).all() and (d.lo <= d.hi).all() for d in prop.disjuncts)
