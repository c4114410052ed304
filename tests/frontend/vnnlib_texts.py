"""Small VNN-LIB texts of two inputs and two outputs for the tests of the frontend."""

from __future__ import annotations

HEAD = "".join(f"(declare-const {v} Real)\n" for v in ("X_0", "X_1", "Y_0", "Y_1"))
BOX = "(assert (and (<= -2 X_0 2) (<= X_1 2) (>= X_1 -2)))\n"
HEAD2 = "(vnnlib-version <2.0>)\n(declare-network f (declare-input X float32 [1,2]) (declare-output Y float32 [2]))\n"


def legacy(*asserts: str) -> str:
    return HEAD + BOX + "".join(f"(assert {a})\n" for a in asserts)
