"""The CHECK helper itself can fail."""

from __future__ import annotations

import pytest

from tests.filecheck import filecheck

TEXT = "alpha  one\nbeta two\ngamma 3x3\n"


@pytest.mark.parametrize(
    "checks",
    [
        "CHECK: alpha one\nCHECK-NEXT: beta\nCHECK: gamma {{[0-9]x[0-9]}}",
        "// CHECK: beta\nCHECK-NOT: alpha",
        "CHECK: alpha\nCHECK-NOT: gamma\nCHECK: two\na comment",
        "CHECK-NOT: delta",
    ],
)
def test_what_holds_passes(checks: str) -> None:
    filecheck(TEXT, checks)


@pytest.mark.parametrize(
    "checks",
    [
        "",
        "CHECK: delta",
        "CHECK: beta\nCHECK: alpha",
        "CHECK: alpha\nCHECK-NEXT: gamma",
        "CHECK: alpha\nCHECK-NOT: two\nCHECK: gamma",
        "CHECK-NOT: gamma",
        "CHECK: gamma {{^x}}",
        "CHECK: gamma 3.3",
        "CHECK: gamma\nCHECK-NEXT: alpha",
    ],
)
def test_what_does_not_hold_fails(checks: str) -> None:
    with pytest.raises(AssertionError):
        filecheck(TEXT, checks)
